"""The store: one commit log, consume queues over it, recovery and flush."""
