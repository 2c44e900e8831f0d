"""The socket shell: deadlines, heartbeats, one write per turn, and taking leave.

Most of it on a loop whose clock the test moves; `stop` over real sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest

from polymq.broker.port import BrokerPort, StorageFailed
from polymq.gateways.amqp import spec
from polymq.gateways.amqp.connection import Connection as AmqpSocket
from polymq.gateways.amqp.heartbeat import Beat, Heartbeat
from polymq.gateways.amqp.limits import Limits
from polymq.gateways.amqp.methods import HEARTBEAT, PROTOCOL_HEADER
from polymq.gateways.amqp.server import Server as AmqpServer
from polymq.net.connection import Context
from polymq.net.turns import Turns
from tests.gateways.amqp import amqp_wire as wire
from tests.gateways.amqp.amqp_core_driver import HEADER, OPEN, START_OK, channel_open
from tests.gateways.amqp.amqp_harness import SpyPort


@dataclass
class FakeTimer:
    loop: FakeLoop
    timer: tuple[float, Callable[..., None]]

    def cancel(self) -> None:
        if self.timer in self.loop.timers:
            self.loop.timers.remove(self.timer)


class FakeLoop:
    """As much of an event loop as `net` uses, in the test's hands."""

    def __init__(self) -> None:
        self.clock = 1000.0
        self.soon: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.timers: list[tuple[float, Callable[..., None]]] = []

    def time(self) -> float:
        return self.clock

    def call_soon(self, callback: Callable[..., None], *args: Any) -> None:
        self.soon.append((callback, args))

    def call_later(self, delay: float, callback: Callable[..., None]) -> FakeTimer:
        timer = (self.clock + delay, callback)
        self.timers.append(timer)
        return FakeTimer(self, timer)

    def turn(self) -> None:
        """One iteration."""
        due, self.soon = self.soon, []
        for callback, args in due:
            callback(*args)

    def advance(self, seconds: float) -> None:
        """Let time pass; what becomes due runs in its second."""
        end = self.clock + seconds
        while self.timers and min(self.timers, key=lambda timer: timer[0])[0] <= end:
            timer = min(self.timers, key=lambda timer: timer[0])
            self.timers.remove(timer)
            self.clock = timer[0]
            timer[1]()
            self.turn()
        self.clock = end


class FakeSocketTransport:
    """An asyncio transport that keeps each write."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closed = self.aborted = False
        self.reading = True

    def get_extra_info(self, name: str) -> object:
        return ("127.0.0.1", 1) if name == "peername" else None

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        assert high > low

    def write(self, data: bytes) -> None:
        self.writes.append(bytes(data))

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True

    def is_reading(self) -> bool:
        return self.reading

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Shell:
    """A server's socket, joined to a test in memory."""

    def __init__(self, **limits: Any) -> None:
        self.loop = FakeLoop()
        self.port = SpyPort()
        self.server = AmqpServer(
            port=cast("BrokerPort", self.port),
            context=Context(
                cast("asyncio.AbstractEventLoop", self.loop),
                turns=Turns(self.loop.call_soon, clock=lambda: 0.0),  # however slow the machine is
            ),
            limits=Limits(**limits),
        )
        self.socket: AmqpSocket = self.server.new_socket()
        self.transport = FakeSocketTransport()
        self.socket.connection_made(cast("asyncio.Transport", self.transport))

    def read(self, *parts: bytes) -> None:
        """Bytes of the client, and the turn in which they come."""
        data = b"".join(parts)
        while data:
            view = memoryview(self.socket.get_buffer(-1))
            size = min(len(view), len(data))
            view[:size] = data[:size]
            self.socket.buffer_updated(size)
            data = data[size:]
        self.loop.turn()

    def log_in(self, *, heartbeat: int = 0) -> None:
        tune_ok = spec.ConnectionTuneOk(channel_max=10, frame_max=131_072, heartbeat=heartbeat)
        self.read(HEADER, START_OK, wire.method(0, tune_ok), OPEN, channel_open(1))
        self.transport.writes.clear()

    def is_aborted(self) -> bool:
        return self.transport.aborted


def test_a_turn_of_the_loop_is_one_write() -> None:
    shell = Shell()
    shell.read(HEADER, START_OK)
    assert len(shell.transport.writes) == 1
    assert [sent.method.NAME for sent in wire.sent(shell.transport.writes[0])] == [
        "connection.start",
        "connection.tune",
    ]


