"""Topic aliases that the server gives: which topics get one, and how deliveries look. In both
forms."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from interop_tests import mqtt_wire as wire
from polymq.broker.messages.kernels.record_run import RecordRun
from polymq.broker.port import RunMeta
from polymq.gateways.mqtt.aliases import REPLACED_EVERY, OutgoingAliases
from polymq.gateways.mqtt.limits import Limits
from tests.gateways.mqtt.mqtt_forms import FORMS, use_form
from tests.gateways.mqtt.mqtt_harness import Broker, Peer
from tests.gateways.mqtt.mqtt_records import record, records
from tests.gateways.mqtt.test_mqtt5_client import connected
from tests.gateways.mqtt.test_mqtt5_packets import block, text

LONG = "rooms/4711/temperature"


@pytest.fixture(params=FORMS, autouse=True)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The form of the paths of all brokers that the test makes."""
    return use_form(request.param, monkeypatch)[1]


def takes(
    alias_max: int, *properties: bytes, broker: Broker | None = None, client_id: str = "c"
) -> Peer:
    """A client with this Topic Alias Maximum."""
    asked = b"\x22" + alias_max.to_bytes(2, "big")
    return connected(broker or Broker(), asked, *properties, rest=text(client_id))


def send(peer: Peer, topic: str, *bodies: bytes, qos: int = 0, **more: Any) -> list[bytes]:
    """Deliver a run to the client; returns the packets."""
    memory = records(bodies)
    first, _, rest = topic.partition("/")
    properties = more.pop("properties", {"PMQ_PROTO": "mqtt"})
    meta = RunMeta(first, rest.replace("/", ".") or None, properties, 0)
    run = more.pop("run", None) or RecordRun(meta, memory, 0, len(memory), len(bodies))
    first_id = more.pop("first", 1 if qos else 0)
    peer.link.send_publishes(
        run, qos=qos, first_packet_id=first_id, duplicate=False, retain=False, **more
    )
    peer.broker.loop.run()
    return peer.receive()


def packet(topic: str, alias: int, body: bytes, *, packet_id: int = 0, more: bytes = b"") -> bytes:
    """A PUBLISH with an alias, or with 0 none."""
    content = text(topic) + (packet_id.to_bytes(2, "big") if packet_id else b"")
    found = (b"\x23" + alias.to_bytes(2, "big") if alias else b"") + more
    return wire.packet(0x32 if packet_id else 0x30, content + block(found) + body)


@pytest.mark.parametrize("qos", [0, 1])
def test_a_run_says_the_name_once(qos: int) -> None:
    """[MQTT-3.3.2-10]: the first packet has name and alias, all others the alias alone."""
    peer = takes(5)
    ids = (1, 2, 3) if qos else (0, 0, 0)
    assert send(peer, LONG, b"1", b"2", b"3", qos=qos) == [
        packet(LONG, 1, b"1", packet_id=ids[0]),
        packet("", 1, b"2", packet_id=ids[1]),
        packet("", 1, b"3", packet_id=ids[2]),
    ]
    assert send(peer, LONG, b"4", identifiers=(300,)) == [
        packet("", 1, b"4", more=b"\x0b\xac\x02"),
    ]
    assert send(peer, "another/topic", b"5") == [packet("another/topic", 2, b"5")]


def test_aliases_end_with_their_connection() -> None:
    """[MQTT-3.3.2-7]: what is sent again after a reconnection says the name again."""
    broker = Broker()
    assert send(takes(5, broker=broker), LONG, b"1", qos=1) == [packet(LONG, 1, b"1", packet_id=1)]
    assert send(takes(5, broker=broker), LONG, b"1", qos=1) == [packet(LONG, 1, b"1", packet_id=1)]


@pytest.mark.parametrize(
    ("asked", "own", "count"), [(0, 10, 0), (3, 10, 3), (100, 2, 2), (9, 0, 0)]
)
def test_there_are_as_many_as_client_and_server_allow(asked: int, own: int, count: int) -> None:
    """[MQTT-3.1.2-26], [MQTT-3.1.2-27], [MQTT-3.3.2-11]."""
    broker = Broker(limits=Limits(topic_aliases_out_max=own))
    peer = takes(asked, broker=broker) if asked else connected(broker)
    for number in range(1, 5):
        alias = number if number <= count else 0
        assert send(peer, f"topic/{number}", b"x") == [packet(f"topic/{number}", alias, b"x")]


