"""The client: its core as a script of steps, its blocking driver against real sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, Generic, TypeVar

import pytest

from polymq.remoting.bodies import BrokerData, QueueData, TopicList, TopicRoute, encode_body
from polymq.remoting.client import (
    BrokerQueues,
    ClientCore,
    ClientSettings,
    Pulled,
    QueueBounds,
    Route,
    TopicName,
)
from polymq.remoting.connection import Connection, RequestReceived
from polymq.remoting.driver_blocking import BlockingClient
from polymq.remoting.errors import (
    BadFields,
    CallFailed,
    LocalProtocolError,
    RequestFailed,
    Unreachable,
)
from polymq.remoting.frames import Command
from polymq.remoting.steps import Address, Call, Pause, Step, Steps

T = TypeVar("T")
MAX, ROUTE = 30, 105
FOUR: dict[str, Any] = {
    "suggestWhichBrokerId": "0",
    "nextBeginOffset": "5",
    "minOffset": "0",
    "maxOffset": "9",
}


def route_body(address: str, *, broker: str = "broker-a", perm: int = 6, count: int = 2) -> bytes:
    return encode_body(
        TopicRoute(
            broker_datas=[BrokerData(broker_name=broker, broker_addrs={"0": address})],
            queue_datas=[
                QueueData(
                    broker_name=broker, read_queue_nums=count, write_queue_nums=count, perm=perm
                )
            ],
        )
    )


# --- the core, without a network --------------------------------------------------------------


class Script(Generic[T]):
    """Carries the steps of one operation out and keeps what happened."""

    def __init__(self, answer: Callable[[Call], Command]) -> None:
        self.answer = answer
        self.log: list[str] = []

    def run(self, steps: Steps[T]) -> T:
        try:
            step = next(steps)
            while True:
                step = self._carry_out(step, steps)
        except StopIteration as stop:
            result: T = stop.value
            return result

    def _carry_out(self, step: Step, steps: Steps[T]) -> Step:
        if isinstance(step, Pause):
            self.log.append(f"pause {step.seconds:g}")
            return steps.send(None)
        assert isinstance(step, Call)
        self.log.append(f"{step.code} {step.address}")
        try:
            answer = self.answer(step)
        except CallFailed as failure:
            return steps.throw(failure)
        return steps.send(answer)


def answer(code: int = 0, *, body: bytes = b"", remark: str = "", **fields: object) -> Command:
    texts = {name: str(value) for name, value in fields.items()}
    return Command(code=code, opaque=0, flag=1, fields=texts, body=body, remark=remark)


def core(*addresses: str, **settings: int) -> ClientCore:
    parsed = [Address.parse(address) for address in addresses]
    return ClientCore(parsed, ClientSettings(**settings))


def test_a_route_names_queues_master_and_incarnation() -> None:
    body = route_body("10.0.0.9:10911", count=3)
    script: Script[Route] = Script(lambda call: answer(body=body, pmqIncarnation=77))
    route = script.run(core("a:1").route("sensors"))
    assert route == Route(
        topic="sensors",
        brokers=(
            BrokerQueues(broker="broker-a", address=Address("10.0.0.9", 10911), queue_count=3),
        ),
        incarnation=77,
    )


def test_a_user_s_name_travels_beside_rocketmq_s() -> None:
    """The server decides which of the two it understands."""
    calls: list[Call] = []

    def reply(call: Call) -> Command:
        calls.append(call)
        return answer(body=route_body("b:2"))

    script: Script[Route] = Script(reply)
    script.run(core("a:1").route("a/b"))
    assert calls[0].fields == {"topic": "a/b", "pmqTopic": "a/b"}


def test_a_broker_group_that_cannot_be_read_is_no_place_to_read() -> None:
    """No read bit, or no master."""
    script: Script[Route] = Script(lambda call: answer(body=route_body("b:2", perm=2)))
    assert script.run(core("a:1").route("t")).brokers == ()
    body = route_body("b:2").replace(b'"0":', b'"1":')
    script = Script(lambda call: answer(body=body))
    assert script.run(core("a:1").route("t")).brokers == ()


def test_the_address_that_answered_last_is_asked_first() -> None:
    def reply(call: Call) -> Command:
        if call.address.host == "a":
            raise CallFailed("refused")
        return answer(body=encode_body(TopicList(topic_list=["t"])))

    script: Script[list[TopicName]] = Script(reply)
    client = core("a:1", "b:2")
    assert script.run(client.topics()) == [TopicName(stored="t", user="t")]
    assert script.run(client.topics()) == [TopicName(stored="t", user="t")]
    assert script.log == ["206 a:1", "206 b:2", "206 b:2"]


def test_a_topic_s_two_names() -> None:
    body = encode_body(TopicList(topic_list=["a|2fb", "|ff"], pmq_topic_list=["a/b", None]))
    script: Script[list[TopicName]] = Script(lambda call: answer(body=body))
    assert script.run(core("a:1").topics()) == [
        TopicName(stored="a|2fb", user="a/b"),
        TopicName(stored="|ff", user=None),
    ]


def test_when_nobody_answers_the_pauses_grow_and_end() -> None:
    def refuse(call: Call) -> Command:
        raise CallFailed(f"{call.address}: refused")

    script: Script[list[TopicName]] = Script(refuse)
    with pytest.raises(Unreachable, match="a:1, b:2: b:2: refused"):
        script.run(core("a:1", "b:2", attempts_max=3).topics())
    assert script.log == [
        "206 a:1",
        "206 b:2",
        "pause 0.1",
        "206 a:1",
        "206 b:2",
        "pause 0.2",
        "206 a:1",
        "206 b:2",
    ]


def test_the_pauses_have_a_bound() -> None:
    def refuse(call: Call) -> Command:
        raise CallFailed("refused")

    script: Script[list[TopicName]] = Script(refuse)
    with pytest.raises(Unreachable):
        script.run(core("a:1", attempts_max=40).topics())
    assert script.log[-2] == "pause 5"


def test_after_a_failover_the_route_names_the_new_master() -> None:
    """The pull fails at the old master; the route is asked again; the pull is made again there."""
    masters = iter(["old:1", "old:1", "new:2"])

    def reply(call: Call) -> Command:
        if call.code == ROUTE:
            return answer(body=route_body(next(masters)))
        if call.address.host == "old":
            raise CallFailed("reset")
        return answer(body=b"records", **FOUR)

    script: Script[Pulled] = Script(reply)
    pulled = script.run(core("a:1").pull("t", "broker-a", 0, 4, count_max=1, bytes_max=1))
    assert (pulled.records, pulled.next_offset, pulled.max_offset) == (b"records", 5, 9)
    assert script.log == [
        "105 a:1",
        "11 old:1",
        "pause 0.1",
        "105 a:1",
        "11 old:1",
        "pause 0.2",
        "105 a:1",
        "11 new:2",
    ]


@pytest.mark.parametrize("code", [2, 14])
def test_a_busy_broker_is_asked_again(code: int) -> None:
    codes = iter([code, 0])
    script: Script[QueueBounds] = Script(
        lambda call: (
            answer(body=route_body("b:2"))
            if call.code == ROUTE
            else answer(next(codes) if call.code == MAX else 0, offset=7)
        )
    )
    assert script.run(core("a:1").bounds("t", "broker-a", 1)).end == 7
    assert script.log == ["105 a:1", "31 b:2", "30 b:2", "pause 0.1", "105 a:1", "30 b:2"]


def test_other_refusals_are_final() -> None:
    script: Script[Route] = Script(lambda call: answer(17, remark="no such topic"))
    with pytest.raises(RequestFailed, match="a:1: code 17: no such topic") as caught:
        script.run(core("a:1").route("t"))
    assert caught.value.code == 17
    assert script.log == ["105 a:1"]


@pytest.mark.parametrize("code", [0, 19, 20, 21])
def test_these_answers_to_a_pull_are_no_errors(code: int) -> None:
    script: Script[Pulled] = Script(
        lambda call: answer(body=route_body("b:2")) if call.code == ROUTE else answer(code, **FOUR)
    )
    pulled = script.run(core("a:1").pull("t", "broker-a", 0, 4, count_max=1, bytes_max=1))
    assert pulled.code == code


def test_a_pull_answer_without_its_numbers_is_refused() -> None:
    script: Script[Pulled] = Script(
        lambda call: answer(body=route_body("b:2")) if call.code == ROUTE else answer(0)
    )
    with pytest.raises(BadFields, match="suggestWhichBrokerId"):
        script.run(core("a:1").pull("t", "broker-a", 0, 4, count_max=1, bytes_max=1))


@pytest.mark.parametrize("text", ["", "host", ":1", "host:", "host:x", "host:0", "host:65536"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(LocalProtocolError, match="HOST:PORT"):
        Address.parse(text)


@pytest.mark.parametrize("text", ["broker:10911", "[::1]:9"])
def test_an_address_is_written_as_it_was_read(text: str) -> None:
    assert str(Address.parse(text)) == text


def test_a_client_needs_an_address() -> None:
    with pytest.raises(LocalProtocolError):
        ClientCore([])


# --- the blocking driver, over sockets --------------------------------------------------------

Handler = Callable[[Command, Connection, int], Sequence[bytes] | None]
"""What to send for a request; None closes the connection."""


class PeerServer:
    """Accepts one connection after the other in a thread, and answers with a handler."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.connection_count = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except OSError:  # closed: the test is over
                return
            self.connection_count += 1
            with accepted:
                self._talk(accepted)

    def _talk(self, accepted: socket.socket) -> None:
        core, buffer = Connection(), b""
        while received := accepted.recv(65_536):
            events, used = core.receive(buffer + received, 0, len(buffer) + len(received))
            buffer = (buffer + received)[used:]
            for event in events:
                assert isinstance(event, RequestReceived)
                replies = self.handler(event.command, core, event.serial)
                if replies is None:
                    return
                for reply in replies:
                    accepted.sendall(reply)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)
        assert not self._thread.is_alive()


