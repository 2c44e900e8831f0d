"""The RocketMQ listener over sockets: what a client sees, and what a bad one can do."""

from __future__ import annotations

import asyncio
import json
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from polymq.gateways.rocketmq.connection import Connection as RocketmqConnection
from polymq.gateways.rocketmq.limits import Limits as RocketmqLimits
from polymq.gateways.rocketmq.members import Consumers
from polymq.gateways.rocketmq.server import Server as RocketmqServer
from polymq.net.connection import Context
from polymq.net.flow import DISK
from polymq.remoting.codes import SerializeType
from polymq.remoting.driver_blocking import BlockingClient
from polymq.remoting.frames import Command, encode_frame, take_frame
from polymq.remoting.group_bodies import SubscriptionData
from polymq.remoting.records import iterate_records
from tests.gateways.rocketmq.rocketmq_spy_port import SpyPort

CERTIFICATE = Path(__file__).parents[1] / "mqtt" / "mqtt_tls_for_tests.pem"


class Peer:
    """A client that says exactly what it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, code: int, opaque: int = 1, **fields: object) -> None:
        self.send_command(
            Command(code=code, opaque=opaque, fields={k: str(v) for k, v in fields.items()})
        )

    def send_command(self, command: Command) -> None:
        self.writer.write(encode_frame(command))

    def pull(self, opaque: int = 1, **fields: object) -> None:
        wanted = {"topic": "t", "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, **fields}
        self.send(11, opaque, **wanted)

    async def answer(self) -> Command:
        size = await self.reader.readexactly(4)
        frame = size + await self.reader.readexactly(struct.unpack(">i", size)[0])
        taken = take_frame(frame, 0, len(frame))
        assert taken is not None
        return taken[0]

    async def closed(self) -> bool:
        return await self.reader.read(1) == b""


class Scene:
    """A started listener in front of a spy."""

    def __init__(self, spy: SpyPort, server: RocketmqServer, port: int, context: Context) -> None:
        self.spy = spy
        self.context = context
        self.server = server
        self.port = port
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self, port: int | None = None, tls: ssl.SSLContext | None = None) -> Peer:
        reader, writer = await asyncio.open_connection("127.0.0.1", port or self.port, ssl=tls)
        self._writers.append(writer)
        return Peer(reader, writer)

    async def until(self, condition: Callable[[], object]) -> None:
        """Let the loop run until the condition holds."""
        async with asyncio.timeout(5):
            while not condition():  # noqa: ASYNC110  (the spy has no event to wait for)
                await asyncio.sleep(0)

    async def close(self) -> None:
        for writer in self._writers:
            writer.close()
        await self.server.stop(1)


@asynccontextmanager
async def scene(
    limits: RocketmqLimits | None = None, spy: SpyPort | None = None, **options: Any
) -> AsyncIterator[Scene]:
    if spy is None:
        spy = SpyPort()
        spy.create("t", queues=2, incarnation=7)
    context = Context(asyncio.get_running_loop())
    server = RocketmqServer(port=spy.as_port(), context=context, limits=limits, **options)
    port = await server.start("127.0.0.1", 0)
    stage = Scene(spy, server, port, context)
    try:
        yield stage
    finally:
        await stage.close()
        context.close()


def play(story: Callable[[], Awaitable[None]]) -> None:
    async def timed() -> None:
        async with asyncio.timeout(20):
            await story()

    asyncio.run(timed())


def test_our_own_client_reads_a_topic_through_the_listener() -> None:
    """Route, bounds, pulls in slices, until the end."""

    def read(address: str) -> list[bytes]:
        with BlockingClient([address]) as client:
            assert [topic.user for topic in client.topics()] == ["t"]
            (queues,) = client.route("t").brokers
            assert (queues.broker, queues.queue_count) == ("broker-a", 2)
            assert str(queues.address) == address  # where this client reached it
            bounds = client.bounds("t", "broker-a", 1)
            assert (bounds.first, bounds.end, bounds.incarnation) == (2, 10, 7)
            bodies: list[bytes] = []
            offset = bounds.first
            while True:
                pulled = client.pull("t", "broker-a", 1, offset, count_max=3, bytes_max=10**6)
                assert pulled.incarnation == 7
                if pulled.code == 19:
                    return bodies
                bodies += [record.body for record in iterate_records(pulled.records)]
                offset = pulled.next_offset

    async def story() -> None:
        async with scene() as stage:
            stage.spy.append("t", *(b"%d" % n for n in range(10)), queue_id=1)
            stage.spy.expire("t", 2, queue_id=1)
            bodies = await asyncio.to_thread(read, f"127.0.0.1:{stage.port}")
            assert bodies == [b"%d" % n for n in range(2, 10)]
            assert [asked[2] for asked in stage.spy.asked] == [2, 5, 8]

    play(story)


@pytest.mark.parametrize("advertise", [None, "broker.example:7"])
def test_clients_of_a_port_with_tls_are_told_to_come_back_to_it(advertise: str | None) -> None:
    """Which has another number than the one that is advertised for the rest."""
    server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_tls.load_cert_chain(CERTIFICATE)
    client_tls = ssl.create_default_context(cafile=str(CERTIFICATE))
    client_tls.check_hostname = False

    async def story() -> None:
        async with scene(advertise=advertise) as stage:
            secure = await stage.server.listen_too("127.0.0.1", 0, lambda: server_tls)
            plain = await stage.connect()
            hidden = await stage.connect(secure, client_tls)
            host, port = ("127.0.0.1", stage.port) if advertise is None else ("broker.example", 7)
            for peer, address in ((plain, f"{host}:{port}"), (hidden, f"{host}:{secure}")):
                peer.send(105, topic="t")
                (broker,) = json.loads((await peer.answer()).body)["brokerDatas"]
                assert broker["brokerAddrs"] == {"0": address}
            assert stage.server.connection_count == 2

    play(story)


def test_codes_that_this_listener_does_not_serve_are_answered_so() -> None:
    """In the question's own serialize type; oneway ones are not answered at all."""

    async def story() -> None:
        async with scene() as stage:
            peer = await stage.connect()
            peer.send_command(Command(code=9999, opaque=8, flag=2))
            peer.send_command(Command(code=325, opaque=9, serialize_type=SerializeType.ROCKETMQ))
            answer = await peer.answer()
            assert (answer.code, answer.opaque) == (3, 9)
            assert answer.remark == " request type 325 not supported"
            assert answer.serialize_type == SerializeType.ROCKETMQ
            assert answer.is_response

    play(story)


