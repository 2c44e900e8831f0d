"""The name server: which brokers there are, and which topics each of them has.

Brokers register here every thirty seconds, clients ask where a topic lives. Name servers know
nothing of each other: every broker registers with every one of them. `tables`, `key_values` and
`requests` are pure; `server` is the part that listens.
"""
