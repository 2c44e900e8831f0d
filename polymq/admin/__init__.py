"""The operator's HTTP listener, and the client that the commands reach it with."""
