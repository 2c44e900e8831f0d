"""Topic rewriting, automatic and exclusive subscriptions: what a client's names become."""

from __future__ import annotations

from dataclasses import replace

import pytest

from interop_tests import mqtt5_wire as five
from interop_tests import mqtt_wire as wire
from polymq.broker.port import (
    ONE_LEVEL,
    REST,
    Position,
    Reason,
    Refused,
    SubscriptionOptions,
)
from polymq.gateways.mqtt.auto_subscribing import AutoSubscription
from polymq.gateways.mqtt.features import Features
from polymq.gateways.mqtt.limits import Limits
from polymq.gateways.mqtt.mapping import TopicMapping
from polymq.gateways.mqtt.rewriting import Action, RewriteRule, Rewriting, check_rule
from tests.gateways.mqtt.mqtt_harness import Broker

SWAP = ("old/+/#", "new/$2/$1")


def rules(*pairs: tuple[str, str], action: Action = "all") -> list[RewriteRule]:
    return [RewriteRule(action=action, source=s, destination=d) for s, d in pairs]


def rewriting_broker(*pairs: tuple[str, str], action: Action = "all") -> Broker:
    broker = Broker()
    broker.shared.mapping = TopicMapping(
        port=broker.shared.port,
        limits=broker.limits,
        fixed_topic=None,
        rewriting=Rewriting(rules(*pairs, action=action)),
    )
    return broker


@pytest.mark.parametrize(
    ("pairs", "name", "made"),
    [
        ([SWAP], "old/a/b/c", "new/b/c/a"),
        ([SWAP], "old/a/", "new//a"),
        ([SWAP], "old/a", "old/a"),
        ([SWAP], "older/a/b", "older/a/b"),
        ([("a", "b")], "a", "b"),
        ([("a", "b"), ("b", "c"), ("a", "d")], "a", "b"),
        ([("x/+/y", "$1-$1/z")], "x/1/y", "1-1/z"),
        ([("x", "%c/%u")], "x", "device/ann"),
        ([("#", "all/$1")], "a/b", "all/a/b"),
        ([("#", "all/$1")], "$SYS/x", "$SYS/x"),
    ],
)
def test_what_a_rule_makes(pairs: list[tuple[str, str]], name: str, made: str) -> None:
    assert Rewriting(rules(*pairs), "device", "ann").topic(name) == made
    assert Rewriting(rules(*pairs), "device", "ann").filter(name) == made


def test_a_rule_is_for_what_it_says() -> None:
    only = Rewriting(rules(("a", "b"), action="publish"))
    assert (only.topic("a"), only.filter("a")) == ("b", "a")
    only = Rewriting(rules(("a", "b"), action="subscribe"))
    assert (only.topic("a"), only.filter("a")) == ("a", "b")


@pytest.mark.parametrize("client_id", ["", "a/b", "+", "x#", "a\0"])
def test_a_client_without_a_name_of_one_level_is_not_rewritten_with_it(client_id: str) -> None:
    assert Rewriting(rules(("x", "%c/x"), ("x", "y")), client_id).topic("x") == "y"


@pytest.mark.parametrize(
    ("source", "destination"),
    [
        ("", "a"), ("a", ""), ("a/#/b", "x"), ("a+", "x"), ("a", "b/+"), ("a", "$1"),
        ("+", "$2"), ("+", "$0"), ("$SYS/#", "x"), ("a", "$SYS/x"),
    ],
)  # fmt: skip
def test_a_rule_that_makes_no_sense_is_refused(source: str, destination: str) -> None:
    with pytest.raises(ValueError):
        check_rule(source, destination)


def test_publishes_are_rewritten_once_for_each_topic() -> None:
    """The rule is looked at when a topic is new, not for each message; also after a delay."""
    broker = rewriting_broker(SWAP)
    peer = broker.peer()
    for number in range(1, 20):
        peer.send(wire.publish("old/a/b", b"x", qos=1, packet_id=number))
    assert broker.port.templates_made == 1
    assert {(p.topic, p.tag) for p in broker.port.published} == {("new", "b.a")}
    peer.send(wire.publish("$delayed/5/old/c/d", b"later", qos=1, packet_id=30))
    assert broker.port.published[-1].tag == "d.c"
    assert broker.port.delays_ms == [5000]


def test_wills_are_rewritten() -> None:
    broker = rewriting_broker(SWAP)
    peer = broker.peer(wire.connect("c", will=("old/a/b", b"gone", 1, False)))
    peer.vanish()
    assert [(p.topic, p.tag) for p in broker.port.published] == [("new", "b.a")]


