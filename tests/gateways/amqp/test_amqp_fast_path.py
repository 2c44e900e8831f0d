"""The short way of a read with one message or one ack: what goes it, what has to be left to the
long way, and that nobody can tell the difference.

Each scenario is played twice, over an engine each: by clients that have a fast path, and by clients
that have none. What the clients are sent, byte by byte and read by read, has to be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import polymq.gateways.amqp.batch_path
import polymq.gateways.amqp.client
from polymq.broker.port import Position, Reason, Refused
from polymq.gateways.amqp import spec
from tests.gateways.amqp import amqp_wire as wire
from tests.gateways.amqp.amqp_harness import Bench, Peer
from tests.harness.broker import Broker
from tests.harness.forms import form_id, forms_of

FORMS = forms_of("polymq.gateways.amqp.kernels.fast_path")
PERSISTENT = wire.properties(delivery_mode=2)
NAMED = wire.properties(delivery_mode=2, message_id="id")
SMALL_FRAME = 4096


class Watched:
    """A fast path whose decisions are written down; without `path`, none."""

    def __init__(self, path: Any) -> None:
        self.path = path
        self.taken: list[bool] = []

    def take(self, buffer: bytearray, start: int, end: int) -> bool:
        taken = self.path is not None and self.path.take(buffer, start, end)
        self.taken.append(taken)
        return taken

    def learn(self, method: bytes, kind: Any) -> None:
        if self.path is not None:
            self.path.learn(method, kind)


class Play:
    """A publisher p with channels 1 and 2, a consumer c, the queues q and r."""

    def __init__(self, directory: Path, *, with_path: bool, confirms: bool = True) -> None:
        self.broker = Broker(directory)
        self.bench = Bench(self.broker, body_bytes_max=5_000, templates_max=3)
        self.peers: dict[str, Peer] = {}
        self.heard: list[bytes] = []
        self._with_path = with_path
        self._confirms = confirms
        self.connect()

    def connect(self) -> None:
        """Two new clients; those that were there before close."""
        for peer in self.peers.values():
            peer.client.lost()
        for name in "pc":
            peer = self.peers[name] = self.bench.peer(1, 2)
            path = peer.client.fast_path if self._with_path else None
            peer.client.fast_path = Watched(path)  # type: ignore[assignment]
        for queue in "qr":
            self.read("c", method(spec.QueueDeclare(queue=queue, durable=True)))
            self.read("c", method(spec.QueuePurge(queue=queue)))
        self.read("c", method(spec.BasicQos(prefetch_count=3)))
        for queue in "qr":
            self.read("c", method(spec.BasicConsume(queue=queue, consumer_tag=queue)))
        if self._confirms:
            self.read("p", method(spec.ConfirmSelect()))

    def read(self, user: str, *parts: bytes) -> bool:
        """One read, and the loop iteration that it is in; whether the fast path took it."""
        peer = self.peers[user]
        peer.send(*parts)
        self.bench.step()
        self.heard = [bytes(peer.transport.data) for peer in self.peers.values()]
        for each in self.peers.values():
            each.transport.data.clear()
        watched: Any = peer.client.fast_path
        return bool(watched.taken and watched.taken[-1])

    def stop(self) -> None:
        self.broker.stop()


def method(value: Any, channel: int = 1) -> bytes:
    return wire.method(channel, value)


def publish(
    data: bytes = b"body",
    *,
    channel: int = 1,
    exchange: str = "",
    routing_key: str = "q",
    **changes: Any,
) -> bytes:
    more = {"properties": PERSISTENT, **changes}
    return wire.publish(channel, exchange, routing_key, data, **more)


def ack(tag: int, *, multiple: bool = False, channel: int = 1) -> bytes:
    return wire.method(channel, spec.BasicAck(delivery_tag=tag, multiple=multiple))


@pytest.fixture(params=FORMS, ids=form_id)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Clients that are made from now on have fast paths of this form."""
    chosen: ModuleType = request.param
    monkeypatch.setattr(polymq.gateways.amqp.client, "FastPath", chosen.FastPath)
    monkeypatch.setattr(polymq.gateways.amqp.batch_path, "Kind", chosen.Kind)
    return chosen