def test_a_wrong_header_costs_an_answer_not_the_connection() -> None:
    async def story() -> None:
        async with scene() as stage:
            peer = await stage.connect()
            peer.send(11, 1, topic="t")
            answer = await peer.answer()
            assert answer.code == 29
            assert answer.remark is not None
            assert "queueId" in answer.remark
            peer.pull(3, queueId=2)
            assert (await peer.answer()).code == 29
            peer.pull(4, topic="other")
            assert (await peer.answer()).code == 17
            peer.pull(5)
            assert (await peer.answer()).code == 19

    play(story)


def test_what_is_no_frame_closes_the_connection_only() -> None:
    async def story() -> None:
        async with scene() as stage:
            bad, good = await stage.connect(), await stage.connect()
            bad.writer.write(b"GET / HTTP/1.1\r\n\r\n")
            assert await bad.closed()
            good.pull()
            assert (await good.answer()).code == 19
            assert stage.server.protocol_error_count == 1

    play(story)


def test_the_limits_of_an_answer() -> None:
    """The client's wishes count up to the listener's limits; the first record always comes."""

    async def story() -> None:
        limits = RocketmqLimits(pull_count_max=5, pull_bytes_max=1000, pull_bytes_default=500)
        async with scene(limits) as stage:
            stage.spy.append("t", b"x" * 2000, b"y", b"z")
            peer = await stage.connect()
            peer.pull(maxMsgNums=100, maxMsgBytes=10**9)
            answer = await peer.answer()
            assert (answer.code, answer.fields["nextBeginOffset"]) == (0, "1")
            peer.pull(maxMsgNums=2, maxMsgBytes=-1)
            await peer.answer()
            peer.pull(maxMsgNums=2)
            await peer.answer()
            wishes = [asked[3:] for asked in stage.spy.asked]
            assert wishes == [(5, 1000), (2, 1), (2, 500)]

    play(story)


