"""The socket shell: partial frames, big frames, one write per iteration, pauses, deadlines."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import ssl
import weakref
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from polymq.net.connection import BUFFER_BYTES, Context, SocketConnection
from polymq.net.listener import CannotListen, Listener, bind, listen
from polymq.net.tls_source import fixed


class Lines(SocketConnection):
    """A protocol whose frames are lines: it answers each with its length."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.lines: list[bytes] = []
        self.reads: list[int] = []
        self.drained_count = 0
        self.expired_count = 0
        self.gone = asyncio.Event()

    def consume(self, buffer: bytearray, start: int, end: int) -> int:
        self.reads.append(end - start)
        while (at := buffer.find(b"\n", start, end)) >= 0:
            self.lines.append(bytes(buffer[start:at]))
            self.write(b"%d\n" % (at - start))
            start = at + 1
        return start

    def drained(self) -> None:
        self.drained_count += 1

    def expired(self, now: float) -> float | None:
        self.expired_count += 1
        self.close()
        return None

    def lost(self, error: Exception | None) -> None:
        self.gone.set()


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def serve(scenario: Callable[[Listener, list[Lines], Streams], Awaitable[None]]) -> None:
    """Run a scenario with one client connected to a listener: on the loop's transports, and on the
    socket plane where there is one."""

    async def run(*, plane: bool) -> None:
        context = Context(asyncio.get_running_loop(), plane=plane)
        made: list[Lines] = []

        def new() -> Lines:
            made.append(Lines(context))
            return made[-1]

        listener = await listen(context, new, host="127.0.0.1", port=0, connections_max=2)
        streams = await asyncio.open_connection("127.0.0.1", listener.port)
        await scenario(listener, made, streams)
        streams[1].close()
        await listener.close()
        context.close()

    for policy in (asyncio.new_event_loop, uvloop.new_event_loop):
        for plane in (False, True):
            with asyncio.Runner(loop_factory=policy) as runner:
                runner.run(run(plane=plane))


def is_paused(connection: Lines) -> bool:
    return connection.paused


def test_a_frame_in_pieces_is_put_together() -> None:
    """Cuts anywhere: the connection sees whole lines in order."""

    async def scenario(_: Listener, made: list[Lines], streams: Streams) -> None:
        reader, writer = streams
        for piece in (b"ab", b"c\nde", b"f\n", b"\n"):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        assert [await reader.readline() for _ in range(3)] == [b"3\n", b"3\n", b"0\n"]
        assert made[0].lines == [b"abc", b"def", b""]

    serve(scenario)


def test_a_frame_larger_than_the_shared_buffer_arrives_whole() -> None:
    """A megabyte without a line end, then small lines again through the shared buffer."""

    async def scenario(_: Listener, made: list[Lines], streams: Streams) -> None:
        reader, writer = streams
        big = b"x" * (4 * BUFFER_BYTES)
        writer.write(big + b"\nsmall\n")
        await writer.drain()
        assert await reader.readline() == b"%d\n" % len(big)
        assert await reader.readline() == b"5\n"
        writer.write(b"next\n")
        assert await reader.readline() == b"4\n"
        assert made[0].lines == [big, b"small", b"next"]

    serve(scenario)


def test_what_one_read_makes_leaves_in_one_write() -> None:
    """A thousand answers to one read are one call to the transport."""

    async def scenario(_: Listener, made: list[Lines], streams: Streams) -> None:
        reader, writer = streams
        writer.write(b"first\n")
        await reader.readline()
        connection = made[0]
        assert connection.transport is not None
        writes: list[int] = []
        transport = connection.transport

        class Counting:
            def write(self, data: bytes) -> None:
                writes.append(len(data))
                transport.write(data)

        connection.transport = Counting()
        before = len(connection.reads)
        writer.write(b"a\n" * 1000)
        await writer.drain()
        for _line in range(1000):
            await reader.readline()
        connection.transport = transport
        assert len(writes) <= len(connection.reads) - before

    serve(scenario)


def test_a_peer_that_does_not_read_pauses_the_connection() -> None:
    """Past the high-water mark `paused` is true; once the peer reads, `drained` is called."""

    async def scenario(_: Listener, made: list[Lines], streams: Streams) -> None:
        reader, writer = streams
        writer.write(b"go\n")
        await reader.readline()
        connection = made[0]
        for _chunk in range(200):
            if not connection.paused:
                connection.write(b"y" * 100_000)
                connection.write_gathered()
        assert connection.paused
        while connection.drained_count == 0:
            await reader.read(1 << 20)
        assert not is_paused(connection)

    serve(scenario)