@contextmanager
def client_of(handler: Handler, **settings: float) -> Iterator[tuple[BlockingClient, PeerServer]]:
    """A client of a server with this handler. The client closes first, or the thread waits."""
    with closing(PeerServer(handler)) as server:
        patience = ClientSettings(attempts_max=2, pause_first_seconds=0, **settings)
        with BlockingClient([server.address], settings=patience) as client:
            yield client, server


def topics_answer(core: Connection, serial: int, *topics: str) -> bytes:
    body = encode_body(TopicList(topic_list=list(topics)))
    return core.answer(serial, 0, body_size=len(body)) + body


def test_calls_share_a_connection_and_answers_may_come_in_pieces() -> None:
    def handler(command: Command, core: Connection, serial: int) -> Sequence[bytes]:
        data = topics_answer(core, serial, "a", "b")
        return [data[:3], data[3:20], data[20:]]

    with client_of(handler) as (client, server):
        for _ in range(2):
            assert [topic.stored for topic in client.topics()] == ["a", "b"]
        assert server.connection_count == 1


def test_a_server_that_hangs_up_is_asked_again_on_a_new_connection() -> None:
    counts = iter(range(9))

    def handler(command: Command, core: Connection, serial: int) -> Sequence[bytes] | None:
        return None if next(counts) == 0 else [topics_answer(core, serial, "a")]

    with client_of(handler) as (client, server):
        assert len(client.topics()) == 1
        assert server.connection_count == 2


