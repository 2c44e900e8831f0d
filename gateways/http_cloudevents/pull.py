"""Receiving by long poll: the events of one subscription under locks.

Responsible for: the waiting polls of one subscription, the events fetched for them, the locks.

Rules:

* Events are fetched from the queue only for polls that wait, so that an idle subscription holds
  nothing. What a poll could not take (its bytes were full) waits here for the next.
* A poll is answered once it has at least one event, with what is there, or empty when its time is
  over.
* Of a queue that an operator has paused nothing is handed out, and what was fetched goes back.
* An event is settled by acknowledge or by becoming a dead letter; everything else (release, the
  end of a lock, a consumer that went away, the end of the server) puts it back to its place.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from polymq.broker.port import Delivery, QueueConsumer, Refused
from polymq.gateways.http_cloudevents.codec import encode_structured
from polymq.gateways.http_cloudevents.errors import Problem
from polymq.gateways.http_cloudevents.held import Held, every_kind, take
from polymq.gateways.http_cloudevents.locks import Lock, LockTable, ranges
from polymq.gateways.http_cloudevents.mapping import DeadLetter, dead_letter_of
from polymq.gateways.http_cloudevents.shared import Shared
from polymq.gateways.http_cloudevents.subscriptions import Subscription
from polymq.gateways.http_cloudevents.work import Work


@dataclass(slots=True, eq=False)
class _Poll:
    """One waiting request.

    Attributes:
        count_max: how many events it takes.
        answer: gets what it receives.
    """

    count_max: int
    answer: asyncio.Future[list[Lock[Held]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Which lock tokens a settlement worked for, and which not, with the reason."""

    succeeded: list[str] = field(default_factory=list)
    failed: list[dict[str, Any]] = field(default_factory=list)


_LOST = "the lock has expired or never existed; receive the event again"


