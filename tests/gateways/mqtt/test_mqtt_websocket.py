"""MQTT over WebSocket on real sockets: in the socket plane, on both loops' transports, over TLS."""

from __future__ import annotations

import asyncio
import gc
import ssl
import weakref
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
import uvloop

from interop_tests import mqtt_wire as wire
from interop_tests import websocket_wire as ws
from polymq.broker.port import BrokerPort
from polymq.gateways.mqtt.connection import Connection
from polymq.gateways.mqtt.limits import Limits
from polymq.gateways.mqtt.server import Server as MqttServer
from polymq.gateways.mqtt.websocket import make_offer
from polymq.net import websocket_layer
from polymq.net.connection import Context
from polymq.net.tls_source import fixed
from polymq.net.websocket_handshake import HEAD_BYTES_MAX
from tests.gateways.mqtt.mqtt_harness import Published, SpyPort
from tests.gateways.mqtt.test_mqtt_server import CERTIFICATE

WAIT_SECONDS_MAX = 10.0
LIMITS = Limits(packet_bytes_max=3_000_000)


class Peer:
    """A client that speaks WebSocket by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.mqtt = bytearray()  # what binary frames carried, and nobody took yet
        self.frames: list[tuple[int, bytes]] = []
        self._data = bytearray()

    def send(self, *data: bytes) -> None:
        self.writer.write(b"".join(data))

    async def open(self, **wanted: Any) -> Peer:
        self.send(ws.request(**wanted))
        answer = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), WAIT_SECONDS_MAX)
        assert answer == ws.accepted()
        return self

    async def frame(self) -> tuple[int, bytes]:
        """The next frame of the server."""
        while (taken := ws.take_frame(self._data)) is None:
            data = await asyncio.wait_for(self.reader.read(1 << 20), WAIT_SECONDS_MAX)
            assert data, "the server closed without a Close"
            self._data += data
        del self._data[: taken[2]]
        self.frames.append(taken[:2])
        return taken[:2]

    async def expect(self, *packets: bytes) -> None:
        """What the next binary frames carry begins with this."""
        wanted = b"".join(packets)
        while len(self.mqtt) < len(wanted):
            opcode, data = await self.frame()
            assert opcode == ws.BINARY, (opcode, data)
            self.mqtt += data
        assert self.mqtt[: len(wanted)] == wanted
        del self.mqtt[: len(wanted)]

    async def expect_close(self, code: int) -> str:
        """Returns the reason."""
        assert not self.mqtt
        opcode, data = await self.frame()
        assert (opcode, int.from_bytes(data[:2], "big")) == (ws.CLOSE, code)
        return data[2:].decode()

    async def expect_end(self) -> None:
        """The socket is closed, and nothing came before."""
        assert not self._data
        try:
            assert await asyncio.wait_for(self.reader.read(), WAIT_SECONDS_MAX) == b""
        except ConnectionResetError:
            pass

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass


class House:
    """A WebSocket listener over the recording engine."""

    def __init__(
        self,
        *,
        auto_commit: bool = True,
        limits: Limits = LIMITS,
        plane: bool = True,
        origins: tuple[str, ...] = (),
    ) -> None:
        self.port = SpyPort(auto_commit=auto_commit)
        self.context = Context(asyncio.get_running_loop(), plane=plane)
        self.server = MqttServer(
            port=cast("BrokerPort", self.port),
            context=self.context,
            limits=limits,
            websocket=make_offer(
                path="/mqtt", origins=origins, packet_bytes_max=limits.packet_bytes_max
            ),
        )
        self.peers: list[Peer] = []
        self.number = 0
        self.tls: ssl.SSLContext | None = None

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        self.number = await self.server.start("127.0.0.1", 0, fixed(tls))

    async def peer(self) -> Peer:
        peer = Peer(*await asyncio.open_connection("127.0.0.1", self.number, ssl=self.tls))
        self.peers.append(peer)
        return peer

    async def client(self, name: str = "c") -> Peer:
        peer = await (await self.peer()).open()
        peer.send(ws.frame(wire.connect(name)))
        await peer.expect(wire.connack())
        return peer

    def connections(self) -> list[Connection]:
        return self.server._connections()

    async def close(self) -> None:
        for peer in self.peers:
            await peer.close()
        await self.server.stop(WAIT_SECONDS_MAX)
        self.context.close()


Scenario = Callable[[House], Awaitable[None]]


def serve(scenario: Scenario, **options: Any) -> None:
    """Run it in the socket plane and on the transports of both loops."""

    async def bounded(*, plane: bool) -> None:
        house = House(plane=plane, **options)
        await house.start()
        await asyncio.wait_for(scenario(house), 3 * WAIT_SECONDS_MAX)
        await house.close()
        assert house.server.connection_count == 0

    for new_loop, plane in (
        (asyncio.new_event_loop, True),
        (asyncio.new_event_loop, False),
        (uvloop.new_event_loop, False),
    ):
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(bounded(plane=plane))


async def conversation(house: House) -> None:
    """Packets that span frames, and frames that hold many packets."""
    peer = await house.client()
    large = bytes(range(256)) * 4096
    packet = wire.publish("a/b", large, qos=1, packet_id=1)
    peer.send(ws.frame(packet[:3], last=False), ws.frame(b"p", opcode=ws.PING))
    peer.send(ws.frame(packet[3:500_000], opcode=0, last=False))
    peer.send(ws.frame(packet[500_000:], opcode=0))
    assert await peer.frame() == (ws.PONG, b"p")
    await peer.expect(wire.puback(1))
    many = b"".join(wire.publish("a/b", b"%d" % k, qos=1, packet_id=k) for k in range(2, 1000))
    peer.send(ws.frame(many[:5000]), ws.frame(many[5000:]))
    await peer.expect(*(wire.puback(k) for k in range(2, 1000)))
    for byte in ws.frame(wire.PINGREQ):
        peer.send(bytes((byte,)))
        await asyncio.sleep(0)
    await peer.expect(wire.PINGRESP)
    assert house.port.published == [Published("a", "b", large, 1)] + [
        Published("a", "b", b"%d" % k, 1) for k in range(2, 1000)
    ]
    assert house.server.statistics()["publishes_received"] == 999
    peer.send(ws.frame(wire.DISCONNECT))
    await peer.expect_close(1000)
    peer.send(ws.close(1000))
    await peer.expect_end()


def test_a_conversation() -> None:
    serve(conversation)


def test_a_conversation_over_tls() -> None:
    async def run() -> None:
        house = House()
        served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        served.load_cert_chain(CERTIFICATE)
        house.tls = ssl.create_default_context(cafile=str(CERTIFICATE))
        house.tls.check_hostname = False
        await house.start(served)
        await asyncio.wait_for(conversation(house), 3 * WAIT_SECONDS_MAX)
        await house.close()

    for new_loop in (asyncio.new_event_loop, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(run())


def test_what_one_read_is_answered_with_is_one_frame() -> None:
    async def scenario(house: House) -> None:
        peer = await house.client()
        before = len(peer.frames)
        packets = [wire.publish("a", b"x", qos=1, packet_id=k) for k in range(1, 101)]
        peer.send(b"".join(map(ws.frame, packets)))
        await peer.expect(*(wire.puback(k) for k in range(1, 101)))
        assert len(peer.frames) == before + 1

    serve(scenario)


def test_frames_behind_the_request_and_packets_behind_connect() -> None:
    """A client may send ahead; what it ends with is behind all of it."""

    async def scenario(house: House) -> None:
        peer = await house.peer()
        publish = wire.publish("a", b"ahead", qos=1, packet_id=1)
        peer.send(ws.request(), ws.frame(wire.connect("c") + publish), ws.close(1001))
        answer = await asyncio.wait_for(peer.reader.readuntil(b"\r\n\r\n"), WAIT_SECONDS_MAX)
        assert answer == ws.accepted()
        assert (await peer.frame())[0] == ws.BINARY
        await peer.expect_close(1001)
        await peer.expect_end()
        assert [each.body for each in house.port.published] == [b"ahead"]

    serve(scenario)


@pytest.mark.parametrize(
    ("sent", "code", "reason"),
    [
        (ws.frame(b"x", opcode=ws.TEXT), 1003, "a text frame"),
        (ws.frame(wire.PINGREQ, mask=None), 1002, "not masked"),
        (ws.frame(wire.PINGREQ, reserved=4), 1002, "a reserved bit"),
        (ws.frame(b"", opcode=5), 1002, "opcode"),
        (ws.frame(b"x" * 126, opcode=ws.PING), 1002, "125 bytes"),
        (ws.frame(b"", opcode=ws.PING, last=False), 1002, "fragments"),
        (b"\x82\xff" + (3_000_001).to_bytes(8, "big") + b"mask", 1009, "larger than"),
        (ws.close(1005), 1002, "code of Close"),
        (ws.close(1000, b"\xff"), 1007, "not UTF-8"),
        (ws.close(1000, b"bye"), 1000, ""),
        (ws.close(), 1000, ""),
    ],
)
def test_how_a_websocket_ends(sent: bytes, code: int, reason: str) -> None:
    """What came before is handled and answered, what is behind is not; a WebSocket that ends
    without DISCONNECT publishes the will [MQTT-3.1.2-8]."""

    async def scenario(house: House) -> None:
        peer = await (await house.peer()).open()
        peer.send(ws.frame(wire.connect("c", will=("w", b"gone", 0, False))))
        await peer.expect(wire.connack())
        peer.send(ws.frame(wire.publish("a", b"1")), sent, ws.frame(wire.publish("a", b"2")))
        assert reason in await peer.expect_close(code)
        await peer.expect_end()
        assert [each.body for each in house.port.published] == [b"1", b"gone"]
        failed = code not in (1000, 1001)
        assert house.server.statistics()["protocol_errors"] == failed

    serve(scenario)


def test_disconnect_with_a_close_behind_it_publishes_no_will() -> None:
    """As clients send it, in one read; however many topics are to be looked at before."""

    async def scenario(house: House) -> None:
        for count in (0, 3000):
            peer = await (await house.peer()).open()
            peer.send(ws.frame(wire.connect("c", will=("w", b"gone", 0, False))))
            await peer.expect(wire.connack())
            house.port.published.clear()
            packets = [wire.publish(f"t/{k}", b"x") for k in range(count)]
            peer.send(ws.frame(b"".join([*packets, wire.DISCONNECT])) + ws.close(1000))
            await peer.expect_close(1000)
            await peer.expect_end()
            assert len(house.port.published) == count

    serve(scenario)


def test_the_end_waits_for_the_turn_of_what_came_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns of no length: each is over after one step, and the end is in its place all the same."""
    monkeypatch.setattr("polymq.net.turns.TURN_SECONDS", 0.0)
    monkeypatch.setattr("polymq.net.turns.TURN_SECONDS_MIN", 0.0)

    async def scenario(house: House) -> None:
        peer = await house.client()
        packets = [wire.publish(f"t/{k}", b"x", qos=1, packet_id=k) for k in range(1, 400)]
        peer.send(ws.frame(b"".join(packets)) + ws.close(1000))
        await peer.expect(*(wire.puback(k) for k in range(1, 400)))
        await peer.expect_close(1000)
        assert len(house.port.published) == 399

    serve(scenario)