def test_how_many_records_a_pull_gets() -> None:
    """Who asks for none gets one, as RocketMQ's client for Go expects; a group gets as many as
    RocketMQ's brokers give; readers in no group as many as they want."""

    async def story() -> None:
        async with scene() as stage:
            stage.spy.append("t", *(b"%d" % number for number in range(100)))
            peer = await stage.connect()
            for asked, group, wanted in (
                (0, "billing", 1),
                (-1, "billing", 1),
                (1000, "billing", 32),
                (1000, "PMQ_READER", 100),
                (1000, "", 100),
            ):
                peer.pull(maxMsgNums=asked, consumerGroup=group)
                records = list(iterate_records((await peer.answer()).body))
                assert len(records) == wanted, (asked, group)

    play(story)


def test_a_group_that_may_not_consume_gets_nothing() -> None:
    """As an administrator has set it; others in the same topic go on."""

    async def story() -> None:
        async with scene() as stage:
            stage.spy.append("t", b"x")
            stage.spy.group_settings = {
                "stopped": {"consumeEnable": False},
                "narrow": {"consumeBroadcastEnable": False},
                "free": {},
            }
            peer = await stage.connect()
            for group, code in (("stopped", 16), ("narrow", 0), ("free", 0), ("new", 0), ("", 0)):
                peer.pull(consumerGroup=group)
                answer = await peer.answer()
                assert answer.code == code, (group, answer.remark)
            broadcast = {"groupName": "narrow", "messageModel": "BROADCASTING"}
            beat = {"clientID": "c", "consumerDataSet": [broadcast]}
            peer.send_command(Command(code=34, opaque=9, body=json.dumps(beat).encode()))
            while (await peer.answer()).opaque != 9:
                pass  # it is told that its group changed
            peer.pull(consumerGroup="narrow")
            assert (await peer.answer()).code == 16

    play(story)


def test_who_sends_no_whole_request_in_time_is_closed() -> None:
    """Neither one that only connects, nor one that stops within a request, keeps others out for
    long; one whose requests are whole may be silent."""

    async def story() -> None:
        limits = RocketmqLimits(first_frame_seconds_max=0.05, frame_seconds_max=0.05)
        async with scene(limits) as stage:
            good, slow = await stage.connect(), await stage.connect()
            for peer in (good, slow):
                peer.pull()
                assert (await peer.answer()).code == 19
            silent, begun = await stage.connect(), await stage.connect()
            half = encode_frame(Command(code=11, opaque=1, body=b"x" * 100))[:50]
            begun.writer.write(half)
            slow.writer.write(half)
            for peer in (silent, begun, slow):
                assert await peer.closed()
            good.pull()
            assert (await good.answer()).code == 19
            assert stage.server.protocol_error_count == 3

    play(story)


def test_a_request_that_the_server_does_not_read_is_not_late() -> None:
    async def story() -> None:
        async with scene() as stage:
            peer = await stage.connect()
            peer.writer.write(b"\x00\x00\x01\x00")
            (listener,) = stage.server._listeners
            await stage.until(lambda: listener.connections)
            (connection,) = listener.connections
            assert isinstance(connection, RocketmqConnection)
            connection._flow.begin(DISK)
            connection.regulate()
            later = stage.server._shared.context.now() + 1000
            again = connection.expired(later)
            assert again is not None
            assert again > later
            connection._flow.end(DISK)
            connection.regulate()
            assert connection.expired(again) is None

    play(story)


def test_a_thousand_pulls_in_one_write_are_answered_in_order_few_at_a_time() -> None:
    """An engine that answers at once must not make the stack grow with them."""

    async def story() -> None:
        async with scene() as stage:
            stage.spy.append("t", b"x")
            peer = await stage.connect()
            for opaque in range(1500):
                peer.pull(opaque)
            for opaque in range(1500):
                assert (await peer.answer()).opaque == opaque

    play(story)