@pytest.fixture
def both(form: ModuleType, tmp_path: Path) -> Iterator[tuple[Play, Play]]:
    """With fast paths, and without."""
    plays = Play(tmp_path / "with", with_path=True), Play(tmp_path / "without", with_path=False)
    yield plays
    for play in plays:
        play.stop()


def read_alike(plays: Sequence[Play], user: str, *parts: bytes) -> bool:
    """Present a read to both; what is heard has to be the same. Whether the fast path took it."""
    taken, never = (play.read(user, *parts) for play in plays)
    assert not never
    assert plays[0].heard == plays[1].heard
    return taken


# --- what goes the short way ------------------------------------------------------------------


def test_a_publisher_with_one_message_at_a_time(both: tuple[Play, Play]) -> None:
    """From the second message on: bodies of any size, confirmed one by one, delivered, acked."""
    read_alike(both, "p", publish(b"first"))
    for number, body in enumerate((b"second", b"", b"x" * 4000, b"4th"), 2):
        assert read_alike(both, "p", publish(body))
        (confirm,) = wire.sent(both[0].heard[0])
        assert vars_of(confirm.method) == {"delivery_tag": number, "multiple": False}
        (delivered,) = wire.sent(both[0].heard[1])
        assert delivered.body == body
        assert read_alike(both, "c", ack(number - 1))
    read_alike(both, "c", ack(5))
    read_alike(both, "c", method(spec.BasicRecover(requeue=True)))
    assert [sent.method.NAME for sent in wire.sent(both[0].heard[1])] == ["basic.recover-ok"]


def vars_of(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name, _ in value.FIELDS}


def test_places_do_not_forget_each_other(both: tuple[Play, Play]) -> None:
    """Two queues, two channels, with and without body."""
    kinds = [publish(routing_key=key, channel=number) for key in "qr" for number in (1, 2)]
    for expected in (False, True, True):
        for frames in kinds:
            assert read_alike(both, "p", frames) is expected


def test_message_ids_may_differ(both: tuple[Play, Play]) -> None:
    """What says nothing else to the broker is as good as what is known."""
    read_alike(both, "p", publish(properties=NAMED))
    for text in ("other", "", "x" * 200):
        properties = wire.properties(delivery_mode=2, message_id=text)
        assert read_alike(both, "p", publish(properties=properties))
    read_alike(both, "c", ack(3, multiple=True))


def test_acks_of_all_up_to_one(both: tuple[Play, Play]) -> None:
    for _ in range(3):
        read_alike(both, "p", publish())
    assert read_alike(both, "c", ack(2, multiple=True))
    assert read_alike(both, "c", ack(0, multiple=True))


def test_a_channel_without_confirms(form: ModuleType, tmp_path: Path) -> None:
    """Nothing is answered, and nothing waits for the disk that is transient."""
    plays = [
        Play(tmp_path / name, with_path=name == "with", confirms=False)
        for name in ("with", "without")
    ]
    transient = wire.properties(delivery_mode=1)
    for properties in (PERSISTENT, transient):
        read_alike(plays, "p", publish(properties=properties))
        assert read_alike(plays, "p", publish(properties=properties))
    assert read_alike(plays, "c", ack(1))
    for play in plays:
        play.stop()


def test_kinds_are_bounded(form: ModuleType, tmp_path: Path) -> None:
    """A publisher to ever new places makes the fast path forget, never grow."""
    play = Play(tmp_path, with_path=True)
    watched: Any = play.peers["p"].client.fast_path
    for number in range(3 * FORMS[0].KINDS_MAX):
        play.read("p", publish(exchange="amq.topic", routing_key=f"q.{number}"))
        assert len(watched.path.kinds) <= FORMS[0].KINDS_MAX
    play.stop()


# --- what has to be left ----------------------------------------------------------------------


