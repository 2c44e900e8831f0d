"""Bridges in memory: what is carried and by which names, what is said to a remote broker and
understood of it, and what happens when it does not behave."""

from __future__ import annotations

import re
from typing import Any

import pytest

from interop_tests import mqtt_wire
from polymq.broker.port import (
    BrokerError,
    Reason,
    Refused,
    RunMeta,
    SubscriptionOptions,
    WrongAcknowledgement,
)
from polymq.gateways.mqtt.bridging.backoff import STEADY_SECONDS, Backoff
from polymq.gateways.mqtt.bridging.core import RemoteCore
from polymq.gateways.mqtt.bridging.failures import AGAIN, Failure
from polymq.gateways.mqtt.bridging.packets import (
    Greeting,
    Request,
    decode_connack,
    decode_suback,
    encode_connect,
    encode_subscribe,
    encode_unsubscribe,
)
from polymq.gateways.mqtt.bridging.remotes import Remote as Address
from polymq.gateways.mqtt.bridging.remotes import Remotes, parse_remote
from polymq.gateways.mqtt.bridging.rules import BridgeRule, check_rules
from polymq.gateways.mqtt.errors import RemoteProtocolError
from polymq.gateways.mqtt.kernels.frames import parse
from polymq.gateways.mqtt.limits import Limits
from polymq.gateways.mqtt.loops import mark_looped, marker_of, unmark_looped
from polymq.gateways.mqtt.packets import (
    BRIDGE_BIT,
    MQTT_3_1_1,
    MQTT_5,
    NEVER,
    Answer,
    Connect,
    PacketType,
    Requested,
    Subscribe,
    Unsubscribe,
    decode_packet,
)
from polymq.gateways.mqtt.protocol import NEED_DATA, PUBLISHES, Inbox, State
from polymq.gateways.mqtt.reason_codes import ReasonCode
from polymq.gateways.mqtt.topic_filters import matches
from tests.gateways.mqtt.bridge_harness import CONNACK_5, IN, OUT, Remote, make_mapping
from tests.gateways.mqtt.mqtt_harness import Broker, make_run

# --- addresses -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("b.example.com", ("b.example.com", 1883)),
        ("b.example.com:1884", ("b.example.com", 1884)),
        ("10.0.0.1:65535", ("10.0.0.1", 65_535)),
        ("[::1]", ("::1", 1883)),
        ("[::1]:1884", ("::1", 1884)),
        ("fe80::1", ("fe80::1", 1883)),
    ],
)
def test_an_address(text: str, expected: tuple[str, int]) -> None:
    remote = parse_remote(text, 1883)
    assert remote == expected
    assert parse_remote(str(remote), 1) == remote


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "names no host"),
        (":1883", "names no host"),
        (" b", "names no host"),
        ("b:", "is not a number"),
        ("b:0", "is not a number"),
        ("b:65536", "is not a number"),
        ("b:x", "is not a number"),
        ("b:\u0661", "is not a number"),
        ("[::1", "is neither"),
        ("[::1]1883", "is neither"),
        ("[]:1", "names no host"),
    ],
)
def test_what_is_no_address(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_remote(text, 1883)


def test_addresses_are_tried_in_turn() -> None:
    """Behind the last comes a pause, and then the first; so it is when a connection has ended."""
    one, two, three = (Address(name, 1883) for name in "abc")
    remotes = Remotes([one, two, three])
    tried = []
    for _ in range(4):
        tried.append(remotes.current)
        if not remotes.has_next():
            break
    assert tried == [one, two, three]
    assert remotes.current == one
    assert remotes.has_next()
    remotes.begin_again()
    assert remotes.current == one
    assert not Remotes([one]).has_next()


# --- rules -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("a/+", "a/", True),
        ("a/+", "a", False),
        ("+/b", "a/b", True),
        ("a", "a/b", False),
        ("#", "$SYS/x", False),
        ("+/x", "$SYS/x", False),
        ("$SYS/#", "$SYS/x", True),
    ],
)
def test_matching(pattern: str, name: str, expected: bool) -> None:
    assert matches(pattern.split("/"), name.split("/")) is expected


