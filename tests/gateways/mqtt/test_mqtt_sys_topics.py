"""`$SYS/broker/...`: who gets which values, and when; and what that costs."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from interop_tests import mqtt5_wire as five
from interop_tests import mqtt_wire as wire
from polymq.broker.port import (
    ONE_LEVEL,
    REST,
    Address,
    Reason,
    Refused,
    SubscriptionOptions,
)
from polymq.gateways.mqtt.sys_figures import NAMES, Figures, Means
from polymq.gateways.mqtt.sys_topics import SysTopics
from polymq.gateways.mqtt.sys_values import SysValues
from polymq.net.turns import TURN_SECONDS
from tests.gateways.mqtt.mqtt_harness import Broker, Peer

INTERVAL = 10.0


class Watched:
    """A broker whose figures a test sets."""

    def __init__(self) -> None:
        self.broker = Broker()
        self.figures = Figures(version="1.2", retained=3)
        self.asked = 0
        self.sys = SysValues(
            context=self.broker.shared.context,
            figures=self._collect,
            connected=lambda: len(self.broker.port.connected),
            interval_seconds=INTERVAL,
        )
        self.topics = self.broker.shared.sys_topics = SysTopics([self.sys])

    def _collect(self) -> Generator[None, None, Figures]:
        self.asked += 1
        yield
        return self.figures

    def change(self, **values: Any) -> None:
        """New figures are published."""
        self.figures = replace(self.figures, **values)
        self.broker.loop.advance(INTERVAL)


def subscribed(broker: Broker, *filters: str, client: str = "c", qos: int = 1) -> Peer:
    """A client of MQTT 3.1.1 with these subscriptions, and what it got for them is unread."""
    peer = broker.peer(wire.connect(client))
    peer.send(wire.subscribe(1, *((name, qos) for name in filters)))
    packets = peer.receive()
    assert packets[0] == wire.suback(1, *(qos for _ in filters))
    peer.broker.loop.run()
    peer._seen -= sum(map(len, packets[1:]))
    return peer


def test_a_subscription_gets_the_values_then_what_changes() -> None:
    watched = Watched()
    peer = subscribed(watched.broker, "$SYS/broker/retained messages/count")
    topic = "$SYS/broker/retained messages/count"
    assert peer.receive() == [wire.publish(topic, b"3", retain=True)]
    watched.change(retained=4)
    assert peer.receive() == [wire.publish(topic, b"4")]
    watched.change(connects=1)
    assert peer.receive() == []


def test_all_values_have_a_name_below_sys() -> None:
    watched = Watched()
    peer = subscribed(watched.broker, "$SYS/#")
    packets = peer.receive()
    assert len(packets) == len(NAMES)
    assert packets[0] == wire.publish("$SYS/broker/version", b"polymq version 1.2", retain=True)


@pytest.mark.parametrize("name", ["#", "+/broker/version", "$SYS", "$SYS/broker", "$SYS/+/x/#"])
def test_what_matches_no_value_gets_none(name: str) -> None:
    """A leading wildcard matches no `$` [MQTT-4.7.2-1]; and no figure is asked for."""
    watched = Watched()
    peer = subscribed(watched.broker, name)
    watched.change(retained=9)
    assert peer.receive() == []
    assert watched.asked == 0


def test_a_level_is_one_level() -> None:
    watched = Watched()
    peer = subscribed(watched.broker, "$SYS/broker/+")
    names = [name for name in NAMES if "/" not in name]
    assert len(peer.receive()) == len(names) == 2


def test_nothing_is_asked_for_when_nobody_is_there() -> None:
    watched = Watched()
    watched.change(retained=9)
    assert watched.asked == 0
    peer = subscribed(watched.broker, "$SYS/#")
    assert watched.asked == 1
    watched.change(retained=8)
    assert watched.asked == 2
    peer.send(wire.unsubscribe(2, "$SYS/#"))
    watched.broker.loop.advance(10 * INTERVAL)
    assert watched.asked == 2
    other = subscribed(watched.broker, "$SYS/#", client="d")
    assert watched.asked == 3
    other.vanish()
    watched.broker.loop.advance(10 * INTERVAL)
    assert watched.asked == 3
    assert not watched.sys._filters
    assert not watched.sys._watchers


def test_a_client_that_comes_and_goes_does_not_make_new_values() -> None:
    """Figures are asked for once in an interval, however often somebody subscribes."""
    watched = Watched()
    peer = subscribed(watched.broker, "$SYS/broker/version")
    for number in range(2, 50):
        peer.send(wire.unsubscribe(number, "$SYS/broker/version"))
        peer.send(wire.subscribe(number, ("$SYS/broker/version", 0)))
    assert watched.asked == 1
    assert len([p for p in peer.receive() if p[0] >> 4 == 3]) == 49


class _Receiver:
    """A connection with one subscription."""

    def __init__(self, address: Address, *, is_five: bool = False, **options: int) -> None:
        self.address = address
        self.present = True
        self.chosen = SubscriptionOptions(qos=0, **options)  # type: ignore[arg-type]
        self.five = is_five
        self.sent_bytes_max = 1 << 28
        self.session: _Receiver | None = self
        self.room = 10
        self.sent: list[bytes] = []
        self.raw: list[bytes] = []

    def options(self) -> Iterator[tuple[Address, SubscriptionOptions]]:
        yield self.address, self.chosen

    def is_subscribed(self, address: Address) -> bool:
        return address == self.address

    def credit(self) -> int:
        return self.room

    def send_encoded(self, data: bytes, count: int) -> None:
        packets = wire.split_packets(data)
        assert len(packets) == count
        self.sent += packets
        self.raw.append(data)


RETAINED: Address = ("$SYS", "broker", "retained messages", "count")


def came(watched: Watched, receiver: _Receiver) -> None:
    watched.topics.came(receiver, lambda _: None)  # type: ignore[arg-type]
    watched.broker.loop.run()


def test_a_resumed_subscription_gets_values_without_retain() -> None:
    watched = Watched()
    receiver = _Receiver(RETAINED)
    came(watched, receiver)
    assert receiver.sent == [wire.publish("/".join(RETAINED), b"3")]


def test_what_the_user_may_not_read_any_more_is_not_sent() -> None:
    watched = Watched()
    receiver = _Receiver(RETAINED)

    def forbid(address: Address) -> None:
        raise Refused(Reason.FORBIDDEN, str(address))

    watched.topics.came(receiver, forbid)  # type: ignore[arg-type]
    watched.change(retained=4)
    assert receiver.sent == []
    came(watched, receiver)
    receiver.address = ("other",)  # the session has lost it
    watched.change(retained=5)
    assert receiver.sent[1:] == []
    assert not watched.sys._filters


def test_who_reads_slowly_gets_the_latest_value() -> None:
    watched = Watched()
    receiver = _Receiver(RETAINED)
    came(watched, receiver)
    receiver.room = 0
    watched.change(retained=4)
    watched.change(retained=5)
    receiver.room = 1
    watched.change(connects=1)  # nothing else has changed
    assert receiver.sent[1:] == [wire.publish("/".join(RETAINED), b"5")]


def test_options_of_mqtt_5() -> None:
    """The Subscription Identifier, Retain As Published, and the largest packet that is taken."""
    watched = Watched()
    receiver = _Receiver(RETAINED, is_five=True, retain_as_published=1, identifier=300)
    came(watched, receiver)
    packet = five.decode(receiver.sent[0])
    assert packet.retain
    assert packet.values(five.P.SUBSCRIPTION_ID) == [300]
    receiver.sent_bytes_max = len(receiver.sent[0])
    watched.change(retained=12_345)
    assert len(receiver.sent) == 1


class _Overlapping(_Receiver):
    """A connection with several subscriptions."""

    def __init__(self, *chosen: tuple[Address, SubscriptionOptions], is_five: bool = True) -> None:
        super().__init__(chosen[0][0], is_five=is_five)
        self.subscriptions = dict(chosen)

    def options(self) -> Iterator[tuple[Address, SubscriptionOptions]]:
        yield from self.subscriptions.items()

    def is_subscribed(self, address: Address) -> bool:
        return address in self.subscriptions


ALL: Address = ("$SYS", REST)
RETAINED_PLUS: Address = ("$SYS", "broker", ONE_LEVEL, "count")


def of_retained(receiver: _Receiver) -> list[five.Packet]:
    """What it got of one topic."""
    found = [five.decode(packet) for packet in receiver.sent]
    receiver.sent.clear()
    return [packet for packet in found if packet.topic == "/".join(RETAINED)]


def test_a_change_comes_once_where_filters_overlap() -> None:
    """With all Subscription Identifiers, and RETAIN if one of the subscriptions wants it
    [MQTT-3.3.4-2]; a value that only one of them matches has that one's identifier."""
    watched = Watched()
    receiver = _Overlapping(
        (ALL, SubscriptionOptions(qos=0, identifier=300)),
        (RETAINED, SubscriptionOptions(qos=1, identifier=2, retain_as_published=True)),
        (RETAINED_PLUS, SubscriptionOptions(qos=0, identifier=2)),
    )
    receiver.room = 1_000
    came(watched, receiver)
    receiver.sent.clear()
    watched.change(retained=4, connects=1)
    packets = [five.decode(packet) for packet in receiver.sent]
    assert len({packet.topic for packet in packets}) == len(packets)
    (packet,) = of_retained(receiver)
    assert (packet.body, packet.retain) == (b"4", True)
    assert packet.values(five.P.SUBSCRIPTION_ID) == [2, 300]
    (other,) = (packet for packet in packets if packet.topic.endswith("connections/1min"))
    assert (other.retain, other.values(five.P.SUBSCRIPTION_ID)) == (False, [300])


