"""The engine: topics, routing, queues and cursors, sessions. No sockets."""
