"""What clients do, below `$SYS/brokers/...`: who gets which events, in which words, and what a
flood of them costs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from interop_tests import mqtt5_wire as five
from interop_tests import mqtt_wire as wire
from polymq.broker.port import ONE_LEVEL, Address, ConnectedClient, SubscriptionOptions
from polymq.gateways.mqtt.client_events import KINDS, WAITING_BYTES_MAX, ClientEvents, Kind
from polymq.gateways.mqtt.sys_topics import SysTopics
from tests.gateways.mqtt.mqtt_harness import Broker, Peer

RATE = 20
BEGIN = "$SYS/brokers/broker-a/clients/"
EVERYTHING = "$SYS/brokers/+/clients/#"


class Watched:
    """A broker that publishes what its clients do."""

    def __init__(self, kinds: Sequence[Kind] = KINDS, *, rate_max: int = RATE) -> None:
        self.broker = Broker()
        shared = self.broker.shared
        self.events = shared.client_events = ClientEvents(
            context=shared.context, name="broker-a", kinds=kinds, rate_max=rate_max
        )
        shared.sys_topics = SysTopics([self.events])

    def watcher(self, *filters: str, client: str = "w") -> Peer:
        """A client of MQTT 3.1.1 with these filters, which has seen that it has them."""
        peer = self.broker.peer(wire.connect(client))
        peer.send(wire.subscribe(1, *((name, 0) for name in filters)))
        self.seen(peer)
        return peer

    def seen(self, peer: Peer) -> list[tuple[str, dict[str, Any]]]:
        """The events that a client got, without their times."""
        self.broker.loop.run()
        return [event_of(packet) for packet in peer.receive() if packet[0] >> 4 == 3]


def event_of(packet: bytes) -> tuple[str, dict[str, Any]]:
    assert packet[0] == 0x30, "QoS 0, without RETAIN and DUP"
    content = packet[2 if packet[1] < 0x80 else 3 :]
    size = int.from_bytes(content[:2], "big")
    topic, fields = content[2 : 2 + size].decode(), json.loads(content[2 + size :])
    for name in ("ts", "connected_at", "disconnected_at"):
        if name in fields:
            assert fields.pop(name) > 1_600_000_000_000
    return topic, fields


def test_what_a_client_does_is_told_in_emqx_s_words() -> None:
    watched = Watched()
    watcher = watched.watcher(EVERYTHING)
    peer = watched.broker.peer(wire.connect("dev", keep_alive=30))
    named = {"clientid": "dev", "username": None}
    ((topic, fields),) = watched.seen(watcher)
    assert topic == f"{BEGIN}dev/connected"
    where = {name: fields[name] for name in ("ipaddress", "listener")}
    assert fields == {
        **named,
        **where,
        "proto_name": "MQTT",
        "proto_ver": 4,
        "keepalive": 30,
        "clean_start": True,
        "expiry_interval": 0,
        "connack": 0,
    }
    peer.send(wire.subscribe(1, ("a/#", 1), ("b", 0)))
    options = {"nl": 0, "rap": 0, "rh": 0}
    found = {**named, "topic": "a/#", "protocol": "mqtt", "subopts": {"qos": 1, **options}}
    assert watched.seen(watcher) == [
        (f"{BEGIN}dev/subscribed", found),
        (f"{BEGIN}dev/subscribed", found | {"topic": "b", "subopts": {"qos": 0, **options}}),
    ]
    peer.send(wire.unsubscribe(2, "a/#", "never/was"))
    assert watched.seen(watcher) == [
        (f"{BEGIN}dev/unsubscribed", {**named, "topic": "a/#", "protocol": "mqtt"})
    ]
    peer.send(wire.DISCONNECT)
    ((topic, fields),) = watched.seen(watcher)
    assert topic == f"{BEGIN}dev/disconnected"
    more = {"proto_name": "MQTT", "proto_ver": 4, "reason": "normal"}
    assert fields == {**named, **where, **more}


def test_why_a_connection_ended() -> None:
    watched = Watched(["disconnected"])
    watcher = watched.watcher(EVERYTHING)
    watched.broker.peer(wire.connect("lost")).vanish()
    watched.broker.peer(wire.connect("wrong")).send(b"\xf0\x00")
    silent = watched.broker.peer(wire.connect("silent", keep_alive=1))
    watched.broker.loop.advance(2)
    assert silent.is_closed()
    reasons = {fields["clientid"]: fields["reason"] for _, fields in watched.seen(watcher)}
    assert reasons == {
        "lost": "tcp_closed",
        "wrong": "protocol_error",
        "silent": "keepalive_timeout",
    }


def test_who_does_not_come_in_is_no_client() -> None:
    watched = Watched()
    watcher = watched.watcher(EVERYTHING)
    own = watched.broker.peer(wire.connect(""))
    own.vanish()
    watched.broker.peer(None).send(b"\x10\x00")
    watched.broker.peer(None).vanish()
    found = watched.seen(watcher)
    assert [topic.rpartition("/")[2] for topic, _ in found] == ["connected", "disconnected"]
    assert found[0][1]["clientid"]  # the one that the server gave


FILTERS: list[tuple[str, set[str]]] = [
    ("$SYS/#", {"connected", "subscribed"}),
    ("$SYS/brokers/#", {"connected", "subscribed"}),
    ("$SYS/brokers/broker-a/clients/#", {"connected", "subscribed"}),
    ("$SYS/brokers/broker-a/clients/dev.1/#", {"connected", "subscribed"}),
    ("$SYS/brokers/broker-a/clients/dev.1/connected/#", {"connected"}),
    ("$SYS/+/+/+/+/+", {"connected", "subscribed"}),
    ("$SYS/brokers/+/clients/dev.1/subscribed", {"subscribed"}),
    ("$SYS/brokers/+/clients/+/connected", {"connected"}),
    ("$SYS/brokers/+/clients/dev/+", set()),
    ("$SYS/brokers/other/clients/#", set()),
    ("$SYS/brokers/+/clients/+", set()),
    ("$SYS/brokers/+/clients/+/+/+", set()),
    ("$SYS/brokers/+/clients/+/kicked", set()),
    ("$SYS/broker/#", set()),
    ("#", set()),
    ("+/brokers/+/clients/+/+", set()),
]


@pytest.mark.parametrize(("pattern", "kinds"), FILTERS)
def test_filters_match_as_filters_do(pattern: str, kinds: set[str]) -> None:
    watched = Watched()
    watcher = watched.watcher(pattern)
    peer = watched.broker.peer(wire.connect("dev.1"))
    peer.send(wire.subscribe(1, ("x", 0)))
    found = watched.seen(watcher)
    assert [topic for topic, _ in found] == [f"{BEGIN}dev.1/{kind}" for kind in sorted(kinds)]


@pytest.mark.parametrize("client", ["a/b", "+", "a#", "a|2fb", "dev.x/y", "ä"])
def test_any_client_identifier_is_one_level(client: str) -> None:
    """What the topic has can be subscribed to, and the message has the identifier as it is."""
    watched = Watched()
    all_, one = watched.watcher(EVERYTHING), watched.watcher("x", client="v")
    watched.broker.peer(wire.connect(client)).vanish()
    found = watched.seen(all_)
    topic = next(topic for topic, fields in found if fields["clientid"] == client)
    assert topic.count("/") == 5
    assert not {"+", "#"} & set(topic)
    one.send(wire.subscribe(2, (topic, 0)))
    watched.seen(one)
    watched.broker.peer(wire.connect(client))
    assert [name for name, _ in watched.seen(one)] == [topic]


def test_an_event_comes_once_where_filters_overlap() -> None:
    """With the identifiers of all subscriptions that match."""
    watched = Watched(["connected"])
    peer = watched.broker.peer(None)
    peer.send(five.connect("w"))
    for number, name in enumerate((EVERYTHING, f"{BEGIN}dev/connected", f"{BEGIN}x/#"), 1):
        properties = ((five.P.SUBSCRIPTION_ID, number),)
        peer.send(five.subscribe(number, (name, 0), props=properties))
    watched.broker.loop.run()
    peer.receive()
    watched.broker.peer(wire.connect("dev"))
    watched.broker.loop.run()
    (packet,) = map(five.decode, peer.receive())
    assert packet.values(five.P.SUBSCRIPTION_ID) == [1, 2]
    assert packet.topic == f"{BEGIN}dev/connected"


def test_only_the_events_that_are_wanted_here() -> None:
    watched = Watched(["disconnected"])
    watcher = watched.watcher(EVERYTHING)
    watched.broker.peer(wire.connect("dev")).vanish()
    assert [topic for topic, _ in watched.seen(watcher)] == [f"{BEGIN}dev/disconnected"]


def test_a_flood_of_clients_is_no_flood_of_events() -> None:
    """No more than the rate in a second; the rest is counted, and the next second begins anew."""
    watched = Watched(["connected"])
    watcher = watched.watcher(EVERYTHING)
    watched.broker.loop.advance(2)
    for number in range(5 * RATE):
        watched.broker.peer(wire.connect(f"c{number}"))
    assert len(watched.seen(watcher)) == RATE
    assert watched.events.omitted == {"rate": 4 * RATE, "slow": 0}
    watched.broker.loop.advance(1)
    watched.broker.peer(wire.connect("later"))
    assert [topic for topic, _ in watched.seen(watcher)] == [f"{BEGIN}later/connected"]
    assert watched.events.sent_count == RATE + 1


def test_a_subscribe_with_many_filters_is_noted_up_to_the_rate() -> None:
    watched = Watched(["subscribed"])
    watcher = watched.watcher(EVERYTHING)
    before = watched.events.sent_count
    watched.broker.loop.advance(2)
    peer = watched.broker.peer(wire.connect("dev"))
    peer.send(wire.subscribe(1, *((f"t/{number}", 0) for number in range(3 * RATE))))
    assert len(watched.seen(watcher)) == RATE
    assert watched.events.omitted["rate"] == 2 * RATE
    assert watched.events.sent_count == before + RATE


def test_what_nobody_wants_does_not_use_up_the_rate() -> None:
    watched = Watched()
    watcher = watched.watcher(f"{BEGIN}+/disconnected", f"{BEGIN}one/connected")
    watched.broker.loop.advance(2)
    peers = [watched.broker.peer(wire.connect(f"c{number}")) for number in range(2 * RATE)]
    watched.broker.peer(wire.connect("one"))
    peers[0].vanish()
    assert [topic for topic, _ in watched.seen(watcher)] == [
        f"{BEGIN}one/connected",
        f"{BEGIN}c0/disconnected",
    ]
    assert watched.events.omitted["rate"] == 0


def test_nothing_is_kept_of_those_who_watched() -> None:
    watched = Watched()
    events = watched.events
    assert events.noted_max == 0
    first = watched.watcher(EVERYTHING, f"{BEGIN}dev/#", client="v")
    second = watched.watcher(f"{BEGIN}dev/+")
    assert events.noted_max == RATE
    first.vanish()
    second.send(wire.unsubscribe(2, f"{BEGIN}dev/+"))
    watched.broker.loop.run()
    watched.broker.peer(wire.connect("dev")).vanish()
    watched.broker.loop.run()
    assert events.noted_max == 0
    assert not events._of
    assert not events._all
    assert not events._some
    assert not +events._of_all


class _Receiver:
    """A connection that watches, with a session that a test changes."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.session: Any = self
        self.present = True
        self.five = False
        self.sent_bytes_max = 1 << 28
        self.room = 10
        self.sent: list[bytes] = []

    def options(self) -> list[tuple[Address, SubscriptionOptions]]:
        return [(self.address, SubscriptionOptions(qos=0))]

    def is_subscribed(self, address: Address) -> bool:
        return address == self.address

    def credit(self) -> int:
        return self.room

    def send_encoded(self, data: bytes, count: int) -> None:
        assert count == 1
        self.sent.append(data)


