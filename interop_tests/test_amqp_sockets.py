"""AMQP byte by byte over raw sockets, and over crashes and stops: what no library would send.

Frames are written out here, so that nothing of the server's code is used.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator

import pika
import pika.exceptions
import pytest

from interop_tests.conftest import Server, StartServer

SECONDS_MAX = 20.0
HEADER = b"AMQP\x00\x00\x09\x01"


@pytest.fixture
def server(shared_server: Server) -> Server:
    """One for all; a test that stops or harms it starts its own."""
    return shared_server


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def method(channel: int, class_id: int, method_id: int, arguments: bytes = b"") -> bytes:
    return frame(1, channel, struct.pack(">HH", class_id, method_id) + arguments)


def short(text: bytes) -> bytes:
    return bytes((len(text),)) + text


def long(text: bytes) -> bytes:
    return struct.pack(">I", len(text)) + text


START_OK = method(
    0, 10, 11, struct.pack(">I", 0) + short(b"PLAIN") + long(b"\0guest\0guest") + short(b"en_US")
)
TUNE_OK = method(0, 10, 31, struct.pack(">HIH", 2047, 131_072, 0))
OPEN = method(0, 10, 40, short(b"/") + short(b"") + b"\0")
CLOSE_OK = method(0, 10, 51)
CHANNEL_OPEN = method(1, 20, 10, short(b""))


def publish(key: bytes, body: bytes) -> bytes:
    return (
        method(1, 60, 40, b"\0\0" + short(b"") + short(key) + b"\0")
        + frame(2, 1, struct.pack(">HHQ", 60, 0, len(body)) + b"\x10\x00\x02")
        + frame(3, 1, body)
    )


class Wire:
    """A socket that reads whole frames."""

    def __init__(self, server: Server) -> None:
        self.socket = socket.create_connection((server.host, server.amqp_port), SECONDS_MAX)
        self.stream = self.socket.makefile("rb")

    def send(self, *parts: bytes) -> None:
        self.socket.sendall(b"".join(parts))

    def frame(self) -> tuple[int, int, bytes]:
        """Type, channel and payload of the next frame; heartbeats are passed over."""
        while True:
            head = self.stream.read(7)
            assert len(head) == 7, f"the server closed: {head!r}"
            kind, channel, size = struct.unpack(">BHI", head)
            payload = self.stream.read(size + 1)
            assert payload[-1] == 0xCE
            if kind != 8:
                return kind, channel, payload[:-1]

    def expect(self, class_id: int, method_id: int) -> bytes:
        """The arguments of the next method, which has to be this one."""
        kind, _, payload = self.frame()
        assert kind == 1
        assert struct.unpack_from(">HH", payload) == (class_id, method_id), payload
        return payload[4:]

    def expect_close(self) -> int:
        """The reply code of connection.close, which has to come next."""
        (code,) = struct.unpack_from(">H", self.expect(10, 50))
        return int(code)

    def at_end(self) -> bool:
        """Whether the server closes the socket without another word."""
        try:
            return self.stream.read(1) == b""
        except ConnectionResetError:
            return True

    def log_in(self) -> None:
        self.send(HEADER, START_OK, TUNE_OK, OPEN, CHANNEL_OPEN)
        for wanted in ((10, 10), (10, 30), (10, 41), (20, 11)):
            self.expect(*wanted)

    def close(self) -> None:
        self.stream.close()
        self.socket.close()


@pytest.fixture
def wire(server: Server) -> Iterator[Callable[[], Wire]]:
    made: list[Wire] = []

    def connect() -> Wire:
        made.append(Wire(server))
        return made[-1]

    yield connect
    for one in made:
        one.close()


def declare(one: Wire, queue: bytes, *, durable: bool = False) -> None:
    flags = b"\x02" if durable else b"\0"
    one.send(method(1, 50, 10, b"\0\0" + short(queue) + flags + struct.pack(">I", 0)))
    one.expect(50, 11)


def get(one: Wire, queue: bytes) -> tuple[bytes, bool] | None:
    """basic.get, acknowledged at once: body and redelivered."""
    one.send(method(1, 60, 70, b"\0\0" + short(queue) + b"\0"))
    _, _, payload = one.frame()
    if struct.unpack_from(">HH", payload) == (60, 72):
        return None
    tag, redelivered = struct.unpack_from(">QB", payload, 4)
    _, _, header = one.frame()
    (size,) = struct.unpack_from(">Q", header, 4)
    body = one.frame()[2] if size else b""
    one.send(method(1, 60, 80, struct.pack(">QB", tag, 0)))
    return body, bool(redelivered)


# --- handshakes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00", b"AMQP\x00\x01\x00\x00"]
)
def test_another_protocol_is_told_which_one_is_spoken(
    wire: Callable[[], Wire], data: bytes
) -> None:
    one = wire()
    one.send(data)
    assert one.stream.read(8) == HEADER
    assert one.at_end()


def test_a_handshake_byte_by_byte(wire: Callable[[], Wire]) -> None:
    one = wire()
    for byte in HEADER + START_OK + TUNE_OK + OPEN + CHANNEL_OPEN:
        one.send(bytes((byte,)))
    for wanted in ((10, 10), (10, 30), (10, 41), (20, 11)):
        one.expect(*wanted)


def test_a_frame_that_announces_gigabytes_is_refused_at_once(wire: Callable[[], Wire]) -> None:
    """Before and after login; the rest that was sent does not matter."""
    one = wire()
    one.send(HEADER, b"\x01\x00\x00\x7f\xff\xff\xff", bytes(10_000))
    one.expect(10, 10)
    assert one.expect_close() == 501
    other = wire()
    other.log_in()
    other.send(b"\x01\x00\x01\xff\xff\xff\xff", bytes(10_000))
    assert other.expect_close() == 501


@pytest.mark.slow
def test_a_login_with_an_unknown_mechanism_costs_time(wire: Callable[[], Wire]) -> None:
    """A client without the capability is told nothing; the socket closes after the penalty."""
    one = wire()
    wrong = START_OK.replace(b"\x05PLAIN", b"\x05MAGIC")
    one.send(HEADER, wrong, START_OK)
    one.expect(10, 10)
    assert one.at_end()


# --- what comes in the middle of things ----------------------------------------------------------


def test_contents_of_two_channels_interleave(wire: Callable[[], Wire]) -> None:
    one = wire()
    one.log_in()
    one.send(method(2, 20, 10, short(b"")))
    one.expect(20, 11)
    declare(one, b"interleaved")

    def part(channel: int) -> list[bytes]:
        return [
            method(channel, 60, 40, b"\0\0" + short(b"") + short(b"interleaved") + b"\0"),
            frame(2, channel, struct.pack(">HHQH", 60, 0, 4, 0)),
            frame(3, channel, b"%d-" % channel),
            frame(3, channel, b""),
            frame(3, channel, b"ok"),
        ]

    for pair in zip(part(1), part(2), strict=True):
        one.send(*pair)
    assert [get(one, b"interleaved"), get(one, b"interleaved"), get(one, b"interleaved")] == [
        (b"1-ok", False),
        (b"2-ok", False),
        None,
    ]


@pytest.mark.slow
def test_a_method_within_a_content_closes_the_connection(wire: Callable[[], Wire]) -> None:
    one = wire()
    one.log_in()
    one.send(publish(b"cut", b"whole")[:-20], method(1, 60, 10, bytes(7)))
    assert one.expect_close() == 501  # the cut frame runs into the next one
    other = wire()
    other.log_in()
    other.send(method(1, 60, 40, b"\0\0\0\0\0"), method(1, 60, 10, bytes(7)))
    assert other.expect_close() == 505
    other.send(CLOSE_OK)
    assert other.at_end()


def test_channels_are_opened_and_closed_a_thousand_times(wire: Callable[[], Wire]) -> None:
    one = wire()
    one.log_in()
    close = method(2, 20, 40, struct.pack(">H", 200) + short(b"") + bytes(4))
    for _ in range(10):
        one.send((method(2, 20, 10, short(b"")) + close) * 100)
        for _ in range(100):
            one.expect(20, 11)
            one.expect(20, 41)
    declare(one, b"thousand")


def test_many_publishes_in_one_write_are_confirmed_in_order(wire: Callable[[], Wire]) -> None:
    one = wire()
    one.log_in()
    declare(one, b"many", durable=True)
    one.send(method(1, 85, 10, b"\0"))
    one.expect(85, 11)
    one.send(*(publish(b"many", b"%05d" % number) for number in range(20_000)))
    confirmed = 0
    while confirmed < 20_000:
        tag, multiple = struct.unpack(">QB", one.expect(60, 80))
        assert tag == confirmed + 1 or (multiple and tag > confirmed)
        confirmed = tag
    assert [get(one, b"many") for _ in range(3)] == [(b"%05d" % n, False) for n in range(3)]


def test_a_client_that_does_not_read_does_not_stop_the_others(wire: Callable[[], Wire]) -> None:
    """A consumer without acknowledgements that never reads gets what the sockets hold, no more."""
    one, deaf = wire(), wire()
    for each in (one, deaf):
        each.log_in()
    declare(one, b"deaf")
    deaf.send(
        method(1, 60, 20, b"\0\0" + short(b"deaf") + short(b"c") + b"\x02" + struct.pack(">I", 0))
    )
    deaf.expect(60, 21)
    one.send(method(1, 85, 10, b"\0"))
    one.expect(85, 11)
    body = bytes(100_000)
    for _ in range(3):
        one.send(*(publish(b"deaf", body) for _ in range(100)))
        confirmed = 0
        while confirmed % 100 or not confirmed:
            (confirmed,) = struct.unpack_from(">Q", one.expect(60, 80))
    one.send(method(1, 50, 10, b"\0\0" + short(b"deaf") + b"\x01" + struct.pack(">I", 0)))
    arguments = one.expect(50, 11)
    (ready,) = struct.unpack_from(">I", arguments, 2)
    assert ready > 100


# --- stops and crashes ---------------------------------------------------------------------------


def test_a_server_that_stops_says_so(start_server: StartServer) -> None:
    """SIGTERM: 320, and the end as soon as the client agrees."""
    server = start_server()
    one = Wire(server)
    one.log_in()
    server.process.terminate()
    assert one.expect_close() == 320
    one.send(CLOSE_OK)
    assert one.at_end()
    assert server.process.wait(SECONDS_MAX) == 0
    one.close()


def test_pika_sees_a_stop_as_connection_forced(start_server: StartServer) -> None:
    server = start_server()
    connection = pika.BlockingConnection(pika.ConnectionParameters(server.host, server.amqp_port))
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    server.process.terminate()
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
        connection.process_data_events(time_limit=SECONDS_MAX)
    assert caught.value.reply_code == 320
    assert server.process.wait(SECONDS_MAX) == 0


def test_what_was_confirmed_survives_a_kill(start_server: StartServer) -> None:
    """Declared, bound, confirmed: all of it is there after SIGKILL. What was handed out and not
    acknowledged comes again."""
    server = start_server()
    parameters = pika.ConnectionParameters(server.host, server.amqp_port)
    channel = pika.BlockingConnection(parameters).channel()
    channel.exchange_declare("ex", "topic", durable=True)
    channel.queue_declare("kept", durable=True)
    channel.queue_bind("kept", "ex", "a.#")
    channel.confirm_delivery()
    persistent = pika.BasicProperties(delivery_mode=2, headers={"h": 1})
    for number in range(100):
        channel.basic_publish("ex", "a.b", str(number), persistent, mandatory=True)
    for _ in range(10):
        assert channel.basic_get("kept")[0] is not None
    server.kill()
    with pytest.raises(pika.exceptions.AMQPError):
        channel.queue_declare("kept", passive=True)
    server.restart()
    connection = pika.BlockingConnection(pika.ConnectionParameters(server.host, server.amqp_port))
    channel = connection.channel()
    assert channel.queue_declare("kept", passive=True).method.message_count == 100
    got = [channel.basic_get("kept", auto_ack=True) for _ in range(100)]
    assert [int(body) for _, _, body in got] == list(range(100))
    assert all(properties == persistent for _, properties, _ in got)
    channel.basic_publish("ex", "a", b"still bound")
    assert channel.basic_get("kept", auto_ack=True)[2] == b"still bound"
    connection.close()
