"""Sending the retained messages that match a new subscription, a slice per loop iteration.

Rules:

* A message that was published after the SUBSCRIBE comes to the subscription anyway, so it is not
  sent from here as well. What counts is where the SUBSCRIBE stands in the log: SUBACK, and so this,
  waits for the disk, and others publish meanwhile.
* One that was published before is sent when it is committed, as any message.
* What is read and not sent yet counts against the session's window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.errors import Refused
from broker.port import FLUSHED, Durability, Position
from broker.retained import Retained, origin_of, position_of

if TYPE_CHECKING:
    from broker.session import MqttSession, Subscription
    from broker.topics import Topics


class RetainedReplay:
    """One subscription's retained messages.

    Args:
        since: the end of the log when the subscription began.
    """

    def __init__(
        self,
        retained: Retained,
        topics: Topics,
        session: MqttSession,
        subscription: Subscription,
        since: Position,
    ) -> None:
        self._core = session.core
        self._topics = topics
        self._session = session
        self._subscription = subscription
        self._since = since
        self._connection = session.connection_number
        self._found = retained.match(subscription.words)
        self._on_their_way = 0
        self._waiting = False  # for credit
        self._timed = False  # it will be asked for again in any case

    def ready(self) -> None:
        """There may be credit."""
        if self._waiting:
            self.step()

    def step(self) -> None:
        """Send the next slice, and go on in the next iteration."""
        core = self._core
        self._waiting = False
        for _ in range(core.limits.retained_slice_count):
            if self._is_over():
                return
            if self._session.credit() <= self._on_their_way:
                self._wait()
                return
            try:
                match = next(self._found)
            except StopIteration:
                return
            if match is not None:
                topic, entry = match
                if origin_of(entry) < self._since:
                    self._on_their_way += 1
                    core.commits.when(
                        position_of(entry) + 1,
                        self._visible_at(topic),
                        self._read,
                        entry,
                        urgent=False,
                    )
        core.scheduler.call_soon(self.step)

    def _wait(self) -> None:
        self._waiting = True
        self._session.replays.append(self)
        if not self._timed:
            self._timed = True
            self._core.scheduler.call_later(self._core.limits.ack_delay_seconds, self._look)

    def _look(self) -> None:
        self._timed = False
        self.ready()

    def _is_over(self) -> bool:
        """The client is gone, or has unsubscribed [MQTT-3.10.4-2]."""
        session, subscription = self._session, self._subscription
        return (
            session.connection_number != self._connection
            or session.link is None
            or session.subscriptions.get(subscription.words) is not subscription
        )

    def _visible_at(self, topic: str) -> Durability:
        """What a message of the topic waits for before a new subscriber may see it."""
        found = self._topics.topics.get(topic)
        return FLUSHED if found is None else max(FLUSHED, found.settings.commit_point)

    def _read(self, entry: bytes) -> None:
        def done(records: bytes | None, _: int) -> None:
            self._send(entry, records)

        if not self._is_over():
            self._core.reading.read_entries(entry, done)

    def _send(self, entry: bytes, records: bytes | None) -> None:
        if records is not None and not self._is_over():
            try:
                # One message, so it is all.
                for run in self._core.metas.plain_runs(records, 0, len(records))[0]:
                    self._session.send_retained(self._subscription, run, entry)
            except Refused:  # the log takes no packet id now
                seconds = self._core.limits.lazy_flush_seconds
                self._core.scheduler.call_later(seconds, lambda: self._read(entry))
                return
        self._on_their_way -= 1
