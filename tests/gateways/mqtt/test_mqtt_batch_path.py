"""The way of a read that holds many packets: that nobody can tell it from packets one by one, what
a refusal in the middle does, and when the disk is asked for. In both forms, plain and compiled."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

import polymq.gateways.mqtt.shared
from interop_tests import mqtt_wire as wire
from polymq.broker.port import APPENDED, IN_SYNC, Durability, Position, Reason, Refused
from polymq.gateways.mqtt.kernels.codes import ASK_BYTES
from tests.gateways.mqtt.mqtt_forms import FORMS, use_form
from tests.gateways.mqtt.mqtt_harness import Broker, Peer


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The bulk of this module is that of the broker that the test makes."""
    return use_form(request.param, monkeypatch)[1]


def publish(packet_id: int = 0, *, topic: bytes = b"a/b", qos: int | None = None) -> bytes:
    """With QoS 1 where there is a packet id."""
    quality = qos if qos is not None else 1 if packet_id else 0
    return wire.publish(topic, b"body %d" % packet_id, qos=quality, packet_id=packet_id)


READS = {
    "one-run": publish(1) + publish(2) + publish(3),
    "some-topics": publish(1) + publish(2, topic=b"c") + publish(3, topic=b"c") + publish(4),
    "some-qualities": publish() + publish(1) + publish(2, qos=2) + publish(3) + publish(),
    "only-qos-0": publish() + publish(),
    "exactly-once-twice": publish(5, qos=2) + publish(5, qos=2),
    "acks-between": publish(1) + wire.puback(1) + publish(2) + wire.puback(2),
    "acks-in-no-order": wire.puback(9) + wire.puback(3) + publish(1),
    "all-kinds-of-acks": wire.puback(1) + wire.pubrec(2) + wire.pubrel(3) + wire.pubcomp(4),
    "released-and-sent-again": publish(5, qos=2) + wire.pubrel(5) + publish(5, qos=2),
    "delayed": publish(1) + publish(2, topic=b"$delayed/5/a/b") + publish(3),
    "the-servers-topic": publish(1) + publish(topic=b"$SYS/x") + publish(2),
    "the-servers-topic-with-an-ack": publish(1) + publish(2, topic=b"$SYS/x") + publish(3),
    "no-topic-name": publish(1) + publish(2, topic=b"a/+") + publish(3),
    "half-a-packet-behind": publish(1) + publish(2)[:7],
    "malformed-behind": publish(1) + publish(2) + b"\x36\x08\x00\x03a/b\x00\x01x",
    "others-between": publish(1) + wire.PINGREQ + publish(2) + wire.subscribe(3, (b"c", 1)),
    "the-end-between": publish(1) + wire.DISCONNECT + publish(2),
}
"""Bytes of one read, by what they are about."""


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