def test_a_late_answer_never_meets_the_next_question() -> None:
    """The call times out; its connection goes with it."""
    counts = iter(range(9))

    def handler(command: Command, core: Connection, serial: int) -> Sequence[bytes]:
        return [] if next(counts) == 0 else [topics_answer(core, serial, "a")]

    with client_of(handler, call_seconds=0.05) as (client, server):
        assert len(client.topics()) == 1
        assert server.connection_count == 2


def test_a_server_that_speaks_another_protocol_is_named() -> None:
    def handler(command: Command, core: Connection, serial: int) -> Sequence[bytes]:
        return [b"HTTP/1.1 400 Bad Request\r\n\r\n"]

    with client_of(handler) as (client, server), pytest.raises(Unreachable) as caught:
        client.topics()
    assert str(caught.value).startswith(f"no answer from {server.address}: ")
    assert "allowed" in str(caught.value)


def test_a_broker_s_own_questions_are_passed_over() -> None:
    """It may tell a client that its group changed, between question and answer."""

    def handler(command: Command, core: Connection, serial: int) -> Sequence[bytes]:
        _, notice = core.request(40, {"consumerGroup": "g"}, oneway=True)
        return [notice, topics_answer(core, serial, "a")]

    with client_of(handler) as (client, _):
        assert len(client.topics()) == 1


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    slept: list[float] = []
    settings = ClientSettings(attempts_max=3)
    client = BlockingClient([f"127.0.0.1:{port}"], settings=settings, sleep=slept.append)
    with client, pytest.raises(Unreachable, match="refused"):
        client.topics()
    assert slept == [0.1, 0.2]
