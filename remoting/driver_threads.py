"""Producers and consumers for programs with threads.

    with open_producer("shop", ClientOptions(name_servers="127.0.0.1:9876")) as producer:
        producer.send(Message(topic="orders", body=b"..."))

An asyncio loop in a thread of its own carries everything out (`driver_asyncio`), so heartbeats,
routes and answers about transactions go on whatever the program does. Handlers and listeners are
called in a pool of threads, so they may block; a handler is called by several threads at a time,
but never for two messages of one queue. All methods may be called from any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from polymq.remoting import driver_asyncio
from polymq.remoting.awaiting import AwaitingProducer
from polymq.remoting.client_options import ClientOptions
from polymq.remoting.compression import Decompressors
from polymq.remoting.consumer import Consumer
from polymq.remoting.consumer_settings import ConsumerSettings
from polymq.remoting.group_bodies import MessageQueue
from polymq.remoting.messages import Message
from polymq.remoting.producer import ProducerSettings, Sent
from polymq.remoting.records import Record
from polymq.remoting.transactions import Decision, Listener

THREADS_MAX: Final = 20
"""That handle messages, as in RocketMQ's Java client."""

T = TypeVar("T")
Opened = TypeVar("Opened")


class _Loop:
    """An asyncio loop in a thread, and a pool for what may block."""

    def __init__(self, threads_max: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._pool = ThreadPoolExecutor(threads_max, thread_name_prefix="remoting")
        self._thread = threading.Thread(target=self._loop.run_forever, name="remoting", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Carry out in the loop, and wait for what comes out of it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def in_pool(self, function: Callable[..., T]) -> Callable[..., Awaitable[T]]:
        """The function, to be awaited in the loop and called in the pool."""

        async def call(*arguments: object) -> T:
            return await self._loop.run_in_executor(self._pool, function, *arguments)

        return call

    @contextmanager
    def keep_open(self, context: AbstractAsyncContextManager[Opened]) -> Iterator[Opened]:
        """Enter and leave an asynchronous context, both in one task of the loop."""
        opened: Future[Opened] = Future()
        closing = asyncio.Event()

        async def live() -> None:
            try:
                async with context as value:
                    opened.set_result(value)
                    await closing.wait()
            except BaseException as error:
                if not opened.done():
                    opened.set_exception(error)
                raise

        running = asyncio.run_coroutine_threadsafe(live(), self._loop)
        try:
            yield opened.result()
        finally:
            self._loop.call_soon_threadsafe(closing.set)
            running.result()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._pool.shutdown()
        self._loop.close()


@contextmanager
def _running_loop(threads_max: int) -> Iterator[_Loop]:
    with contextlib.closing(_Loop(threads_max)) as loop:
        yield loop


@dataclass(frozen=True, slots=True)
class ThreadsProducer:
    """A producer whose methods wait for their results. Made by `open_producer`."""

    _loop: _Loop
    _producer: AwaitingProducer

    def send(
        self, message: Message, *, key: str | None = None, queue: MessageQueue | None = None
    ) -> Sent:
        """See `Producer.send`."""
        return self._loop.run(self._producer.send(message, key=key, queue=queue))

    def send_batch(self, messages: Sequence[Message], *, key: str | None = None) -> Sent:
        """See `Producer.send_batch`."""
        return self._loop.run(self._producer.send_batch(messages, key=key))

    def send_oneway(self, message: Message, *, key: str | None = None) -> None:
        """See `Producer.send_oneway`."""
        self._loop.run(self._producer.send_oneway(message, key=key))

    def send_in_transaction(self, message: Message) -> tuple[Sent, Decision]:
        """See `Transactions.send`. The listener's `execute` is called in another thread."""
        return self._loop.run(self._producer.send_in_transaction(message))


class _ListenerInPool:
    """A listener that may block."""

    def __init__(self, loop: _Loop, listener: Listener) -> None:
        self.execute = cast(Callable[..., Awaitable[Decision]], loop.in_pool(listener.execute))
        self.check = cast(Callable[..., Awaitable[Decision]], loop.in_pool(listener.check))


@contextmanager
def open_producer(
    group: str,
    options: ClientOptions | None = None,
    *,
    settings: ProducerSettings | None = None,
    listener: Listener | None = None,
    threads_max: int = THREADS_MAX,
) -> Iterator[ThreadsProducer]:
    """As `driver_asyncio.open_producer`.

    Args:
        threads_max: in which the listener is called.
    """
    with _running_loop(threads_max) as loop:
        context = driver_asyncio.open_producer(
            group,
            options,
            settings=settings,
            listener=None if listener is None else _ListenerInPool(loop, listener),
        )
        with loop.keep_open(context) as producer:
            yield ThreadsProducer(loop, producer)


@contextmanager
def open_consumer(
    group: str,
    subscriptions: Mapping[str, str],
    handle: Callable[[Record], None],
    options: ClientOptions | None = None,
    *,
    settings: ConsumerSettings | None = None,
    decompressors: Decompressors | None = None,
    threads_max: int = THREADS_MAX,
) -> Iterator[Consumer]:
    """As `driver_asyncio.open_consumer`. The end waits for the handlers that are at work.

    Args:
        threads_max: in which messages are handled.
    """
    with _running_loop(threads_max) as loop:
        context = driver_asyncio.open_consumer(
            group,
            subscriptions,
            loop.in_pool(handle),
            options,
            settings=settings,
            decompressors=decompressors,
        )
        with loop.keep_open(context) as consumer:
            yield consumer
