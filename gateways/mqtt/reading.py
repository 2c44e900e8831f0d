"""One connection's reads: packet by packet, and in turns with those of others (`net/turns.py`).

Rules:

* Between two packets of a read, between two filters of a SUBSCRIBE, and between some runs of
  publishes, the turn may be over: what is left is presented again when it is the connection's turn.
* The kernel takes acknowledgements and publishes out of the same bytes, and the acknowledgements
  come first. Where these or publishes are cut off, the bytes are parsed again in the next turn: the
  acknowledgements among them were taken, and are not taken twice.
* Where a service has to be asked whether the client may do what it wants, the rest of the read
  waits for the answer, and is presented again then.
* One call of the engine stores as many publishes of a run as may be stored at once. That depends on
  where they go (`Template.rows_at_once`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from polymq.broker.port import Refused
from polymq.core_log.kernels.batch import BODY_SIZE, BODY_START, COLUMNS, FLAGS
from polymq.gateways.mqtt.kernels import codes
from polymq.gateways.mqtt.kernels.codes import DOLLAR, EXACTLY_ONCE
from polymq.gateways.mqtt.mapping import template_key
from polymq.gateways.mqtt.packets import Disconnect
from polymq.gateways.mqtt.protocol import NEED_DATA, PUBLISHES, Inbox, Protocol
from polymq.net.turns import Turns

if TYPE_CHECKING:
    from polymq.gateways.mqtt.connection import Connection
    from polymq.gateways.mqtt.kernels.batch_path import BatchPath

PARSED_BYTES_MAX: Final = 32 * 1024
"""Bytes that are parsed at once where a read is not handled as a whole: 8,192 acknowledgements."""
RUNS_AT_ONCE: Final = 8
"""Runs of publishes between two looks at the clock: each may be the first to its topic."""
ONE_BY_ONE_MAX: Final = 64
"""Publishes of a run that are looked at one by one (QoS 2, delays), without a look at the clock."""


class Reading:
    """What of a read is handled in this turn.

    Attributes:
        is_interrupted: the rest of the read waits for the connection's turn.
    """

    __slots__ = ("_acked", "_batch_path", "_core", "_inbox", "_turns", "_work", "is_interrupted")

    def __init__(
        self, *, core: Protocol, inbox: Inbox, batch_path: BatchPath, turns: Turns
    ) -> None:
        self.is_interrupted = False
        self._core = core
        self._inbox = inbox
        self._batch_path = batch_path
        self._turns = turns
        self._work: Iterator[object] | None = None  # of a packet that was handled in part
        self._acked = 0  # bytes at the start of the rest whose acknowledgements were taken

    def take(self, connection: Connection, buffer: bytearray, start: int, end: int) -> int:
        """Handle packets until the read ends or the turn does.

        Returns:
            The index up to which the bytes were handled.

        Raises:
            RemoteProtocolError, BrokerError: close the connection.
        """
        self._turns.begin()
        if self._work is not None and not self._go_on(connection):
            return start
        core = self._core
        at = start
        parsed_max = PARSED_BYTES_MAX
        while at < end and not (connection.asking or connection.waits_for_rights):
            stop = at + (self._acked or parsed_max)
            event = core.next_event(buffer, at, min(stop, end))
            if event is PUBLISHES:
                at = self._take_inbox(connection, at)
                if self._work is not None:
                    return at
            elif event is not NEED_DATA:
                at = core.at
                shared = self._batch_path.shared
                shared.others_received += 1
                if type(event) is not Disconnect:  # each is answered with one packet, then or later
                    shared.others_sent += 1
                self._work = connection.handle(event)
                if self._work is not None and not self._go_on(connection):
                    return at
            elif stop >= end:
                return core.at
            else:
                parsed_max = end - at  # a packet that is larger
                continue
            if at < end and self._turns.is_over():
                self.is_interrupted = True
                return at
        return at

    @property
    def is_fresh(self) -> bool:
        """Whether nothing of what was read before is handled in part."""
        return self._work is None and not self._acked

    @property
    def is_working(self) -> bool:
        """Whether a packet was handled in part."""
        return self._work is not None

    def forget(self) -> None:
        """The connection has ended."""
        self._work = None
        self._acked = 0

    def _go_on(self, connection: Connection) -> bool:
        assert self._work is not None
        if not self._turns.go_on(self._work):
            self.is_interrupted = not connection.waits_for_rights
            return False
        self._work = None
        return True

    def _take_inbox(self, connection: Connection, start: int) -> int:
        """What the kernel took from the bytes from `start` on. Returns up to where it is handled,
        which is not all where the turn is over."""
        inbox, batch_path, path = self._inbox, self._batch_path, connection.fast_path
        stop = self._core.at
        if inbox.ack_count and not self._acked:
            # They take several turns, maybe, in which others use the inbox.
            acks = inbox.acks[: codes.ACK_COLUMNS * inbox.ack_count]
            self._work = connection.acks_in_steps(acks, inbox.ack_count)
            if not self._go_on(connection):
                self._acked = stop - start
                return start
        acked = start + self._acked  # up to there
        self._acked = max(0, acked - stop)
        if not inbox.run_count:
            return stop
        count = self._portion(connection)
        taken = 0
        while taken < count:
            last = min(taken + RUNS_AT_ONCE, count)
            taken = batch_path.take_publishes(path, taken, last, count)
            if taken < count and (connection.waits_for_rights or self._turns.is_over()):
                self.is_interrupted = not connection.waits_for_rights
                end = start
                if taken:
                    at = (inbox.runs[taken] - 1) * COLUMNS
                    end = inbox.batch.rows[at + BODY_START] + inbox.batch.rows[at + BODY_SIZE]
                self._acked = max(acked, stop) - end
                return end
        return stop

    def _portion(self, connection: Connection) -> int:
        """Cut long runs into what may be stored at once. Returns how many runs there are."""
        inbox = self._inbox
        batch, runs, count = inbox.batch, inbox.runs, inbox.run_count
        if batch.count == count:
            return count
        starts: list[int] = []
        for index in range(count):
            first = runs[index]
            last = runs[index + 1] if index + 1 < count else batch.count
            step = last - first
            if step > 1:
                step = min(step, self._rows_at_once(connection, first))
            starts += range(first, last, step)
        if len(starts) > count:
            runs[: len(starts)] = type(runs)("q", starts)
        return len(starts)

    def _rows_at_once(self, connection: Connection, row: int) -> int:
        batch = self._inbox.batch
        key = topic = batch.topic(row)
        flags = batch.rows[row * COLUMNS + FLAGS]
        path = connection.fast_path
        mapping = path.mapping
        if flags > codes.FLAGS_PLAIN:
            topic = topic or path.aliases.get(flags >> codes.ALIAS_SHIFT & 0xFFFF, b"")
            if not topic:
                return 1  # the alias may be set by what stands before it
            key = template_key(topic, flags)
        template = mapping.templates[flags & codes.FLAGS_OF_KIND].get(key)
        count = batch.count
        with contextlib.suppress(Refused):  # then all of it will be
            if template is None or not template.valid:
                template = mapping.template(topic, flags)
            count = template.rows_at_once
        if flags & EXACTLY_ONCE or topic[:1] == bytes((DOLLAR,)):
            count = min(count, ONE_BY_ONE_MAX)
        return count
