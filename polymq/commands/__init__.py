"""The commands of `polymq`, a module for each group. `polymq/cli.py` lists them, and imports none
before it is needed."""
