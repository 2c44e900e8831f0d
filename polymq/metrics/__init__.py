"""The metrics of a server, for Prometheus."""
