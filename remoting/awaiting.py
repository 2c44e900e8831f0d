"""What the drivers that await have in common: asyncio's and trio's.

A driver says how to make a call, to pause, to fetch, to run operations beside each other, and to
finish something in spite of being cancelled. Everything else about operations is here, once.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from polymq.remoting.errors import CallFailed, LocalProtocolError
from polymq.remoting.frames import Command
from polymq.remoting.records import Record
from polymq.remoting.steps import Call, Fetch, Invoke, Pause, Start, Step, Steps

if TYPE_CHECKING:  # a broker that only registers starts without them
    from polymq.remoting.consumer import Consumer
    from polymq.remoting.group_bodies import MessageQueue
    from polymq.remoting.messages import Message
    from polymq.remoting.producer import Producer, Sent
    from polymq.remoting.transactions import Decision, Transactions

LEAVE_SECONDS: Final = 5.0
"""For last commits and the goodbye."""

T = TypeVar("T")
Handle = Callable[[Record], Awaitable[None] | None]
"""What a user does with a message. What it raises says: in vain."""


class Group(Protocol):
    """Operations that run beside each other."""

    def start(self, steps: Steps[object]) -> None:
        """Carry one more out."""

    def cancel(self) -> None:
        """End all of them where they are."""


class AwaitingDriver(ABC):
    """Carries operations out, any number at a time, each in the task that called `run`."""

    async def run(self, steps: Steps[T], group: Group | None = None) -> T:
        """Carry an operation out. Raises what it raises; cancelled, it stops where it is.

        Args:
            group: where the operations run that this one starts.
        """
        try:
            step = next(steps)
            while True:
                try:
                    answer = await self._carry_out(step, group)
                except CallFailed as failure:
                    step = steps.throw(failure)
                else:
                    step = steps.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            steps.close()

    async def _carry_out(self, step: Step, group: Group | None) -> Command | None:
        match step:
            case Call():
                return await self._call(step)
            case Pause():
                await self._pause(step)
            case Fetch():
                return await self._fetch(step)
            case Invoke():
                await _invoke(step)
            case Start():
                if group is None:
                    raise LocalProtocolError("this operation needs a group for what it starts")
                group.start(step.steps)
        return None

    @abstractmethod
    async def _call(self, call: Call) -> Command | None:
        """Raises CallFailed."""

    @abstractmethod
    async def _pause(self, pause: Pause) -> None: ...

    @abstractmethod
    async def _fetch(self, step: Fetch) -> Command:
        """Raises CallFailed."""

    @abstractmethod
    def open_group(self) -> AbstractAsyncContextManager[Group]:
        """A group that ends when all in it have; an error of one ends all."""

    @abstractmethod
    async def finish(self, steps: Steps[object], seconds: float) -> None:
        """Carry an operation out, cancelled or not, for at most so long."""


async def _invoke(step: Invoke) -> None:
    try:
        step.result = step.function(*step.arguments)
        if inspect.isawaitable(step.result):
            step.result = await step.result
    except Exception as error:  # noqa: BLE001  (the operation decides what it means)
        step.failure = error


async def consume(driver: AwaitingDriver, consumer: Consumer, handle: Handle) -> None:
    """Hand every message of a consumer to `handle`, until `consumer.close()` or cancelled; those
    of one queue in order.

    What `handle` raises makes the message one that was handled in vain (see `consumer`). After
    `close` what is being handled is handled to its end; cancelled, so are the handlers. In both
    cases all that was handled is committed at the end, and the brokers are told. The driver's
    handler has to be `consumer.asked`, or changes of the group are noticed late.
    """
    try:
        async with driver.open_group() as group:
            group.start(consumer.keep(handle))
            await driver.run(consumer.wait_closed())
            group.cancel()
    finally:
        await driver.finish(consumer.leave(), LEAVE_SECONDS)


@dataclass(frozen=True, slots=True)
class AwaitingProducer:
    """A producer whose methods are awaited. Made by a driver's `open_producer`."""

    driver: AwaitingDriver
    core: Producer
    transactions: Transactions | None

    async def send(
        self, message: Message, *, key: str | None = None, queue: MessageQueue | None = None
    ) -> Sent:
        """See `Producer.send`."""
        return await self.driver.run(self.core.send(message, key=key, queue=queue))

    async def send_batch(self, messages: Sequence[Message], *, key: str | None = None) -> Sent:
        """See `Producer.send_batch`."""
        return await self.driver.run(self.core.send_batch(messages, key=key))

    async def send_oneway(self, message: Message, *, key: str | None = None) -> None:
        """See `Producer.send_oneway`."""
        await self.driver.run(self.core.send_oneway(message, key=key))

    async def send_in_transaction(self, message: Message) -> tuple[Sent, Decision]:
        """See `Transactions.send`. Raises LocalProtocolError: the producer has no listener."""
        if self.transactions is None:
            raise LocalProtocolError("open the producer with a listener to send in transactions")
        return await self.driver.run(self.transactions.send(message))


@asynccontextmanager
async def producing(
    driver: AwaitingDriver, producer: Producer, transactions: Transactions | None
) -> AsyncIterator[AwaitingProducer]:
    """A producer with everything that runs beside it: heartbeats, fresh routes, answers about
    transactions. At the end the brokers are told."""
    beside = [producer.presence.keep(), producer.routes.keep_fresh()]
    if transactions is not None:
        beside.append(transactions.keep_checking())
    try:
        async with _beside(driver, beside):
            yield AwaitingProducer(driver, producer, transactions)
    finally:
        await driver.finish(producer.presence.leave(), LEAVE_SECONDS)


@asynccontextmanager
async def consuming(
    driver: AwaitingDriver, consumer: Consumer, handle: Handle
) -> AsyncIterator[Consumer]:
    """A consumer at work. At the end what is being handled is handled to its end, unless the
    caller is cancelled."""
    failure: Exception | None = None
    try:
        async with driver.open_group() as group:
            group.start(consumer.keep(handle))
            try:
                yield consumer
            except Exception as error:  # noqa: BLE001  (raised below, not within a group of errors)
                failure = error
            consumer.close()
            await driver.run(consumer.wait_closed())
            group.cancel()
    finally:
        await driver.finish(consumer.leave(), LEAVE_SECONDS)
    if failure is not None:
        raise failure


@asynccontextmanager
async def _beside(
    driver: AwaitingDriver, operations: Sequence[Steps[object]]
) -> AsyncIterator[None]:
    failure: Exception | None = None
    async with driver.open_group() as group:
        for steps in operations:
            group.start(steps)
        try:
            yield
        except Exception as error:  # noqa: BLE001  (raised below, not within a group of errors)
            failure = error
        group.cancel()
    if failure is not None:
        raise failure
