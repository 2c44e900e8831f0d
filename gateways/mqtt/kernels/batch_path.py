# cython: boundscheck=False, annotation_typing=False, initializedcheck=False
"""The way of a read that holds many packets: publishes to be stored, acknowledgements to be passed
on, and one answer to all of it.

It is one source in two forms: plain Python, and a C extension, for which
`batch_path.pxd` says of what types all this is. `fast_path.py` has the way of a read of one packet.

Rules:

* Python runs here per read and per run of equal publishes, not per message; what a run asks for
  beyond being stored (QoS 2, a delay) is the connection's (`connection.py`).
* Acknowledgements of a read are taken before its publishes, as `parse` may have them in any order
  that does not matter (`codes.STOP_ORDER`).
* Where a service has to be asked whether the client may publish, the run waits, and all that comes
  behind it. Only `reading.py` can leave off like that, so such a client's reads are left to it.
* One answer for all publishes that are handled together: its position is that of the last, its
  class the strongest of theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from polymq.broker.port import APPENDED, FLUSHED, Position, Reason, Refused, Unanswered
from polymq.core_log.kernels.batch import COLUMNS, FLAGS, TOPIC_SIZE, TOPIC_START
from polymq.gateways.mqtt.aliases import name_of
from polymq.gateways.mqtt.kernels.codes import (
    ACK_COLUMNS,
    ACK_TYPE,
    ALIAS_SHIFT,
    ASK_BYTES,
    DOLLAR,
    EXACTLY_ONCE,
    FLAG_PROPERTIES,
    FLAG_QOS,
    FLAGS_OF_KIND,
    FLAGS_PLAIN,
    TYPE_PUBACK,
)
from polymq.gateways.mqtt.kernels.frames import encode_acks, parse
from polymq.gateways.mqtt.mapping import template_key

if TYPE_CHECKING:
    from array import array

    from polymq.core_log.kernels.batch import Batch
    from polymq.gateways.mqtt.kernels import fast_path
    from polymq.gateways.mqtt.protocol import Inbox

RUNS_AT_ONCE: Final = 16
"""Runs of publishes that are handled without a look at the clock: each may be the first to its
topic."""
MANY_QUEUES: Final = 500
"""A publish to more of them is the last without a look at the clock."""
ACKS_AT_ONCE: Final = 1024
"""PUBACKs that do not follow each other, likewise: some 2 ms."""
RECORD_COST: Final = 16
"""As many of them take the time of one record of the log."""


class BatchPath:
    """What the connections of a listener share for it.

    Args:
        inbox: what `parse` fills. A read is handled before the next is parsed.
    """

    def __init__(self, shared: fast_path.SharedPaths, inbox: Inbox) -> None:
        self.shared = shared
        self.inbox = inbox
        self.batch: Batch = inbox.batch
        self.rows: array[int] = inbox.batch.rows
        self.runs: array[int] = inbox.runs
        self.acks: array[int] = inbox.acks

    def take(self, path: fast_path.FastPath, buffer: bytearray, start: int, end: int) -> int:
        """Handle the publishes and acknowledgements at the start of `buffer[start:end]`, if they
        are not too much for one turn, and the path is open.

        Returns:
            The index up to which the bytes were handled. What is there then is for the
            connection's core.

        Raises:
            BrokerError, RemoteProtocolError: close the connection (`take_publishes`).
        """
        if path.session is None or path.asks:
            return start
        batch = self.batch
        batch.buffer = buffer
        _, at, run_count, ack_count = parse(
            buffer, start, end, batch, self.runs, self.acks, self.shared.packet_bytes_max, path.five
        )
        if not self.is_one_turn(path, run_count, ack_count):
            return start
        if ack_count:
            self.take_acks(path, ack_count)
        if run_count:
            self.take_publishes(path, 0, run_count, run_count)
        return at

    def take_whole(self, path: fast_path.FastPath, buffer: bytearray, start: int, end: int) -> bool:
        """Handle a read that is publishes and acknowledgements and no more, and not too much for
        one turn; else nothing is done. The path has to be open.

        Raises:
            BrokerError, RemoteProtocolError: close the connection (`take_publishes`).
        """
        batch = self.batch
        batch.buffer = buffer
        _, at, run_count, ack_count = parse(
            buffer, start, end, batch, self.runs, self.acks, self.shared.packet_bytes_max, path.five
        )
        if at != end or not self.is_one_turn(path, run_count, ack_count):
            return False
        if ack_count:
            self.take_acks(path, ack_count)
        if run_count:
            self.take_publishes(path, 0, run_count, run_count)
        return True

    def is_one_turn(self, path: fast_path.FastPath, run_count: int, ack_count: int) -> bool:
        """Whether what is in the inbox is not too much for one turn: few runs that are known to go
        to few queues, of which the long ones are stored as a whole."""
        if run_count > RUNS_AT_ONCE or not self.are_few_acks(ack_count):
            return False
        if run_count == 1 == self.batch.count:
            return True
        rows = self.rows
        runs = self.runs
        count = self.batch.count
        buffer: Any = self.batch.buffer
        last = 0
        for index in range(1, run_count + 1):
            first = last
            last = runs[index] if index < run_count else count
            at = first * COLUMNS
            start = rows[at + TOPIC_START]
            flags = rows[at + FLAGS]
            key = topic = bytes(buffer[start : start + rows[at + TOPIC_SIZE]])
            if flags > FLAGS_PLAIN:
                topic = topic or path.aliases.get(flags >> ALIAS_SHIFT & 0xFFFF, b"")
                key = template_key(topic, flags)
            if last - first > 1 and (flags & EXACTLY_ONCE or not topic or topic[0] == DOLLAR):
                return False
            template = path.mapping.templates[flags & FLAGS_OF_KIND].get(key)
            if template is None or template.rows_at_once < max(RUNS_AT_ONCE, last - first):
                return False
        return True

    def are_few_acks(self, ack_count: int) -> bool:
        """Whether the acknowledgements in the inbox are not too much for one turn: those of QoS 2
        may be a record each."""
        acks = self.acks
        room = ACKS_AT_ONCE
        if ack_count > room:
            return False
        for index in range(ack_count):
            at = index * ACK_COLUMNS
            if acks[at] & ACK_TYPE == TYPE_PUBACK:
                room -= 1
            else:
                room -= RECORD_COST
        return room >= 0

    def take_acks(self, path: fast_path.FastPath, ack_count: int) -> None:
        """The acknowledgements in the inbox."""
        acks = self.acks
        session = path.session
        if ack_count == 1 and acks[0] == TYPE_PUBACK and session is not None:
            self.shared.others_received += acks[2]
            if path.five:
                self.shared.pubacks_received += acks[2]
            session.acknowledged(acks[1], acks[2])
        elif path.connection is not None:
            path.connection.take_acks(acks, ack_count)

    def take_publishes(
        self, path: fast_path.FastPath, first_run: int, last_run: int, run_count: int
    ) -> int:
        """Of the publishes in the batch, which are `run_count` runs, runs [first_run, last_run), or
        as many of them as there are up to one that goes to very many queues.

        Returns:
            How many runs of the batch are taken now. The next one may wait for an answer.

        Raises:
            BrokerError, RemoteProtocolError: one with an acknowledgement was refused, or may not
                come: close the connection. What came before it is stored, and not answered.
        """
        connection = path.connection
        if connection is None:
            return last_run
        batch = self.batch
        rows = self.rows
        runs = self.runs
        begin = last = runs[first_run]
        end = runs[last_run] if last_run < run_count else batch.count
        mapping = path.mapping
        buffer: Any = batch.buffer
        waits_for = ends_at = Position(-1)
        durability = slowest = APPENDED
        shared = self.shared
        pubacks = pubrecs = 0
        shared.refusals.clear()
        publishing = connection.publishing
        index = first_run
        for index in range(first_run + 1, last_run + 1):
            first = last
            last = runs[index] if index < last_run else end
            at = first * COLUMNS
            start = rows[at + TOPIC_START]
            flags = rows[at + FLAGS]
            key = topic = bytes(buffer[start : start + rows[at + TOPIC_SIZE]])
            if flags > FLAGS_PLAIN:
                topic = name_of(path.aliases, topic, flags, shared.topic_aliases_max)
                key = template_key(topic, flags)
            refusal = None
            if path.quota is not None:
                path.quota.read(batch, first, last)
            try:
                template = mapping.templates[flags & FLAGS_OF_KIND].get(key)
                if template is None or not template.valid:
                    template = mapping.template(topic, flags)
                if (
                    shared.checks_payloads
                    and flags & FLAG_PROPERTIES
                    and publishing.refuses(batch, first, last)
                ):
                    stored = publishing.publish_sound(template, batch, first, last, topic)
                elif flags & EXACTLY_ONCE or topic[0] == DOLLAR:
                    stored = publishing.publish_special(template, batch, first, last, topic)
                else:
                    try:
                        stored = path.publish(template, batch, first, last)
                    except Refused as error:
                        is_one = last - first == 1
                        if is_one or not path.five or error.reason is not Reason.TOO_LARGE:
                            raise
                        stored = publishing.publish_singly(template, batch, first, last, topic)
            except Unanswered as error:
                connection.ask_ahead(error, index, run_count, first, last)
                last, index = first, index - 1
                break
            except Refused as error:
                refusal = error
            shared.took(first, last, rows)
            if flags & EXACTLY_ONCE:
                pubrecs += last - first
            elif flags & FLAG_QOS:
                pubacks += last - first
            if refusal is not None:
                if publishing.refused(refusal, topic, batch, first, last):
                    shared.others_sent += last - first  # which wait for nothing but their turn
                    waits_for = max(waits_for, Position(0))
                    durability = max(durability, FLUSHED)
                continue
            assert template is not None
            ends_at = stored
            slowest = max(slowest, template.durability)
            if flags & FLAG_QOS:
                shared.others_sent += last - first
                if stored > waits_for:
                    waits_for = stored
                if template.durability > durability:
                    durability = template.durability
            if len(template.queues) > MANY_QUEUES:
                break
        if waits_for >= 0:
            if path.five:
                shared.pubacks_sent += pubacks
                shared.pubrecs_sent += pubrecs
            if shared.refusals:
                answer = publishing.answer(batch, begin, last)
            else:
                answer = encode_acks(batch, begin, last)
            path.answer_when(waits_for, answer, durability)
        if ends_at >= shared.ask_at or path.asks_always or slowest > FLUSHED:
            shared.ask_at = ends_at + ASK_BYTES if connection.keeps_up() else 0
        return index
