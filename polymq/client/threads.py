"""Producers and consumers for programs that block, in any number of threads."""

from polymq.remoting.driver_threads import open_consumer, open_producer

__all__ = ["open_consumer", "open_producer"]
