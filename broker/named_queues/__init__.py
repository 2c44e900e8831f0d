"""Queues that have a name, and what their arguments ask for."""