def test_short_and_very_long_names_get_none() -> None:
    peer = takes(5)
    for name in ("a/b", "long/" + "x" * 1020):
        assert send(peer, name, b"1", b"2") == [packet(name, 0, b"1"), packet(name, 0, b"2")]


def test_frames_are_shared_by_who_has_the_same_alias() -> None:
    """QoS 0: what is encoded for one subscriber serves the next, and never one that has another
    alias or none."""
    broker = Broker()
    first, second, other, none = (
        takes(5, broker=broker, client_id="1"),
        takes(5, broker=broker, client_id="2"),
        takes(5, broker=broker, client_id="3"),
        connected(broker),
    )
    send(other, "another/topic", b"x")
    for peer in (first, second, other):
        send(peer, LONG, b"0")
    memory = records((b"1", b"2"))
    meta = RunMeta("rooms", "4711.temperature", {"PMQ_PROTO": "mqtt"}, 0)
    run = RecordRun(meta, memory, 0, len(memory), 2)
    for peer, alias in ((first, 1), (none, 0), (second, 1), (other, 2), (none, 0)):
        name = "" if alias else LONG
        assert send(peer, LONG, run=run) == [packet(name, alias, body) for body in (b"1", b"2")]


def test_a_packet_that_is_too_large_with_its_alias_is_sent_without() -> None:
    """[MQTT-3.1.2-24]: and an alias that the client does not know is not used."""
    plain = len(packet(LONG, 0, b"12345"))
    peer = takes(5, b"\x27" + plain.to_bytes(4, "big"))
    peer.session.calls.clear()
    assert send(peer, LONG, b"12345", qos=0) == [packet(LONG, 0, b"12345")]
    assert send(peer, LONG, b"12345678") == []
    assert send(peer, LONG, b"12") == [packet(LONG, 1, b"12")]
    assert send(peer, LONG, b"1" * 20) == [packet("", 1, b"1" * 20)], "smaller by its name"
    assert peer.broker.shared.counters.publishes_too_large == 1


def test_messages_of_other_protocols_have_aliases_as_well() -> None:
    """They are encoded one by one, and the first alone has the name."""
    peer = takes(5)
    bodies = (b"1", b"2")
    memory = b"".join(record(body, properties=b"k\x01v\x02") for body in bodies)
    meta = RunMeta("rooms", "4711.temperature", {"PMQ_PROTO": "http"}, 0)
    run = RecordRun(meta, memory, 0, len(memory), 2)
    user = b"\x26" + text("k") + text("v")
    assert send(peer, LONG, run=run) == [
        wire.packet(0x30, text(name) + block(user, b"\x23\x00\x01") + body)
        for name, body in ((LONG, b"1"), ("", b"2"))
    ]


# --- which topics get one --------------------------------------------------------------------


def give(aliases: OutgoingAliases, topic: bytes) -> int:
    """A message is sent to this topic; returns its alias."""
    found = aliases.known(topic)
    if not found and (found := aliases.offered(topic)):
        aliases.give(topic, found)
    return found


def test_the_topic_not_used_for_longest_gives_way() -> None:
    aliases = OutgoingAliases(2)
    assert [give(aliases, b"--long%d" % number) for number in (1, 2, 1)] == [1, 2, 1]
    others = [give(aliases, b"--other%d" % number) for number in range(REPLACED_EVERY)]
    assert others == [0] * (REPLACED_EVERY - 1) + [2], "one in so many"
    assert aliases.known(b"--long1") == 1
    assert aliases.known(b"--long2") == 0


def test_many_topics_in_turn_cost_little() -> None:
    """Where each topic would take the alias of another one, nearly all of them are sent plainly."""
    aliases = OutgoingAliases(10)
    said = 0
    for number in range(10_000):
        topic = b"--topic%d" % (number % 1000)
        known = aliases.known(topic)
        said += not known and give(aliases, topic) > 0
    assert said <= 10 + 10_000 // REPLACED_EVERY