def test_a_connection_never_has_more_than_a_few_answers_in_memory() -> None:
    async def story() -> None:
        async with scene(RocketmqLimits(pulls_reading_max=2)) as stage:
            stage.spy.answers_at_once = False
            stage.spy.append("t", b"x")
            peer = await stage.connect()
            for opaque in range(5):
                peer.pull(opaque)
            peer.send(206, 99)
            assert (await peer.answer()).opaque == 99  # what is no pull does not wait
            assert len(stage.spy.waiting) == 2
            stage.spy.waiting.pop(0)()
            assert (await peer.answer()).opaque == 0
            assert len(stage.spy.waiting) == 2
            while stage.spy.waiting:
                stage.spy.waiting.pop(0)()
            assert [(await peer.answer()).opaque for _ in range(4)] == [1, 2, 3, 4]

    play(story)


def test_a_client_that_does_not_read_stops_being_read() -> None:
    """Its pulls wait; when it reads again, all are answered."""

    async def story() -> None:
        async with scene() as stage:
            stage.spy.append("t", bytes(1_000_000))
            peer = await stage.connect()
            for opaque in range(60):
                peer.pull(opaque)
            before = -1
            while len(stage.spy.asked) != before:  # until the listener asks for nothing more
                before = len(stage.spy.asked)
                for _ in range(1000):
                    await asyncio.sleep(0)
            assert len(stage.spy.asked) < 30
            for opaque in range(60):
                assert (await peer.answer()).opaque == opaque

    play(story)


def test_a_topic_that_was_recreated_while_it_was_read() -> None:
    """The records belong to the topic that is gone: the answer says that it does not exist."""

    async def story() -> None:
        async with scene() as stage:
            stage.spy.answers_at_once = False
            stage.spy.append("t", b"x")
            peer = await stage.connect()
            peer.pull()
            await stage.until(lambda: stage.spy.waiting)
            stage.spy.create("t", incarnation=8)
            stage.spy.waiting.pop()()
            assert (await peer.answer()).code == 17

    play(story)


def test_a_client_that_vanishes_while_its_pull_is_read() -> None:
    async def story() -> None:
        async with scene() as stage:
            stage.spy.answers_at_once = False
            stage.spy.append("t", b"x")
            peer = await stage.connect()
            peer.pull()
            await stage.until(lambda: stage.spy.waiting)
            peer.writer.close()
            await stage.until(lambda: stage.server.connection_count == 0)
            stage.spy.waiting.pop()()

    play(story)


# --- long polling -----------------------------------------------------------------------------

SUSPEND = {"sysFlag": 2, "suspendTimeoutMillis": 15_000}


def test_a_held_pull_is_answered_when_its_queue_grows() -> None:
    async def story() -> None:
        async with scene() as stage:
            peer = await stage.connect()
            peer.pull(1, queueId=1, **SUSPEND)
            peer.pull(2, queueId=0, **SUSPEND)
            peer.send(206, 3)
            assert (await peer.answer()).opaque == 3
            assert stage.server.held_count == 2
            stage.spy.append("t", b"new", queue_id=1)
            answer = await peer.answer()
            assert (answer.opaque, answer.code) == (1, 0)
            assert [record.body for record in iterate_records(answer.body)] == [b"new"]
            assert stage.server.held_count == 1

    play(story)


def test_a_held_pull_is_answered_when_its_time_is_up() -> None:
    async def story() -> None:
        async with scene() as stage:
            peer = await stage.connect()
            peer.pull(1, sysFlag=2, suspendTimeoutMillis=20)
            answer = await peer.answer()
            assert (answer.code, answer.fields["nextBeginOffset"]) == (19, "0")

    play(story)


def test_a_pull_of_a_paused_group_is_held_or_finds_nothing() -> None:
    """Also if it began to read before. Other groups read on. Who is held gets what waited when the
    group is resumed."""

    async def story() -> None:
        async with scene() as stage:
            stage.spy.append("t", b"x")
            stage.spy.paused.add(("g", "t"))
            peer = await stage.connect()
            peer.pull(1, consumerGroup="g")
            answer = await peer.answer()
            assert (answer.code, answer.fields["nextBeginOffset"]) == (19, "0")
            peer.pull(2, consumerGroup="g", sysFlag=2, suspendTimeoutMillis=20)
            assert (await peer.answer()).code == 19
            peer.pull(3, consumerGroup="g", **SUSPEND)
            peer.pull(4, consumerGroup="other")
            answer = await peer.answer()
            assert (answer.opaque, answer.code) == (4, 0)
            assert stage.server.held_count == 1
            stage.spy.paused.clear()
            answer = await peer.answer()
            assert (answer.opaque, answer.code) == (3, 0)

            stage.spy.answers_at_once = False
            peer.pull(5, consumerGroup="g")
            await stage.until(lambda: stage.spy.waiting)
            stage.spy.paused.add(("g", "t"))
            stage.spy.waiting.pop()()
            assert (await peer.answer()).code == 19

    play(story)


