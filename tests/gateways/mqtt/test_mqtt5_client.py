"""A client of MQTT 5: what its packets do in the engine, and what it is told. In both forms."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from interop_tests import mqtt_wire as wire
from polymq.broker.messages.kernels.record_run import RecordRun
from polymq.broker.port import (
    LOGIN_EXPIRED,
    PUBLISHER_PROPERTY,
    TTL_PROPERTY,
    Reason,
    Refused,
    RunMeta,
    SubscriptionOptions,
    ttl_property,
)
from polymq.gateways.mqtt.features import Features
from polymq.gateways.mqtt.limits import Limits
from tests.gateways.mqtt.mqtt_forms import FORMS, use_form
from tests.gateways.mqtt.mqtt_harness import Broker, Peer, Published
from tests.gateways.mqtt.mqtt_records import record, records
from tests.gateways.mqtt.test_mqtt5_kernels import ack, publish
from tests.gateways.mqtt.test_mqtt5_packets import block, connect, text

CONNACK = b"\x20"
USER = b"\x26" + text("a") + text("1") + b"\x26" + text("a") + text("2")
TYPE = b"\x03" + text("text/plain")


@pytest.fixture(params=FORMS, autouse=True)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The form of the paths of all brokers that the test makes."""
    return use_form(request.param, monkeypatch)[1]


NO_TEXTS = b"\x17\0"
"""Request Problem Information 0: reason codes, and no words."""


def connected(broker: Broker, *properties: bytes, **more: Any) -> Peer:
    """A client of MQTT 5 that has read CONNACK, and wants no reason strings."""
    peer = broker.peer(None)
    peer.send(wire.packet(0x10, connect(block(NO_TEXTS, *properties), **more)))
    connack = peer.receive()
    assert [packet[:1] + packet[3:4] for packet in connack] == [CONNACK + b"\0"]
    return peer


def disconnect(reason: int) -> bytes:
    return b"\xe0\x01" + bytes((reason,))


# --- CONNECT ---------------------------------------------------------------------------------


@pytest.mark.parametrize("shares", [True, False])
def test_connack_says_what_the_server_decided(shares: bool) -> None:
    """The client id that it made, its limits, and what it does not have."""
    broker = Broker(
        limits=Limits(packet_bytes_max=0x1234, features=Features(shared_subscriptions=shares))
    )
    peer = broker.peer(None)
    peer.send(wire.packet(0x10, connect(rest=text(""))))
    expected = block(
        b"\x12" + text("made-up-0"),
        b"" if shares else b"\x2a\x00",
        b"\x27\x00\x00\x12\x34",
        b"\x22\x00\x40",
    )
    assert peer.receive() == [wire.packet(0x20, b"\0\0" + expected)]


@pytest.mark.parametrize(
    ("size_max", "connack"),
    [
        (15, block(b"\x2a\x00", b"\x27\x00\x00\x12\x34", b"\x22\x00\x40")),
        (14, block(b"\x2a\x00", b"\x27\x00\x00\x12\x34")),
        (7, block(b"\x2a\x00")),
        (6, block()),
        (5, block()),
    ],
)
def test_connack_is_as_small_as_the_client_wants(size_max: int, connack: bytes) -> None:
    """[MQTT-3.1.2-24]. A client that takes no CONNACK at all is refused, without a word."""
    broker = Broker(
        limits=Limits(packet_bytes_max=0x1234, features=Features(shared_subscriptions=False))
    )
    peer = broker.peer(None)
    peer.send(wire.packet(0x10, connect(block(b"\x27" + size_max.to_bytes(4, "big")))))
    assert peer.receive() == [wire.packet(0x20, b"\0\0" + connack)]
    filters = b"".join(text("a") + b"\0" for _ in range(20))
    peer.send(wire.packet(0x82, b"\0\1\0" + filters))
    assert peer.receive() == [disconnect(0x95)], "SUBACK would have 25 bytes"
    stranger = broker.peer(None)
    stranger.send(wire.packet(0x10, connect(block(b"\x27\0\0\0\4"))))
    assert stranger.receive() == []
    assert stranger.is_closed()


