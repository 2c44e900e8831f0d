"""Bridges of the server to other MQTT brokers: to mosquitto, to a second server of ours.

What has to hold: nothing that was acknowledged here is lost on the way, whoever is killed; QoS 2
arrives once; nothing goes in circles; and a remote that is away, or says nothing, stops nothing.
"""

from __future__ import annotations

import contextlib
import json
import queue
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from interop_tests.bridging import (
    COUNT,
    SECONDS,
    Mosquitto,
    bridge,
    bridged,
    expect_one,
    is_up,
    metric,
    need_mosquitto,
    numbers,
    publish_all,
    wait_for,
)
from interop_tests.conftest import StartServer
from interop_tests.listener_clients import connected
from interop_tests.mqtt_raw_client import RawClient
from interop_tests.mqtt_wire import puback, publish, subscribe


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    made = Mosquitto(tmp_path / "mosquitto")
    made.start()
    yield made
    made.stop()


RULES = (
    {"pattern": "t/#", "direction": "out", "qos": 2, "remote_prefix": "site/"},
    {"pattern": "#", "direction": "in", "qos": 2, "local_prefix": "from/", "remote_prefix": "c/"},
    {"pattern": "b/+", "direction": "both", "qos": 1},
    {"pattern": "", "direction": "out", "qos": 0, "local_prefix": "one", "remote_prefix": "other"},
)


@pytest.mark.parametrize("version", ["5", "3.1.1"])
@pytest.mark.parametrize("remote", [pytest.param("mosquitto", marks=need_mosquitto), "polymq"])
@pytest.mark.slow
def test_topics_are_carried(
    start_server: StartServer, tmp_path: Path, remote: str, version: str
) -> None:
    """Out, in and both ways, by their prefixes, with QoS and RETAIN, and nothing comes back."""
    with contextlib.ExitStack() as stack:
        if remote == "mosquitto":
            there = Mosquitto(tmp_path / "mosquitto")
            there.start()
            stack.callback(there.stop)
            port = there.port
        else:
            port = start_server().mqtt_port
        # Retained before there is a bridge: both sides get what the other has.
        with RawClient.connected(port, "early") as early:
            early.send(publish("c/kept", b"there", qos=1, packet_id=1, retain=True))
            early.expect(puback(1))
        server = bridged(start_server, bridge(port, *RULES, protocol_version=version))
        wait_for(lambda: is_up(server), "the bridge")
        with RawClient.connected(server.mqtt_port, "watcher") as watcher:
            watcher.subscribe(("$SYS/broker/connection/+/state", 0))
            expect_one(watcher, "$SYS/broker/connection/up/state", b"1", 0, retain=True)
        here_sub = stack.enter_context(RawClient.connected(server.mqtt_port, "here"))
        there_sub = stack.enter_context(RawClient.connected(port, "there"))
        here = stack.enter_context(RawClient.connected(server.mqtt_port, "from here"))
        away = stack.enter_context(RawClient.connected(port, "from there"))
        wait_for(lambda: metric(server, "publishes", "received") == 1, "the retained message")
        there_sub.subscribe(("#", 2))
        expect_one(there_sub, "c/kept", b"there", 1, retain=True)
        here_sub.subscribe(("#", 2))
        expect_one(here_sub, "from/kept", b"there", 1, retain=True)
        for qos in range(3):
            publish_all(here, "t/x", [b"out"], qos)
            expect_one(here_sub, "t/x", b"out", qos, retain=False)
            expect_one(there_sub, "site/t/x", b"out", qos, retain=False)
            publish_all(away, "c/y/z", [b"in"], qos)
            expect_one(there_sub, "c/y/z", b"in", qos, retain=False)
            expect_one(here_sub, "from/y/z", b"in", qos, retain=False)
        for client in (here, away):  # the lower QoS counts, and there is no echo
            publish_all(client, "b/1", [b"both"], 2)
            own, other = (here_sub, there_sub) if client is here else (there_sub, here_sub)
            expect_one(own, "b/1", b"both", 2, retain=False)
            expect_one(other, "b/1", b"both", 1, retain=False)
        publish_all(here, "one", [b"renamed"], 1)
        expect_one(here_sub, "one", b"renamed", 1, retain=False)
        expect_one(there_sub, "other", b"renamed", 0, retain=False)
        publish_all(here, "elsewhere", [b"not carried"], 1)
        expect_one(here_sub, "elsewhere", b"not carried", 1, retain=False)
        here.send(publish("t/kept", b"here", qos=1, packet_id=9, retain=True))
        here.expect(puback(9))
        expect_one(here_sub, "t/kept", b"here", 1, retain=False)
        expect_one(there_sub, "site/t/kept", b"here", 1, retain=False)
        with RawClient.connected(port, "late") as late:
            late.send(subscribe(1, ("site/t/kept", 1)))
            late.receive()
            expect_one(late, "site/t/kept", b"here", 1, retain=True)
        # In order: if anything had come back, it would be before these.
        publish_all(here, "t/end", [b"end"], 1)
        publish_all(away, "c/end", [b"end"], 1)
        expect_one(here_sub, "t/end", b"end", 1, retain=False)
        ends = sorted(found.topic for found in there_sub.acknowledge(2))
        assert ends == ["c/end", "site/t/end"]
        expect_one(here_sub, "from/end", b"end", 1, retain=False)
        here_sub.expect_nothing_before_ping()
        there_sub.expect_nothing_before_ping()


