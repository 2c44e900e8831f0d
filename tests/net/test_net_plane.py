"""What can happen to a socket, on the loop's own transports and on the socket plane alike.

Clients are blocking sockets, so a scenario decides what is there when the loop next looks.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import uvloop

from polymq.net import listener
from polymq.net.connection import HIGH_WATER_BYTES, Context, SocketConnection
from polymq.net.listener import Listener, listen
from polymq.net.plane import CompiledPlane
from tests.harness.descriptors import no_more_descriptors

TURNS_MAX = 100_000
PLANES = (False, True) if CompiledPlane is not None else (False,)


class Recorder(SocketConnection):
    """Notes what happens to it; `on_bytes` is what a test wants to happen then."""

    def __init__(self, context: Context, on_bytes: Callable[[Recorder, bytes], object]) -> None:
        super().__init__(context)
        self.got = bytearray()
        self.lost_with: list[Exception | None] = []
        self.drained_count = 0
        self.inside = False
        self._on_bytes = on_bytes

    def consume(self, buffer: bytearray, start: int, end: int) -> int:
        assert not self.lost_with
        self.inside = True
        data = bytes(buffer[start:end])
        self.got += data
        self._on_bytes(self, data)
        self.inside = False
        return end

    def drained(self) -> None:
        self.drained_count += 1

    def lost(self, error: Exception | None) -> None:
        assert not self.inside, "told from within a call of its own"
        self.lost_with.append(error)


class Server:
    """A listener, the connections that it made, and blocking clients."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.made: list[Recorder] = []
        self.on_bytes: Callable[[Recorder, bytes], object] = lambda connection, data: None
        self.listener: Listener
        self.clients: list[socket.socket] = []
        self.reported: list[dict[str, Any]] = []

    def new(self) -> Recorder:
        self.made.append(Recorder(self.context, lambda one, data: self.on_bytes(one, data)))
        return self.made[-1]

    def dial(self) -> socket.socket:
        """A client whose handshake the kernel did: the server has not seen it yet."""
        client = socket.create_connection(("127.0.0.1", self.listener.port), timeout=10)
        self.clients.append(client)
        return client

    async def client(self) -> tuple[socket.socket, Recorder]:
        count = len(self.made)
        client = self.dial()
        await until(lambda: len(self.made) > count and self.made[-1].transport is not None)
        return client, self.made[-1]


async def until(condition: Callable[[], object]) -> None:
    """Let the loop turn until it holds."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


def serve(
    scenario: Callable[[Server], Awaitable[None]],
    connections_max: int = 1000,
    planes: Sequence[bool] = PLANES,
) -> None:
    """Run a scenario on both loops, on their transports and on the plane."""

    async def run(*, plane: bool) -> None:
        loop = asyncio.get_running_loop()
        server = Server(Context(loop, plane=plane))
        loop.set_exception_handler(lambda _, what: server.reported.append(what))
        server.listener = await listen(
            server.context,
            server.new,
            host="127.0.0.1",
            port=0,
            connections_max=connections_max,
        )
        try:
            await scenario(server)
        finally:
            for client in server.clients:
                client.close()
            await server.listener.close()
            server.context.close()
        for connection in server.made:
            assert len(connection.lost_with) <= 1
            assert connection.transport is None

    for policy in (asyncio.new_event_loop, uvloop.new_event_loop):
        for plane in planes:
            with asyncio.Runner(loop_factory=policy) as runner:
                runner.run(run(plane=plane))


def reset(client: socket.socket) -> None:
    """Close without a farewell: the peer gets RST."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


async def receive(client: socket.socket, size: int) -> bytes:
    """As many bytes, or fewer at the end, while the loop turns."""
    client.setblocking(False)
    data = bytearray()
    while len(data) < size:
        try:
            piece = await asyncio.get_running_loop().sock_recv(client, size - len(data))
        except ConnectionResetError:
            break
        if not piece:
            break
        data += piece
    return bytes(data)


# --- the end of a connection ---------------------------------------------------------------------


def test_a_reset_is_told_once_with_its_error() -> None:
    """The gateway has to know that nobody is there any more, and why."""

    async def scenario(server: Server) -> None:
        client, connection = await server.client()
        reset(client)
        await until(lambda: connection.lost_with)
        assert [type(error) for error in connection.lost_with] == [ConnectionResetError]
        assert connection.closing

    serve(scenario)


