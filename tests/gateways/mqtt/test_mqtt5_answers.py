"""What a client of MQTT 5 is answered beside codes, and which codes are counted. In both forms."""

from __future__ import annotations

from array import array
from types import ModuleType
from typing import Any

import pytest

from interop_tests import mqtt_wire as wire
from interop_tests.mqtt5_wire import P, decode
from polymq.broker.port import LOGIN_EXPIRED, Reason, Refused
from polymq.core_log.kernels.batch import FLAGS, Batch
from polymq.gateways.mqtt.explaining import REFUSALS_EXPLAINED, TEXT_BYTES_MAX
from polymq.gateways.mqtt.features import Features
from polymq.gateways.mqtt.kernels import codes
from polymq.gateways.mqtt.limits import Limits
from tests.gateways.mqtt.mqtt_forms import FORMS, use_form
from tests.gateways.mqtt.mqtt_harness import Broker, Peer
from tests.gateways.mqtt.test_mqtt5_client import connected, subscribe
from tests.gateways.mqtt.test_mqtt5_kernels import ack, both_forms, publish
from tests.gateways.mqtt.test_mqtt5_packets import block, connect, text

TEXT = b"\x01\x01"
"""Payload Format Indicator 1."""
NOT_TEXT = b"\xff\xfe"
WHY = "user 'u' may not publish to t"