@pytest.mark.parametrize("name", READS)
def test_a_read_has_the_same_effect_as_its_packets_have_in_the_core(
    form: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The core's way is what clients took before CONNACK take; all reads would be right there."""

    class NothingTaken(form.BatchPath):  # type: ignore[name-defined, misc]
        def take(self, path: Any, buffer: bytearray, start: int, end: int) -> int:
            return start

        def take_whole(self, path: Any, buffer: bytearray, start: int, end: int) -> bool:
            return False

    bulk = Broker()
    monkeypatch.setattr(polymq.gateways.mqtt.shared, "BatchPath", NothingTaken)
    core = Broker()
    found = []
    for broker in (bulk, core):
        peer = broker.peer()
        peer.send(READS[name])
        found.append(seen(broker, peer))
    assert found[0] == found[1]


def test_what_the_engine_refuses_in_the_middle_is_never_acknowledged(form: ModuleType) -> None:
    """At QoS 0 it is dropped and the rest is stored; with an acknowledgement the connection ends,
    and nothing of the read is answered."""
    broker = Broker()
    peer = broker.peer()
    broker.port.refused_topics["full"] = Refused(Reason.STORAGE_FULL, "the disk is full")
    peer.send(publish(1) + publish(topic=b"full") + publish(2))
    assert peer.receive() == [wire.puback(1), wire.puback(2)]
    assert broker.shared.counters.publishes_refused == 1
    peer.send(publish(3) + publish(4, topic=b"full") + publish(5))
    assert peer.receive() == []
    assert peer.is_closed()
    assert [message.body for message in broker.port.published] == [b"body 1", b"body 2", b"body 3"]


def test_the_answer_to_a_read_waits_for_the_strongest_class_of_its_messages(
    form: ModuleType,
) -> None:
    """And for the last of them: those of the page cache are not acknowledged before."""
    broker = Broker()
    peer = broker.peer()
    peer.send(publish(1) + publish(2, topic=b"c"))
    peer.receive()
    waits: list[tuple[int, Durability]] = []
    broker.port.when_committed = (  # type: ignore[method-assign]
        lambda position, durability, *_: waits.append((position, durability))
    )
    templates = peer.connection._mapping.templates[2]
    templates[b"a/b"].durability = APPENDED  # type: ignore[misc]
    templates[b"c"].durability = IN_SYNC  # type: ignore[misc]
    peer.connection.fast_path.publish = lambda *_: broker.port.append()
    peer.send(publish(3, topic=b"c") + publish(4))
    assert waits == [(broker.port.end, IN_SYNC)]


def test_the_disk_is_asked_for_after_each_step_of_the_log(form: ModuleType) -> None:
    """And always while it is behind, and where the port counts what its client sends."""
    broker = Broker()
    peer = broker.peer()
    asked: list[int] = []
    behind = False

    def overloaded(resume: Callable[[], None]) -> bool:
        asked.append(broker.port.end)
        return behind

    broker.port.overloaded = overloaded  # type: ignore[method-assign]
    broker.shared.paths.ask_at = 0
    for _ in range(3):
        peer.send(publish(1) + publish(2))
    assert len(asked) == 1
    broker.port.end = Position(broker.port.end + ASK_BYTES)
    peer.send(publish(1) + publish(2))
    assert len(asked) == 2
    peer.connection.fast_path.asks_always = True
    peer.send(publish(1) + publish(2))
    assert len(asked) == 3
    peer.connection.fast_path.asks_always = False
    broker.port.end = Position(broker.port.end + ASK_BYTES)
    behind = True
    other = broker.peer(wire.connect("other"))
    for publisher in (peer, other):
        publisher.send(publish(1) + publish(2))
        assert not publisher.transport.reading
    behind = False
    third = broker.peer(wire.connect("third"))
    for template in third.connection._mapping.templates[2].values():
        template.durability = IN_SYNC  # type: ignore[misc]
    third.connection.fast_path.publish = lambda *_: broker.port.append()
    broker.port.when_committed = lambda *_: None  # type: ignore[method-assign]
    asked.clear()
    third.send(publish(1) + publish(2))
    third.send(publish(1) + publish(2))
    assert len(asked) == 2, "what replicas must have is asked for each time"


def test_nothing_is_taken_before_connack_or_after_the_end(form: ModuleType) -> None:
    """The core knows what may come then: before CONNECT a publish is an error."""
    broker = Broker()
    early = broker.peer(connect=None)
    early.send(publish(1) + publish(2))
    assert early.is_closed()
    peer = broker.peer()
    peer.send(publish(1) + wire.DISCONNECT + publish(2) + publish(3))
    assert [message.body for message in broker.port.published] == [b"body 1"]
    data = bytearray(publish(4) + publish(5))
    assert not peer.connection.fast_path.take(data, 0, len(data))


def test_a_template_that_is_not_valid_any_more_is_made_anew(form: ModuleType) -> None:
    """Its topic was deleted, or the client lost the right to publish there."""
    broker = Broker()
    peer = broker.peer()
    peer.send(publish(1) + publish(2))
    made = broker.port.templates_made
    for template in peer.connection._mapping.templates[2].values():
        template.valid = False  # type: ignore[misc]
    peer.send(publish(3) + publish(4))
    assert broker.port.templates_made == made + 1