def changed(frames: bytes, at: int, value: int) -> bytes:
    data = bytearray(frames)
    data[at] = value
    return bytes(data)


USUAL = publish()
METHOD_BYTES = 8 + 4 + 2 + 1 + 2 + 1
HEADER_BYTES = 8 + 12 + len(PERSISTENT)
LEFT = {
    "two messages": USUAL * 2,
    "a message and an ack": USUAL + ack(1),
    "another key": publish(routing_key="r"),
    "another channel": publish(channel=2),
    "mandatory": publish(mandatory=True),
    "immediate": publish(immediate=True),
    "transient": publish(properties=wire.properties(delivery_mode=1)),
    "no properties": publish(properties=b"\x00\x00"),
    "with a message id": publish(properties=NAMED),
    "with an expiration": publish(properties=wire.properties(delivery_mode=2, expiration="1000")),
    "with a user id": publish(properties=wire.properties(delivery_mode=2, user_id="nobody")),
    "properties that end too early": changed(USUAL, METHOD_BYTES + 19, 0x90),
    "a body in two frames": publish(body_frames=2),
    "a body that the store does not take": publish(bytes(5_001)),
    "less than all of it": USUAL[:-1],
    "less than its header": USUAL[: METHOD_BYTES + 10],
    "more than it": USUAL + USUAL[:5],
    "more than a message without body": publish(b"") + USUAL[:5],
    "a message without body and an ack": publish(b"") + ack(1),
    "a wrong end of the method": changed(USUAL, METHOD_BYTES - 1, 0xCD),
    "a wrong end of the header": changed(USUAL, METHOD_BYTES + HEADER_BYTES - 1, 0xCD),
    "a wrong end of the body": changed(USUAL, len(USUAL) - 1, 0xCD),
    "a header of another channel": changed(USUAL, METHOD_BYTES + 2, 2),
    "a body of another channel": changed(USUAL, METHOD_BYTES + HEADER_BYTES + 2, 2),
    "a header of another class": changed(USUAL, METHOD_BYTES + 8, 50),
    "a header with weight": changed(USUAL, METHOD_BYTES + 10, 1),
    "a huge body": changed(USUAL, METHOD_BYTES + 11, 1),
    "a body frame of another size": changed(USUAL, len(USUAL) - 6, 3),
    "a header instead of the body": changed(USUAL, METHOD_BYTES + HEADER_BYTES, 2),
    "a body instead of the header": changed(USUAL, METHOD_BYTES, 3),
    "a heartbeat of its size": b"\x08" + USUAL[1:],
    "an ack of nothing": ack(7),
    "an ack on a channel that is not open": ack(1, channel=9),
    "an ack of a tag of 56 bits": changed(ack(1), 12, 1),
    "a nack": method(spec.BasicNack(delivery_tag=1)),
    "an ack that ends wrong": changed(ack(1), 20, 0xCD),
    "another method of its size": changed(ack(1), 10, 110),
}


def test_what_the_fast_path_leaves(both: tuple[Play, Play]) -> None:
    """... comes to the same as without a fast path, and so does what follows."""
    for name, frames in LEFT.items():
        read_alike(both, "p", USUAL)
        assert read_alike(both, "p", USUAL), name
        assert not read_alike(both, "p", frames), name
        if not both[0].peers["p"].rest:
            read_alike(both, "p", USUAL)
        read_alike(both, "c", ack(1))
        for play in both:
            play.connect()


def test_a_frame_that_is_larger_than_agreed(both: tuple[Play, Play]) -> None:
    """Of a body, and of properties."""
    read_alike(both, "p", USUAL)
    for play in both:
        play.peers["p"].client._core.frame_max = SMALL_FRAME
    assert read_alike(both, "p", publish(b"x" * (SMALL_FRAME - 8)))
    assert not read_alike(both, "p", publish(b"x" * (SMALL_FRAME + 1)))