def test_before_mqtt_5_a_change_comes_once_as_well() -> None:
    watched = Watched()
    peer = subscribed(watched.broker, "$SYS/broker/+/count", "$SYS/broker/retained messages/#")
    assert len(peer.receive()) > 2  # each subscription got what was there
    watched.change(retained=4)
    assert peer.receive() == [wire.publish("/".join(RETAINED), b"4")]
    peer.send(wire.unsubscribe(2, "$SYS/broker/+/count"))
    peer.receive()
    watched.change(retained=5)
    assert peer.receive() == [wire.publish("/".join(RETAINED), b"5")]


def test_what_is_there_comes_to_each_subscription_that_asks() -> None:
    """Retained messages are a subscription's own. A subscription beside it does not hold back a
    change, nor is one sent to it that came before it was made."""
    watched = Watched()
    receiver = _Overlapping((ALL, SubscriptionOptions(qos=0, identifier=1)))
    came(watched, receiver)
    receiver.sent.clear()
    receiver.room = 0
    watched.change(retained=4)
    options = SubscriptionOptions(qos=0, identifier=2)
    receiver.subscriptions[RETAINED] = options
    watched.sys.subscribed(receiver, RETAINED, options, replay=False)  # type: ignore[arg-type]
    receiver.room = 1
    watched.change(connects=1)
    (late,) = of_retained(receiver)
    assert late.values(five.P.SUBSCRIPTION_ID) == [1]
    watched.sys.subscribed(receiver, RETAINED, options, replay=True)  # type: ignore[arg-type]
    watched.broker.loop.run()
    (there,) = of_retained(receiver)
    assert (there.retain, there.values(five.P.SUBSCRIPTION_ID)) == (True, [2])