@pytest.mark.parametrize(
    ("properties", "expiry"),
    [(b"", 0), (b"\x11\0\0\0\x0a", 10), (b"\x11\xff\xff\xff\xff", None)],
)
def test_the_session_lives_as_long_as_connect_says(properties: bytes, expiry: int | None) -> None:
    peer = connected(Broker(), properties)
    assert peer.session.expiry_seconds == expiry


def test_a_session_that_the_operator_shortens_is_told() -> None:
    """[MQTT-3.2.2-16] of its kind: the interval that holds is the server's."""
    broker = Broker()
    peer = broker.peer(None)
    broker.port.auto_commit = False
    peer.send(wire.packet(0x10, connect(block(b"\x11\0\0\0\x0a"), flags=0)))
    peer.session.expiry_seconds = 5
    broker.port.commit()
    broker.loop.run()
    assert b"\x11\0\0\0\x05" in peer.receive()[0]


def test_receive_maximum_bounds_the_window() -> None:
    broker = Broker()
    connected(broker, b"\x21\x00\x03")
    assert broker.port.inflight_max == 3


@pytest.mark.parametrize(
    ("reason", "code"),
    [(Reason.FORBIDDEN, 0x87), (Reason.LIMIT, 0x97), (Reason.READ_ONLY, 0x88)],
)
def test_a_refused_connect_says_why(reason: Reason, code: int) -> None:
    broker = Broker()
    broker.port.refused_connect = Refused(reason, "no")
    peer = broker.peer(None)
    peer.send(wire.packet(0x10, connect(block(NO_TEXTS))))
    assert peer.receive() == [b"\x20\x03\x00" + bytes((code, 0))]
    assert peer.is_closed()


def test_an_authentication_method_that_there_is_not() -> None:
    """[MQTT-4.12.0-1]."""
    peer = Broker().peer(None)
    peer.send(wire.packet(0x10, connect(block(NO_TEXTS, b"\x15" + text("X")))))
    assert peer.receive() == [b"\x20\x03\x00\x8c\x00"]
    assert peer.is_closed()


@pytest.mark.parametrize(("why", "code"), [(LOGIN_EXPIRED, 0xA0), ("it is disabled", 0x87)])
def test_a_client_whose_login_ends_is_told_why(why: str, code: int) -> None:
    broker = Broker()
    peer = connected(broker)
    peer.link.expelled(why)
    assert peer.receive() == [disconnect(code)]
    broker.loop.run()
    assert peer.is_closed()


def test_auth_out_of_place() -> None:
    """[MQTT-4.12.0-6]: CONNECT had no method."""
    peer = connected(Broker())
    peer.send(wire.packet(0xF0, b"\x19" + block(b"\x15" + text("X"))))
    assert peer.receive() == [disconnect(0x82)]


# --- PUBLISH ---------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_properties_are_stored_as_they_came(qos: int) -> None:
    """Once by the way of single packets, once in a read of many."""
    broker = Broker()
    peer = connected(broker)
    one = publish(USER + TYPE, qos=qos, packet_id=1 if qos else 0)
    two = publish(TYPE, qos=qos, packet_id=2 if qos else 0)
    plain = publish(b"", qos=qos, packet_id=3 if qos else 0)
    peer.send(one)
    peer.send(two + plain)
    assert [(found.block, found.body, found.qos) for found in broker.port.published] == [
        (USER + TYPE, b"body", qos),
        (TYPE, b"body", qos),
        (b"", b"body", qos),
    ]
    answer = {0: [], 1: [wire.puback(k) for k in (1, 2, 3)], 2: [wire.pubrec(k) for k in (1, 2, 3)]}
    assert peer.receive() == answer[qos]


def test_messages_of_one_topic_are_one_run_whatever_their_properties_are() -> None:
    broker = Broker()
    peer = connected(broker)
    peer.send(publish(TYPE))
    del broker.port.runs[:]
    peer.send(*(publish(b"\x26" + text("n") + text(str(n))) for n in range(20)))
    assert broker.port.runs == [20]