ALL: Address = ("$SYS", "brokers", "broker-a", "clients", ONE_LEVEL, ONE_LEVEL)


def test_a_session_that_was_resumed_watches_on_as_long_as_it_may() -> None:
    watched = Watched(["connected"])
    receiver = _Receiver(ALL)
    watched.broker.shared.sys_topics.came(receiver, lambda _: None)
    watched.broker.peer(wire.connect("dev"))
    watched.broker.loop.run()
    assert len(receiver.sent) == 1
    receiver.address = ("other",)  # the session has lost it
    watched.broker.peer(wire.connect("eve"))
    watched.broker.loop.run()
    assert len(receiver.sent) == 1
    assert watched.events.noted_max == 0


def test_who_reads_slowly_misses_events() -> None:
    watched = Watched(["connected"])
    receiver = _Receiver(ALL)
    watched.broker.shared.sys_topics.came(receiver, lambda _: None)
    receiver.room = 0
    watched.broker.peer(wire.connect("dev"))
    watched.broker.loop.run()
    assert watched.events.omitted == {"rate": 0, "slow": 1}
    receiver.room, receiver.sent_bytes_max = 1, 100  # the largest packet that it takes
    watched.broker.peer(wire.connect("eve"))
    watched.broker.loop.run()
    assert receiver.sent == []


