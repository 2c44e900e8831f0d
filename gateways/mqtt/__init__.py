"""MQTT 3.1.1 (and 3.1) over TCP and TLS. README.md is the way in."""