def test_an_expiry_interval_is_a_time_to_live() -> None:
    broker = Broker()
    peer = connected(broker)
    minute, hour = (b"\x02" + seconds.to_bytes(4, "big") for seconds in (60, 3600))
    peer.send(publish(minute), publish(minute), publish(hour), publish(b""))
    ttls = [dict(found.more).get(TTL_PROPERTY) for found in broker.port.published]
    assert ttls == [ttl_property(ms, 0) if ms else None for ms in (60_000, 60_000, 3_600_000, 0)]
    assert broker.port.runs == [2, 1, 1]


def test_topic_aliases() -> None:
    """Set, used, set to another topic: in one read, in several, with every QoS."""
    broker = Broker()
    peer = connected(broker)
    first, second = b"\x23\x00\x01", b"\x23\x00\x40"
    peer.send(publish(first, topic="a/b"), publish(first, topic=""))
    peer.send(publish(second, topic="c/d", qos=1, packet_id=1))
    peer.send(publish(second, topic="", qos=2, packet_id=2))
    peer.send(publish(first + USER, topic=""))
    peer.send(publish(first, topic="e/f"))
    peer.send(publish(first, topic=""))
    found = [(message.topic, message.tag, message.block) for message in broker.port.published]
    assert found == [
        ("a", "b", b""),
        ("a", "b", b""),
        ("c", "d", b""),
        ("c", "d", b""),
        ("a", "b", first + USER),
        ("e", "f", b""),
        ("e", "f", b""),
    ]
    assert peer.receive() == [wire.puback(1), wire.pubrec(2)]


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        (publish(b"\x23\x00\x41", topic="a"), 0x94),
        (publish(b"\x23\x00\x00", topic="a"), 0x94),
        (publish(b"\x23\x00\x02", topic=""), 0x82),
        (publish(b"", topic=""), 0x82),
        (publish(b"", topic="a/+"), 0x90),
        (publish(b"\x0b\x01"), 0x82),
        (publish(b"\x01\x02"), 0x82),
        (publish(b"\x11\0\0\0\0"), 0x81),
        (wire.packet(0x36, text("a") + b"\0\1\0"), 0x81),
        (wire.packet(0x10, connect()), 0x82),
        (b"\xc1\x00", 0x81),
    ],
)
def test_what_a_client_must_not_send_is_named(packet: bytes, reason: int) -> None:
    """DISCONNECT with the reason, then the end [MQTT-4.13.1-1]; only this connection closes."""
    broker = Broker()
    other, peer = connected(broker, rest=text("o")), connected(broker)
    peer.send(packet)
    assert peer.receive() == [disconnect(reason)]
    assert peer.is_closed()
    assert broker.port.published == []
    assert not other.is_closed()


def test_aliases_are_of_one_connection() -> None:
    """[MQTT-3.3.2-7]: a new one begins without."""
    broker = Broker()
    connected(broker).send(publish(b"\x23\x00\x01"))
    peer = connected(broker)
    peer.send(publish(b"\x23\x00\x01", topic=""))
    assert peer.receive() == [disconnect(0x82)]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_refused_publish_is_answered_with_the_reason(qos: int) -> None:
    """And the connection stays; what came before and behind it is stored and acknowledged."""
    broker = Broker()
    broker.port.refused_topics["no"] = Refused(Reason.FORBIDDEN, "no")
    peer = connected(broker)
    ids = (1, 2, 3) if qos else (0, 0, 0)
    topics = ("a", "no", "b")
    peer.send(
        *(
            publish(b"", topic=topic, qos=qos, packet_id=packet_id)
            for topic, packet_id in zip(topics, ids, strict=True)
        )
    )
    first_byte = 0x30 + 0x10 * qos
    expected = [ack(first_byte, 1), ack(first_byte, 2, 0x87), ack(first_byte, 3)] if qos else []
    assert peer.receive() == expected
    assert [found.topic for found in broker.port.published] == ["a", "b"]
    assert not peer.is_closed()
    peer.send(publish(b"", topic="a", qos=qos, packet_id=ids[1]))
    assert peer.receive() == ([ack(first_byte, 2)] if qos else [])


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_that_is_too_large_is_refused_alone(qos: int) -> None:
    """Those of its run are stored: what they have in common is topic and QoS, not the size."""
    broker = Broker(limits=Limits(packet_bytes_max=1 << 24))
    peer = connected(broker)
    bodies = [b"1", b"x" * (4 * 1024 * 1024 + 1), b"3"]
    ids = (1, 2, 3) if qos else (0, 0, 0)
    peer.send(publish(b"", body=b"0", qos=qos, packet_id=9 if qos else 0))
    peer.receive()
    packets = [
        publish(b"", body=body, qos=qos, packet_id=packet_id)
        for body, packet_id in zip(bodies, ids, strict=True)
    ]
    peer.send(*packets)
    assert [found.body for found in broker.port.published] == [b"0", b"1", b"3"]
    first_byte = 0x30 + 0x10 * qos
    expected = [ack(first_byte, 1), ack(first_byte, 2, 0x97), ack(first_byte, 3)] if qos else []
    assert peer.receive() == expected
    assert not peer.is_closed()