def test_names_with_prefixes() -> None:
    """`#` behind a prefix leaves out the topic that is called as the prefix."""
    assert (OUT.local_filter, OUT.remote_filter) == ("t/#", "site/t/#")
    assert (IN.local_filter, IN.remote_filter) == ("from/+/#", "c/+/#")
    assert OUT.to_remote("t/a") == "site/t/a"
    assert IN.to_local("c/a/b") == "from/a/b"
    assert not matches(IN.remote_filter.split("/"), ["c"])
    renamed = BridgeRule(pattern="", direction="out", qos=0, local_prefix="a", remote_prefix="b/c")
    assert renamed.to_remote("a") == "b/c"


@pytest.mark.parametrize(
    "fields",
    [
        {"pattern": ""},
        {"pattern": "", "local_prefix": "a"},
        {"pattern": "a/#/b"},
        {"pattern": "a+"},
        {"pattern": "#", "local_prefix": "a"},
        {"pattern": "a", "remote_prefix": "+/"},
        {"pattern": "$SYS/#"},
        {"pattern": "a", "remote_prefix": "$x/"},
        {"pattern": "$share/g/a", "direction": "in", "local_prefix": "x/"},
    ],
)
def test_rules_that_make_no_sense(fields: dict[str, Any]) -> None:
    rule = BridgeRule(**{"direction": "out", "qos": 0, **fields})
    with pytest.raises(ValueError, match=r"filter|prefix|begin|shared|wildcards"):
        check_rules([rule])


def test_the_same_filter_twice() -> None:
    check_rules([OUT, BridgeRule(pattern="t/#", direction="in", qos=0)])
    with pytest.raises(ValueError, match="two topics have the local filter"):
        check_rules([OUT, BridgeRule(pattern="t/#", direction="both", qos=0)])


# --- names -----------------------------------------------------------------------------------


def test_what_is_subscribed_to_here() -> None:
    """Each rule has its number, and nothing comes back that the bridge published."""
    found = make_mapping().subscriptions()
    base = {"no_local": True, "retain_as_published": True}
    assert list(found.values()) == [
        SubscriptionOptions(qos=1, identifier=1, **base),
        SubscriptionOptions(qos=0, identifier=2, **base),
    ]


def test_names_that_go_out() -> None:
    """By the rule that a message was delivered by. Without one, by the first that matches."""
    mapping = make_mapping()
    meta = RunMeta(topic="t", tag="a", properties={}, prefix_size=0)
    mapping.choose(1)
    assert mapping.topic_field(meta) == b"\0\x08site/t/a"
    assert mapping.choose(2)
    assert not mapping.choose(2)
    assert mapping.topic_field(meta) == b"\0\x03t/a"  # what it keeps is kept for each rule
    mapping.choose(99)
    assert mapping.topic_field(meta) == b"\0\x08site/t/a"


def test_names_that_come_in() -> None:
    mapping = make_mapping()
    assert mapping.publishable("c/a") == "from/a"
    assert mapping.publishable("b/1") == "b/1"
    for name in ("c", "t/a", "$SYS/x", "b/1/2"):
        with pytest.raises(Refused) as error:
            mapping.publishable(name)
        assert error.value.reason is Reason.FORBIDDEN


# --- packets ---------------------------------------------------------------------------------


def content(packet: bytes) -> bytes:
    assert packet[1] < 128
    return packet[2:]


@pytest.mark.parametrize("level", [MQTT_5, MQTT_3_1_1, MQTT_3_1_1 | BRIDGE_BIT])
def test_connect_and_subscribe(level: int) -> None:
    """As the server's own codec understands them."""
    greeting = Greeting(
        level=level, client_id="c", clean=False, expiry_seconds=NEVER, keep_alive_seconds=60,
        user="u", password=b"secret", receive_max=100, packet_bytes_max=1000, alias_max=7,
        state_topic="s", marks_messages=True,
    )  # fmt: skip
    packet = encode_connect(greeting)
    found = decode_packet(PacketType.CONNECT, content(packet), 0)
    assert isinstance(found, Connect)
    assert (found.level, found.client_id, found.clean) == (level & 0x7F, "c", False)
    assert (found.user, found.password, found.expiry_seconds) == ("u", b"secret", None)
    assert found.is_bridge is (level != MQTT_3_1_1)
    assert found.will is not None
    assert (found.will.topic, found.will.body, found.will.retain) == ("s", b"0", True)
    if level == MQTT_5:
        assert (found.receive_max, found.packet_bytes_max, found.alias_max) == (100, 1000, 7)
    assert "secret" not in repr(greeting)
    packet = encode_subscribe(level & 0x7F, 7, [Request("a/#", 1), Request("b", 2)])
    asked = decode_packet(PacketType.SUBSCRIBE, content(packet), level & 0x7F)
    assert isinstance(asked, Subscribe)
    more = (True, True, 1) if level == MQTT_5 else ()
    assert list(asked.filters()) == [Requested("a/#", 1, *more), Requested("b", 2, *more)]
    packet = encode_unsubscribe(level & 0x7F, 8, ["a/#"])
    ended = decode_packet(PacketType.UNSUBSCRIBE, content(packet), level & 0x7F)
    assert isinstance(ended, Unsubscribe)
    assert list(ended.filters()) == ["a/#"]


