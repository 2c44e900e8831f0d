"""Reads of many connections as one, where kernels are plain Python.

What a run of messages costs beside its messages is the same for two and for a thousand, and the
plain kernels write what is alike column by column only from some rows on. Fifty publishers with
twenty messages each are fifty short runs in one iteration of the loop. So short reads that are
nothing but publishes of QoS 1 to one topic wait, copied, until the iteration ends; then they are
one run: parsed, stored and shown as one, and answered each for itself.

Rules:

* Only what is alike at its first look is joined: whole packets of equal size and equal first bytes,
  to the topic that is being joined, of clients that publish through the engine itself. All else
  goes its own way, at once.
* A connection is in a join once, and takes no shortcut meanwhile: whatever it sends next, or how it
  ends, what it sent before is stored first.
* What can not be stored as one run is handled apart, read by read, with the answers and errors that
  it has there. Nothing of it was stored before.
* An answer waits for the commit of the whole join, which is no later than that of the iteration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from polymq.broker.port import FLUSHED, BrokerError, Durability, Position
from polymq.core_log.kernels.batch import FLAGS
from polymq.gateways.mqtt.connection import Inbox
from polymq.gateways.mqtt.kernels import encode_acks, parse

if TYPE_CHECKING:
    from polymq.gateways.mqtt.client import MqttConnection
    from polymq.gateways.mqtt.lanes import Yard
    from polymq.gateways.mqtt.mapping import TopicMapping
    from polymq.net.connection import Context

ROWS_MIN: Final = 2
"""A read of one packet takes the lane."""
ROWS_MAX: Final = 32
"""From here on a read gains nothing from others."""
JOIN_BYTES_MAX: Final = 256 * 1024
"""Bytes of one join: as much as one read may be."""
ASK_BYTES: Final = 64 * 1024
"""How much the log grows until it is asked again whether the disk keeps up: as in `lane.py`."""
PUBLISH_QOS_1: Final = 0x32
"""First byte of a PUBLISH with QoS 1, neither DUP nor RETAIN."""
DOLLAR: Final = 0x24
ACK_BYTES: Final = 4


class Joined:
    """The reads that wait for the end of this iteration. One for the connections of a listener."""

    def __init__(self, yard: Yard, mapping: TopicMapping, context: Context) -> None:
        self._yard = yard
        self._mapping = mapping
        self._context = context
        self._inbox = Inbox()  # its own: a join may be stored while another read is handled
        self._reads: dict[MqttConnection, bytes] = {}
        self._bytes = 0  # of all of them
        self._head = b""  # first byte, length and topic of their packets
        self._packet = 0  # bytes of each packet, as the head says

    def __contains__(self, connection: MqttConnection) -> bool:
        """Whether something of this connection waits."""
        return connection in self._reads

    def take(self, connection: MqttConnection, buffer: bytearray, start: int, end: int) -> bool:
        """Let `buffer[start:end]` wait, and say so, if it may be joined."""
        if connection in self._reads:
            self.store()
        lane = connection.lane
        if lane.session is None or lane.asks_always or lane.mapping is not self._mapping:
            return False
        found = self._look(buffer, start, end)
        if found is None:
            return False
        head, packet = found
        if self._reads:
            if head != self._head:
                return False
            if self._bytes + end - start > JOIN_BYTES_MAX:
                self.store()
        if not self._reads:
            self._head, self._packet = head, packet
            self._context.call_soon(self.store)
        self._reads[connection] = bytes(memoryview(buffer)[start:end])
        self._bytes += end - start
        connection.shortcut = None
        lane.waiting += 1  # so that a server that stops waits for its answer
        return True

    def _look(self, buffer: bytearray, start: int, end: int) -> tuple[bytes, int] | None:
        """The first packet up to its topic's end, and its size, if all that is there is a few
        packets like it; their topics and packet ids are not looked at."""
        size = end - start
        if size < 2 * ACK_BYTES or buffer[start] != PUBLISH_QOS_1:
            return None
        at = start + 2
        length = buffer[start + 1]
        if length & 0x80:
            if buffer[at] & 0x80:
                return None
            length = length & 0x7F | buffer[at] << 7
            at += 1
        packet = at - start + length
        count, rest = divmod(size, packet)
        if rest or not ROWS_MIN <= count < ROWS_MAX or packet > self._yard.packet_bytes_max:
            return None
        topic = at + 2
        topic_end = topic + (buffer[at] << 8 | buffer[at + 1])
        if not topic < topic_end <= start + packet - 2 or buffer[topic] == DOLLAR:
            return None
        for place in range(start, at):  # where all lengths are equal, so are the places
            if buffer[place:end:packet] != buffer[place : place + 1] * count:
                return None
        return bytes(memoryview(buffer)[start:topic_end]), packet

    def store(self) -> None:
        """Store what waits, now."""
        reads, self._reads = self._reads, {}
        self._bytes = 0
        if not reads:
            return  # it was stored before the iteration ended
        for connection in reads:
            lane = connection.lane
            connection.shortcut = lane
            lane.waiting -= 1
        data = bytearray().join(reads.values())
        inbox = self._inbox
        batch = inbox.batch
        batch.buffer = data
        _, at, runs, _ = parse(
            data, 0, len(data), batch, inbox.runs, inbox.acks, self._yard.packet_bytes_max
        )
        stored = self._store_run() if at == len(data) and runs == 1 else None
        if stored is None:
            for connection, read in reads.items():
                if connection.lane.session is not None:
                    connection.consume_alone(bytearray(read), 0, len(read), whole=True)
            return
        position, durability = stored
        answers = encode_acks(batch, 0, batch.count)
        first = 0
        for connection, read in reads.items():
            last = first + len(read) // self._packet * ACK_BYTES
            connection.lane.answer_when(position, answers[first:last], durability)
            first = last
        yard = self._yard
        yard.received += batch.count
        if position >= yard.ask_at or durability > FLUSHED:
            asked = [each.keeps_up() for each in reads if each.lane.session is not None]
            yard.ask_at = position + ASK_BYTES if all(asked) else 0

    def _store_run(self) -> tuple[Position, Durability] | None:
        """The whole batch, which is one run. None: nothing was stored."""
        batch = self._inbox.batch
        topic = batch.topic(0)
        flags = batch.rows[FLAGS]
        try:
            template = self._mapping.templates[flags].get(topic)
            if template is None or not template.valid:
                template = self._mapping.template(topic, flags)
            position = self._yard.port.publish(template, batch, 0, batch.count)
        except BrokerError:
            return None
        return position, template.durability
