"""The short way of a read that holds one packet: what it takes, what it leaves, and that nobody
can tell which way a read went. In both forms, plain and compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, cast

import pytest

import polymq.gateways.mqtt.connection
import polymq.gateways.mqtt.protocol
from interop_tests import mqtt_wire as wire
from polymq.broker.port import (
    APPENDED,
    FLUSHED,
    IN_SYNC,
    BrokerError,
    BrokerPort,
    Durability,
    Position,
    Reason,
    Refused,
)
from polymq.gateways.mqtt.kernels.codes import ASK_BYTES
from polymq.gateways.mqtt.limits import Limits
from tests.gateways.mqtt.mqtt_forms import FORMS, use_form
from tests.gateways.mqtt.mqtt_harness import Broker, Peer

KNOWN = b"a/b"
"""A topic name that the client has published to, with every QoS and RETAIN."""


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The fast paths of this module are those of the broker that the test makes."""
    return use_form(request.param, monkeypatch)[0]


@dataclass(frozen=True)
class Read:
    """Bytes of one read, and whether the short way is for them."""

    name: str
    data: bytes
    taken: bool = False


def publish(body: bytes = b"x", *, topic: bytes = KNOWN, **options: Any) -> bytes:
    return wire.publish(topic, body, **options)


LONG_LENGTH = b"\x30\x88\x80\x00\x00\x03a/bxyz"  # 8, in three bytes
READS = (
    Read("qos-0", publish(), taken=True),
    Read("qos-1", publish(qos=1, packet_id=7), taken=True),
    Read("qos-1-again", publish(qos=1, packet_id=7, duplicate=True), taken=True),
    Read("retained", publish(qos=1, packet_id=7, retain=True), taken=True),
    Read("empty", publish(b""), taken=True),
    Read("empty-qos-1", publish(b"", qos=1, packet_id=65_535), taken=True),
    Read("127-bytes", publish(b"x" * 122), taken=True),
    Read("128-bytes", publish(b"x" * 123), taken=True),
    Read("two-bytes-of-length", publish(b"x" * 16_000, qos=1, packet_id=9), taken=True),
    Read("three-bytes-of-length", publish(b"x" * 17_000)),
    Read("length-in-more-bytes-than-it-needs", LONG_LENGTH, taken=True),
    Read("too-large", publish(b"x" * 16_300)),
    Read("qos-2", publish(qos=2, packet_id=7)),
    Read("qos-3", b"\x36\x08\x00\x03a/b\x00\x01x"),
    Read("dup-qos-0", b"\x38\x06\x00\x03a/bx"),
    Read("packet-id-0", b"\x32\x08\x00\x03a/b\x00\x00x"),
    Read("no-room-for-the-packet-id", b"\x32\x05\x00\x03a/b"),
    Read("half-a-packet-id", b"\x32\x06\x00\x03a/b\x00"),
    Read("topic-larger-than-the-packet", b"\x30\x05\x00\x09a/b"),
    Read("no-topic", b"\x30\x03\x00\x00x"),
    Read("nothing", b"\x30\x00"),
    Read("unknown-topic", publish(topic=b"other")),
    Read("delayed", publish(topic=b"$delayed/5/a/b", qos=1, packet_id=7)),
    Read("the-servers-topic", publish(topic=b"$SYS/x")),
    Read("bad-topic", publish(topic=b"a/+")),
    Read("two", publish() + publish(b"y")),
    Read("one-and-a-half", publish() + publish()[:4]),
    Read("half", publish()[:6]),
    Read("publish-and-puback", publish() + wire.puback(1)),
    Read("puback", wire.puback(1), taken=True),
    Read("puback-65535", wire.puback(65_535), taken=True),
    Read("puback-0", wire.puback(0)),
    Read("puback-with-flags", b"\x42\x02\x00\x01"),
    Read("puback-too-long", b"\x40\x03\x00\x01\x00"),
    Read("puback-of-no-size", b"\x40\x00\x40\x00"),
    Read("two-pubacks", wire.puback(1) + wire.puback(2)),
    Read("half-a-puback", wire.puback(1)[:3]),
    Read("pubrec", wire.pubrec(1)),
    Read("pubrel", wire.pubrel(1)),
    Read("pubcomp", wire.pubcomp(1)),
    Read("pingreq", wire.PINGREQ),
    Read("disconnect", wire.DISCONNECT),
    Read("a-second-connect", wire.connect()),
    Read("reserved", b"\xf0\x00\x00\x00"),
)


