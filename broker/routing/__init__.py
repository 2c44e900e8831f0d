"""Which queues and subscribers a message goes to: patterns, bindings, headers."""
