"""What has to hold of MQTT's parsers for any bytes: the function that `make fuzz` calls with them.

`check` takes an input, whose first byte chooses the parser and its state (`TARGETS`), and gives the
rest to it: as a whole, byte by byte, and in cuts that the input itself decides; to the plain form
of the kernels and to the compiled one. What holds:

* Each way yields the same packets and ends in the same way.
* There are packets, or a RemoteProtocolError, and no other error.
* The plain form takes a number of steps that grows with the input, not with its square, however
  the input is cut; and so does the memory that it needs.
"""

from __future__ import annotations

import dataclasses
import random
import sys
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any, Final
from zlib import crc32

from interop_tests import mqtt5_wire as wire5
from interop_tests import mqtt_wire as wire
from interop_tests import websocket_wire as ws
from polymq.core_log.kernels.batch import COLUMNS, FLAGS
from polymq.gateways.mqtt import properties, protocol
from polymq.gateways.mqtt.errors import RemoteProtocolError
from polymq.gateways.mqtt.fields import Content
from polymq.gateways.mqtt.kernels import codes, frames
from polymq.gateways.mqtt.limits import Limits
from polymq.gateways.mqtt.packets import Subscribe, Unsubscribe
from polymq.gateways.mqtt.protocol import NEED_DATA, PUBLISHES, Inbox, State
from polymq.net import websocket
from polymq.net.kernels import websocket as websocket_kernel
from polymq.net.websocket_handshake import Offer
from tests.harness.forms import form_id, forms_of

BYTES_MAX: Final = 1024
"""Of an input: longer ones find nothing that shorter ones do not, and take longer."""
LIMITS: Final = Limits(packet_bytes_max=700, connect_bytes_max=700)
OFFER: Final = Offer(
    what="MQTT",
    paths=frozenset({"/mqtt"}),
    subprotocols=frozenset({"mqtt", "mqttv3.1"}),
    origins=frozenset({"https://app.example"}),
    frame_bytes_max=700,
)
FORMS: Final = list(
    zip(forms_of(frames.__name__), forms_of(websocket_kernel.__name__), strict=True)
)
INBOX: Final = Inbox()
LINES_MAX: Final = 2000
LINES_PER_BYTE_MAX: Final = 150
"""Lines of code that run for an input, and for each of its bytes: twice what was seen."""
MEMORY_BYTES_MAX: Final = 200_000
MEMORY_PER_BYTE_MAX: Final = 200
"""What is needed at once for an input, and for each of its bytes: twice what was seen. Most are
the pairs of User Property, of which five bytes make one."""

Seen = list[Any]
"""What a parser made of an input, in a form that can be compared."""
Take = Callable[[bytearray, int], int]
"""Presents `buffer[:end]`, of which nothing was used. Returns how much of it is used."""


# --- the protocol core ---------------------------------------------------------------------------


class CoreRun:
    """A protocol core, and what it made of what came.

    Args:
        opening: a CONNECT that has come before; empty for none.
        accepts: whether a CONNECT is answered at once.
    """

    def __init__(self, opening: bytes = b"", *, accepts: bool = True) -> None:
        self.core = protocol.Protocol(limits=LIMITS, inbox=INBOX)
        self.seen: Seen = []
        self.error: RemoteProtocolError | None = None
        self._accepts = accepts
        if opening:
            self.take(bytearray(opening), len(opening))
            self.seen.clear()

    def take(self, buffer: bytearray, end: int) -> int:
        """As `Take` has it. After an error, nothing is looked at."""
        at = 0
        while self.error is None:
            try:
                event = self.core.next_event(buffer, at, end)
                assert at < self.core.at <= end or event is NEED_DATA
                at = self.core.at
                if event is NEED_DATA:
                    return at
                self._note(event)
            except RemoteProtocolError as error:
                self.error = error
            if self._accepts and self.core.state is State.ACCEPTING:
                self.core.accept(present=False, properties={})
        return end

    def _note(self, event: Any) -> None:
        """Publishes and acknowledgements of a read come apart from each other, so where these were
        cut decides how they are mixed: they are compared apart, between the other packets."""
        if event is PUBLISHES:
            if not self.seen or not isinstance(self.seen[-1], list):
                self.seen.append([[], []])
            self.seen[-1][0] += _rows()
            self.seen[-1][1] += _acks()
            return
        self.seen.append((type(event).__name__, dataclasses.astuple(event)))
        if isinstance(event, Subscribe | Unsubscribe):
            # Those before an error are seen.
            self.seen.extend((one,) for one in event.filters())

    def end(self, left: int) -> Seen:
        """All that was seen, and how it ended.

        Args:
            left: bytes that are not used.
        """
        if self.error is None:
            return [*self.seen, self.core.state, left]
        return [*self.seen, self.error.reason, str(self.error), self.error.answer]