def test_a_pull_that_may_not_be_held_or_finds_no_place_is_answered_at_once() -> None:
    async def story() -> None:
        async with scene(RocketmqLimits(long_polls_max=0)) as stage:
            peer = await stage.connect()
            for fields in ({}, {"sysFlag": 2}, SUSPEND):
                peer.pull(**fields)
                assert (await peer.answer()).code == 19

    play(story)


def test_a_held_pull_of_a_deleted_topic() -> None:
    async def story() -> None:
        async with scene() as stage:
            peer = await stage.connect()
            peer.pull(**SUSPEND)
            await stage.until(lambda: stage.server.held_count == 1)
            del stage.spy.topic_by_name["t"]
            assert (await peer.answer()).code == 17

    play(story)


def test_held_pulls_go_with_their_connection() -> None:
    async def story() -> None:
        async with scene() as stage:
            peer = await stage.connect()
            peer.pull(**SUSPEND)
            await stage.until(lambda: stage.server.held_count == 1)
            peer.writer.close()
            await stage.until(lambda: stage.server.held_count == 0)

    play(story)


# --- stopping ---------------------------------------------------------------------------------


def test_stopping_answers_what_was_asked_then_closes() -> None:
    """A held pull gets "nothing new", a pull that reads gets its records."""

    async def story() -> None:
        async with scene() as stage:
            holder, reader = await stage.connect(), await stage.connect()
            holder.pull(1, **SUSPEND)
            await stage.until(lambda: stage.server.held_count == 1)
            stage.spy.answers_at_once = False
            stage.spy.append("t", b"x", queue_id=1)
            reader.pull(2, queueId=1)
            await stage.until(lambda: stage.spy.waiting)
            stopping = asyncio.create_task(stage.server.stop(5))
            answer = await holder.answer()
            assert (answer.opaque, answer.code) == (1, 19)
            assert await holder.closed()
            stage.spy.waiting.pop()()
            answer = await reader.answer()
            assert (answer.opaque, answer.code) == (2, 0)
            assert await reader.closed()
            await stopping
            with pytest.raises(ConnectionRefusedError):
                await stage.connect()

    play(story)


def test_routes_name_the_advertised_address() -> None:
    async def story() -> None:
        async with scene(advertise="mq.example.org:10911", broker_name="b7") as stage:
            peer = await stage.connect()
            peer.send(105, topic="t")
            route = json.loads((await peer.answer()).body)
            (broker,) = route["brokerDatas"]
            assert broker["brokerAddrs"] == {"0": "mq.example.org:10911"}
            assert broker["brokerName"] == "b7"

    play(story)


# --- tags ------------------------------------------------------------------------------------


def test_a_pull_says_which_tags_it_wants() -> None:
    """By the expression in the pull, else by what its group subscribes to; `*` is everything, and
    an expression of another kind is refused in words."""

    async def story() -> None:
        async with scene() as stage:
            stage.spy.append("t", b"a", b"b")
            peer = await stage.connect()
            peer.pull(1, subscription="a || c")
            answer = await peer.answer()
            assert [record.body for record in iterate_records(answer.body)] == [b"a"]
            assert answer.fields["nextBeginOffset"] == "2"
            peer.pull(2, subscription="*", expressionType="TAG")
            assert len(list(iterate_records((await peer.answer()).body))) == 2
            peer.pull(3, subscription="a = 1", expressionType="SQL92")
            answer = await peer.answer()
            assert answer.code != 0
            assert "SQL92" in (answer.remark or "")
            said = SubscriptionData(topic="t", sub_string="b")
            stage.server._shared.members.consumers["g"] = Consumers(subscriptions={"t": said})
            peer.pull(5, consumerGroup="g")
            answer = await peer.answer()
            assert [record.body for record in iterate_records(answer.body)] == [b"b"]
            wanted = [frozenset({"a", "c"}), None, frozenset({"b"})]
            assert stage.spy.asked_tags == wanted

    play(story)


