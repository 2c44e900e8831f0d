"""Producers and consumers for programs on an asyncio loop."""

from polymq.remoting.driver_asyncio import open_consumer, open_producer

__all__ = ["open_consumer", "open_producer"]
