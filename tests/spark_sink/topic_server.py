"""Topics in memory behind the real RocketMQ listener, in a thread: tests read them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from polymq.gateways.rocketmq.server import Server as RocketmqServer
from polymq.net.connection import Context
from tests.gateways.rocketmq.rocketmq_spy_port import SpyPort


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicServer:
    """A started server."""

    port: SpyPort
    address: str


@contextmanager
def topic_server() -> Iterator[TopicServer]:
    """A server without topics; add them to its `port`."""
    spy = SpyPort()
    loop = asyncio.new_event_loop()
    context = Context(loop)
    server = RocketmqServer(port=spy.as_port(), context=context)
    number = loop.run_until_complete(server.start("127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield TopicServer(port=spy, address=f"127.0.0.1:{number}")
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(1), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        context.close()
        loop.close()
