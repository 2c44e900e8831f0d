"""The server on real sockets, on both event loops: start, TLS, limits, and the ways it stops."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import pytest
import uvloop

from interop_tests import mqtt_wire as wire
from polymq.broker.port import BrokerPort
from polymq.gateways.mqtt.limits import Limits
from polymq.gateways.mqtt.server import Server as MqttServer
from polymq.gateways.mqtt.server import random_client_id
from polymq.net.connection import Context
from polymq.net.listener import CannotListen
from polymq.net.tls_source import fixed
from tests.gateways.mqtt.mqtt_harness import Published, SpyPort

WAIT_SECONDS_MAX = 10.0
CERTIFICATE = Path(__file__).with_name("mqtt_tls_for_tests.pem")

both_loops = pytest.mark.parametrize(
    "new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
NewLoop = Callable[[], asyncio.AbstractEventLoop]


class Client:
    """A socket that reads what it expects, with a deadline."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, *packets: bytes) -> None:
        self.writer.write(b"".join(packets))

    async def expect(self, *packets: bytes) -> None:
        data = b"".join(packets)
        assert await asyncio.wait_for(self.reader.readexactly(len(data)), WAIT_SECONDS_MAX) == data

    async def expect_closed(self) -> None:
        """Closed by the server, with nothing more on the way."""
        try:
            assert await asyncio.wait_for(self.reader.read(), WAIT_SECONDS_MAX) == b""
        except ConnectionResetError:
            pass  # aborted: the same to the client

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass  # the server was faster


class House:
    """A server over the recording engine, and its clients."""

    def __init__(self, *, auto_commit: bool = True, limits: Limits | None = None) -> None:
        self.port = SpyPort(auto_commit=auto_commit)
        self.context = Context(asyncio.get_running_loop())
        self.server = MqttServer(
            port=cast("BrokerPort", self.port), context=self.context, limits=limits
        )
        self.clients: list[Client] = []
        self.number = 0

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        self.number = await self.server.start("127.0.0.1", 0, fixed(tls))

    async def client(self, connect: bytes = b"", tls: ssl.SSLContext | None = None) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.number, ssl=tls))
        self.clients.append(client)
        if connect:
            client.send(connect)
            await client.expect(wire.connack())
        return client

    async def close(self) -> None:
        for client in self.clients:
            await client.close()
        await self.server.stop(WAIT_SECONDS_MAX)
        self.context.close()


def run(new_loop: NewLoop, scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(scenario(), 3 * WAIT_SECONDS_MAX)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(bounded())


@both_loops
def test_a_conversation(new_loop: NewLoop) -> None:
    """A message of a megabyte comes in many reads, small ones many in a read."""

    async def scenario() -> None:
        house = House()
        await house.start()
        client = await house.client(wire.connect("c"))
        large = bytes(range(256)) * 4096
        client.send(wire.publish("a/b", large, qos=1, packet_id=1))
        client.send(*(wire.publish("a/b", b"%d" % k, qos=1, packet_id=k) for k in range(2, 1000)))
        await client.expect(*(wire.puback(k) for k in range(1, 1000)))
        assert house.port.published == [Published("a", "b", large, 1)] + [
            Published("a", "b", b"%d" % k, 1) for k in range(2, 1000)
        ]
        counted = house.server.statistics()
        assert counted["publishes_received"] == 999
        assert (counted["connections"], counted["connections_now"]) == (1, 1)
        client.send(wire.DISCONNECT)
        await client.expect_closed()
        await house.close()
        assert house.server.connection_count == 0

    run(new_loop, scenario)


@both_loops
def test_tls(new_loop: NewLoop) -> None:
    async def scenario() -> None:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(CERTIFICATE)
        trust = ssl.create_default_context(cafile=str(CERTIFICATE))
        house = House()
        await house.start(tls)
        client = await house.client(wire.connect("c"), trust)
        client.send(*(wire.publish("a", bytes(1000), qos=1, packet_id=k) for k in range(1, 600)))
        await client.expect(*(wire.puback(k) for k in range(1, 600)))
        client.send(wire.DISCONNECT)
        await client.expect_closed()
        await house.close()

    run(new_loop, scenario)


def test_a_port_that_is_taken_is_told_in_a_sentence() -> None:
    async def scenario() -> None:
        first, second = House(), House()
        await first.start()
        with pytest.raises(CannotListen, match=f"port {first.number} on 127.0.0.1 is taken"):
            await second.server.start("127.0.0.1", first.number)
        await second.server.stop(0.0)
        await first.close()

    run(asyncio.new_event_loop, scenario)


def test_one_connection_too_many_is_closed_at_once() -> None:
    async def scenario() -> None:
        house = House(limits=Limits(connections_max=1))
        await house.start()
        first = await house.client(wire.connect("1"))
        second = await house.client()
        await second.expect_closed()
        first.send(wire.PINGREQ)
        await first.expect(wire.PINGRESP)
        await house.close()

    run(asyncio.new_event_loop, scenario)


@both_loops
def test_stopping_waits_for_acks_that_wait_for_the_disk(new_loop: NewLoop) -> None:
    async def scenario() -> None:
        house = House()
        await house.start()
        busy = await house.client(wire.connect("busy", will=("w", b"", 0, False)))
        idle = await house.client(wire.connect("idle"))
        house.port.auto_commit = False
        house.port.is_stopping = True
        busy.send(wire.publish("a", b"x", qos=1, packet_id=1), wire.PINGREQ)
        await busy.expect(wire.PINGRESP)  # so the publish was taken
        stopping = asyncio.ensure_future(house.server.stop(WAIT_SECONDS_MAX))
        await idle.expect_closed()
        assert not stopping.done()
        with pytest.raises(ConnectionRefusedError):
            await house.client()
        house.port.commit()
        await busy.expect(wire.puback(1))
        await busy.expect_closed()
        await stopping
        assert len(house.port.published) == 1
        await house.close()

    run(new_loop, scenario)


@both_loops
def test_stopping_does_not_wait_for_ever(new_loop: NewLoop) -> None:
    """A disk that never answers, and the time given is up."""

    async def scenario() -> None:
        house = House(auto_commit=False)
        await house.start()
        client = await house.client(wire.connect("c"))
        client.send(wire.publish("a", b"x", qos=1, packet_id=1), wire.PINGREQ)
        await client.expect(wire.PINGRESP)  # so the publish was taken
        await house.server.stop(0.01)
        assert house.server.connection_count == 0
        await client.expect_closed()
        await house.close()

    run(new_loop, scenario)


def test_a_failed_disk_closes_all_connections() -> None:
    async def scenario() -> None:
        house = House(auto_commit=False)
        await house.start()
        clients = [await house.client(wire.connect(name)) for name in ("a", "b")]
        house.port.fail()
        for client in clients:
            await client.expect_closed()
        await house.close()

    run(asyncio.new_event_loop, scenario)


def test_made_up_client_ids_are_not_guessable() -> None:
    ids = {random_client_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(len(name) == len("auto-") + 32 for name in ids)