def test_a_packet_in_part_counts_like_one_over_tcp() -> None:
    """It is what of the packet is here, however many frames it came in (`uploads.py`)."""

    async def scenario(house: House) -> None:
        peer = await house.client()
        packet = wire.publish("a", b"x" * 1_000_000, qos=1, packet_id=1)
        for at in range(0, 500_000, 10_000):
            peer.send(ws.frame(packet[at : at + 10_000]))
        while house.server.statistics()["uploads_bytes"] < 500_000:
            await asyncio.sleep(0)
        assert house.server.statistics()["uploads_bytes"] == 500_000
        peer.send(ws.frame(packet[500_000:]))
        await peer.expect(wire.puback(1))
        assert house.server.statistics()["uploads_bytes"] == 0

    serve(scenario)


def test_one_client_too_many_is_closed_and_room_comes_back() -> None:
    async def scenario(house: House) -> None:
        first = await house.client("a")
        await house.client("b")
        third = await house.peer()
        third.send(ws.request())
        await third.expect_end()
        first.send(ws.close(1000))
        await first.expect_close(1000)
        await first.expect_end()
        while house.server.connection_count == 2:
            await asyncio.sleep(0)
        await house.client("c")

    serve(scenario, limits=Limits(connections_max=2))


def test_a_server_that_stops_says_that_it_goes_away() -> None:
    """And waits for no answer, but for the acknowledgements that are owed."""

    async def scenario(house: House) -> None:
        peer = await house.client()
        house.port.auto_commit = False
        peer.send(ws.frame(wire.publish("a", b"x", qos=1, packet_id=7)))
        while not house.port.published:
            await asyncio.sleep(0)
        stopping = asyncio.ensure_future(house.server.stop(WAIT_SECONDS_MAX))
        await asyncio.sleep(0)
        house.port.commit()
        await peer.expect(wire.puback(7))
        await peer.expect_close(1001)
        await peer.expect_end()
        await stopping

    serve(scenario)


