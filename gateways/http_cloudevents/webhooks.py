"""Delivering one subscription to its sink, in order.

Responsible for: the window of messages taken from the subscription's queue, the head of it that
is being delivered, retries, dead letters.

Rules:

* One request at a time per subscription, always with the head of the queue: what comes later
  waits, so the sink sees the order of the log. Subscriptions do not wait for each other: each has
  a window and a task of its own.
* A message is settled when the sink has answered 2xx, or together with its dead letter. An answer
  that comes after the stop began still counts; an attempt that is cut off does not.
* While a delivery fails the head stays: waiting longer after each failure is what protects a sink
  that is down. After `attempts_max` failures the head becomes a dead letter.
* A batch that is refused, or that fails to the end, is sent again one event at a time, so that
  one bad event does not take its neighbours with it.
* What failed before a restart counts on after it (`retry_state.py`).
* While an operator has paused the queue, no request is begun, and what was taken goes back.
* 410 means that the sink is retired: the subscription stops and keeps its queue. So it does when
  its owner loses the right to read it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from polymq.broker.port import BrokerPort, Delivery, QueueConsumer, Refused
from polymq.gateways.http_cloudevents.held import Held, every_kind, take
from polymq.gateways.http_cloudevents.locks import ranges
from polymq.gateways.http_cloudevents.mapping import DeadLetter
from polymq.gateways.http_cloudevents.retry import RetryPolicy, TokenBucket, Verdict
from polymq.gateways.http_cloudevents.retry_state import RetryState
from polymq.gateways.http_cloudevents.shared import Shared
from polymq.gateways.http_cloudevents.sinks import Answer
from polymq.gateways.http_cloudevents.slots import Reputation
from polymq.gateways.http_cloudevents.subscriptions import Subscription, without_query
from polymq.net.kernels.streams import clock_ms

logger = logging.getLogger(__name__)

FAILURES_MAX: Final = 10
"""Failed requests of each webhook that operators see, of some hundred bytes each."""
_DISK_RETRY: RetryPolicy = RetryPolicy(first_seconds=1.0, wait_seconds_max=10.0)
"""Between attempts to store a dead letter while the engine refuses."""


class Attempt(NamedTuple):
    """A request that failed.

    Attributes:
        at_ms: when it ended, in milliseconds since the epoch.
        status: of the answer; 0: there was none.
        text: what went wrong.
        seconds: how long it took.
        events: how many it carried.
    """

    at_ms: int
    status: int
    text: str
    seconds: float
    events: int


class Webhook:
    """The delivery of one subscription. A `Consumer` of its queue.

    Args:
        port: that of the subscription's owner.
        retired: called when it stops for good, with the reason.

    Attributes:
        failures: the last requests that failed.
        delivered_ms: when the last one succeeded, in milliseconds since the epoch; None: none yet.
    """

    def __init__(
        self,
        subscription: Subscription,
        shared: Shared,
        port: BrokerPort,
        *,
        retired: Callable[[Subscription, str], None],
    ) -> None:
        loop = shared.loop
        self.subscription = subscription
        self._shared = shared
        self._retired = retired
        self._predicate = subscription.predicate(shared.limits)
        self._retry = subscription.retry
        self._bucket = TokenBucket(subscription.granted_per_minute, now=loop.time())
        self._window: deque[Held] = deque()  # taken from the queue and not settled, in order
        self._window_bytes = 0
        self._arrived = asyncio.Event()  # the window is not empty, and it may begin
        self._starting = False  # it waits for its start
        self._attempts = 0  # failures of the head so far
        self._alone = 0  # so many events from the head on are sent one at a time
        self._last_chance = False  # each of them gets one attempt
        self._busy = False  # a request is under way, or waits for its turn
        self._reputation = Reputation.NEW
        self._stopping = False
        self.failures: deque[Attempt] = deque(maxlen=FAILURES_MAX)
        self.delivered_ms: int | None = None
        self._nap: asyncio.Future[None] | None = None  # until the next attempt
        self._nap_ends = 0.0
        queue = port.queues.subscription_queue(subscription.name)
        self._queue: QueueConsumer = port.queues.consume(
            queue, self, exclusive=True, owner=self, takes_apart=every_kind
        )
        self._task = loop.create_task(self._run())
        self._task.add_done_callback(self._ended)
        loop.call_soon(self._make_ready)

    @property
    def failing(self) -> bool:
        """Whether the last request failed in a way that may pass."""
        return self._attempts > 0

    # --- what operators see and do ------------------------------------------------------------

    @property
    def paused(self) -> bool:
        """Whether an operator has paused the queue."""
        return self._queue.paused

    @property
    def attempts(self) -> int:
        """Failed requests for the head so far."""
        return self._attempts

    @property
    def held_count(self) -> int:
        """Events that were taken from the queue."""
        return len(self._window)

    @property
    def next_seconds(self) -> float | None:
        """Until the next attempt; None if none is waited for."""
        if self._nap is None:
            return None
        return max(0.0, self._nap_ends - self._shared.loop.time())

    def hurry(self) -> bool:
        """Try again at once. Returns whether an attempt was waited for."""
        return self._nap is not None and self._nap.cancel()

    # --- the consumer of the queue ------------------------------------------------------------

    def credit(self) -> int:
        """How much the window has left."""
        if self._stopping or self._window_bytes >= self._shared.limits.webhook_window_bytes:
            return 0
        return self._shared.limits.webhook_window_count - len(self._window)

    def deliver(self, delivery: Delivery) -> None:
        """Append to the window; what does not pass the filters is done with."""
        held, skipped = take(delivery, self._predicate, broker_name=self._shared.broker_name)
        for first, count in ranges(skipped):
            self._queue.settle(first, count)
        self._window.extend(held)
        self._window_bytes += sum(one.size for one in held)
        if held and not (self._arrived.is_set() or self._starting):
            self._starting = True
            self._shared.starts.begin(self._begin)

    def _begin(self) -> None:
        self._starting = False
        if self._window:
            self._arrived.set()

    def cancelled(self) -> None:
        """The queue was deleted, or its owner may not read it any more. What is in the window goes
        back to its places in `stop`."""
        if not self._stopping:
            self._stopping = True
            self._task.cancel()
            self._retired(
                self.subscription,
                "its owner may no longer read what it collects: store it again as a user with "
                "this permission",
            )

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            logger.error(
                "webhook %s: delivery ended by an internal error",
                self.subscription.name,
                exc_info=task.exception(),
            )

    # --- stop ---------------------------------------------------------------------------------

    async def stop(self, drain_seconds: float) -> None:
        """Let the request under way end, if it does so in time; put everything else back."""
        self._stopping = True
        if self._busy and drain_seconds > 0:
            await asyncio.wait([self._task], timeout=drain_seconds)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._queue.cancel()
        self._put_back()

    def _put_back(self) -> None:
        offsets = [held.offset for held in self._window]
        self._window.clear()
        self._window_bytes = 0
        for first, count in ranges(offsets):
            self._queue.requeue(first, count)

    # --- the delivery -------------------------------------------------------------------------

    async def _run(self) -> None:
        begins = True
        while not self._stopping:
            await self._arrived.wait()
            if begins:
                await self._resume()
            await self._sleep_for(self._bucket.take(self._shared.loop.time()))
            begins = self._queue.paused
            if begins:
                self._arrived.clear()
                self._attempts = self._alone = 0
                self._last_chance = False
                self._put_back()
                continue
            head = self._head()
            self._busy = True
            answer = await self._shared.sinks.deliver(
                self.subscription,
                [held.event for held in head],
                reputation=self._reputation,
            )
            self._busy = False
            self._note(answer, len(head))
            self._reputation = self._reputation_after(answer)
            await self._act(head, answer)

    def _note(self, answer: Answer, count: int) -> None:
        """For operators."""
        now = clock_ms()
        if answer.verdict is Verdict.DELIVERED:
            self.delivered_ms = now
        else:
            self.failures.append(Attempt(now, answer.status, answer.text, answer.seconds, count))

    def _reputation_after(self, answer: Answer) -> Reputation:
        """What the last request says of the subscription."""
        slow = answer.seconds > self._shared.limits.webhook_slow_seconds
        return Reputation.DOUBTFUL if slow or answer.verdict is Verdict.RETRY else Reputation.PROVEN

    async def _resume(self) -> None:
        """Go on with what failed before a restart: count on, and wait as long once more."""
        state = self._shared.retry_states.get(self.subscription.name)
        if state is None:
            return
        if state.offset != self._window[0].offset:
            self._shared.retry_states.forget(self.subscription.name)
            return
        self._attempts = state.attempts
        self._alone = state.alone
        self._last_chance = state.last_chance
        if state.attempts:
            await self._rest(
                self._retry.wait_seconds(state.attempts, self._shared.random(), retry_after=None)
            )

    def _keep(self) -> None:
        """Keep what is known of the head over a restart."""
        state = RetryState(
            offset=self._window[0].offset,
            attempts=self._attempts,
            alone=self._alone,
            last_chance=self._last_chance,
        )
        self._shared.retry_states.put(self.subscription.name, state)

    def _head(self) -> list[Held]:
        """The events of the next request."""
        if self.subscription.config.mode != "batch" or self._alone:
            return [self._window[0]]
        head: list[Held] = []
        size = 0
        for held in self._window:
            size += held.size
            if head and size > self._shared.limits.webhook_batch_bytes_max:
                break
            head.append(held)
            if len(head) == self.subscription.config.max_batch:
                break
        return head

    async def _act(self, head: Sequence[Held], answer: Answer) -> None:
        """What an answer means for the events that were sent."""
        if answer.verdict is Verdict.DELIVERED:
            self._done(head, settle=True)
        elif answer.verdict is Verdict.GONE:
            self._stopping = True
            self._retired(self.subscription, answer.text)
        elif answer.verdict is Verdict.REJECTED and len(head) > 1:
            self._isolate(head, last_chance=False)
        elif answer.verdict is Verdict.REJECTED:
            await self._bury(head[0], answer, answer.text)
        else:
            await self._failed(head, answer)

    async def _failed(self, head: Sequence[Held], answer: Answer) -> None:
        """A failure that may pass."""
        self._attempts += 1
        attempts_max = 1 if self._alone and self._last_chance else self._retry.attempts_max
        if self._attempts < attempts_max:
            self._keep()
            if self._attempts == 1:
                logger.info("webhook %s: %s; trying again", self.subscription.name, answer.text)
            await self._rest(
                self._retry.wait_seconds(self._attempts, self._shared.random(), answer.retry_after)
            )
        elif len(head) > 1:
            self._isolate(head, last_chance=True)
        else:
            await self._bury(head[0], answer, f"{answer.text}, {self._attempts} times")

    def _isolate(self, head: Sequence[Held], *, last_chance: bool) -> None:
        self._alone = len(head)
        self._last_chance = last_chance
        self._attempts = 0
        self._keep()

    async def _bury(self, held: Held, answer: Answer, reason: str) -> None:
        """Make the event a dead letter. While the engine refuses that, it stays at the head."""
        letter = DeadLetter(
            reason=reason,
            sink=without_query(self.subscription.sink or ""),
            status=answer.status,
            reply=answer.reply,
            attempts=max(self._attempts, 1),
        )
        topic = self.subscription.dead_letter_topic
        refusals = 0
        while not self._stopping:
            try:
                self._shared.dead_letters.move(held, topic, letter, self._queue)
                logger.warning("webhook %s: dead letter: %s", self.subscription.name, reason)
                self._done([held], settle=False)
                return
            except Refused as refused:
                refusals += 1
                logger.warning("webhook %s: no dead letter: %s", self.subscription.name, refused)
                await self._sleep_for(
                    _DISK_RETRY.wait_seconds(refusals, self._shared.random(), retry_after=None)
                )

    def _done(self, head: Sequence[Held], *, settle: bool) -> None:
        """The head is done with: settle it unless that is done, and go on."""
        if settle:
            for first, count in ranges(held.offset for held in head):
                self._queue.settle(first, count)
        for held in head:
            taken = self._window.popleft()
            assert taken is held, "only the head is delivered"
            self._window_bytes -= held.size
        self._attempts = 0
        self._alone = max(0, self._alone - len(head))
        if self._alone and self._window:
            self._keep()
        else:
            self._shared.retry_states.forget(self.subscription.name)
        if not self._window:
            self._arrived.clear()
        self._make_ready()

    def _make_ready(self) -> None:
        if not self._stopping:
            self._queue.ready()

    async def _rest(self, seconds: float) -> None:
        """Wait before the next attempt, unless an operator wants it now."""
        if self._stopping:
            return
        self._nap_ends = self._shared.loop.time() + seconds
        nap = self._nap = asyncio.ensure_future(self._shared.sleep(seconds))
        try:
            await asyncio.wait([nap])
        finally:
            self._nap = None
            nap.cancel()

    async def _sleep_for(self, seconds: float) -> None:
        if seconds > 0 and not self._stopping:
            await self._shared.sleep(seconds)