def test_filters_of_a_bridge_before_mqtt_5() -> None:
    """The server takes them as No Local and Retain As Published, but not shared ones."""
    payload = content(mqtt_wire.subscribe(1, ("a", 1), ("$share/g/a", 1)))[2:]
    found = list(Subscribe(packet_id=1, payload=payload, is_bridge=True).filters())
    assert found == [Requested("a", 1, True, True), Requested("$share/g/a", 1)]


def test_connacks() -> None:
    found = decode_connack(b"\x01\0\x08\x21\0\x0a\x24\1\x25\0\x13\0\x1e"[:2] + b"\0", MQTT_5)
    assert (found.reason, found.present, found.receive_max) == (0, True, 65_535)
    found = decode_connack(b"\0\0\x0a\x21\0\x0a\x24\1\x25\0\x13\0\x1e", MQTT_5)
    assert (found.receive_max, found.qos_max, found.retain) == (10, 1, False)
    assert found.keep_alive_seconds == 30
    assert decode_connack(b"\0\x87\x05\x1f\0\2no", MQTT_5).text == "no"
    for level in (MQTT_5, MQTT_3_1_1):  # the older form is understood, where it is a refusal
        assert decode_connack(b"\0\1", level).reason == ReasonCode.UNSUPPORTED_PROTOCOL_VERSION
    for wrong in (b"\2\0\0", b"\0\0", b"\0\0\2\x21\0", b"\0\0\1\xff", b"\0"):
        with pytest.raises(RemoteProtocolError):
            decode_connack(wrong, MQTT_5)
    assert decode_suback(b"\0\7\0\1\x80", MQTT_5) == (7, b"\1\x80")
    with pytest.raises(RemoteProtocolError):
        decode_suback(b"\0\7\3", MQTT_3_1_1)


# --- the core --------------------------------------------------------------------------------


def test_the_roles_are_exchanged() -> None:
    """CONNACK comes first; then PUBLISH by the kernel, and answers; never a client's packet."""
    core = RemoteCore(limits=Limits(), inbox=Inbox(), level=MQTT_3_1_1)
    connack = mqtt_wire.connack(present=True)
    for end in range(len(connack)):
        assert core.next_event(connack, 0, end) is NEED_DATA
    assert core.next_event(connack, 0, 4) == Answer(kind=PacketType.CONNACK, data=b"\1\0")
    assert core.state is State.OPEN
    message = mqtt_wire.publish("a", b"x")
    assert core.next_event(message, 0, len(message)) is PUBLISHES
    answer = mqtt_wire.suback(1, 2)
    assert core.next_event(answer, 0, len(answer)) == Answer(kind=PacketType.SUBACK, data=b"\0\1\2")


@pytest.mark.parametrize(
    ("before", "packet"),
    [
        (b"", mqtt_wire.publish("a", b"x")),
        (b"", b"HTTP/1.1"),
        (b"", b"\x21\x02\0\0"),
        (b"", b"\x20\xff\xff\xff\x7f"),
        (b"\x20\2\0\0", b"\x20\2\0\0"),
        (b"\x20\2\0\0", mqtt_wire.connect("c")),
        (b"\x20\2\0\0", mqtt_wire.subscribe(1, ("a", 0))),
        (b"\x20\2\0\0", b"\xe0\0"),
        (b"\x20\2\0\0", b"\xf0\0"),
        (b"\x20\2\0\0", b"\0\0"),
    ],
)
def test_what_no_server_sends(before: bytes, packet: bytes) -> None:
    core = RemoteCore(limits=Limits(), inbox=Inbox(), level=MQTT_3_1_1)
    if before:
        core.next_event(before, 0, len(before))
    with pytest.raises(RemoteProtocolError):
        core.next_event(packet, 0, len(packet))