def keep(found: queue.Queue[Any], _client: object, _data: object, message: object) -> None:
    found.put(message)


@need_mosquitto
@pytest.mark.slow
def test_properties_are_carried(start_server: StartServer, mosquitto: Mosquitto) -> None:
    """The properties of MQTT 5 go both ways; the expiry is what is left of it."""
    both = {"pattern": "p/#", "direction": "both", "qos": 1}
    server = bridged(start_server, bridge(mosquitto.port, both))
    wait_for(lambda: is_up(server), "the bridge")
    ports = [server.mqtt_port, mosquitto.port]
    for source, target in (ports, ports[::-1]):
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        properties.ContentType = "text/plain"
        properties.ResponseTopic = "answers/1"
        properties.CorrelationData = b"\x00\x01"
        properties.PayloadFormatIndicator = 1
        properties.MessageExpiryInterval = 500
        properties.UserProperty = [("a", "1"), ("b", "2"), ("a", "3")]
        with (
            connected(target, "reader", version=paho.MQTTv5) as reader,
            connected(source, "writer", version=paho.MQTTv5) as writer,
        ):
            found: queue.Queue[Any] = queue.Queue()
            reader.paho.on_message = partial(keep, found)
            reader.subscribe("p/#")
            writer.publish("p/1", b"text", properties=properties)
            got = found.get(timeout=SECONDS).properties
        assert (got.ContentType, got.ResponseTopic) == ("text/plain", "answers/1")
        assert (got.CorrelationData, got.PayloadFormatIndicator) == (b"\x00\x01", 1)
        assert 490 <= got.MessageExpiryInterval <= 500
        own = [pair for pair in got.UserProperty if pair[0] != "polymq-via"]
        assert own == [("a", "1"), ("b", "2"), ("a", "3")]


@need_mosquitto
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.slow
def test_what_waits_survives_kills(
    start_server: StartServer, mosquitto: Mosquitto, qos: int
) -> None:
    """The remote is away, messages are acknowledged, the server is killed and started again: all of
    them reach the remote when it is back, in order."""
    server = bridged(start_server, bridge(mosquitto.port, {"pattern": "q/#", "qos": qos}))
    wait_for(lambda: is_up(server), "the bridge")
    with RawClient.connected(mosquitto.port, "reader", clean=False) as reader:
        reader.subscribe(("q/#", 2))
    mosquitto.stop()
    with RawClient.connected(server.mqtt_port, "writer") as writer:
        publish_all(writer, "q/1", numbers(0, COUNT), qos)
    server.kill()
    server.start()
    assert metric(server, "waiting_messages", '"up"') == COUNT
    mosquitto.start()
    with RawClient.connected(mosquitto.port, "reader", clean=False, present=True) as reader:
        assert [found.body for found in reader.acknowledge(COUNT)] == numbers(0, COUNT)
        reader.expect_nothing_before_ping()