def test_a_filter_that_matches_nothing_moves_the_reader_on() -> None:
    """20 and the offset behind what was passed over, while there is more to look at; held where it
    stands at the end, and a message for others does not wake its client."""

    async def story() -> None:
        async with scene() as stage:
            stage.spy.append("t", *[b"other"] * 40)
            peer = await stage.connect()
            peer.pull(1, subscription="mine")
            answer = await peer.answer()
            assert (answer.code, answer.fields["nextBeginOffset"]) == (20, "32")
            peer.pull(2, queueOffset=32, subscription="mine")
            answer = await peer.answer()
            assert (answer.code, answer.fields["nextBeginOffset"]) == (19, "40")
            peer.pull(3, queueOffset=32, subscription="mine", **SUSPEND)
            asked = len(stage.spy.asked)
            await stage.until(lambda: len(stage.spy.asked) > asked)
            stage.spy.append("t", b"other")
            await stage.until(lambda: len(stage.spy.asked) > asked + 1)
            assert stage.spy.asked[-1][2] == 40  # not from its first offset again
            stage.spy.append("t", b"mine")
            answer = await peer.answer()
            assert (answer.code, answer.opaque) == (0, 3)
            assert answer.fields["nextBeginOffset"] == "42"

    play(story)


def test_a_held_pull_with_a_filter_ends_at_its_own_time() -> None:
    """However often it was woken for nothing."""

    async def story() -> None:
        async with scene() as stage:
            peer = await stage.connect()
            peer.pull(1, subscription="mine", sysFlag=2, suspendTimeoutMillis=100)
            done = asyncio.create_task(peer.answer())

            def is_asked_or_done(asked: int) -> bool:
                return len(stage.spy.asked) > asked or done.done()

            while not done.done():
                stage.spy.append("t", b"other")
                asked = len(stage.spy.asked)
                await stage.until(partial(is_asked_or_done, asked))
            answer = done.result()
            assert answer.code in (19, 20)
            assert int(answer.fields["nextBeginOffset"]) > 0

    play(story)


def test_an_answer_that_is_too_large_for_a_frame_is_an_error_in_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """More than RocketMQ's clients read. The connection goes on."""
    monkeypatch.setattr("polymq.gateways.rocketmq.protocol.FRAME_BYTES_MAX", 2_000)

    async def story() -> None:
        async with scene() as stage:
            for number in range(20):
                stage.spy.create(f"{number}-".ljust(100, "x"))
            peer = await stage.connect()
            peer.send(206)
            answer = await peer.answer()
            assert (answer.code, answer.body) == (1, b"")
            assert "too large" in str(answer.remark)
            peer.send(105, 2, topic="t")
            assert (await peer.answer()).code == 0

    play(story)


def test_many_requests_in_one_piece_are_carried_out_in_turns() -> None:
    """In order, and others are answered in between. Each look at the clock ends the turn here."""

    async def story() -> None:
        async with scene() as stage:
            stage.context.turns.clock = count().__next__
            peer, other = await stage.connect(), await stage.connect()
            peer.writer.write(b"".join(bounds(number) for number in range(100)))
            other.writer.write(bounds(7))
            handled: list[int] = []

            async def hear(name: Peer, times: int) -> None:
                for _ in range(times):
                    handled.append((await name.answer()).opaque + 1000 * (name is other))

            async with asyncio.TaskGroup() as group:
                group.create_task(hear(peer, 100))
                group.create_task(hear(other, 1))
            assert [opaque for opaque in handled if opaque < 1000] == list(range(100))
            assert 1007 in handled[:-1], "it did not wait for all of the others'"

    def bounds(opaque: int) -> bytes:
        fields = {"topic": "t", "queueId": "0"}
        return encode_frame(Command(code=30, opaque=opaque, fields=fields))

    play(story)