def test_properties_that_are_larger_than_agreed(both: tuple[Play, Play]) -> None:
    for size in (1, 50):
        properties = wire.properties(delivery_mode=2, headers={"x": "y" * 100 * size})
        taken = read_alike(both, "p", publish(properties=properties))
        for play in both:
            play.peers["p"].client._core.frame_max = SMALL_FRAME
    assert not taken


HALF = publish(body_frames=2)[: METHOD_BYTES + HEADER_BYTES + 8 + len(b"bo")]
"""A publish up to its first body frame: the channel waits for the second."""
LATER: dict[str, tuple[list[bytes], bytes]] = {
    "in the middle of a content": ([HALF], USUAL),
    "an ack in the middle of a content": ([HALF], ack(1)),
    "after confirms began": (
        [publish(channel=2), method(spec.ConfirmSelect(), 2)],
        publish(channel=2),
    ),
    "in a transaction": ([publish(channel=2), method(spec.TxSelect(), 2)], publish(channel=2)),
    "after the channel closed": ([method(spec.ChannelClose())], USUAL),
    "after the channel was opened anew": (
        [method(spec.ChannelClose()), method(spec.ChannelOpen()), method(spec.ConfirmSelect())],
        USUAL,
    ),
    "after our close of the channel": ([ack(77)], USUAL),
    "after the connection's close": ([wire.method(0, spec.ConnectionClose())], USUAL),
}


def test_what_changed_meanwhile_counts(both: tuple[Play, Play]) -> None:
    for name, (before, last) in LATER.items():
        read_alike(both, "p", USUAL)
        for frames in before:
            read_alike(both, "p", frames)
        assert not read_alike(both, "p", last), name
        assert both[0].broker.store.log.appended == both[1].broker.store.log.appended
        for play in both:
            play.connect()


def test_what_was_deleted_is_gone_for_both_ways(both: tuple[Play, Play]) -> None:
    """A queue, then its topic; an exchange."""
    read_alike(both, "p", USUAL)
    read_alike(both, "c", method(spec.QueueDelete(queue="q")))
    read_alike(both, "p", USUAL)
    for play in both:
        play.broker.port.topics.delete("q")
    assert not read_alike(both, "p", USUAL)
    read_alike(both, "p", method(spec.ExchangeDeclare(exchange="e", type="direct")))
    for _ in range(2):
        read_alike(both, "p", publish(exchange="e"))
    read_alike(both, "p", method(spec.ExchangeDelete(exchange="e")))
    read_alike(both, "p", publish(exchange="e"))


def test_an_ack_within_a_content_is_an_error(both: tuple[Play, Play]) -> None:
    """AMQP 4.2.6: nothing comes between the frames of a content; the message goes back."""
    read_alike(both, "p", USUAL)
    read_alike(both, "c", HALF)
    assert not read_alike(both, "c", ack(1))
    assert wire.sent(both[0].heard[1])[-1].method.NAME == "connection.close"


def test_acks_in_a_transaction_wait_for_its_commit(both: tuple[Play, Play]) -> None:
    read_alike(both, "p", USUAL)
    read_alike(both, "c", method(spec.TxSelect()))
    assert not read_alike(both, "c", ack(1))
    read_alike(both, "c", method(spec.TxRollback()))
    read_alike(both, "c", method(spec.TxCommit()))
    assert not read_alike(both, "c", ack(1))


def test_a_delayed_exchange_is_asked_for_its_delays(both: tuple[Play, Play]) -> None:
    arguments = {"x-delayed-type": "direct"}
    declare = spec.ExchangeDeclare(exchange="d", type="x-delayed-message", arguments=arguments)
    read_alike(both, "p", method(declare))
    read_alike(both, "c", method(spec.QueueBind(queue="q", exchange="d", routing_key="q")))
    read_alike(both, "p", publish(exchange="d"))
    late = wire.properties(delivery_mode=2, headers={"x-delay": 5000})
    for _ in range(2):
        assert not read_alike(both, "p", publish(exchange="d", properties=late))
        assert both[0].heard[1] == b""