def test_a_wrong_header_is_answered_with_the_right_one() -> None:
    shell = Shell()
    shell.read(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert shell.transport.writes == [PROTOCOL_HEADER]
    assert shell.transport.closed


@pytest.mark.parametrize("data", [b"", b"AMQP", HEADER, HEADER + START_OK], ids=len)
def test_a_handshake_that_does_not_end_is_ended(data: bytes) -> None:
    shell = Shell()
    shell.read(data)
    shell.loop.advance(9.0)
    assert not shell.is_aborted()
    shell.loop.advance(3.0)
    assert shell.is_aborted()


def test_an_open_connection_has_no_deadline() -> None:
    shell = Shell()
    shell.log_in()
    shell.loop.advance(1000.0)
    assert not shell.is_aborted()
    assert shell.transport.writes == []


def test_a_client_that_does_not_answer_close_is_aborted() -> None:
    shell = Shell()
    shell.log_in()
    shell.read(wire.method(7, spec.BasicQos()))
    (sent,) = wire.sent(b"".join(shell.transport.writes))
    assert isinstance(sent.method, spec.ConnectionClose)
    shell.loop.advance(4.0)
    assert not shell.is_aborted()
    shell.loop.advance(3.0)
    assert shell.is_aborted()


def test_garbage_is_answered_and_then_ignored() -> None:
    """501, and whatever else comes is thrown away until the deadline."""
    shell = Shell()
    shell.log_in()
    shell.read(b"\x41" * 1000)
    assert len(wire.sent(b"".join(shell.transport.writes))) == 1
    shell.read(b"\x41" * 500_000)
    assert shell.socket.rest == b""
    shell.loop.advance(7.0)
    assert shell.is_aborted()


# --- heartbeats ----------------------------------------------------------------------------------


def test_silence_is_filled_with_heartbeats() -> None:
    """Twice per interval, while the client talks and we have nothing to say; open-ok was the
    first half interval's."""
    shell = Shell()
    shell.log_in(heartbeat=10)
    for _ in range(6):
        shell.loop.advance(5.0)
        shell.read(HEARTBEAT)
    assert shell.transport.writes.count(HEARTBEAT) == 5
    assert not shell.is_aborted()


@pytest.mark.parametrize("interval", [1, 2, 5, 10])
def test_a_heartbeat_is_never_late(interval: int) -> None:
    """A silent server is heard within each interval: it looks every half of one, to the moment."""
    shell = Shell()
    shell.log_in(heartbeat=interval)
    for number in range(8):
        shell.loop.advance(interval / 2)
        assert shell.transport.writes.count(HEARTBEAT) == number
        shell.read(HEARTBEAT)
    shell.socket.connection_lost(None)
    shell.loop.advance(10.0 * interval)
    assert shell.transport.writes.count(HEARTBEAT) == 7


def test_whatever_is_sent_counts_as_a_heartbeat() -> None:
    shell = Shell()
    shell.log_in(heartbeat=10)
    for _ in range(20):
        shell.loop.advance(2.0)
        shell.read(wire.method(1, spec.BasicQos()))
    assert HEARTBEAT not in shell.transport.writes
    assert len(shell.transport.writes) == 20


def test_a_silent_client_is_gone_after_two_to_three_intervals() -> None:
    shell = Shell()
    shell.log_in(heartbeat=10)
    shell.loop.advance(19.0)
    assert not shell.is_aborted()
    shell.loop.advance(11.0)
    assert shell.is_aborted()
    assert all(data == HEARTBEAT for data in shell.transport.writes)  # no connection.close


def test_a_client_that_we_do_not_read_is_not_called_silent() -> None:
    """While the disk is behind its heartbeats stay in the kernel."""
    shell = Shell()
    shell.log_in(heartbeat=10)
    shell.port.is_behind = True
    shell.read(wire.publish(1, "ex", "k", b"x"))
    assert not shell.transport.reading
    shell.loop.advance(100.0)
    assert not shell.is_aborted()
    assert shell.port.behind is not None
    shell.port.behind()
    shell.loop.advance(60.0)
    assert shell.is_aborted()


def test_no_heartbeats_were_asked_for() -> None:
    shell = Shell()
    shell.log_in(heartbeat=0)
    shell.loop.advance(10_000.0)
    assert shell.transport.writes == []


def test_the_heartbeat_rules_by_themselves() -> None:
    heart = Heartbeat(10, now=0.0)
    assert heart.tick_seconds == 5.0
    assert heart.tick(5.0) is Beat.SEND
    heart.spoke = heart.heard = True
    assert heart.tick(10.0) is Beat.NOTHING
    assert [heart.tick(at) for at in (15.0, 20.0, 25.0, 30.0)] == [
        Beat.SEND,
        Beat.SEND,
        Beat.SEND,
        Beat.DEAD,
    ]


# --- bounds --------------------------------------------------------------------------------------


def test_deliveries_of_a_turn_are_bounded() -> None:
    """Before the socket has taken a byte nothing tells that it is slow, so we count."""
    shell = Shell(turn_bytes_max=1000)
    shell.log_in()
    seen = [shell.socket.full]
    shell.socket.write(bytes(1000))
    seen.append(shell.socket.full)
    shell.loop.turn()
    seen.append(shell.socket.full)
    shell.socket.pause_writing()
    seen.append(shell.socket.full)
    assert seen == [False, True, False, True]


def test_storage_failure_reaches_every_client() -> None:
    shell = Shell()
    shell.log_in()
    shell.server._listeners.append(
        cast("Any", type("Listener", (), {"connections": {shell.socket}})())
    )
    shell.server._storage_failed(StorageFailed("fdatasync failed: the disk is gone"))
    shell.loop.turn()
    (sent,) = wire.sent(b"".join(shell.transport.writes))
    assert isinstance(sent.method, spec.ConnectionClose)
    assert sent.method.reply_text == "RESOURCE_ERROR - fdatasync failed: the disk is gone"


# --- stop, over sockets --------------------------------------------------------------------------


async def read_until(reader: asyncio.StreamReader, kind: type[spec.Method]) -> None:
    while True:
        head = await reader.readexactly(7)
        rest = await reader.readexactly(int.from_bytes(head[3:], "big") + 1)
        if any(isinstance(sent.method, kind) for sent in wire.sent(head + rest)):
            return


async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    tune_ok = wire.method(0, spec.ConnectionTuneOk(channel_max=10, frame_max=131_072, heartbeat=0))
    writer.write(HEADER + START_OK + tune_ok + OPEN)
    await read_until(reader, spec.ConnectionOpenOk)
    return reader, writer


def test_a_server_that_stops_asks_clients_to_close_and_waits_for_them() -> None:
    """320 to those that are open, nothing to those that are not, abort for those that stay."""

    async def scenario() -> None:
        context = Context(asyncio.get_running_loop())
        server = AmqpServer(port=cast("BrokerPort", SpyPort()), context=context)
        port = await server.start("127.0.0.1", 0)
        polite, rude = await connect(port), await connect(port)
        half = await asyncio.open_connection("127.0.0.1", port)
        half[1].write(HEADER)
        await read_until(half[0], spec.ConnectionStart)
        assert server.connection_count == 3
        stopping = asyncio.create_task(server.stop(0.5))
        await read_until(polite[0], spec.ConnectionClose)
        await read_until(rude[0], spec.ConnectionClose)
        polite[1].write(wire.method(0, spec.ConnectionCloseOk()))
        assert await polite[0].read() == b""
        assert await half[0].read() == b""
        assert server.statistics().connection_count == 1
        await stopping
        assert server.connection_count == 0
        with contextlib.suppress(ConnectionResetError):
            assert await rude[0].read() == b""
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        for _, writer in (polite, rude, half):
            writer.close()
        context.close()

    asyncio.run(scenario())


def test_unfinished_contents_of_a_lost_connection_take_no_room() -> None:
    """Else there would be less and less for everybody."""
    shell = Shell()
    shell.log_in()
    shell.read(
        wire.method(1, spec.BasicPublish(routing_key="q")),
        wire.header(1, 100_000),
        wire.body(1, bytes(60_000)),
    )
    assembling = shell.server._work.assembling
    assert assembling.bytes == 60_000 + 2  # the property flags
    shell.socket.connection_lost(None)
    assert assembling.bytes == 0
