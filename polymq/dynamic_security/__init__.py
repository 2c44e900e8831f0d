"""Mosquitto's dynamic security: users, roles and permissions over MQTT, at `$CONTROL`."""