def test_topics_of_the_server() -> None:
    peer = connected(Broker())
    peer.send(publish(b"", topic="$other", qos=1, packet_id=1))
    assert peer.receive() == [ack(0x40, 1, 0x87)]


# --- acknowledgements ------------------------------------------------------------------------


def test_acknowledgements_of_deliveries() -> None:
    """A PUBREC with an error ends the message; a PUBACK with an error does as any other."""
    peer = connected(Broker())
    peer.session.calls.clear()
    peer.send(ack(0x40, 1, 0x87))
    peer.send(ack(0x40, 2, 0x10), ack(0x50, 3), ack(0x50, 4, 0x97), ack(0x50, 5, 0x80))
    assert peer.session.calls == [
        ("acknowledged", 1, 1),
        ("acknowledged", 2, 1),
        ("received", 3, 1),
        ("rejected", 4, 1),
        ("rejected", 5, 1),
    ]


# --- SUBSCRIBE and UNSUBSCRIBE ---------------------------------------------------------------


def subscribe(packet_id: int, *filters: tuple[str, int], properties: bytes = b"") -> bytes:
    content = packet_id.to_bytes(2, "big") + block(properties)
    content += b"".join(text(pattern) + bytes((options,)) for pattern, options in filters)
    return wire.packet(0x82, content)


def test_options_reach_the_session() -> None:
    peer = connected(Broker())
    peer.session.calls.clear()
    peer.send(subscribe(1, ("a", 0x0D), ("b", 0x02), properties=b"\x0b\x05"))
    assert [call for call in peer.session.calls if call[0] == "subscribe"] == [
        (
            "subscribe",
            ("a",),
            SubscriptionOptions(qos=1, no_local=True, retain_as_published=True, identifier=5),
        ),
        ("subscribe", ("b",), SubscriptionOptions(qos=2, identifier=5)),
    ]
    assert peer.receive() == [b"\x90\x05\x00\x01\x00\x01\x02"]


def test_retain_handling() -> None:
    """0: always, 1: only to a new subscription, 2: never."""
    peer = connected(Broker())
    for handling, expected in ((0, 2), (1, 1), (2, 0)):
        pattern = f"t{handling}"
        for _ in range(2):
            peer.send(subscribe(1, (pattern, handling << 4)))
        replays = [call for call in peer.session.calls if call[0] == "replay_retained"]
        assert len([call for call in replays if call[1] == (pattern,)]) == expected


def test_refused_filters_are_answered_one_by_one() -> None:
    broker = Broker()
    peer = connected(broker)
    peer.session.refused = {
        ("no",): Refused(Reason.FORBIDDEN, "no"),
        ("full",): Refused(Reason.LIMIT, "no"),
    }
    peer.send(subscribe(1, ("a", 0), ("no", 0), ("full", 0), ("$share//a", 0), ("/" * 200, 0)))
    assert peer.receive() == [b"\x90\x08\x00\x01\x00\x00\x87\x97\x8f\x8f"]