def _rows() -> Iterator[tuple[bytes, bytes, bytes, int, int]]:
    """Topic, body, properties, packet id and flags of each publish in the inbox."""
    batch = INBOX.batch
    for row in range(batch.count):
        topic, topic_size, body, body_size, extra, extra_size, packet_id, flags = batch.rows[
            row * COLUMNS : (row + 1) * COLUMNS
        ]
        yield (
            bytes(batch.buffer[topic : topic + topic_size]),
            bytes(batch.buffer[body : body + body_size]),
            bytes(batch.buffer[extra : extra + extra_size]),
            packet_id,
            flags,
        )


def _acks() -> Iterator[tuple[int, int]]:
    """Kind and packet id of each acknowledgement in the inbox."""
    for at in range(0, codes.ACK_COLUMNS * INBOX.ack_count, codes.ACK_COLUMNS):
        kind, first, count = INBOX.acks[at : at + codes.ACK_COLUMNS]
        for number in range(count):
            yield kind, (first + number - 1) % codes.IDENTIFIER_MAX + 1


def follow(take: Take, data: bytes, ends: Iterable[int]) -> int:
    """Present the input as it comes in reads that end there. Returns how much is left."""
    buffer = bytearray()
    came = 0
    for end in ends:
        buffer += data[came:end]
        came = end
        del buffer[: take(buffer, len(buffer))]
    return len(buffer)


def run_core(data: bytes, ends: Sequence[int], opening: bytes = b"", accepts: bool = True) -> Seen:
    """The protocol core, from the beginning or behind a CONNECT."""
    run = CoreRun(opening, accepts=accepts)
    return run.end(follow(run.take, data, ends))


# --- WebSocket -----------------------------------------------------------------------------------


def run_websocket(data: bytes, ends: Sequence[int], opening: bytes = b"") -> Seen:
    """A WebSocket, and behind it the protocol core, from the handshake on or behind it."""
    socket = websocket.WebSocket(OFFER)
    core = CoreRun()
    carried = bytearray()
    answers = bytearray()
    begun = len(opening)
    data = opening + data
    came = 0
    for end in [begun, *(begun + end for end in ends)]:
        room = len(carried)
        buffer = carried + data[came:end]
        filled = socket.receive(buffer, room, len(buffer))
        assert room <= filled <= len(buffer)
        assert buffer[:room] == carried
        carried = buffer[:filled]
        del carried[: core.take(carried, filled)]
        if not answers and socket.has_answer:
            answers += socket.wrap(b"")[: None if socket.end else 300]
        came = end
        if socket.end is not None:
            break
    goodbye = socket.goodbye(), socket.wrap(b"")
    # Which Pings are answered depends on the reads, and a Pong may be in front of Close.
    goodbye = goodbye[0], goodbye[1][goodbye[1].rfind(b"\x88") :] if goodbye[1] else b""
    return [core.end(len(carried)), socket.end, answers[:12], goodbye]


# --- properties ----------------------------------------------------------------------------------

ALLOWED: Final = (
    properties.OF_WILL - {properties.Property.WILL_DELAY_INTERVAL}
    | {properties.Property.TOPIC_ALIAS},
    properties.OF_CONNECT,
    properties.OF_WILL,
    properties.OF_SUBSCRIBE,
    properties.OF_UNSUBSCRIBE,
    properties.OF_DISCONNECT,
    properties.OF_AUTH,
)
"""Of which packets the properties are; the first are those of a client's PUBLISH."""


def check_properties(data: bytes) -> None:
    """The codec reads what it writes; and of a PUBLISH it takes what the kernels take."""
    packet, block = data[:1] or b"\0", data[1:]
    kind = packet[0] % len(ALLOWED)
    values = _decode(block, ALLOWED[kind])
    if values is not None:
        written = properties.encode_block(values)
        assert _decode(written, ALLOWED[kind]) == values
        assert len(written) == len(block)  # there is one way to write each value
    if values is not None and values.get(properties.Property.TOPIC_ALIAS) == 0:
        values = None  # of this property only the kernels know what it may be
    if kind == 0 and not _names_with_controls(values, block):
        data = wire5.publish("t", b"body", props=_sized(block))
        for parsing, _ in FORMS:
            batch = INBOX.batch
            stop, at, _, _ = parsing.parse(
                bytearray(data), 0, len(data), batch, INBOX.runs, INBOX.acks, 1 << 20, True
            )
            assert (at == len(data)) == (values is not None), (form_id(parsing), stop)
            if values is None:
                continue
            flags = batch.rows[FLAGS]
            alias = values.get(properties.Property.TOPIC_ALIAS, 0)
            expiry = values.get(properties.Property.MESSAGE_EXPIRY_INTERVAL)
            assert flags >> codes.ALIAS_SHIFT & 0xFFFF == alias
            assert bool(flags & codes.FLAG_EXPIRES) == (expiry is not None)
            assert flags >> codes.EXPIRY_SHIFT & 0xFFFFFFFF == (expiry or 0)