def test_a_refused_request_is_told_and_closed() -> None:
    async def scenario(house: House) -> None:
        for data, status in (
            (ws.request(subprotocols=("amqp",)), b"400"),
            (ws.request("/secret"), b"404"),
            (ws.request(origin="https://evil.example"), b"403"),
            (wire.connect("c"), b"400"),
            (b"GET /" + b"x" * HEAD_BYTES_MAX, b"431"),
        ):
            peer = await house.peer()
            peer.send(data)
            answer = await asyncio.wait_for(peer.reader.read(), WAIT_SECONDS_MAX)
            assert answer.startswith(b"HTTP/1.1 " + status + b" ")
        assert house.server.statistics()["protocol_errors"] == 5

    serve(scenario, origins=("https://app.example",))


@pytest.mark.parametrize("sent", [b"", b"GET /mqtt HTTP/1.1\r\n", ws.request()])
def test_who_sends_no_connect_in_time_is_closed(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also within the handshake, which has no time of its own."""
    monkeypatch.setattr("polymq.net.connection.TICK_SECONDS", 0.05)

    async def scenario(house: House) -> None:
        peer = await house.peer()
        peer.send(sent)
        answer = await asyncio.wait_for(peer.reader.read(), WAIT_SECONDS_MAX)
        wanted = ws.accepted() + ws.server_frame(b"\x03\xe8", opcode=ws.CLOSE)
        assert answer == (wanted if sent == ws.request() else b"")

    serve(scenario, limits=Limits(connect_seconds_max=0.1, close_seconds_max=0.1))


def test_a_client_that_reads_nothing_has_one_pong_waiting() -> None:
    """Pings without end cost no memory; once it reads, the last one is answered."""

    async def scenario(house: House) -> None:
        peer = await house.client()
        (connection,) = house.connections()
        connection.pause_writing()
        for k in range(50):
            peer.send(ws.frame(b"%d" % k, opcode=ws.PING))
        peer.send(ws.frame(wire.publish("a", b"mark")))
        while not house.port.published:
            await asyncio.sleep(0)
        connection.resume_writing()
        assert await peer.frame() == (ws.PONG, b"49")

    serve(scenario)


def test_pings_are_no_sign_of_life_to_mqtt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep alive counts control packets of MQTT [MQTT-3.1.2-24]."""
    monkeypatch.setattr("polymq.gateways.mqtt.login.KEEP_ALIVE_FACTOR", 0.2)
    monkeypatch.setattr("polymq.net.connection.TICK_SECONDS", 0.05)

    async def scenario(house: House) -> None:
        peer = await (await house.peer()).open()
        peer.send(ws.frame(wire.connect("c", keep_alive=1)))
        await peer.expect(wire.connack())

        opcode = ws.PONG
        while opcode == ws.PONG:
            peer.send(ws.frame(b"", opcode=ws.PING))
            opcode, _ = await peer.frame()
        assert opcode == ws.CLOSE
        assert house.server.statistics()["keep_alives_missed"] == 1

    serve(scenario)


def test_a_connection_that_ended_is_free_at_once() -> None:
    """By reference counts alone, whoever ended it."""

    async def scenario(house: House) -> None:
        gc.disable()
        try:
            for sent in (b"", ws.close(1000), ws.frame(wire.DISCONNECT), ws.frame(b"", opcode=1)):
                peer = await house.client()
                (connection,) = house.connections()
                ended = weakref.ref(connection)
                del connection
                peer.send(sent)
                peer.writer.close()
                while ended() is not None:
                    await asyncio.sleep(0)
        finally:
            gc.enable()

    serve(scenario)


def test_the_last_bytes_are_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that sends Close and reads nothing holds its connection for so long, no longer."""
    monkeypatch.setattr("polymq.net.connection.TICK_SECONDS", 0.05)
    monkeypatch.setattr(websocket_layer, "CLOSE_SECONDS", 0.1)

    async def scenario(house: House) -> None:
        peer = await house.client()
        (connection,) = house.connections()
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        del connection
        for each in house.connections():
            each.write(bytes(30_000_000))
        peer.send(ws.close(1000))
        while house.server.connection_count:
            await asyncio.sleep(0)

    serve(scenario)