# --- waits and loops -------------------------------------------------------------------------


def test_waits_double_up_to_a_bound() -> None:
    backoff = Backoff(6, lambda: 1.0)
    assert [backoff.next_seconds(0) for _ in range(5)] == [1, 2, 4, 6, 6]
    assert backoff.next_seconds(STEADY_SECONDS / 2) == 6  # it was closed soon
    assert backoff.next_seconds(STEADY_SECONDS) == 1
    assert Backoff(6, lambda: 0.0).next_seconds(0) == 0.5


def test_what_has_been_here_before() -> None:
    """It is found in a run, and acknowledged as what is stored."""
    own, other = marker_of("own"), marker_of("other")
    blocks = [other, other + own, b"\x03\0\1x", own]
    packets = b"".join(
        mqtt_wire.packet(0x32, mqtt_wire.field("t") + b"\0\1" + bytes((len(block),)) + block)
        for block in blocks
    )
    inbox = Inbox()
    inbox.batch.buffer = bytearray(packets)
    _, at, _, _ = parse(
        inbox.batch.buffer, 0, len(packets), inbox.batch, inbox.runs, inbox.acks, 10_000, True
    )
    assert (at, inbox.batch.count) == (len(packets), 4)
    before = list(inbox.batch.rows)
    assert mark_looped(inbox.batch, 0, 4, marker_of("nobody")) == 0
    assert mark_looped(inbox.batch, 0, 4, own) == 2
    assert list(inbox.batch.rows) != before
    assert unmark_looped(inbox.batch, 0, 4) == 2
    assert list(inbox.batch.rows) == before


# --- a connection ----------------------------------------------------------------------------


def test_from_connect_on() -> None:
    """CONNACK, the session, SUBSCRIBE; what comes in is published by its local name and
    acknowledged, what goes out has its remote name."""
    remote = Remote()
    assert remote.receive()[0][0] >> 4 == PacketType.CONNECT
    remote.send(CONNACK_5, mqtt_wire.packet(0x32, b"\0\3c/a\0\5\0in"))
    packets = remote.receive()
    assert packets == [
        encode_subscribe(MQTT_5, 65_535, remote.bridge.requests),
        mqtt_wire.puback(5),
    ]
    assert [(one.topic, one.tag, one.body) for one in remote.port.published] == [
        ("from", "a", b"in")
    ]
    assert dict(remote.port.published[0].more) == {"PMQ_FROM": "$bridge/up"}
    assert ("release_all",) in remote.calls  # the remote has no session
    assert ("resume",) in remote.calls
    assert remote.bridge.is_connected
    run = make_run("t", "a", [b"out"])
    for rule in (1, 2):
        remote.connection.fast_path.send_publishes(
            run, qos=1, first_packet_id=7, duplicate=False, retain=False, identifiers=(rule,)
        )
    remote.loop.run()
    block = marker_of("own")
    rest = b"\0\7" + bytes((len(block),)) + block + b"out"
    assert remote.receive() == [
        mqtt_wire.packet(0x32, name + rest) for name in (b"\0\x08site/t/a", b"\0\3t/a")
    ]
    remote.send(mqtt_wire.puback(7))
    assert ("acknowledged", 7, 1) in remote.calls


def test_a_session_that_is_there_forgets_nothing() -> None:
    remote = Remote(version="3.1.1")
    remote.send(mqtt_wire.connack(present=True))
    assert ("release_all",) not in remote.calls


def test_the_former_session_of_the_remote_ends_first() -> None:
    """The session here is new, so what the remote has belongs to another: it is asked to forget
    it, and then to keep the new one."""
    remote = Remote()
    remote.port.present_ids.clear()
    remote.connection.abort()
    remote.loop.run()
    remote.bridge._attach_holder()
    remote.port.present_ids.add("$bridge/up")
    for clean in (True, False):
        remote.connect()
        connect = decode_packet(PacketType.CONNECT, content(remote.receive()[0]), 0)
        assert isinstance(connect, Connect)
        assert connect.clean is clean
        remote.failures.clear()
        remote.send(CONNACK_5)
        assert [failure and failure.kind for failure in remote.failures] == [AGAIN] * clean


