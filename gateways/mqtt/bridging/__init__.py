"""Bridges: the server as a client of other MQTT brokers."""