def test_a_full_queue_refuses_on_either_way(both: tuple[Play, Play]) -> None:
    """A nack for what it does not take, a confirm for what it takes again."""
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    read_alike(both, "c", method(spec.QueueDeclare(queue="full", arguments=arguments)))
    frames = publish(routing_key="full")
    for expected in ("basic.ack", "basic.nack", "basic.nack"):
        read_alike(both, "p", frames)
        (said,) = wire.sent(both[0].heard[0])
        assert expected == said.method.NAME
    read_alike(both, "c", method(spec.QueuePurge(queue="full")))
    assert read_alike(both, "p", frames)


@pytest.mark.parametrize("reason", [Reason.STORAGE_FULL, Reason.LIMIT, Reason.TOO_LARGE])
def test_what_the_engine_refuses_is_answered_once(
    both: tuple[Play, Play], reason: Reason, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The long way asks again, and says no as always."""
    read_alike(both, "p", USUAL)

    def refuse(*_: Any) -> Position:
        raise Refused(reason, "not now")

    with monkeypatch.context() as patch:
        for play in both:
            patch.setattr(play.broker.port, "publish", refuse)
        assert not read_alike(both, "p", USUAL)
    read_alike(both, "p", USUAL)


def test_a_reader_is_held_up_when_the_disk_is_behind(
    both: tuple[Play, Play], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path asks for the disk now and then only, but soon enough, and goes on when told."""
    read_alike(both, "p", USUAL)
    resume: list[Callable[[], None]] = []

    def overloaded(callback: Callable[[], None]) -> bool:
        resume.append(callback)
        return True

    for play in both:
        monkeypatch.setattr(play.broker.port, "overloaded", overloaded)
    for _ in range(FORMS[0].ASK_BYTES // 4_000 + 1):
        read_alike(both, "p", publish(b"x" * 4_000))
    assert [play.peers["p"].is_read() for play in both] == [False, False]
    for callback in resume:
        callback()
    assert [play.peers["p"].is_read() for play in both] == [True, True]


def test_answers_that_wait_too_long_stop_the_reading(both: tuple[Play, Play]) -> None:
    """Confirms gather while the disk is slow: within the bound that all answers have."""
    read_alike(both, "p", USUAL)
    for play in both:
        peer = play.peers["p"]
        path: Any = peer.client.fast_path
        if path.path is not None:
            path.path.answers_bytes_max = 50
        object.__setattr__(peer.client.limits, "answers_bytes_max", 50)
        for _ in range(3):
            peer.send(USUAL)
        assert not peer.is_read()
        play.bench.step()
        assert peer.is_read()


# --- whatever comes ---------------------------------------------------------------------------

READS = st.lists(
    st.tuples(
        st.sampled_from("pppc"),
        st.sampled_from(
            [
                USUAL,
                USUAL,
                publish(routing_key="r"),
                publish(channel=2),
                publish(properties=NAMED),
                publish(b""),
                HALF,
                publish(body_frames=2)[len(HALF) :],
                *(ack(tag) for tag in range(1, 5)),
                *(ack(tag, multiple=True) for tag in range(4)),
                method(spec.BasicNack(delivery_tag=1, requeue=True)),
                method(spec.ChannelClose()),
                method(spec.ChannelOpen()),
                method(spec.ChannelCloseOk()),
                method(spec.ConfirmSelect(), 2),
                method(spec.TxSelect(), 2),
                method(spec.TxCommit(), 2),
                method(spec.BasicConsume(queue="r", consumer_tag="again")),
            ]
        ),
    ),
    max_size=16,
)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(READS)
def test_nobody_can_tell_the_difference(
    form: ModuleType, tmp_path_factory: pytest.TempPathFactory, reads: list[tuple[str, bytes]]
) -> None:
    """Any reads: the same bytes to everybody, and the same log."""
    directory = tmp_path_factory.mktemp("play")
    plays = [Play(directory / name, with_path=name == "with") for name in ("with", "without")]
    for user, frames in reads:
        read_alike(plays, user, frames)
    assert plays[0].broker.store.log.appended == plays[1].broker.store.log.appended
    for play in plays:
        play.stop()