@pytest.mark.parametrize("version", ["5", "3.1.1"])
@pytest.mark.parametrize(
    ("reason", "comes_again"),
    [(Reason.STORAGE_FULL, True), (Reason.READ_ONLY, True), (Reason.FORBIDDEN, False)],
)
def test_what_cannot_be_stored(version: str, reason: Reason, comes_again: bool) -> None:
    """What may be stored later is not acknowledged, and the connection ends. What never can is
    acknowledged and counted, and the rest goes on."""
    remote = Remote(version=version)
    five = version == "5"
    remote.send(CONNACK_5 if five else mqtt_wire.connack(present=True))
    remote.receive()
    remote.port.refused = Refused(reason, "no")
    remote.send(mqtt_wire.packet(0x32, b"\0\3c/a\0\5" + b"\0" * five + b"in"))
    answers = remote.receive()
    assert bool(remote.failures) is comes_again
    assert remote.bridge.counters.dropped == (not comes_again)
    assert any(answer[0] == 0x40 for answer in answers) is not comes_again


def test_what_matches_no_rule_is_dropped() -> None:
    remote = Remote(version="3.1.1")
    remote.send(mqtt_wire.connack(present=True))
    remote.receive()
    remote.send(mqtt_wire.publish("x/y", b"in", qos=1, packet_id=3))
    assert remote.receive() == [mqtt_wire.puback(3)]
    assert (remote.port.published, remote.bridge.counters.dropped) == ([], 1)


def test_older_versions_after_a_refusal() -> None:
    remote = Remote()
    levels = []
    for refusal in (b"\x20\3\0\x84\0", b"\x20\2\0\1", b""):
        connect = remote.receive()[0]
        levels.append(connect[8])
        if refusal:
            remote.send(refusal)
            assert remote.failures[-1] is not None
            assert remote.failures[-1].kind == "refused"
            remote.connect()
    assert levels == [MQTT_5, MQTT_3_1_1 | BRIDGE_BIT, MQTT_3_1_1]


def test_silence() -> None:
    """No CONNACK, then no SUBACK, and then no answer to a ping, end the connection."""
    remote = Remote(connect_seconds=10, keep_alive_seconds=40)
    remote.loop.advance(12)
    assert remote.failures[-1] == Failure("no_answer", "it did not answer CONNECT within 10 s")
    remote.connect()
    remote.send(CONNACK_5)
    remote.loop.advance(31)
    assert remote.failures[-1] == Failure("no_answer", "it did not answer SUBSCRIBE")
    remote.connect()
    remote.send(CONNACK_5, b"\x90\x05\xff\xff\0\2\0")
    remote.receive()
    for _ in range(3):
        remote.loop.advance(31)
        assert remote.receive() == [b"\xc0\0"]
        remote.send(b"\xd0\0")
    remote.failures.clear()
    remote.loop.advance(62)
    assert [failure and failure.kind for failure in remote.failures] == ["no_answer"]


def test_what_the_remote_does_not_take() -> None:
    """A PUBACK with an error and a filter that is not granted are counted."""
    remote = Remote()
    remote.send(CONNACK_5, b"\x90\x05\xff\xff\0\x80\x01", b"\x40\x03\0\7\x87")
    counters = remote.bridge.counters
    assert (counters.not_granted, counters.not_taken) == (1, 1)
    assert ("acknowledged", 7, 1) in remote.calls
    assert not remote.failures


@pytest.mark.parametrize("version", ["5", "3.1.1"])
@pytest.mark.parametrize("granted", [b"", b"\0", b"\0\0\0"])
def test_a_suback_answers_every_filter(version: str, granted: bytes) -> None:
    """One that has more codes or fewer says of none what it is for."""
    remote = Remote(version=version)
    five = version == "5"
    remote.send(CONNACK_5 if five else mqtt_wire.connack(present=True))
    remote.receive()
    remote.send(mqtt_wire.packet(0x90, b"\xff\xff" + b"\0" * five + granted))
    text = (
        f"SUBACK has {len(granted)} reason codes, and SUBSCRIBE had 2 filters "
        f"[MQTT-3.8.4-{6 if five else 5}]"
    )
    assert remote.failures == [Failure("protocol", text)]
    assert remote.transport.gone


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged, without the bridge's name."""
    found = [record.getMessage().removeprefix("bridge up: ") for record in caplog.records]
    caplog.clear()
    return found