def test_filters_are_rewritten_in_both_directions() -> None:
    broker = rewriting_broker(SWAP)
    peer = broker.peer()
    peer.send(wire.subscribe(1, ("old/+/x", 1)), wire.unsubscribe(2, "old/+/x"))
    address = ("new", "x", ONE_LEVEL)
    calls = [call for call in peer.session.calls if call[0] != "replay_retained"]
    assert calls[-2:] == [("subscribe", address, 1), ("unsubscribe", address)]


def test_a_filter_that_cannot_be_rewritten_is_refused() -> None:
    """`#` would stand within the filter."""
    broker = rewriting_broker(SWAP)
    peer = broker.peer()
    peer.send(wire.subscribe(1, ("old/a/#", 1), ("old/#", 1)))
    assert peer.receive() == [wire.suback(1, 0x80, 1)]
    assert ("subscribe", ("old", REST), 1) in peer.session.calls


def test_names_of_a_client_are_its_own() -> None:
    broker = rewriting_broker(("t", "by/%c"))
    for name in ("one", "two"):
        broker.peer(wire.connect(name)).send(wire.publish("t", b"", qos=1, packet_id=1))
    assert [p.tag for p in broker.port.published] == ["one", "two"]


@pytest.mark.parametrize("made", ["$SYS/x", ""])
def test_nothing_is_rewritten_to_what_nobody_may_publish_to(made: str) -> None:
    broker = rewriting_broker(("a/+", "$1"), ("b/#", "$1"))
    peer = broker.peer()
    peer.send(wire.publish(f"b/{made}", b"x", qos=1, packet_id=1))
    assert broker.port.published == []
    assert peer.is_closed()


# --- automatic subscriptions -----------------------------------------------------------------


def test_a_client_gets_its_subscriptions_when_it_connects() -> None:
    broker = Broker()
    broker.shared.auto_subscriptions = [
        AutoSubscription(filter="commands/%c/#", qos=1),
        AutoSubscription(filter="news", qos=2, retain_as_published=True, retain_handling=2),
        AutoSubscription(filter="of/%u", qos=0),
    ]
    peer = broker.peer(wire.connect("c"))
    options = SubscriptionOptions(qos=2, retain_as_published=True)
    assert peer.session.calls == [
        ("subscribe", ("commands", "c", REST), 1),
        ("subscribe", ("news",), options),
        ("replay_retained", ("commands", "c", REST), Position(1)),
        ("resume",),
    ]


def test_it_gets_them_as_the_listener_has_them() -> None:
    """No QoS above the highest, and no retained messages where there are none."""
    broker = Broker(limits=Limits(features=Features(qos_max=1, retain=False)))
    broker.shared.auto_subscriptions = [AutoSubscription(filter="news", qos=2)]
    peer = broker.peer()
    assert peer.session.calls == [("subscribe", ("news",), 1), ("resume",)]


def test_a_client_id_that_is_a_wildcard_gives_nothing() -> None:
    broker = Broker()
    broker.shared.auto_subscriptions = [AutoSubscription(filter="to/%c")]
    peer = broker.peer(wire.connect("#"))
    assert peer.session.calls == [("resume",)]


# --- exclusive subscriptions -----------------------------------------------------------------


def test_an_exclusive_filter_is_the_filter_with_an_option() -> None:
    broker = Broker()
    peer = broker.peer()
    peer.send(wire.subscribe(1, ("$exclusive/a/+", 1)), wire.unsubscribe(2, "$exclusive/a/+"))
    address = ("a", ONE_LEVEL)
    options = replace(SubscriptionOptions(qos=1), exclusive=True)
    calls = [call for call in peer.session.calls if call[0] != "replay_retained"]
    assert calls[-2:] == [("subscribe", address, options), ("unsubscribe", address)]


@pytest.mark.parametrize(
    "name", ["$exclusive/", "$exclusive/$exclusive/a", "$exclusive/$share/g/a"]
)
def test_what_cannot_be_exclusive(name: str) -> None:
    peer = Broker().peer()
    peer.send(wire.subscribe(1, (name, 1)))
    assert peer.receive() == [wire.suback(1, 0x80)]


def test_who_comes_second_learns_it() -> None:
    """0x97 in MQTT 5."""
    broker = Broker()
    peer = broker.peer(None)
    peer.send(five.connect("c"))
    peer.receive()
    peer.session.refused["a",] = Refused(Reason.LIMIT, "another session has it")
    peer.send(five.subscribe(1, ("$exclusive/a", 1)))
    (answer,) = peer.receive()
    assert five.decode(answer).reason == 0x97
