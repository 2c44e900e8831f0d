# cython: boundscheck=False, annotation_typing=False, initializedcheck=False
"""The short way of a read that holds one packet, and of what it is answered with.

Most clients send one PUBLISH, and wait; most subscribers acknowledge one message, and wait. What
such a read costs is not its message but the steps around it, so this file has those steps and no
others. It is one source in two forms: plain Python, and a C extension, for which
`fast_path.pxd` says of what types all this is.

A `FastPath` belongs to one connection, and is the `SessionLink` of its session. `take` handles a
read that is exactly one of

* a PUBLISH of QoS 0 or 1 to a topic name that this client has published to before, without a topic
  alias and without an expiry interval, or
* a PUBACK,

and, where kernels are compiled, gives a read that is nothing but such packets to `batch_path.py`.
All others are left, untouched, to `connection.py`, which handles any read, these as well. So what
is not looked at here costs time, never a message.

Rules:

* The path is open from CONNACK to the end of the connection.
* What the engine refuses was not stored: the long way asks again, and acts on the answer.
* An answer leaves when its position is committed, in the order of the reads [MQTT-4.6.0-2]. The
  answers of all connections of a listener wait together, in a queue for each class of commit. The
  engine knows of the first of each queue only: it calls once for all that one flush covers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from polymq.broker.port import APPENDED, FLUSHED, BrokerError, Durability, Refused
from polymq.core_log.kernels.batch import BODY_SIZE, BODY_START, COLUMNS, TOPIC_START, Batch
from polymq.gateways.mqtt.aliases import OutgoingAliases
from polymq.gateways.mqtt.errors import RemoteProtocolError
from polymq.gateways.mqtt.kernels.codes import (
    ASK_BYTES,
    DOLLAR,
    FLAG_PROPERTIES,
    FLAGS_PLAIN,
    PACKET_READ,
    REMAINING_LENGTH_MAX,
    SUBSCRIPTION_IDENTIFIER,
    TOPIC_ALIAS,
)
from polymq.gateways.mqtt.kernels.frames import PacketReader, encode_ids
from polymq.gateways.mqtt.kernels.publishes import encode_publishes, encode_publishes_5
from polymq.gateways.mqtt.translating import encode_translated, is_translated
from polymq.net.kernels.streams import Shortcut, clock_ms

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable

    from polymq.broker.port import (
        BrokerPort,
        Position,
        RecordRun,
        RunMeta,
        Session,
        TakesApart,
        Template,
    )
    from polymq.gateways.mqtt.connection import Connection
    from polymq.gateways.mqtt.kernels.batch_path import BatchPath
    from polymq.gateways.mqtt.limits import Limits
    from polymq.gateways.mqtt.mapping import TopicMapping
    from polymq.gateways.mqtt.receive_quota import ReceiveQuota
    from polymq.gateways.mqtt.shared import Counters

NO_ALIASES: Final[dict[int, bytes]] = {}
"""Those of clients before MQTT 5: never added to."""
PACKET_MAX: Final = REMAINING_LENGTH_MAX + 5
"""The largest packet that there is."""
NO_TOPIC: Final = b"\0\0"
"""The topic field of a PUBLISH whose alias says what it is published to."""
SHARED_ALIAS_MAX: Final = 10
"""Frames with aliases up to here are shared by subscribers: no more forms of a run are kept."""
PUBLISH: Final = 0x30
PUBACK: Final = 0x40
PUBREC: Final = 0x50
PUBREL: Final = 0x62


class Answers:
    """What the connections of a listener answer once the log is committed that far.

    Args:
        durability: the class of commit that these answers wait for.
    """

    def __init__(self, port: BrokerPort, durability: Durability) -> None:
        self.port = port
        self.durability = durability
        self.waiting: list[tuple[Any, FastPath, bytes]] = []
        """(position, whose, what), in order of positions."""
        self.asked = False
        """The engine calls back when the first may leave."""

    def add(self, position: Position, path: FastPath, data: bytes) -> None:
        """Let the path write `data` when the position is committed and all that was added before
        has left."""
        waiting = self.waiting
        if waiting and position < waiting[-1][0]:
            position = waiting[-1][0]
        waiting.append((position, path, data))
        if not self.asked:
            self.asked = True
            self.port.when_committed(position, self.durability, self.release)

    def release(self) -> None:
        """The first of those that wait may leave; and with it all whose positions are committed,
        which nearly always is all of them."""
        waiting = self.waiting
        committed = self.port.committed
        count = len(waiting)
        if not committed(waiting[count - 1][0], self.durability):
            high = count - 1
            count = 1
            while count < high:  # the first `count` may leave, the one at `high` may not
                middle = (count + high) // 2
                if committed(waiting[middle][0], self.durability):
                    count = middle + 1
                else:
                    high = middle
        self.asked = False
        leaving = waiting[:count]
        del waiting[:count]
        slow = self.durability is not APPENDED
        for _, path, data in leaving:
            path.answered(data, slow)
        if waiting and not self.asked:
            self.asked = True
            self.port.when_committed(waiting[0][0], self.durability, self.release)


def subscription_properties(identifiers: tuple[int, ...]) -> bytes:
    """The Subscription Identifiers of a delivery as properties (5.0 part 3.3.2.3.8)."""
    if not identifiers:
        return b""
    out = bytearray()
    for identifier in identifiers:
        out.append(SUBSCRIPTION_IDENTIFIER)
        while identifier > 0x7F:
            out.append(identifier & 0x7F | 0x80)
            identifier >>= 7
        out.append(identifier)
    return bytes(out)


class SharedPaths:
    """What the fast paths of one listener share.

    Args:
        port: the engine itself, for what does not depend on who the client is.
    """

    def __init__(self, port: BrokerPort, counters: Counters, limits: Limits) -> None:
        self.port = port
        self.packet = PacketReader()
        """The packet of the read that is handled."""
        self.batch = Batch(1)
        """One PUBLISH. It keeps the buffer of the last, which mostly is that of the next."""
        self.batch.count = 1
        self.buffer: bytearray | None = None
        """Of the batch."""
        self.rows: array[int] = self.batch.rows
        self.counters = counters
        self.packet_bytes_max = limits.packet_bytes_max
        self.topic_aliases_max = limits.topic_aliases_max
        self.delivery_bytes_max = limits.delivery_bytes_max
        self.checks_payloads = limits.features.payload_format_checked
        self.batch_path: BatchPath | None = None
        """Takes whole reads of many packets, where no Python is to run between."""
        self.answers = [Answers(port, durability) for durability in Durability]
        self.ask_at = 0
        """Who publishes something that ends behind this position asks whether the disk keeps up.
        (Who publishes what replicas must have asks always.)"""
        self.received = 0
        """PUBLISH packets that fast paths took and that `counters` does not have yet."""
        self.sent = 0
        """The same of those that were sent."""
        self.received_bytes = 0
        """Of PUBLISH packets that were received."""
        self.sent_bytes = 0
        """The same of those that were sent."""
        self.others_received = 0
        """All other packets that were received."""
        self.others_sent = 0
        """The same of those that were sent."""
        self.pubacks_received = 0
        """Acknowledgements of MQTT 5 without an error that `counters` does not have yet."""
        self.pubacks_sent = 0
        self.pubrecs_sent = 0
        self.refusals: list[tuple[int, int, int, str]] = []
        """Of the publishes that are handled now, those that are answered with a reason code that is
        an error: first row, the row behind the last, the code, and why in words."""

    def took(self, first: int, last: int, rows: array[int]) -> None:
        """Count the publishes of rows [first, last)."""
        at = first * COLUMNS
        end = last * COLUMNS
        while at < end:
            size = rows[at + BODY_START] + rows[at + BODY_SIZE] - rows[at + TOPIC_START] + 2
            self.received_bytes += size + 2
            while size > 0x7F:
                self.received_bytes += 1
                size >>= 7
            at += COLUMNS
        self.received += last - first

    def fill_row(self, packet: PacketReader) -> None:
        """Make the batch's first row that of one PUBLISH (`core_log.kernels.batch`)."""
        rows = self.rows
        rows[0] = packet.topic_start
        rows[1] = packet.topic_end - packet.topic_start
        rows[2] = packet.body
        rows[3] = packet.end - packet.body
        rows[4] = 0
        rows[5] = 0
        if packet.flags & FLAG_PROPERTIES:
            rows[4] = packet.properties
            rows[5] = packet.body - packet.properties
        rows[6] = packet.packet_id
        rows[7] = packet.flags

    def count(self) -> None:
        """Bring `counters` up to date."""
        self.counters.publishes_received += self.received
        self.counters.publishes_sent += self.sent
        self.received = 0
        self.sent = 0
        reasons = self.counters.reasons
        reasons.received(PUBACK >> 4, 0, self.pubacks_received)
        reasons.sent(PUBACK >> 4, 0, self.pubacks_sent)
        reasons.sent(PUBREC >> 4, 0, self.pubrecs_sent)
        self.pubacks_received = 0
        self.pubacks_sent = 0
        self.pubrecs_sent = 0