def test_shared_subscriptions_may_be_switched_off() -> None:
    """The right code for the filter, and the others are carried out [MQTT-3.8.4-6]."""
    peer = connected(Broker(limits=Limits(features=Features(shared_subscriptions=False))))
    peer.send(subscribe(1, ("a", 0), ("$share/g/a", 1), ("$share", 1)))
    assert peer.receive() == [b"\x90\x06\x00\x01\x00\x00\x9e\x9e"]
    assert [call for call in peer.session.calls if call[0] == "subscribe"] == [
        ("subscribe", ("a",), 0)
    ]


def test_no_local_cannot_be_shared() -> None:
    """[MQTT-3.8.3-4]: a protocol error, and nothing of the packet is carried out."""
    peer = connected(Broker())
    peer.send(subscribe(1, ("a", 0), ("$share/g/a", 0x04)))
    assert peer.receive() == [disconnect(0x82)]
    assert not any(call[0] == "subscribe" for call in peer.session.calls)


def test_all_publishers_name_themselves_where_shares_choose_by_that() -> None:
    broker = Broker(limits=Limits(names_publishers=True))
    peer = connected(broker)
    peer.send(publish(b""))
    assert [dict(found.more)[PUBLISHER_PROPERTY] for found in broker.port.published] == ["c"]


def test_unsuback_says_what_was_there() -> None:
    """[MQTT-3.11.3-1], [MQTT-3.11.3-2]: a reason code for each filter, in their order."""
    peer = connected(Broker())
    peer.send(subscribe(1, ("a", 0)))
    peer.receive()
    peer.send(wire.packet(0xA2, b"\x00\x02\x00" + text("b") + text("a")))
    assert peer.receive() == [b"\xb0\x05\x00\x02\x00\x11\x00"]


def test_no_local_publishers_name_themselves() -> None:
    """From the first such subscription on; others do not, so that their messages stay small."""
    broker = Broker()
    peer = connected(broker)
    peer.send(publish(b""))
    peer.send(subscribe(1, ("a", 0x04)))
    peer.send(publish(b""))
    named = [dict(found.more).get(PUBLISHER_PROPERTY) for found in broker.port.published]
    assert named == [None, "c"]


# --- deliveries ------------------------------------------------------------------------------


def run_of(*bodies: bytes, properties: dict[str, str] | None = None) -> RecordRun:
    memory = records(bodies)
    meta = RunMeta("t", None, properties or {"PMQ_PROTO": "mqtt"}, 0)
    return RecordRun(meta, memory, 0, len(memory), len(bodies))


def test_deliveries_are_packets_of_mqtt_5() -> None:
    peer = connected(Broker())
    send = peer.link.send_publishes
    send(run_of(b"1"), qos=0, first_packet_id=0, duplicate=False, retain=False)
    send(run_of(b"2"), qos=1, first_packet_id=7, duplicate=True, retain=True, identifiers=(5, 300))
    peer.broker.loop.run()
    assert peer.receive() == [
        wire.packet(0x30, text("t") + b"\0" + b"1"),
        wire.packet(0x3B, text("t") + b"\x00\x07" + block(b"\x0b\x05\x0b\xac\x02") + b"2"),
    ]


def test_subscribers_of_both_versions_share_no_frame() -> None:
    broker = Broker()
    new, old = connected(broker), broker.peer()
    run = run_of(b"1")
    for peer in (old, new, old, new):
        peer.link.send_publishes(run, qos=0, first_packet_id=0, duplicate=False, retain=False)
    broker.loop.run()
    assert old.receive() == [wire.publish("t", b"1")] * 2
    assert new.receive() == [wire.packet(0x30, text("t") + b"\0" + b"1")] * 2