def test_a_client_that_says_its_last_word_gets_the_answer() -> None:
    """Half a socket: what came is answered, then the other half closes, without an error."""

    async def scenario(server: Server) -> None:
        answer = bytes(range(256)) * 4096
        server.on_bytes = lambda one, data: one.write(answer)
        client, connection = await server.client()
        client.sendall(b"last")
        client.shutdown(socket.SHUT_WR)
        assert await receive(client, len(answer) + 1) == answer
        await until(lambda: connection.lost_with)
        assert connection.lost_with == [None]

    serve(scenario)


def test_close_sends_what_is_unsent_and_abort_does_not() -> None:
    """`close` within the connection's own `consume`, with more to send than a socket takes."""

    async def scenario(server: Server) -> None:
        answer = os.urandom(4 * HIGH_WATER_BYTES)

        def close(one: Recorder, data: bytes) -> None:
            one.write(answer)
            one.close()
            one.write(b"nothing after close")

        server.on_bytes = close
        client, connection = await server.client()
        client.sendall(b"bye")
        assert await receive(client, len(answer) + 1) == answer
        await until(lambda: connection.lost_with)
        more = bytes(64 * HIGH_WATER_BYTES)  # than the buffers of both sockets take

        def abort(one: Recorder, data: bytes) -> None:
            one.write(more)
            one.write_gathered()
            one.abort()

        server.on_bytes = abort
        client, connection = await server.client()
        client.sendall(b"bye")
        assert len(await receive(client, len(more))) < len(more)
        await until(lambda: connection.lost_with)
        assert connection.lost_with == [None]

    serve(scenario)


def test_a_connection_ends_another_one_of_the_same_batch() -> None:
    """Both have bytes, and a third waits to be accepted, which may get the second's descriptor:
    the one that was ended hears nothing more, the third hears its own."""

    async def scenario(server: Server) -> None:
        (first, one), (second, two) = [await server.client() for _ in range(2)]
        server.on_bytes = lambda user, data: (two if user is one else one).abort()
        first.sendall(b"first")
        third = server.dial()
        second.sendall(b"second")
        third.sendall(b"third")
        await until(lambda: len(server.made) == 3 and server.made[2].got)
        await until(lambda: one.lost_with or two.lost_with)
        assert sorted([bytes(one.got), bytes(two.got)]) in ([b"", b"first"], [b"", b"second"])
        assert bytes(server.made[2].got) == b"third"
        assert server.reported == []

    serve(scenario)


def test_an_error_in_a_gateway_costs_its_own_connection_only() -> None:
    """It is reported, the socket is closed, and the others of the batch have their turn."""

    async def scenario(server: Server) -> None:
        def answer(one: Recorder, data: bytes) -> None:
            one.inside = data != b"bad"
            if data == b"bad":
                raise LookupError("a bug")
            one.write(data)

        server.on_bytes = answer
        (bad, wrong), (good, _) = [await server.client() for _ in range(2)]
        bad.sendall(b"bad")
        good.sendall(b"good")
        assert await receive(good, 4) == b"good"
        await until(lambda: wrong.lost_with)
        assert isinstance(wrong.lost_with[0], LookupError)
        assert [type(what["exception"]) for what in server.reported] == [LookupError]
        assert await receive(bad, 1) == b""

    serve(scenario)


def test_a_write_to_who_is_gone_ends_the_connection() -> None:
    """Nobody reads from it, so only the write can find out."""

    async def scenario(server: Server) -> None:
        client, connection = await server.client()
        connection.stop_reading()
        reset(client)

        def write() -> bool:
            connection.write(b"x")
            return bool(connection.lost_with)

        await until(write)
        assert isinstance(connection.lost_with[0], OSError)
        connection.write(b"after the end")
        connection.close()
        connection.abort()

    serve(scenario)


# --- pace ----------------------------------------------------------------------------------------


def test_what_is_not_read_waits_in_the_kernel() -> None:
    """`stop_reading` holds it back, `resume_reading` brings it, in order."""

    async def scenario(server: Server) -> None:
        client, connection = await server.client()
        connection.stop_reading()
        client.sendall(b"early")
        (other, _) = await server.client()  # the loop has been round, and looked
        other.sendall(b"x")
        await until(lambda: server.made[1].got)
        assert not connection.got
        assert connection.transport is not None
        assert not connection.transport.is_reading()
        connection.resume_reading()
        client.sendall(b"late")
        await until(lambda: len(connection.got) == 9)
        assert bytes(connection.got) == b"earlylate"

    serve(scenario)