def test_ten_thousand_receivers_share_packets_and_turns() -> None:
    """The packets are made once, and no turn has more than its time."""
    watched = Watched()
    broker = watched.broker
    receivers = [_Receiver(("$SYS", "broker", ONE_LEVEL)) for _ in range(10_000)]
    for receiver in receivers:
        watched.topics.came(receiver, lambda _: None)  # type: ignore[arg-type]
    clock = 0.0

    def tick() -> float:
        nonlocal clock
        clock += TURN_SECONDS / 100
        return clock

    broker.turns.clock = tick
    sent = []
    for _ in range(3000):
        if not broker.loop.step():
            break
        sent.append(sum(bool(receiver.sent) for receiver in receivers[::100]))
    assert all(receiver.sent for receiver in receivers)
    steps = [after - before for before, after in pairwise(sent)]
    assert max(steps) <= 2  # of the hundred that are looked at
    assert len({id(receiver.raw[0]) for receiver in receivers}) == 1


def test_what_a_client_of_mqtt_5_publishes_there_is_not_authorized() -> None:
    broker = Broker()
    peer = broker.peer(None)
    peer.send(five.connect("c"))
    peer.receive()
    for qos in (1, 2):
        peer.send(five.publish("$SYS/broker/version", b"x", qos=qos, packet_id=qos))
        (answer,) = peer.receive()
        assert five.decode(answer).reason == 0x87
    assert broker.port.published == []
    assert broker.shared.counters.publishes_refused == 2


def test_means_follow_the_rate() -> None:
    """60 a minute: after one minute a mean of one minute has 1 - 1/e of that, in steps or not."""
    means = Means()
    for second in range(10, 70, 10):
        found = means.take(Figures(connects=second), second)
    assert found["load/connections/1min"] == pytest.approx(60 * (1 - math.exp(-1)))
    once = Means().take(Figures(connects=60), 60)
    assert once["load/connections/1min"] == pytest.approx(60 * (1 - math.exp(-1)))
    assert once["load/connections/15min"] == pytest.approx(60 * (1 - math.exp(-1 / 15)))
    assert means.take(Figures(connects=60), 60 + 3600)["load/connections/1min"] < 1e-6


def test_packets_and_bytes_are_counted() -> None:
    """All types of packets, those of the fast path and those of a read of many."""
    broker = Broker()
    peer = broker.peer()
    sent = [
        wire.publish("a", b"x" * 200, qos=1, packet_id=1),
        wire.publish("a", b"y", qos=1, packet_id=2) + wire.publish("a", b"z"),
        wire.PINGREQ,
        wire.publish("a", b"w", qos=2, packet_id=3) + wire.pubrel(3),
        wire.publish("a", b"v", qos=1, packet_id=4),
    ]
    for data in sent:
        peer.send(data)
    answers = peer.receive()
    paths, traffic = broker.shared.paths, broker.shared.traffic
    counters = broker.shared.counters
    publishes = [p for data in sent for p in wire.split_packets(data) if p[0] >> 4 == 3]
    assert counters.publishes_received == len(publishes)
    assert paths.received_bytes == sum(map(len, publishes))
    assert paths.others_received == 3  # CONNECT, PINGREQ, PUBREL
    assert paths.others_sent == 1 + len(answers)
    assert traffic.received == len(wire.connect()) + sum(map(len, sent))
    assert traffic.sent == len(wire.connack()) + sum(map(len, answers))
