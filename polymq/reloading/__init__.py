"""Applying a changed configuration to a server that runs."""