def test_a_slow_reader_gets_all_of_it_in_order() -> None:
    """Past the high-water mark the connection pauses; once drained it goes on; no byte is lost,
    whatever sizes were written."""

    async def scenario(server: Server) -> None:
        client, connection = await server.client()
        sent = bytearray()
        for size in (1, 10, 100_000, 7, 9_000_000, 1, 1, 50_000, *([3] * 300)):
            piece = os.urandom(size)
            connection.write(piece)
            connection.write_gathered()
            sent += piece
        assert connection.paused
        assert await receive(client, len(sent)) == bytes(sent)
        await until(lambda: connection.drained_count)
        assert connection.drained_count == 1
        assert connection.transport is not None
        assert connection.transport.get_write_buffer_size() == 0

    serve(scenario)


def test_who_sends_much_does_not_starve_who_sends_little() -> None:
    """Two clients have megabytes waiting, a third a few bytes: it is answered long before they
    are read to their end, and timers and callbacks of the loop get their turn."""

    async def scenario(server: Server) -> None:
        order: list[Recorder] = []
        server.on_bytes = lambda one, data: order.append(one)
        clients = [await server.client() for _ in range(3)]
        for client, connection in clients:
            connection.stop_reading()
            client.setblocking(False)
        for client, _ in clients[:2]:
            try:
                while True:
                    client.send(bytes(65536))
            except BlockingIOError:
                pass
        clients[2][0].send(b"little")
        for _, connection in clients:
            connection.resume_reading()
        turns = 0
        while clients[2][1] not in order:
            await asyncio.sleep(0)
            turns += 1
            assert turns < 10
        assert len(order) <= 3 * turns

    serve(scenario)


@pytest.mark.skipif(CompiledPlane is None, reason="uvloop reads a full socket again at once")
def test_a_turn_that_had_to_stop_goes_on_where_it_stopped() -> None:
    """More waits than a turn reads: nobody is read again before everybody was read once, and in the
    end all of it is."""
    each, count = 256 * 1024, 100

    async def scenario() -> None:
        server = Server(Context(asyncio.get_running_loop()))
        server.listener = await listen(
            server.context,
            server.new,
            host="127.0.0.1",
            port=0,
            connections_max=count,
            newcomers_max=count,
        )
        clients = [await server.client() for _ in range(count)]
        for client, connection in clients:
            connection.stop_reading()
            client.setblocking(False)
        left = {client: each - client.send(bytes(each)) for client, _ in clients}
        order: list[Recorder] = []
        server.on_bytes = lambda one, data: order.append(one)
        for _, connection in clients:
            connection.resume_reading()
        await until(lambda: len(order) >= count)
        assert len(set(order[:count])) == count
        for client, _ in clients:
            await asyncio.get_running_loop().sock_sendall(client, bytes(left[client]))
        await until(lambda: all(len(connection.got) == each for _, connection in clients))
        for client, _ in clients:
            client.close()
        await server.listener.close()
        server.context.close()

    for policy in (asyncio.new_event_loop, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=policy) as runner:
            runner.run(scenario())


@pytest.mark.skipif(CompiledPlane is None, reason="the loops serve all sockets that are ready")
def test_a_turn_ends_with_its_time() -> None:
    """However little each socket sends. A request that takes several iterations of the loop has
    some without a turn then."""
    slow_seconds = 0.0012

    async def scenario(server: Server) -> None:
        loop = asyncio.get_running_loop()
        clients = [await server.client() for _ in range(12)]
        for client, connection in clients:
            connection.stop_reading()
            client.sendall(b"x")
        iterations = 0
        served: list[int] = []

        def count() -> None:
            nonlocal iterations
            iterations += 1
            loop.call_soon(count)

        def work(_one: Recorder, _data: bytes) -> None:
            served.append(iterations)
            end = time.monotonic() + slow_seconds
            while time.monotonic() < end:
                pass

        server.on_bytes = work
        count()
        for _, connection in clients:
            connection.resume_reading()
        await until(lambda: len(served) == len(clients))
        turns = Counter(served)
        assert max(turns.values()) == 2, "of 2 ms each"
        assert min(after - turn for turn, after in pairwise(sorted(turns))) > 3, "some pass"

    serve(scenario, planes=[True])


# --- accepting -----------------------------------------------------------------------------------