def client_of(user: str) -> ConnectedClient:
    return ConnectedClient(
        client_id="c",
        user=user,
        peer="127.0.0.1:1",
        address="127.0.0.1",
        listener="127.0.0.1:1883",
        version="5.0",
        keep_alive_seconds=0,
        connected_ms=1_700_000_000_000,
        end=lambda _: None,
        trace=lambda _: lambda: None,
    )


def test_what_waits_to_be_sent_has_a_bound_in_bytes() -> None:
    """Names of users may be long, and the loop may be busy for a while."""
    watched = Watched(["connected"], rate_max=10_000)
    receiver = _Receiver(ALL)
    watched.broker.shared.sys_topics.came(receiver, lambda _: None)
    for _ in range(100):
        watched.events.connected(client_of("x" * 60_000), clean=True, expiry_seconds=None)
    expected = WAITING_BYTES_MAX // 60_000 + 1
    assert watched.events.omitted["rate"] == 100 - expected
    receiver.room = 1_000
    watched.broker.loop.run()
    assert len(receiver.sent) == expected
    fields = json.loads(receiver.sent[0][receiver.sent[0].index(b"{") :])
    assert (fields["username"], fields["expiry_interval"]) == ("x" * 60_000, None)
    watched.events.connected(client_of("ann"), clean=True, expiry_seconds=0)
    watched.broker.loop.run()
    assert len(receiver.sent) == expected + 1
