"""Producers and consumers for programs under trio."""

from polymq.remoting.driver_trio import open_consumer, open_producer

__all__ = ["open_consumer", "open_producer"]