def primed(limits: Limits | None = None) -> tuple[Broker, Peer]:
    """A client that has published to `KNOWN` in all ways, and nobody who takes what its fast path
    does not know."""
    broker = Broker(limits=limits or Limits())
    broker.shared.paths.batch_path = None
    peer = broker.peer()
    for qos in (0, 1):
        for retain in (False, True):
            peer.send(publish(qos=qos, packet_id=1 if qos else 0, retain=retain))
    peer.send(publish())  # the short way, so the disk was asked for
    peer.receive()
    return broker, peer


def seen(broker: Broker, peer: Peer) -> object:
    """All that a read may lead to."""
    counters = broker.shared.counters
    return (
        broker.port.published,
        broker.port.delays_ms,
        peer.session.calls,
        peer.session.inbound,
        peer.receive(),
        peer.is_closed(),
        counters.publishes_received,
        counters.publishes_refused,
        counters.protocol_errors,
    )


@pytest.mark.parametrize("read", READS, ids=lambda read: str(read.name))
def test_a_read_has_the_same_effect_either_way(
    form: ModuleType, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    class LongWay(form.FastPath):  # type: ignore[name-defined, misc]
        def take(self, buffer: bytearray, start: int, end: int) -> bool:
            return False

    limits = Limits(packet_bytes_max=16_200)
    short = primed(limits)
    monkeypatch.setattr(polymq.gateways.mqtt.connection, "FastPath", LongWay)
    long = primed(limits)
    data = bytearray(b"before" + read.data + b"behind")
    assert short[1].connection.fast_path.take(data, 6, 6 + len(read.data)) == read.taken
    short[1].send(b"" if read.taken else read.data)
    long[1].send(read.data)
    assert seen(*short) == seen(*long)


def test_nothing_is_taken_before_connack_or_after_the_end(form: ModuleType) -> None:
    broker = Broker()
    broker.port.auto_commit = False
    peer = broker.peer(connect=None)
    puback = bytearray(wire.puback(1))
    peer.send(wire.connect(clean=False))
    assert not peer.connection.fast_path.take(puback, 0, 4)
    broker.port.commit()
    assert peer.connection.fast_path.take(puback, 0, 4)
    peer.send(wire.DISCONNECT)
    assert not peer.connection.fast_path.take(puback, 0, 4)


def test_what_the_table_of_states_does_not_allow_is_not_taken(
    form: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ways into the server go by one table of what may come when."""
    monkeypatch.setattr(polymq.gateways.mqtt.protocol, "STEADY", frozenset())
    peer = Broker().peer()
    puback = bytearray(wire.puback(1))
    assert not peer.connection.fast_path.take(puback, 0, 4)
    assert all(name != "acknowledged" for name, *_ in peer.session.calls)


def test_a_length_of_more_than_two_bytes_is_left_alone(form: ModuleType) -> None:
    """A packet that lacks its last byte would else be one to a topic name that its third byte of
    length begins."""
    broker = Broker(limits=Limits())
    broker.shared.paths.batch_path = None
    peer = broker.peer()
    topic = b"t" * 0x0103
    peer.send(publish(topic=topic))
    read = bytearray(b"\x30\x80\x80\x01\x03" + topic)
    read += bytes(3 + 0x4000 - len(read))
    assert not peer.connection.fast_path.take(read, 0, len(read))


def test_a_delayed_publish_is_delayed_each_time(form: ModuleType) -> None:
    """Also when its topic name is known: its template is that of the topic it is for."""
    broker, peer = primed()
    for _ in range(3):
        peer.send(publish(topic=b"$delayed/5/a/b", qos=1, packet_id=7))
    assert broker.port.delays_ms[-3:] == [5000, 5000, 5000]


def test_a_topic_that_reaches_behind_the_packet_is_none(form: ModuleType) -> None:
    """The shared buffer may have a known name there, from an earlier read."""
    broker, peer = primed()
    del broker
    read = bytearray(b"\x30\x03\x00\x03a/b")
    assert not peer.connection.fast_path.take(read, 0, 5)


def test_what_is_not_stored_for_another_reason_closes_the_connection(form: ModuleType) -> None:
    broker, peer = primed()
    del broker

    def fail(*_: object) -> Position:
        raise BrokerError("not stored")

    peer.connection.fast_path.publish = fail
    peer.send(publish(qos=1, packet_id=7))
    assert peer.receive() == []
    assert peer.is_closed()


def test_what_the_engine_refuses_is_answered_as_ever(form: ModuleType) -> None:
    """QoS 0 is dropped and counted; QoS 1 ends the connection, without an ack."""
    broker, peer = primed()

    def refuse(*_: object, **__: object) -> Position:
        raise Refused(Reason.STORAGE_FULL, "the disk is full")

    broker.port.publish = peer.connection.fast_path.publish = refuse  # type: ignore[method-assign]
    peer.send(publish())
    assert broker.shared.counters.publishes_refused == 1
    assert not peer.is_closed()
    peer.send(publish(qos=1, packet_id=7))
    assert peer.receive() == []
    assert peer.is_closed()


def test_a_template_that_is_not_valid_any_more_is_made_anew(form: ModuleType) -> None:
    """Its topic was deleted, or the client lost the right to publish there."""
    broker, peer = primed()
    made = broker.port.templates_made
    for template in peer.connection._mapping.templates[2].values():
        template.valid = False  # type: ignore[misc]
    peer.send(publish(qos=1, packet_id=7))
    assert broker.port.templates_made == made + 1
    assert peer.receive() == [wire.puback(7)]


def test_a_publisher_is_not_read_while_the_disk_is_behind(form: ModuleType) -> None:
    """It is asked each time that the log has grown by a step, and always while it is behind."""
    broker, peer = primed()
    other = broker.peer(wire.connect("other"))
    other.send(publish())
    broker.port.auto_commit = False
    broker.port.disk_is_behind = True
    peer.send(publish())
    assert peer.transport.reading, "it was asked a moment ago"
    broker.port.end += ASK_BYTES
    for publisher in (peer, other):
        publisher.send(publish())
        assert not publisher.transport.reading
    broker.port.disk_is_behind = False
    broker.port.commit()
    assert peer.transport.reading
    assert other.transport.reading


def test_a_port_that_counts_what_its_client_sends_is_asked_after_each_read(
    form: ModuleType,
) -> None:
    broker, peer = primed()
    path = peer.connection.fast_path
    asked: list[int] = []

    def overloaded(resume: Callable[[], None]) -> bool:
        asked.append(1)
        return False

    broker.port.overloaded = overloaded  # type: ignore[method-assign]
    peer.send(publish())
    assert not asked
    own: Any = type(broker.port)()
    own.overloaded = broker.port.overloaded
    path.log_in(own, peer.connection._mapping)
    peer.connection._port = own
    for _ in range(3):
        peer.send(publish())
    assert len(asked) == 3


@pytest.mark.parametrize("durability", [FLUSHED, IN_SYNC])
def test_who_publishes_what_replicas_must_have_asks_after_each_read(
    form: ModuleType, durability: Durability
) -> None:
    broker, peer = primed()
    asked: list[int] = []

    def overloaded(resume: Callable[[], None]) -> bool:
        asked.append(1)
        return False

    broker.port.overloaded = overloaded  # type: ignore[method-assign]
    for template in peer.connection._mapping.templates[0].values():
        template.durability = durability  # type: ignore[misc]
    path = peer.connection.fast_path
    port = cast("BrokerPort", broker.port)
    path.log_in(port, path.mapping)  # which forgets what it knew of its last template
    path.publish = lambda *_: broker.port.append()
    peer.send(publish())
    peer.send(publish())
    assert len(asked) == (2 if durability is IN_SYNC else 0)


# --- answers ------------------------------------------------------------------------------------


class Log:
    """A log whose points the test moves, and who waits for them, as an engine has it."""

    def __init__(self) -> None:
        self.points = dict.fromkeys(Durability, 0)
        self.waiting: list[tuple[int, Durability, Any]] = []

    def committed(self, position: int, durability: Durability) -> bool:
        return position <= self.points[durability]

    def when_committed(self, position: int, durability: Durability, callback: Any) -> None:
        if self.committed(position, durability):
            callback()
        else:
            self.waiting.append((position, durability, callback))

    def move(self, durability: Durability, position: int) -> None:
        self.points[durability] = position
        for waiting in list(self.waiting):
            if self.committed(waiting[0], waiting[1]):
                self.waiting.remove(waiting)
                waiting[2]()


def waiting_path(form: ModuleType) -> tuple[Log, Any, list[bytes]]:
    """An open path, and what it writes."""
    broker, peer = primed()
    log, written = Log(), list[bytes]()
    broker.shared.paths.answers[:] = [form.Answers(log, durability) for durability in Durability]
    peer.connection.fast_path.write = written.append
    return log, peer.connection.fast_path, written


def test_answers_leave_when_their_position_is_committed_and_not_before(form: ModuleType) -> None:
    """Whatever part of those that wait one flush covers."""
    for covered in range(12):
        log, path, written = waiting_path(form)
        for position in range(1, 11):
            path.answer_when(position, b"%d" % position, FLUSHED)
        assert len(log.waiting) == 1, "the engine knows of the first only"
        log.move(FLUSHED, covered)
        assert written == [b"%d" % position for position in range(1, min(covered, 10) + 1)]
        log.move(FLUSHED, 10)
        assert len(written) == 10
        assert (path.waiting, path.slow_waiting, log.waiting) == (0, 0, [])


def test_an_answer_waits_for_those_before_it(form: ModuleType) -> None:
    """One from the page cache comes behind one that waits for the disk [MQTT-4.6.0-2]; a weaker
    class after a stronger one waits for the stronger; later, each is free again."""
    log, path, written = waiting_path(form)
    path.answer_when(1, b"cached", APPENDED)
    path.answer_when(2, b"flushed", FLUSHED)
    path.answer_when(3, b"cached, too", APPENDED)
    path.answer_when(4, b"in sync", IN_SYNC)
    path.answer_when(5, b"flushed, too", FLUSHED)
    log.move(APPENDED, 5)
    assert written == [b"cached"]
    log.move(FLUSHED, 5)
    assert written == [b"cached", b"flushed", b"cached, too"]
    log.move(IN_SYNC, 5)
    assert written[3:] == [b"in sync", b"flushed, too"]
    path.answer_when(6, b"cached again", APPENDED)
    log.move(APPENDED, 6)
    assert written[5:] == [b"cached again"]


def test_an_answer_to_something_old_waits_for_the_one_before_it(form: ModuleType) -> None:
    """A duplicate of QoS 2 is answered with a position that was committed long ago."""
    log, path, written = waiting_path(form)
    log.move(FLUSHED, 5)
    path.answer_when(9, b"new", FLUSHED)
    path.answer_when(3, b"old", FLUSHED)
    assert written == []
    log.move(FLUSHED, 9)
    assert written == [b"new", b"old"]
    path.answer_when(4, b"old alone", FLUSHED)
    assert written == [b"new", b"old", b"old alone"]


def test_one_connection_ends_and_the_others_get_their_answers(form: ModuleType) -> None:
    broker, peer = primed()
    other = broker.peer(wire.connect("other"))
    other.send(publish(qos=1, packet_id=1))
    other.receive()
    broker.port.auto_commit = False
    peer.send(publish(qos=1, packet_id=7))
    other.send(publish(qos=1, packet_id=8))
    peer.vanish()
    broker.port.commit()
    broker.loop.run()
    assert peer.receive() == []
    assert other.receive() == [wire.puback(8)]


def test_a_server_that_stops_waits_for_answers_of_the_fast_path(form: ModuleType) -> None:
    broker, peer = primed()
    broker.port.auto_commit = False
    peer.send(publish(qos=1, packet_id=7))
    peer.connection.leave()
    broker.loop.run()
    assert not peer.is_closed()
    broker.port.commit()
    broker.loop.run()
    assert peer.receive() == [wire.puback(7)]
    assert peer.is_closed()