def _sized(block: bytes) -> bytes:
    return wire.remaining_length(len(block)) + block


def _decode(block: bytes, allowed: frozenset[properties.Property]) -> dict[Any, Any] | None:
    try:
        return properties.decode_properties(Content(_sized(block), "PACKET"), allowed)
    except RemoteProtocolError:
        return None


def _names_with_controls(values: object, block: bytes) -> bool:
    """Whether the codec may refuse the block for a control character in the response topic alone,
    for which the kernels do not look."""
    return values is None and any(byte < 0x20 or 0x7F <= byte < 0xA0 for byte in block)


# --- all of it -----------------------------------------------------------------------------------

CONNECT_3: Final = wire.connect("fuzz")
CONNECT_5: Final = wire5.connect("fuzz")

TARGETS: Final[tuple[Callable[[bytes, Sequence[int]], Seen], ...]] = (
    run_core,
    lambda data, ends: run_core(data, ends, CONNECT_3),
    lambda data, ends: run_core(data, ends, CONNECT_5),
    lambda data, ends: run_core(data, ends, CONNECT_5, accepts=False),
    run_websocket,
    lambda data, ends: run_websocket(data, ends, ws.request()),
    lambda data, ends: run_websocket(data, ends, ws.request() + ws.frame(CONNECT_5)),
)
"""By the first byte of an input; the number behind the last is `check_properties`."""


@contextmanager
def used(form: tuple[ModuleType, ModuleType]) -> Iterator[None]:
    """The parsers use this form of their kernels."""
    before = vars(protocol)["parse"], vars(websocket)["Frames"]
    vars(protocol)["parse"] = form[0].parse
    vars(websocket)["Frames"] = form[1].Frames
    try:
        yield
    finally:
        vars(protocol)["parse"], vars(websocket)["Frames"] = before


def cuts_of(data: bytes) -> list[tuple[str, Sequence[int]]]:
    """The ways to cut an input into reads, by name: the ends of the reads."""
    size = len(data)
    drawn = random.Random(crc32(data))
    some = sorted(drawn.randrange(size + 1) for _ in range(drawn.randrange(1, 6)))
    return [
        ("whole", (size,)),
        ("byte by byte", range(1, size + 1)),
        ("cut", (*some, size)),
    ]


def check(data: bytes) -> None:
    """All that has to hold, but for what takes long. Raises AssertionError, or what a parser
    raises though it must not."""
    if not data:
        return
    number, data = data[0] % (len(TARGETS) + 1), data[1:BYTES_MAX]
    if number == len(TARGETS):
        check_properties(data)
        return
    run = TARGETS[number]
    first: Seen | None = None
    for form in FORMS:
        with used(form):
            for name, ends in cuts_of(data):
                found = run(data, ends)
                if first is None:
                    first = found
                assert found == first, f"{name}, {form_id(form[0])}: {found} and not {first}"


def check_costs(data: bytes) -> None:
    """That steps and memory are bounded by the size of the input, in the plain form."""
    number, data = data[0] % (len(TARGETS) + 1), data[1:BYTES_MAX]
    with used(FORMS[0]):
        for name, ends in cuts_of(data):

            def call(ends: Sequence[int] = ends) -> None:
                if number == len(TARGETS):
                    check_properties(data)
                else:
                    TARGETS[number](data, ends)

            lines, peak = lines_of(call), peak_of(call)
            size = len(data)
            assert lines <= LINES_MAX + LINES_PER_BYTE_MAX * size, (name, lines, size)
            assert peak <= MEMORY_BYTES_MAX + MEMORY_PER_BYTE_MAX * size, (name, peak, size)


def lines_of(call: Callable[[], object]) -> int:
    """How many lines of code run in it."""
    count = 0

    def trace(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def peak_of(call: Callable[[], object]) -> int:
    """How many bytes it has at once."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