@pytest.mark.skipif(CompiledPlane is None, reason="the loops answer this each in its own way")
def test_without_descriptors_new_clients_wait_and_others_go_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence in the log; who connected meanwhile is served when there is room again."""
    monkeypatch.setattr(listener, "EXHAUSTED_SECONDS", 0.01)

    async def scenario() -> None:
        server = Server(Context(asyncio.get_running_loop()))
        server.listener = await listen(
            server.context, server.new, host="127.0.0.1", port=0, connections_max=9
        )
        server.on_bytes = lambda one, data: one.write(data)
        old, connection = await server.client()
        new = socket.socket()
        new.settimeout(10)
        with no_more_descriptors():
            new.connect(("127.0.0.1", server.listener.port))
            new.sendall(b"new")
            await until(lambda: "no new connections" in caplog.text)
            old.sendall(b"old")
            await until(lambda: connection.got == b"old")
            assert len(server.made) == 1
        assert await receive(new, 3) == b"new"
        assert "ulimit -n" in caplog.text
        for client in (old, new):
            client.close()
        await server.listener.close()
        server.context.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())


def test_many_connections_come_and_go() -> None:
    """More at once than a turn accepts or serves; each is answered, and each end is told."""

    async def scenario(server: Server) -> None:
        server.on_bytes = lambda one, data: one.write(data.upper())
        clients = [server.dial() for _ in range(300)]
        for index, client in enumerate(clients):
            client.sendall(b"hello %d" % index)
        for index, client in enumerate(clients):
            answer = b"HELLO %d" % index
            assert await receive(client, len(answer)) == answer
        for client in clients:
            client.close()
        await until(lambda: all(connection.lost_with for connection in server.made))
        assert len(server.made) == 300
        assert not server.listener.connections

    serve(scenario)


def test_a_connection_knows_both_of_its_addresses() -> None:
    """The peer's is in log lines and in the count of failed logins, also after the end."""

    async def scenario(server: Server) -> None:
        client, connection = await server.client()
        transport = connection.transport
        assert transport is not None
        assert transport.get_extra_info("sockname") == client.getpeername()
        assert transport.get_extra_info("peername") == client.getsockname()
        assert connection.peer == f"127.0.0.1:{client.getsockname()[1]}"
        assert transport.get_extra_info("no such thing", 7) == 7
        connection.abort()
        await until(lambda: connection.lost_with)
        assert connection.address == "127.0.0.1"

    serve(scenario)


def test_ipv6_listens_beside_ipv4() -> None:
    """`localhost` is often both."""

    async def scenario(*, plane: bool) -> None:
        context = Context(asyncio.get_running_loop(), plane=plane)
        server = Server(context)
        listening = await listen(context, server.new, host="::1", port=0, connections_max=9)
        with socket.create_connection(("::1", listening.port), timeout=10) as client:
            await until(lambda: server.made and server.made[0].transport is not None)
            assert server.made[0].peer == f"::1:{client.getsockname()[1]}"
        await listening.close()
        context.close()

    for plane in PLANES:
        try:
            asyncio.run(scenario(plane=plane))
        except listener.CannotListen:
            pytest.skip("no IPv6 here")


# --- the iteration -------------------------------------------------------------------------------


def test_a_descriptor_of_our_own_is_watched_and_its_iteration_ends_at_once() -> None:
    """What its callback asked for, and what that wrote, leaves without another turn."""

    async def scenario(server: Server) -> None:
        client, connection = await server.client()
        report = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        order: list[str] = []

        def end() -> None:
            order.append("end")
            connection.write(b"done")

        def reported() -> None:
            os.eventfd_read(report)
            server.context.loop.call_soon(order.append, "the loop's next turn")
            server.context.call_soon(end)
            order.append("reported")

        server.context.add_reader(report, reported)
        os.eventfd_write(report, 1)
        assert await receive(client, 4) == b"done"
        assert order == ["reported", "end", "the loop's next turn"]
        server.context.remove_reader(report)
        os.eventfd_write(report, 1)
        client.sendall(b"x")
        await until(lambda: connection.got)
        assert len(order) == 3
        os.close(report)

    serve(scenario)


@pytest.mark.skipif(CompiledPlane is None, reason="the loop's transports are the loop's to close")
def test_closing_the_context_ends_what_is_left() -> None:
    """A stop that could not wait: descriptors are given back, and every end is told."""

    async def scenario() -> None:
        server = Server(Context(asyncio.get_running_loop()))
        server.listener = await listen(
            server.context, server.new, host="127.0.0.1", port=0, connections_max=9
        )
        client, connection = await server.client()
        server.listener.stop_accepting()
        server.context.close()
        assert await receive(client, 1) == b""
        await until(lambda: connection.lost_with)
        client.close()

    asyncio.run(scenario())