@need_mosquitto
@pytest.mark.parametrize("killed", ["server", "remote"])
@pytest.mark.parametrize("version", ["5", "3.1.1"])
@pytest.mark.slow
def test_once_out_over_a_kill(
    start_server: StartServer, mosquitto: Mosquitto, version: str, killed: str
) -> None:
    """One side goes in the middle of a stream of QoS 2: each message reaches the remote once, in
    order. (The remote is stopped in order, so that it knows its sessions again.)"""
    topic = {"pattern": "q/#", "qos": 2}
    options = bridge(mosquitto.port, topic, protocol_version=version)
    server = bridged(start_server, options)
    wait_for(lambda: is_up(server), "the bridge")
    with RawClient.connected(mosquitto.port, "reader", clean=False) as reader:
        reader.subscribe(("q/#", 2))
    with RawClient.connected(server.mqtt_port, "writer") as writer:
        publish_all(writer, "q/1", numbers(0, COUNT), 2)
    # Some are through, some are on their way.
    wait_for(lambda: metric(server, "publishes", "sent") > COUNT // 8, "the first messages")
    if killed == "server":
        server.kill()
        server.start()
    else:
        mosquitto.stop()
        mosquitto.start()
    with RawClient.connected(mosquitto.port, "reader", clean=False, present=True) as reader:
        assert [found.body for found in reader.acknowledge(COUNT)] == numbers(0, COUNT)
        reader.expect_nothing_before_ping()


@need_mosquitto
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("version", ["5", "3.1.1"])
@pytest.mark.slow
def test_what_comes_in_survives_a_kill(
    start_server: StartServer, mosquitto: Mosquitto, version: str, qos: int
) -> None:
    """The server is killed while messages come in: the remote keeps what was not acknowledged. QoS
    2 arrives once, QoS 1 at least once, and both in order."""
    topic = {"pattern": "q/#", "direction": "in", "qos": 2}
    server = bridged(start_server, bridge(mosquitto.port, topic, protocol_version=version))
    wait_for(lambda: is_up(server), "the bridge")
    with RawClient.connected(server.mqtt_port, "reader", clean=False) as reader:
        reader.subscribe(("q/#", 2))
    with RawClient.connected(mosquitto.port, "writer") as writer:
        publish_all(writer, "q/1", numbers(0, COUNT), qos)
    wait_for(lambda: metric(server, "publishes", "received") > COUNT // 10, "the first messages")
    server.kill()
    with RawClient.connected(mosquitto.port, "writer") as writer:
        publish_all(writer, "q/1", numbers(COUNT, COUNT + 10), qos)
    server.start()
    with RawClient.connected(server.mqtt_port, "reader", clean=False, present=True) as reader:
        bodies: list[bytes] = []
        if qos == 2:
            bodies = [found.body for found in reader.acknowledge(COUNT + 10)]
        while bodies[-1:] != [b"%d" % (COUNT + 9)]:
            bodies += [found.body for found in reader.acknowledge(1)]
        reader.expect_nothing_before_ping()
    if qos == 1:
        bodies = list(dict.fromkeys(bodies))
    assert bodies == numbers(0, COUNT + 10)


@pytest.mark.slow
def test_two_bridges_against_each_other(start_server: StartServer) -> None:
    """Each of two servers has a bridge to the other for the same topics: a message arrives once on
    the other side, and comes to rest."""
    both = {"pattern": "l/#", "direction": "both", "qos": 1}
    first = start_server()
    second = bridged(start_server, bridge(first.mqtt_port, both))
    first.configure(**{"mqtt.bridges": json.dumps([bridge(second.mqtt_port, both)])})
    assert first.terminate() == 0
    first.start()
    for server in (first, second):
        wait_for(lambda server=server: is_up(server), "the bridge")  # type: ignore[misc]
    with (
        RawClient.connected(first.mqtt_port, "reader") as reader,
        RawClient.connected(first.mqtt_port, "writer") as writer,
        RawClient.connected(second.mqtt_port, "other reader") as other,
    ):
        reader.subscribe(("l/#", 1))
        other.subscribe(("l/#", 1))
        publish_all(writer, "l/1", numbers(0, 10), 1)
        # There are two ways to the other side, and so two copies. Both come back, and are dropped.
        assert sorted(found.body for found in other.acknowledge(20)) == sorted(2 * numbers(0, 10))
        wait_for(lambda: metric(first, "dropped", "loop") == 10, "what comes by the own bridge")
        wait_for(lambda: metric(first, "looped", of="publishes") == 10, "what comes by the other")
        assert [found.body for found in reader.acknowledge(10)] == numbers(0, 10)
        for client in (reader, other):
            client.expect_nothing_before_ping()
    assert [metric(server, "publishes", "sent") for server in (first, second)] == [10, 10]