@pytest.fixture(params=FORMS, autouse=True)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The form of the paths of all brokers that the test makes."""
    return use_form(request.param, monkeypatch)[1]


def talking(broker: Broker, *properties: bytes) -> Peer:
    """A client that wants to hear reasons."""
    peer = broker.peer(None)
    peer.send(wire.packet(0x10, connect(block(*properties))))
    peer.receive()
    return peer


def texts_in(packets: list[bytes]) -> list[tuple[int, str]]:
    """Reason code and reason string of each packet."""
    found = [decode(packet) for packet in packets]
    return [(one.reasons[-1], str((one.values(P.REASON) or [""])[0])) for one in found]


# --- reason strings --------------------------------------------------------------------------


def test_a_login_that_has_expired_need_not_be_by_a_token() -> None:
    """A login service ends logins by a password, too (`expires_in`)."""
    peer = talking(Broker())
    peer.link.expelled(LOGIN_EXPIRED)
    said = "the login has expired: log in again, with a new token if it was by one"
    assert texts_in(peer.receive()) == [(0xA0, said)]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_refused_publish_is_explained(qos: int) -> None:
    """[MQTT-3.4.2-2], [MQTT-3.5.2-2]: if the client wants to know, and takes so much."""
    broker = Broker()
    broker.port.refused_topics["x"] = Refused(Reason.FORBIDDEN, WHY)
    message = publish(b"", topic="x/y", qos=qos, packet_id=7)
    size = 2 + 3 + 1 + 3 + len(WHY)
    for properties, expected in (
        ((), WHY),
        ((b"\x17\0",), ""),
        ((b"\x27" + (size + 4).to_bytes(4, "big"),), WHY),
        ((b"\x27" + (size - 1).to_bytes(4, "big"),), ""),
    ):
        peer = talking(broker, *properties)
        peer.send(message)
        (answer,) = peer.receive()
        assert texts_in([answer]) == [(0x87, expected)]
        assert decode(answer).packet_id == 7


def test_of_many_refusals_the_first_are_explained() -> None:
    """One text for each run; and all keep the order of what they answer [MQTT-4.6.0-2]."""
    broker = Broker()
    broker.port.refused_topics["x"] = Refused(Reason.FORBIDDEN, WHY)
    peer = talking(broker)
    topics = ["x/a", "x/a", "x/b", *(f"x/{number}" for number in range(20))]
    peer.send(
        *(publish(b"", topic=topic, qos=1, packet_id=1 + n) for n, topic in enumerate(topics))
    )
    answers = [decode(packet) for packet in peer.receive()]
    assert [one.packet_id for one in answers] == list(range(1, 1 + len(topics)))
    assert {one.reason for one in answers} == {0x87}
    explained = [one.packet_id for one in answers if one.values(P.REASON)]
    assert explained[:3] == [1, 3, 4]
    assert 0 < len(explained) <= 2 * REFUSALS_EXPLAINED


def test_a_refused_filter_is_explained() -> None:
    broker = Broker()
    peer = talking(broker)
    peer.session.refused = {("no",): Refused(Reason.FORBIDDEN, "not yours\n" + "é" * 300)}
    peer.send(subscribe(1, ("a", 0), ("no", 0)))
    (answer,) = peer.receive()
    (reason,) = decode(answer).values(P.REASON)
    assert isinstance(reason, str)
    assert reason.startswith("no: not yours?éé")
    assert len(reason.encode()) <= TEXT_BYTES_MAX
    peer.send(wire.packet(0xA2, b"\x00\x02\x00" + text("$share//a")))
    ((code, why),) = texts_in(peer.receive())
    assert code == 0x11
    assert "$share//a" in why
    long = "no/" + "x" * 1000
    peer.session.refused = {tuple(long.split("/")): Refused(Reason.FORBIDDEN, "not yours")}
    peer.send(subscribe(3, (long, 0)))
    (reason,) = decode(peer.receive()[0]).values(P.REASON)
    assert isinstance(reason, str)
    assert reason.endswith("…: not yours")


def test_what_is_switched_off_or_the_servers_own_is_explained() -> None:
    """A shared filter where there are none, and a publish below `$SYS`."""
    broker = Broker(limits=Limits(features=Features(shared_subscriptions=False)))
    peer = talking(broker)
    peer.send(subscribe(1, ("a", 0), ("$share/g/a", 0)))
    assert texts_in(peer.receive()) == [
        (0x9E, "$share/g/a: shared subscriptions are not available")
    ]
    assert broker.shared.counters.filters_refused == 1
    peer.send(publish(b"", topic="$SYS/a", qos=1, packet_id=1))
    assert texts_in(peer.receive()) == [(0x87, "topics that begin with `$` belong to the server")]


def test_the_end_of_a_connection_is_explained() -> None:
    peer = talking(Broker())
    peer.send(wire.packet(0x30, text("a") + b"\x02\x0b\x01"))
    ((code, why),) = texts_in(peer.receive())
    assert code == 0x82
    assert "Subscription Identifier" in why
    assert peer.is_closed()


def test_a_stranger_learns_what_the_code_says_and_no_more() -> None:
    broker = Broker()
    broker.port.users = {}
    peer = broker.peer(None)
    peer.send(wire.packet(0x10, connect(flags=0x82, rest=text("c") + text("u"))))
    assert texts_in(peer.receive()) == [(0x86, "user name or password is wrong")]


# --- payloads --------------------------------------------------------------------------------


def checking() -> Broker:
    return Broker(limits=Limits(features=Features(payload_format_checked=True)))


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_payload_that_is_no_text_is_refused_alone(qos: int) -> None:
    """5.0 part 3.3.2.3.2. Those before and behind it, in the same run, are stored."""
    broker = checking()
    peer = connected(broker)
    bodies = [b"1", NOT_TEXT, b"3", "é\0".encode(), NOT_TEXT]
    peer.send(
        *(
            publish(TEXT, body=body, qos=qos, packet_id=1 + n if qos else 0)
            for n, body in enumerate(bodies)
        ),
        publish(b"\x01\x00", body=NOT_TEXT, qos=qos, packet_id=9 if qos else 0),
        publish(b"", body=NOT_TEXT, qos=qos, packet_id=10 if qos else 0),
    )
    stored = [found.body for found in broker.port.published]
    assert stored == [b"1", b"3", "é\0".encode(), NOT_TEXT, NOT_TEXT]
    answers = [decode(packet) for packet in peer.receive()]
    expected = [(1, 0), (2, 0x99), (3, 0), (4, 0), (5, 0x99), (9, 0), (10, 0)]
    assert [(one.packet_id, one.reason) for one in answers] == (expected if qos else [])
    assert broker.shared.counters.publishes_refused == 2


def test_one_payload_in_a_read_is_looked_at_as_well() -> None:
    broker = checking()
    peer = connected(broker)
    for body in (b"1", NOT_TEXT, NOT_TEXT):
        peer.send(publish(TEXT, body=body, qos=1, packet_id=1))
    assert [found.body for found in broker.port.published] == [b"1"]
    assert [packet[4:5] for packet in peer.receive()] == [b"", b"\x99", b"\x99"]


def test_nothing_is_looked_at_unless_it_is_asked_for() -> None:
    broker = Broker()
    peer = connected(broker)
    peer.send(publish(TEXT, body=NOT_TEXT, qos=1, packet_id=1))
    assert [found.body for found in broker.port.published] == [NOT_TEXT]


@both_forms
def test_rows_are_marked(kernels: Any) -> None:
    """The kernel: wherever the indicator stands, and whatever is no UTF-8."""
    user = b"\x26" + text("\x01\x01"[1:] + "k") + text("v")
    more = b"\x02\0\0\0\5" + b"\x08" + text("r") + b"\x09" + text("\x01\x01")
    data = [
        (publish(user + more + TEXT, body=b"\xed\xa0\x80"), True),  # half a surrogate pair
        (publish(TEXT + more, body=b"\xc0\x80"), True),
        (publish(TEXT + user, body=b"\xf4\x8f\xbf\xbf\0"), False),
        (publish(more + user, body=b"\xff"), False),
        (publish(TEXT, body=b""), False),
        (publish(TEXT, body=b"caf\xc3"), True),
    ]
    for packet, is_refused in data:
        batch = Batch(1)
        batch.buffer = packet
        runs, acks = array("q", bytes(8)), array("q", bytes(24))
        kernels.parse(packet, 0, len(packet), batch, runs, acks, 1000, True)
        assert kernels.refuse_payloads(batch, 0, batch.count) == is_refused
        refused = batch.rows[FLAGS] >> codes.REFUSED_SHIFT
        assert refused == (0x99 - codes.REFUSED_BASE if is_refused else 0)


@both_forms
def test_rows_have_to_be_in_the_buffer(kernels: Any) -> None:
    batch = Batch(1)
    batch.buffer = b"1234"
    batch.count = 1
    batch.rows[2], batch.rows[3] = 3, 2
    with pytest.raises(ValueError, match="not inside"):
        kernels.refuse_payloads(batch, 0, 1)
    with pytest.raises(ValueError, match="not in the batch"):
        kernels.refuse_payloads(batch, 0, 2)


# --- counters --------------------------------------------------------------------------------


def test_reason_codes_are_counted() -> None:
    """By packet and direction; successes by the run, and those of older versions not at all."""
    broker = Broker()
    old, peer = broker.peer(), connected(broker)
    old.send(wire.publish("t", b"", qos=1, packet_id=1))
    peer.send(*(publish(b"", qos=1, packet_id=n) for n in (1, 2, 3)))
    peer.send(publish(b"", qos=1, packet_id=4))
    peer.send(publish(b"", qos=2, packet_id=5), publish(b"", qos=2, packet_id=6))
    broker.port.refused_topics["x"] = Refused(Reason.FORBIDDEN, WHY)
    peer.send(*(publish(b"", topic="x/y", qos=1, packet_id=n) for n in (7, 8)))
    peer.send(ack(0x40, 1), ack(0x40, 2))
    peer.send(ack(0x40, 3))
    peer.send(ack(0x40, 4, 0x87))
    peer.send(ack(0x50, 5, 0x97), ack(0x50, 6), ack(0x70, 6))
    peer.send(wire.packet(0x62, b"\0\5"))
    peer.send(subscribe(1, ("a", 0), ("b", 1), ("$share//a", 0)))
    peer.send(wire.packet(0xE0, b"\x04"))
    counters = broker.shared.counters.reasons
    assert counters.all_sent == {
        (2, 0): 1,
        (4, 0): 4,
        (4, 0x87): 2,
        (5, 0): 2,
        (7, 0): 1,
        (9, 0): 1,
        (9, 1): 1,
        (9, 0x8F): 1,
    }
    assert counters.all_received == {
        (4, 0): 3,
        (4, 0x87): 1,
        (5, 0x97): 1,
        (5, 0): 1,
        (7, 0): 1,
        (6, 0): 1,
        (14, 4): 1,
    }


@pytest.mark.parametrize("kinds", [(0x40, 0x50), (0x50, 0x40)])
def test_acknowledgements_with_a_code_are_packets_like_others(kinds: tuple[int, int]) -> None:
    """A run of the parser has its reason code beside its type: the count is of packets."""
    broker = Broker()
    peer = connected(broker)
    before = broker.shared.paths.others_received
    one, other = kinds
    peer.send(ack(one, 1, 0x97), ack(one, 2, 0x97), ack(one, 3), ack(other, 9, 0x80))
    assert broker.shared.paths.others_received - before == 4


def test_the_end_is_counted_once() -> None:
    broker = Broker()
    peer = connected(broker)
    peer.send(wire.packet(0x30, text("a") + b"\x02\x0b\x01"))
    stranger = broker.peer(None)
    stranger.send(wire.packet(0x10, connect(b"\x03\x21\0\0")))
    assert broker.shared.counters.reasons.all_sent == {(2, 0): 1, (14, 0x82): 1, (2, 0x82): 1}