class FastPath(Shortcut):
    """One connection's part of it."""

    def __init__(self, shared: SharedPaths, connection: Connection, mapping: TopicMapping) -> None:
        self.shared = shared
        self.connection: Connection | None = connection
        self.write: Callable[[bytes], None] | None = connection.write
        self.port: BrokerPort = shared.port
        self.publish: Callable[[Template, Batch, int, int], Position] = shared.port.publish
        self.mapping = mapping
        self.session: Session | None = None
        """From CONNACK to the end of the connection: while the path is open."""
        self.five = False
        """The client speaks MQTT 5."""
        self.takes_apart: TakesApart | None = None
        """See `SessionLink`."""
        self.aliases: dict[int, bytes] = NO_ALIASES
        """Topic names by the Topic Alias that the client gave them."""
        self.aliases_out: OutgoingAliases | None = None
        """Those that the server gives to topics, where the client takes them."""
        self.sent_bytes_max = PACKET_MAX
        """The largest packet that the client takes."""
        self.more = b""
        """Properties that all PUBLISH packets of MQTT 5 get beside their own: the same for all
        connections of the listener that have any."""
        self.asks_always = False
        """The client's own port counts what it publishes, and has to be asked after each read."""
        self.asks = False
        """A service may have to be asked what the client may do: no way that cannot wait is taken,
        unless the template is there."""
        self.quota: ReceiveQuota | None = None
        """How many publishes the client may leave open; None: as many as it has packet ids."""
        self.leaving = False
        """The connection ends when nothing waits any more."""
        self.waiting = 0
        """Answers that wait for a commit."""
        self.slow_waiting = 0
        """Those of them that wait for the disk or for replicas."""
        self.slowest = APPENDED
        """What the last of those waits for."""
        self.dropped = 0
        """Packets of the last run that are larger than the client takes."""
        self.message_bytes = 256
        """Size of a delivery lately, for `credit`."""
        self.last_flags = -1
        """Of the last PUBLISH that came here (-1: none), with its topic name and its template:
        most clients publish to one topic."""
        self.last_name = b""
        self.last_template: Template | None = None
        self.last_class = APPENDED
        """What its messages wait for, as far as it is valid."""
        self.last_in_sync = False
        """Whether that is more than this broker."""
        self.last_meta: RunMeta | None = None
        """Of the last delivery, and its topic as PUBLISH has it. None: the mapping has changed."""
        self.last_topic = b""

    def log_in(self, port: BrokerPort, mapping: TopicMapping) -> None:
        """From now on the client's own."""
        self.port = port
        self.publish = port.publish
        self.mapping = mapping
        self.asks_always = port is not self.shared.port
        self.asks = port.principal.asks
        self.last_flags = -1

    def let_go(self) -> None:
        """The connection is gone."""
        self.connection = None
        self.write = None

    # --- reads ------------------------------------------------------------------------------

    def take(self, buffer: bytearray, start: int, end: int) -> bool:
        """Handle `buffer[start:end]`, if it is one packet that belongs here, or many that all
        belong to `batch_path.py`, and say so."""
        try:
            if self.take_packet(buffer, start, end):
                return True
            batch_path = self.shared.batch_path
            if batch_path is None or self.session is None or self.asks:
                return False
            return batch_path.take_whole(self, buffer, start, end)
        except BrokerError as error:
            assert self.connection is not None
            self.connection.failed(error)
            return True
        except RemoteProtocolError as error:
            assert self.connection is not None
            self.connection.broke_protocol(error)
            return True

    def take_packet(self, buffer: bytearray, start: int, end: int) -> bool:
        """`take`, which acts on what the engine raises."""
        session = self.session
        if session is None:
            return False
        packet = self.shared.packet
        if (
            packet.read(buffer, start, end, self.shared.packet_bytes_max, self.five) != PACKET_READ
            or packet.end != end
        ):
            return False
        if packet.first == PUBACK:
            if self.five:
                if packet.flags:
                    return False  # a reason code is counted by itself
                self.shared.pubacks_received += 1
            self.shared.others_received += 1
            session.acknowledged(packet.packet_id, 1)
            return True
        # QoS 2 is for those who know what to do with it.
        if packet.first & 0xF4 != PUBLISH:
            return False
        return self.take_publish(buffer, packet)

    def take_publish(self, buffer: bytearray, packet: PacketReader) -> bool:
        """The same for a PUBLISH that was read."""
        topic = packet.topic_start
        topic_end = packet.topic_end
        if topic == topic_end or buffer[topic] == DOLLAR:
            return False
        if packet.flags > FLAGS_PLAIN or self.quota is not None:
            return False
        flags = packet.flags
        if flags & FLAG_PROPERTIES and self.shared.checks_payloads:
            return False
        if flags != self.last_flags or not self.is_last_name(buffer, topic, topic_end):
            self.last_name = bytes(buffer[topic:topic_end])
            self.last_flags = flags
            self.last_template = self.mapping.templates[flags].get(self.last_name)
            if self.last_template is not None:
                self.last_class = self.last_template.durability
                self.last_in_sync = self.last_class > FLUSHED
        template = self.last_template
        if template is None or not template.valid:
            self.last_flags = -1
            return False
        shared = self.shared
        packet_id = packet.packet_id
        shared.fill_row(packet)
        if buffer is not shared.buffer:
            shared.buffer = buffer
            shared.batch.buffer = buffer
        try:
            stored = self.publish(template, shared.batch, 0, 1)
        except Refused:
            return False
        shared.took(0, 1, shared.rows)
        if packet_id:
            shared.others_sent += 1
            if self.five:
                shared.pubacks_sent += 1
            self.answer_when(stored, encode_ids(PUBACK, packet_id, 1), self.last_class)
        position = stored
        if position >= shared.ask_at or self.asks_always or self.last_in_sync:
            self.look_at_disk(position)
        return True

    def is_last_name(self, buffer: bytearray, start: int, end: int) -> bool:
        """Whether `buffer[start:end]` is the topic name of the last PUBLISH that came here."""
        name = self.last_name
        size = len(name)
        if end - start != size:
            return False
        index = 0
        while index < size and buffer[start + index] == name[index]:
            index += 1
        return index == size

    def look_at_disk(self, position: Position) -> None:
        """Something was published, and ends at `position`: read no further if too much waits."""
        assert self.connection is not None
        if self.connection.keeps_up():
            self.shared.ask_at = position + ASK_BYTES
        else:
            self.shared.ask_at = 0

    # --- answers ----------------------------------------------------------------------------

    def answer_when(self, position: Position, data: bytes, durability: Durability) -> None:
        """Write `data` once the position is committed, and not before earlier answers."""
        self.waiting += 1
        if durability is not APPENDED or self.slow_waiting:
            if durability < self.slowest:
                durability = self.slowest
            self.slowest = durability
            self.slow_waiting += 1
        if self.quota is not None:
            self.quota.will_answer()
        answers = self.shared.answers[durability]
        answers.add(position, self, data)

    def answered(self, data: bytes, slow: bool) -> None:
        """An answer leaves: its position is committed."""
        self.waiting -= 1
        if slow:
            self.slow_waiting -= 1
            if not self.slow_waiting:
                self.slowest = APPENDED
        if self.quota is not None:
            self.quota.answered()
        connection = self.connection
        if connection is None:
            return  # it ended meanwhile
        if self.session is not None and self.write is not None and not connection.paused:
            self.write(data)
        else:
            connection.write_answer(data)
        if self.leaving:
            connection.leave_if_done()

    # --- SessionLink ------------------------------------------------------------------------

    def credit(self) -> int:
        """How many more PUBLISH packets may be sent in this turn of the loop."""
        connection = self.connection
        if self.session is None or connection is None or connection.paused or connection.closing:
            return 0
        room = self.shared.delivery_bytes_max - connection.turn_bytes
        if room <= 0:
            connection.starved = True
            return 0
        return room // self.message_bytes + 1

    def send_publishes(
        self,
        run: RecordRun,
        *,
        qos: int,
        first_packet_id: int,
        duplicate: bool,
        retain: bool,
        identifiers: tuple[int, ...] = (),
    ) -> None:
        """Send a run of the log as PUBLISH packets, in one piece."""
        first_byte = PUBLISH | duplicate << 3 | qos << 1 | retain
        self.send_run(run, first_byte, first_packet_id, identifiers)

    def send_run(
        self, run: RecordRun, first_byte: int, first_packet_id: int, identifiers: tuple[int, ...]
    ) -> None:
        """The same, with the first byte of a packet."""
        write = self.write
        if write is None:
            return
        meta = run.meta
        topic = self.last_topic
        if meta is not self.last_meta:
            topic = self.mapping.topic_field(meta)
            self.last_topic = topic
            self.last_meta = meta
        if self.five:
            data = self.encode_5(run, topic, first_byte, first_packet_id, identifiers)
        elif first_byte & 0x06:
            data = encode_publishes(
                run.memory, run.start, run.end, topic, first_byte, first_packet_id
            )
        else:
            key = self.mapping.encoded_keys[first_byte & 1]
            encoded = run.encoded.get(key)
            if encoded is None:
                encoded = encode_publishes(run.memory, run.start, run.end, topic, first_byte, 0)
                run.encoded[key] = encoded
            data = encoded
        count = run.count
        size = len(data)
        if size >= count:  # less is left only of messages that the client does not take
            self.message_bytes = size if count == 1 else size // count
        self.shared.sent += count
        self.shared.sent_bytes += size
        write(data)

    def send_encoded(self, data: bytes, count: int) -> None:
        """Send PUBLISH packets of QoS 0 that are not of the log."""
        if self.write is not None:
            self.shared.sent += count
            self.shared.sent_bytes += len(data)
            self.write(data)

    def encode_5(
        self,
        run: RecordRun,
        topic: bytes,
        first_byte: int,
        first_packet_id: int,
        identifiers: tuple[int, ...],
    ) -> bytes:
        """The packets of a run for a client that speaks MQTT 5."""
        key = self.mapping.encoded_keys_5[first_byte & 1]
        if self.more:
            key += " more"
        is_shared = not (first_byte & 0x06 or identifiers or self.sent_bytes_max != PACKET_MAX)
        more = self.more + subscription_properties(identifiers)
        aliases = self.aliases_out
        offered = 0
        head = again = topic
        alias_property = b""
        if aliases is not None:
            alias = aliases.known(topic)
            if alias:
                head = again = NO_TOPIC
                key = f"{key} alias {alias}"
                is_shared = is_shared and alias <= SHARED_ALIAS_MAX
            else:
                alias = offered = aliases.offered(topic)
                if offered:
                    again = NO_TOPIC
                    is_shared = False
            if alias:
                alias_property = bytes((TOPIC_ALIAS, alias >> 8, alias & 0xFF))
        if is_shared:
            encoded = run.encoded.get(key)
            if encoded is not None:
                return encoded
        self.dropped = 0
        data = self.encode_run(run, head, again, first_byte, first_packet_id, alias_property + more)
        if offered and aliases is not None:
            if self.dropped:
                # Without the alias they may be small enough. Where none of them was sent, the
                # client would not know it.
                data = self.encode_run(run, topic, topic, first_byte, first_packet_id, more)
            else:
                aliases.give(topic, offered)
        if self.dropped and self.connection is not None:
            self.connection.left_out(data, run.count, self.dropped, first_byte, first_packet_id)
        elif is_shared:
            run.encoded[key] = data
        return data

    def encode_run(
        self,
        run: RecordRun,
        topic: bytes,
        again: bytes,
        first_byte: int,
        first_packet_id: int,
        more: bytes,
    ) -> bytes:
        """The same with these topic fields and properties; sets how many packets the client does
        not take (`dropped`)."""
        if is_translated(run.meta):
            data, self.dropped = encode_translated(
                run, topic, first_byte, first_packet_id, more, clock_ms(), self.sent_bytes_max,
                again,
            )  # fmt: skip
        else:
            data, self.dropped = encode_publishes_5(
                run.memory,
                run.start,
                run.end,
                topic,
                first_byte,
                first_packet_id,
                run.meta.prefix_size,
                b"",
                more,
                clock_ms(),
                self.sent_bytes_max,
                again,
            )
        return data

    def send_pubrels(self, first_packet_id: int, count: int) -> None:
        """PUBREL for consecutive packet ids; what the client does not read counts."""
        connection = self.connection
        if self.write is None or connection is None:
            return
        if self.five:
            self.shared.counters.reasons.sent(PUBREL >> 4, 0, count)
        data = encode_ids(PUBREL, first_packet_id, count)
        self.shared.others_sent += count
        if connection.paused:
            connection.write_answer(data)
        else:
            self.write(data)

    def taken_over(self) -> None:
        """See `SessionLink`."""
        if self.connection is not None:
            self.connection.taken_over()

    def expelled(self, why: str) -> None:
        """See `SessionLink`."""
        if self.connection is not None:
            self.connection.expelled(why)