def test_a_remote_that_accepts_and_closes_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One pair of lines a minute. A connection that lasts is logged, too, and so is its end."""
    caplog.set_level("INFO")
    remote = Remote(version="3.1.1")
    connected = "connected to 192.0.2.1:40000 with MQTT 3.1.1"
    reasons = ("it closed the connection", "connection reset by peer")

    def end(reason: str) -> None:
        remote.connection.connection_lost(None)
        remote.bridge._lasted()
        remote.bridge._say(remote.bridge._remotes.current, reason, "It tries again")

    for turn in range(30):
        if turn:
            remote.connect()
        remote.send(mqtt_wire.connack(present=True))
        remote.loop.advance(1)
        end(reasons[turn % 2])
        remote.loop.advance(1)
    ends = [f"not connected to h:1: {reason}. It tries again" for reason in reasons]
    assert lines_of(caplog) == [connected, *ends]
    for _ in range(2):
        remote.connect()
        remote.send(mqtt_wire.connack(present=True))
        remote.loop.advance(11)
        assert lines_of(caplog) == [connected]
        end(reasons[0])
        assert lines_of(caplog) == [ends[0]]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (WrongAcknowledgement("PUBACK for packet id 7"), ("protocol", "PUBACK for packet id 7")),
        (Refused(Reason.STORAGE_FULL, "the disk is full"), ("local", "the disk is full")),
        ("an operator", ("local", "an operator")),
        ("permissions", ("local", "permissions")),
    ],
)
def test_why_a_connection_ended_is_said_once(
    caplog: pytest.LogCaptureFixture, error: BrokerError | str, expected: tuple[str, str]
) -> None:
    """By the bridge, and not by the connection as well."""
    caplog.set_level("INFO")
    remote = Remote()
    remote.send(CONNACK_5)
    lines_of(caplog)
    if isinstance(error, BrokerError):
        remote.connection.failed(error)
    elif error == "permissions":
        remote.connection.expelled(error)
    else:
        remote.connection.end(error)
    remote.loop.run()
    assert remote.failures == [Failure(*expected)]
    assert lines_of(caplog) == []


def test_dropped_topics_are_shown_as_text(caplog: pytest.LogCaptureFixture) -> None:
    remote = Remote(version="3.1.1")
    remote.send(mqtt_wire.connack(present=True))
    remote.send(mqtt_wire.publish("x/" + "\u00e4" * 200, b"in", qos=1, packet_id=3))
    (line,) = lines_of(caplog)
    assert "such as to 'x/\u00e4\u00e4" in line
    assert "\u00e4" * 99 not in line


@pytest.mark.parametrize(
    ("level", "packet", "text"),
    [
        (MQTT_5, b"\xf0\0", "AUTH came, and CONNECT had no authentication method [MQTT-4.12.0-6]"),
        (MQTT_5, b"\xc0\0", "a server does not send PINGREQ [5.0 part 2.1.2]"),
        (MQTT_5, b"\0\0", "packet type 0 is reserved [5.0 part 2.1.2]"),
        (MQTT_3_1_1, b"\xe0\0", "a server does not send DISCONNECT [3.1.1 part 2.2.1]"),
        (MQTT_3_1_1, b"\xf0\0", "[3.1.1 part 2.2.1]"),
    ],
)
def test_errors_name_the_standard_that_counts(level: int, packet: bytes, text: str) -> None:
    core = RemoteCore(limits=Limits(), inbox=Inbox(), level=level)
    connack = CONNACK_5 if level == MQTT_5 else b"\x20\2\0\0"
    core.next_event(connack, 0, len(connack))
    with pytest.raises(RemoteProtocolError, match=re.escape(text)):
        core.next_event(packet, 0, len(packet))


def test_a_session_of_a_bridge_is_not_for_clients() -> None:
    """No client takes it over by its id."""
    peer = Broker().peer(None)
    peer.send(mqtt_wire.connect("$bridge/up"))
    assert peer.receive() == [mqtt_wire.connack(2)]