def test_a_deadline_closes_a_silent_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel calls `expired` within a tick after the time."""
    monkeypatch.setattr("polymq.net.connection.TICK_SECONDS", 0.05)

    async def scenario(_: Listener, made: list[Lines], streams: Streams) -> None:
        reader, writer = streams
        writer.write(b"hello\n")
        await reader.readline()
        connection = made[0]
        connection.deadline(connection.context.now() + 3600)
        connection.deadline(connection.context.now())
        assert await reader.read() == b""
        assert connection.expired_count == 1
        await connection.gone.wait()

    serve(scenario)


def test_a_deadline_that_is_set_when_one_passed_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a connection that closes then, and gives its last bytes so long."""
    monkeypatch.setattr("polymq.net.connection.TICK_SECONDS", 0.05)

    async def scenario(_: Listener, made: list[Lines], streams: Streams) -> None:
        reader, writer = streams
        writer.write(b"hello\n")
        await reader.readline()
        connection = made[0]
        passed: list[float] = []

        def expired(now: float) -> None:
            passed.append(now)
            if len(passed) == 1:
                connection.deadline(now)
            else:
                connection.close()

        connection.expired = expired  # type: ignore[method-assign]
        connection.deadline(connection.context.now())
        assert await asyncio.wait_for(reader.read(), 10) == b""
        assert len(passed) == 2

    serve(scenario)


def test_an_ended_connection_is_free_before_its_deadline() -> None:
    """By reference counts alone, also if its deadline moved, or was set when it ended."""

    async def scenario(_: Listener, made: list[Lines], streams: Streams) -> None:
        reader, writer = streams
        writer.write(b"hello\n")
        await reader.readline()
        connection = made.pop()
        now = connection.context.now()
        for seconds in (3600, 60, 1800, 30):
            connection.deadline(now + seconds)
        gone, ended = connection.gone, weakref.ref(connection)
        context = connection.context
        gc.disable()
        try:
            writer.close()
            del connection
            await gone.wait()
            await asyncio.sleep(0)
            assert ended() is None
            assert not context.watched_count
        finally:
            gc.enable()

    serve(scenario)


def test_one_connection_too_many_is_closed_at_once() -> None:
    """The others go on."""

    async def scenario(listener: Listener, _: list[Lines], streams: Streams) -> None:
        second = await asyncio.open_connection("127.0.0.1", listener.port)
        second[1].write(b"second\n")
        assert await second[0].readline() == b"6\n"
        third = await asyncio.open_connection("127.0.0.1", listener.port)
        assert await third[0].read() == b""
        assert listener.roster.refused_count == 1
        streams[1].write(b"first\n")
        assert await streams[0].readline() == b"5\n"
        for _reader, writer in (second, third):
            writer.close()

    serve(scenario)


def test_a_taken_port_is_explained_in_one_sentence() -> None:
    """The sentence names the port and what to do."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        async def run() -> None:
            context = Context(asyncio.get_running_loop())
            await listen(
                context,
                lambda: Lines(context),
                host="127.0.0.1",
                port=port,
                connections_max=1,
            )

        with pytest.raises(CannotListen, match=f"port {port} on 127.0.0.1 is taken"):
            asyncio.run(run())


def test_a_failed_tls_handshake_gives_its_place_back() -> None:
    """The one place of the listener is taken by peers that do not speak TLS, one after the other:
    none of them is refused because of those before it."""

    async def scenario() -> None:
        context = Context(asyncio.get_running_loop())
        listener = await listen(
            context,
            lambda: Lines(context),
            host="127.0.0.1",
            port=0,
            tls=fixed(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)),
            connections_max=1,
        )
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            writer.write(b"no TLS at all\n")
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()
            await listener.wait_empty(5)
        assert (listener.roster.refused_count, listener.connections) == (0, set())
        await listener.close()
        context.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("plane", [False, True])
def test_sockets_that_listen_already_are_served(*, plane: bool) -> None:
    """Who connected before somebody accepts is served, and the port stays bound when the listener
    is gone, as long as another descriptor has it."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        context = Context(loop, plane=plane)
        bound = await bind(loop, "127.0.0.1", 0)
        port = bound[0].getsockname()[1]
        for _ in range(2):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"line\n")
            sockets = [listening.dup() for listening in bound]
            listener = await listen(
                context,
                lambda: Lines(context),
                host="",
                port=0,
                connections_max=2,
                sockets=sockets,
            )
            assert listener.port == port
            assert await reader.readline() == b"4\n"
            writer.close()
            await listener.close()
        with pytest.raises(CannotListen, match="is taken"):
            await listen(
                context, lambda: Lines(context), host="127.0.0.1", port=port, connections_max=2
            )
        for listening in bound:
            listening.close()
        context.close()

    asyncio.run(scenario())
