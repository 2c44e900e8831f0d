"""Messages that are published together, or in two steps."""