def test_messages_of_other_protocols_come_with_their_properties() -> None:
    """One by one, so the engine is told which runs these are; clients of 3.1.1 get them as ever."""
    broker = Broker()
    new, old = connected(broker), broker.peer()
    constant = {"PMQ_PROTO": "http", "content-type": "text/plain"}
    bodies = (b"1", b"2")
    memory = b"".join(
        record(body, properties=b"content-type\x01text/plain\x02k\x01%b\x02" % body)
        for body in bodies
    )
    run = RecordRun(RunMeta("t", None, constant, 0), memory, 0, len(memory), 2)
    for peer in (new, old):
        peer.link.send_publishes(run, qos=1, first_packet_id=65_535, duplicate=False, retain=False)
    broker.loop.run()
    assert new.receive() == [
        publish(
            TYPE + b"\x26" + text("k") + text(body.decode()),
            topic="t",
            body=body,
            qos=1,
            packet_id=packet_id,
        )
        for body, packet_id in zip(bodies, (65_535, 1), strict=True)
    ]
    assert [packet[-1:] for packet in old.receive()] == [b"1", b"2"]
    assert new.link.takes_apart is not None
    assert new.link.takes_apart(run.meta)
    assert not new.link.takes_apart(run_of(b"1").meta)
    assert old.link.takes_apart is None


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_a_client_does_not_take_is_done_with(qos: int) -> None:
    """[MQTT-3.1.2-24], [MQTT-3.1.2-25]: it is not sent, and counts as acknowledged."""
    broker = Broker()
    peer = connected(broker, b"\x27\x00\x00\x00\x14")
    peer.session.calls.clear()
    run = run_of(b"1", b"x" * 20, b"3")
    first = 65_535 if qos else 0
    peer.link.send_publishes(run, qos=qos, first_packet_id=first, duplicate=False, retain=False)
    broker.loop.run()
    assert [packet[-1:] for packet in peer.receive()] == [b"1", b"3"]
    assert peer.session.calls == ([("rejected", 1, 1)] if qos else [])
    assert broker.shared.counters.publishes_too_large == 1


# --- the end ---------------------------------------------------------------------------------

WILL = {"flags": 0x06, "rest": text("c") + block(USER) + text("w") + text("gone")}


def test_disconnect_takes_the_will_along() -> None:
    """[MQTT-3.14.4-3]; with reason 0x04, or any other, it is published."""
    broker = Broker()
    for content, published in ((b"", 0), (b"\x00", 0), (b"\x04", 1), (b"\x80", 1)):
        del broker.port.published[:]
        peer = connected(broker, **WILL)
        peer.send(wire.packet(0xE0, content))
        assert peer.is_closed()
        assert peer.receive() == [], "the client goes: nothing is said to it"
        expected = [Published("w", None, b"gone", 0, block=USER)]
        assert broker.port.published == expected * published


def test_disconnect_may_change_the_session_expiry() -> None:
    broker = Broker()
    change = wire.packet(0xE0, b"\x00" + block(b"\x11\xff\xff\xff\xff"))
    peer = connected(broker, b"\x11\0\0\0\x0a")
    peer.send(change)
    assert ("expire_after", None) in peer.session.calls
    peer = connected(broker)
    peer.send(change)
    assert peer.receive() == [disconnect(0x82)], "[MQTT-3.14.2-2]: CONNECT had none"


def test_a_client_is_told_who_came_in_its_place() -> None:
    broker = Broker()
    peer = connected(broker)
    connected(broker)
    assert peer.receive() == [disconnect(0x8E)]


def test_a_silent_client_is_told() -> None:
    broker = Broker()
    peer = connected(broker, keep_alive=10)
    broker.loop.advance(20)
    assert peer.receive() == [disconnect(0x8D)]
    assert peer.is_closed()


def test_a_server_that_stops_says_so_behind_the_last_answer() -> None:
    broker = Broker()
    peer = connected(broker)
    broker.port.auto_commit = False
    peer.send(publish(b"", qos=1, packet_id=1))
    peer.connection.leave()
    assert peer.receive() == []
    broker.port.commit()
    broker.loop.run()
    assert peer.receive() == [wire.puback(1), disconnect(0x8B)]