class PullSubscription:
    """A subscription that is received from. A `Consumer` of its queue.

    Args:
        counts: how often events were received before the server was started, by offset.
    """

    def __init__(
        self, subscription: Subscription, shared: Shared, *, counts: dict[int, int]
    ) -> None:
        self._shared = shared
        port = shared.port
        self._polls: deque[_Poll] = deque()
        self._ready: deque[Held] = deque()  # fetched, and not handed out
        self._locks: LockTable[Held] = LockTable(shared.secret, counts)
        self._timer: asyncio.TimerHandle | None = None  # of the next lock to end
        self._serving = False  # a call of `_serve` is on its way
        self._closed = False
        self.reconfigure(subscription)
        queue = port.queues.subscription_queue(subscription.name)
        self._queue: QueueConsumer = port.queues.consume(
            queue, self, exclusive=True, owner=self, takes_apart=every_kind
        )

    def reconfigure(self, subscription: Subscription) -> None:
        """Other settings for the same queue; locks and polls go on."""
        self._subscription = subscription
        self._predicate = subscription.predicate(self._shared.limits)

    @property
    def paused(self) -> bool:
        """Whether an operator has paused the queue."""
        return self._queue.paused

    # --- the consumer of the queue ------------------------------------------------------------

    def credit(self) -> int:
        """What the waiting polls can take, as far as locks are left."""
        wanted = sum(poll.count_max for poll in self._polls)
        left = self._shared.limits.locked_events_max - len(self._locks)
        return max(0, min(wanted, left) - len(self._ready))

    def deliver(self, delivery: Delivery) -> None:
        """Keep the events for the polls, which are answered after this loop iteration."""
        held, skipped = take(delivery, self._predicate, broker_name=self._shared.broker_name)
        for first, count in ranges(skipped):
            self._queue.settle(first, count)
        self._ready.extend(held)
        self._serve_soon()

    def cancelled(self) -> None:
        """The subscription was deleted."""
        self._closed = True
        self._answer_all()

    # --- the operations -----------------------------------------------------------------------

    async def receive(self, count_max: int, wait_seconds: float) -> list[Lock[Held]]:
        """Up to `count_max` events under locks; none if there are none for `wait_seconds`.

        Raises:
            Problem: 429, too many polls wait or too many events are locked.
        """
        if len(self._polls) >= self._shared.limits.polls_per_subscription_max:
            raise Problem(429, "Too many polls", "too many consumers wait on this subscription")
        if len(self._locks) >= self._shared.limits.locked_events_max:
            raise Problem(
                429,
                "Too many locked events",
                f"{len(self._locks)} events were received and are not settled; acknowledge them "
                "first",
            )
        if self._closed:
            return []
        poll = _Poll(count_max, self._shared.loop.create_future())
        self._polls.append(poll)
        self._serve()
        self._queue.ready()
        try:
            await asyncio.wait([poll.answer], timeout=wait_seconds)
        except asyncio.CancelledError:
            if poll.answer.done():  # The consumer went away with events on their way to it.
                self._put_back(poll.answer.result())
            raise
        finally:
            if poll in self._polls:
                self._polls.remove(poll)
        return poll.answer.result() if poll.answer.done() else []

    def acknowledge(self, tokens: Iterable[str]) -> Outcome:
        """These events are done with."""
        outcome = Outcome()
        settled = []
        for token, lock in self._find(tokens, outcome):
            self._locks.settle(lock)
            settled.append(lock.offset)
            outcome.succeeded.append(token)
        for first, count in ranges(settled):
            self._queue.settle(first, count)
        self._set_timer()
        return outcome

    def release(self, tokens: Iterable[str], delay_seconds: float) -> Outcome:
        """These events go back to their places, at once or after a delay."""
        outcome = Outcome()
        released = []
        for token, lock in self._find(tokens, outcome):
            if delay_seconds > 0:
                self._locks.extend(
                    lock, until=self._shared.loop.time() + delay_seconds, secret=True
                )
            else:
                released.append(lock)
            outcome.succeeded.append(token)
        self._put_back(released)
        return outcome

    def reject(self, tokens: Iterable[str]) -> Work[Outcome]:
        """These events become dead letters, each by a record of its own."""
        outcome = Outcome()
        for token, lock in self._find(tokens, outcome):
            if self._bury(lock, "rejected by a consumer"):
                outcome.succeeded.append(token)
            else:
                outcome.failed.append(_failure(token, "Refused", "the dead letter was not stored"))
            yield
        self._set_timer()
        return outcome

    def renew(self, tokens: Iterable[str]) -> Work[Outcome]:
        """The locks of these events begin anew."""
        outcome = Outcome()
        until = self._shared.loop.time() + self._subscription.config.lock_seconds
        for each in tokens:
            for token, lock in self._find((each,), outcome):
                self._locks.extend(lock, until=until)
                outcome.succeeded.append(token)
            yield
        self._set_timer()
        return outcome

    def end_polls(self) -> None:
        """The server stops: answer the waiting polls, with nothing."""
        self._answer_all()

    def close(self) -> None:
        """Stop consuming and put everything back."""
        if self._closed:
            return
        self._closed = True
        self._answer_all()
        self._queue.cancel()
        offsets = [lock.offset for lock in self._locks.release_all()]
        offsets += [held.offset for held in self._ready]
        self._ready.clear()
        self._set_timer()
        for first, count in ranges(offsets):
            self._queue.requeue(first, count)

    @property
    def counts(self) -> Mapping[int, int]:
        """How often the events were received that will come again, by offset; after `close`."""
        return self._locks.counts

    # --- inside -------------------------------------------------------------------------------

    def _find(self, tokens: Iterable[str], outcome: Outcome) -> Iterable[tuple[str, Lock[Held]]]:
        for token in tokens:
            lock = self._locks.find(token, self._shared.loop.time())
            if lock is None:
                outcome.failed.append(_failure(token, "TokenLost", _LOST))
            else:
                yield token, lock

    def _serve_soon(self) -> None:
        """Serve at the end of this loop iteration, when all of it has been delivered."""
        if not self._serving:
            self._serving = True
            self._shared.loop.call_soon(self._serve)

    def _serve(self) -> None:
        self._serving = False
        if self._queue.paused and self._ready:
            offsets = [held.offset for held in self._ready]
            self._ready.clear()
            self._requeue(offsets)
        until = self._shared.loop.time() + self._subscription.config.lock_seconds
        while self._polls and self._ready:
            poll = self._polls[0]
            if poll.answer.done():
                self._polls.popleft()
                continue
            locks: list[Lock[Held]] = []
            size = 0
            while self._ready and len(locks) < poll.count_max:
                held = self._ready[0]
                size += held.size
                if locks and size > self._shared.limits.receive_bytes_max:
                    break
                self._ready.popleft()
                lock = self._locks.lock(
                    held.offset, held, until=until, redelivered=held.message.redelivered
                )
                if lock.count <= self._subscription.retry.attempts_max or not self._bury(
                    lock, "received too often without being acknowledged"
                ):
                    locks.append(lock)
            if locks:
                self._polls.popleft()
                poll.answer.set_result(locks)
        self._set_timer()
        if self._polls and not self._closed:
            self._queue.ready()

    def _bury(self, lock: Lock[Held], reason: str) -> bool:
        """Make a dead letter; False if the engine refuses, then the lock holds on."""
        attempts = lock.count if reason.startswith("rejected") else lock.count - 1
        letter = DeadLetter(reason=reason, attempts=attempts)
        topic = self._subscription.dead_letter_topic
        try:
            self._shared.dead_letters.move(lock.content, topic, letter, self._queue)
        except Refused:
            return False
        self._locks.settle(lock)
        return True

    def _put_back(self, locks: Iterable[Lock[Held]]) -> None:
        offsets = []
        for lock in locks:
            self._locks.release(lock)
            offsets.append(lock.offset)
        self._requeue(offsets)

    def _requeue(self, offsets: list[int]) -> None:
        for first, count in ranges(offsets):
            self._queue.requeue(first, count)
        self._set_timer()
        if self._polls and offsets:
            self._queue.ready()

    def _set_timer(self) -> None:
        deadline = None if self._closed else self._locks.next_deadline()
        if self._timer is not None:
            if self._timer.when() == deadline:
                return
            self._timer.cancel()
            self._timer = None
        if deadline is not None:
            self._timer = self._shared.loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self._requeue([lock.offset for lock in self._locks.expire(self._shared.loop.time())])

    def _answer_all(self) -> None:
        while self._polls:
            poll = self._polls.popleft()
            if not poll.answer.done():
                poll.answer.set_result([])


def _failure(token: str, code: str, message: str) -> dict[str, Any]:
    return {"lockToken": token, "error": {"code": code, "message": message}}


def encode_received(locks: Iterable[Lock[Held]], encode: Callable[[object], bytes]) -> bytes:
    """The body of a receive answer; the events stand in it byte for byte.

    Args:
        encode: a JSON encoder.
    """
    parts = []
    for lock in locks:
        properties: dict[str, object] = {"lockToken": lock.token, "deliveryCount": lock.count}
        dead = dead_letter_of(lock.content.message.properties)
        if dead:
            properties["deadLetter"] = dead
        event = encode_structured(lock.content.event)
        parts.append(b'{"brokerProperties":' + encode(properties) + b',"event":' + event + b"}")
    return b'{"value":[' + b",".join(parts) + b"]}"
