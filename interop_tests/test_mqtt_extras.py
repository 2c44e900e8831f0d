"""Topic rewriting, automatic and exclusive subscriptions, as paho's clients see them: over kills of
the server, and with users."""

from __future__ import annotations

import json

import pytest
from paho.mqtt.enums import MQTTProtocolVersion

from interop_tests.conftest import Server, StartServer
from interop_tests.people import Admin, MqttClient
from interop_tests.test_mqtt_sys_topics import VERSIONS, WAIT_SECONDS_MAX, Watcher

REFUSED = {MQTTProtocolVersion.MQTTv311: 0x80, MQTTProtocolVersion.MQTTv5: 0x97}


def start(start_server: StartServer, **settings: object) -> Server:
    """A server with these settings of `[mqtt]`, which are lists of tables."""
    environment = {f"POLYMQ_MQTT__{key.upper()}": json.dumps(v) for key, v in settings.items()}
    return start_server(environment=environment)


def closes(*watchers: Watcher) -> None:
    for watcher in watchers:
        watcher.leave()


@pytest.mark.slow
@VERSIONS
def test_an_exclusive_subscription_is_of_one_session(
    server: Server, version: MQTTProtocolVersion
) -> None:
    """Also while its client is away, and after a kill; until it unsubscribes."""
    name = "$exclusive/jobs/+"
    first, second = (Watcher(server, version, name) for name in ("first", "second"))
    assert first.subscribe(name) == [1]
    assert second.subscribe(name, "jobs/+") == [REFUSED[version], 1]
    second.client.publish("jobs/1", b"1", 1)
    for watcher in (first, second):
        assert watcher.messages.get(timeout=WAIT_SECONDS_MAX).topic == "jobs/1"
    closes(first, second)
    server.kill()
    server.start()
    second = Watcher(server, version, "second")
    assert second.subscribe(name) == [REFUSED[version]]
    first = Watcher(server, version, "first")
    first.client.unsubscribe(name)
    first.subscribe("after/that")
    assert second.subscribe(name) == [1]
    assert first.subscribe(name) == [REFUSED[version]]
    closes(first, second)


@VERSIONS
def test_clients_publish_and_subscribe_elsewhere(
    start_server: StartServer, version: MQTTProtocolVersion
) -> None:
    """The old names and the new ones are one topic; a retained message is at its new name."""
    rule = {"action": "all", "source": "old/+/#", "destination": "new/$2/$1"}
    mine = {"action": "publish", "source": "mine", "destination": "of/%c"}
    server = start(start_server, rewrite=[rule, mine])
    watcher = Watcher(server, version)
    assert watcher.subscribe("new/+/berlin", "of/watcher") == [1, 1]
    for topic, body in (("old/berlin/temp", b"1"), ("mine", b"2"), ("new/x/berlin", b"3")):
        watcher.client.publish(topic, body, 1, retain=True)
    found = [watcher.messages.get(timeout=WAIT_SECONDS_MAX) for _ in range(3)]
    assert {(message.topic, message.payload) for message in found} == {
        ("new/temp/berlin", b"1"),
        ("of/watcher", b"2"),
        ("new/x/berlin", b"3"),
    }
    other = Watcher(server, version, "other")
    assert other.subscribe("old/berlin/temp") == [1]
    message = other.messages.get(timeout=WAIT_SECONDS_MAX)
    assert (message.topic, message.payload, message.retain) == ("new/temp/berlin", b"1", True)
    closes(watcher, other)


@pytest.mark.slow
@VERSIONS
def test_clients_have_subscriptions_when_they_connect(
    start_server: StartServer, version: MQTTProtocolVersion
) -> None:
    """With the retained messages, and whether or not the session is new."""
    server = start(start_server, auto_subscribe=[{"filter": "to/%c/#", "qos": 1}])
    for _ in range(2):
        watcher = Watcher(server, version)
        watcher.client.publish("to/watcher/x", b"1", 1, retain=True)
        assert watcher.messages.get(timeout=WAIT_SECONDS_MAX).topic == "to/watcher/x"
        watcher.leave()
        server.kill()
        server.start()
    plain = Watcher(server, version, "a+b")
    plain.client.publish("to/a", b"1", 1)
    plain.subscribe("end")
    assert plain.messages.empty()
    plain.leave()


@pytest.mark.slow
def test_rights_are_about_what_a_name_becomes(start_server: StartServer) -> None:
    rule = {"source": "a/#", "destination": "b/$1"}
    server = start(start_server, rewrite=[rule], auto_subscribe=[{"filter": "c/%u"}])
    admin = Admin(server)
    admin.add("ann")
    admin.allow("ann", "subscribe,publish,create", "a.#")
    ann = MqttClient(server, "ann")
    assert ann.subscribe("a/x") == 0x80
    assert not ann.publish("a/x", b"1")
    ann.close()
    admin.allow("ann", "subscribe,publish,create", "b.#")
    admin.allow("ann", "subscribe,publish,create", "c.ann")
    ann = MqttClient(server, "ann")
    assert ann.subscribe("a/x") == 1
    assert ann.publish("a/x", b"1")
    assert ann.next() == ("b/x", b"1")
    assert ann.publish("c/ann", b"2")
    assert ann.next() == ("c/ann", b"2")
    ann.close()
