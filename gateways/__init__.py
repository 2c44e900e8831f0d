"""The listeners: one folder per protocol, each with the same file names. None imports another."""
