"""The codec of MQTT 5: what each packet of a client may have, and what it must not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interop_tests import mqtt_wire as wire
from polymq.gateways.mqtt.errors import LocalProtocolError, RemoteProtocolError
from polymq.gateways.mqtt.limits import Limits
from polymq.gateways.mqtt.packets import (
    MQTT_3_1_1,
    MQTT_5,
    Authenticate,
    Connect,
    Disconnect,
    PacketType,
    Requested,
    Subscribe,
    Unsubscribe,
    Will,
    decode_packet,
    encode_connack,
    encode_disconnect,
    encode_suback,
    encode_unsuback,
)
from polymq.gateways.mqtt.properties import (
    OF_AUTH,
    OF_CONNECT,
    OF_DISCONNECT,
    OF_SUBSCRIBE,
    OF_UNSUBSCRIBE,
    OF_WILL,
    Property,
)
from polymq.gateways.mqtt.protocol import NEED_DATA, Inbox, Protocol, State
from polymq.gateways.mqtt.reason_codes import ReasonCode

MALFORMED = ReasonCode.MALFORMED_PACKET
PROTOCOL = ReasonCode.PROTOCOL_ERROR


def text(value: str) -> bytes:
    return wire.field(value)


def block(*properties: bytes) -> bytes:
    """Properties with their length in front."""
    whole = b"".join(properties)
    return wire.remaining_length(len(whole)) + whole


SAMPLES: dict[Property, tuple[bytes, Any]] = {
    Property.PAYLOAD_FORMAT_INDICATOR: (b"\x01\x01", 1),
    Property.MESSAGE_EXPIRY_INTERVAL: (b"\x02\x00\x00\x00\x3c", 60),
    Property.CONTENT_TYPE: (b"\x03" + text("text/plain"), "text/plain"),
    Property.RESPONSE_TOPIC: (b"\x08" + text("to/me"), "to/me"),
    Property.CORRELATION_DATA: (b"\x09" + wire.field(b"\x00\xff"), b"\x00\xff"),
    Property.SUBSCRIPTION_IDENTIFIER: (b"\x0b\xff\xff\xff\x7f", 268_435_455),
    Property.SESSION_EXPIRY_INTERVAL: (b"\x11\xff\xff\xff\xff", 0xFFFF_FFFF),
    Property.ASSIGNED_CLIENT_IDENTIFIER: (b"\x12" + text("c"), "c"),
    Property.SERVER_KEEP_ALIVE: (b"\x13\x00\x3c", 60),
    Property.AUTHENTICATION_METHOD: (b"\x15" + text("M"), "M"),
    Property.AUTHENTICATION_DATA: (b"\x16" + wire.field(b"\x00"), b"\x00"),
    Property.REQUEST_PROBLEM_INFORMATION: (b"\x17\x00", 0),
    Property.WILL_DELAY_INTERVAL: (b"\x18\x00\x00\x00\x05", 5),
    Property.REQUEST_RESPONSE_INFORMATION: (b"\x19\x01", 1),
    Property.RESPONSE_INFORMATION: (b"\x1a" + text("r"), "r"),
    Property.SERVER_REFERENCE: (b"\x1c" + text("s"), "s"),
    Property.REASON_STRING: (b"\x1f" + text("why"), "why"),
    Property.RECEIVE_MAXIMUM: (b"\x21\x00\x0a", 10),
    Property.TOPIC_ALIAS_MAXIMUM: (b"\x22\x00\x0a", 10),
    Property.TOPIC_ALIAS: (b"\x23\x00\x01", 1),
    Property.MAXIMUM_QOS: (b"\x24\x01", 1),
    Property.RETAIN_AVAILABLE: (b"\x25\x01", 1),
    Property.USER_PROPERTY: (b"\x26" + text("a") + text("b"), [("a", "b")]),
    Property.MAXIMUM_PACKET_SIZE: (b"\x27\x00\x00\x01\x00", 256),
    Property.WILDCARD_SUBSCRIPTION_AVAILABLE: (b"\x28\x01", 1),
    Property.SUBSCRIPTION_IDENTIFIER_AVAILABLE: (b"\x29\x01", 1),
    Property.SHARED_SUBSCRIPTION_AVAILABLE: (b"\x2a\x00", 0),
}


def connect(
    properties: bytes = b"\0",
    *,
    flags: int = 0x02,
    keep_alive: int = 0,
    rest: bytes = b"\x00\x01c",
    level: int = 5,
) -> bytes:
    """A CONNECT without its fixed header."""
    return text("MQTT") + bytes((level, flags)) + keep_alive.to_bytes(2, "big") + properties + rest


def decode(kind: PacketType, content: bytes) -> Any:
    return decode_packet(kind, content, MQTT_5)


def decode_whole(kind: PacketType, content: bytes) -> None:
    packet = decode(kind, content)
    if isinstance(packet, Subscribe | Unsubscribe):
        list(packet.filters())


def reason_of(kind: PacketType, content: bytes) -> ReasonCode:
    with pytest.raises(RemoteProtocolError) as found:
        decode_whole(kind, content)
    if kind is PacketType.CONNECT:
        assert found.value.answer == encode_connack(MQTT_5, found.value.reason)
    return found.value.reason


PACKETS: dict[str, tuple[PacketType, frozenset[Property], Callable[[bytes], bytes]]] = {
    "CONNECT": (PacketType.CONNECT, OF_CONNECT, connect),
    "will": (
        PacketType.CONNECT,
        OF_WILL,
        lambda found: connect(flags=0x06, rest=text("c") + found + text("w") + text("body")),
    ),
    "SUBSCRIBE": (
        PacketType.SUBSCRIBE,
        OF_SUBSCRIBE,
        lambda found: b"\x00\x07" + found + text("a") + b"\x00",
    ),
    "UNSUBSCRIBE": (
        PacketType.UNSUBSCRIBE,
        OF_UNSUBSCRIBE,
        lambda found: b"\x00\x07" + found + text("a"),
    ),
    "DISCONNECT": (PacketType.DISCONNECT, OF_DISCONNECT, lambda found: b"\x00" + found),
    "AUTH": (PacketType.AUTH, OF_AUTH, lambda found: b"\x18" + found),
}
"""A packet of each kind, as a function of its properties."""
METHOD = SAMPLES[Property.AUTHENTICATION_METHOD][0]


@pytest.mark.parametrize("name", PACKETS)
@pytest.mark.parametrize("found", Property)
def test_every_property_in_every_packet(name: str, found: Property) -> None:
    """Those that the table allows there are taken once (user properties as often as they come);
    the others are malformed (5.0 part 2.2.2.2)."""
    kind, allowed, make = PACKETS[name]
    needed = set()
    if name == "AUTH" or (name == "CONNECT" and found is Property.AUTHENTICATION_DATA):
        needed.add(METHOD)
    sample, _ = SAMPLES[found]
    once = block(*(needed | {sample}))
    twice = block(*(needed - {sample}), sample, sample)
    if found not in allowed:
        assert reason_of(kind, make(once)) is MALFORMED
        return
    decode(kind, make(once))
    if found is Property.USER_PROPERTY:
        decode(kind, make(twice))
    else:
        assert reason_of(kind, make(twice)) is PROTOCOL


@pytest.mark.parametrize(
    ("name", "sample", "reason"),
    [
        ("CONNECT", b"\x04", MALFORMED),
        ("CONNECT", b"\xff\x01", MALFORMED),
        ("CONNECT", b"\x11\x00\x00\x00", MALFORMED),
        ("CONNECT", b"\x21\x00\x00", PROTOCOL),
        ("CONNECT", b"\x27\x00\x00\x00\x00", PROTOCOL),
        ("CONNECT", b"\x17\x02", PROTOCOL),
        ("CONNECT", b"\x19\x02", PROTOCOL),
        ("CONNECT", b"\x26\x00\x01a", MALFORMED),
        ("CONNECT", b"\x26\x00\x01\xff\x00\x00", MALFORMED),
        ("CONNECT", b"\x26\x00\x01\x00\x00\x00", MALFORMED),
        ("CONNECT", SAMPLES[Property.AUTHENTICATION_DATA][0], PROTOCOL),
        ("will", b"\x01\x02", PROTOCOL),
        ("will", b"\x08\x00\x01#", ReasonCode.TOPIC_NAME_INVALID),
        ("SUBSCRIBE", b"\x0b\x00", PROTOCOL),
        ("SUBSCRIBE", b"\x0b\x80\x80\x80\x80\x01", MALFORMED),
        ("SUBSCRIBE", b"\x0b\x81\x00", MALFORMED),
    ],
)
def test_values_that_are_none(name: str, sample: bytes, reason: ReasonCode) -> None:
    kind, _, make = PACKETS[name]
    assert reason_of(kind, make(block(sample))) is reason


@pytest.mark.parametrize("name", PACKETS)
@pytest.mark.parametrize("length", [b"", b"\x80", b"\x7f", b"\xff\xff\xff\xff\x7f"])
def test_property_lengths_that_are_none(name: str, length: bytes) -> None:
    kind, _, make = PACKETS[name]
    if name == "DISCONNECT" and not length:
        return  # it may end there
    with pytest.raises(RemoteProtocolError):
        decode_whole(kind, make(length))


def test_connect_without_anything() -> None:
    assert decode(PacketType.CONNECT, connect(flags=0)) == Connect(
        level=5, client_id="c", clean=False, expiry_seconds=0, keep_alive_seconds=0
    )


def test_connect_with_everything() -> None:
    names = sorted(OF_CONNECT)
    found = decode(
        PacketType.CONNECT,
        connect(
            block(*(SAMPLES[name][0] for name in names)),
            flags=0xEE,
            keep_alive=9,
            rest=text("c")
            + block(*(SAMPLES[name][0] for name in sorted(OF_WILL)))
            + text("w")
            + text("body")
            + text("user")
            + text("password"),
        ),
    )
    stored = sorted(OF_WILL - {Property.WILL_DELAY_INTERVAL})
    assert found == Connect(
        level=5,
        client_id="c",
        clean=True,
        expiry_seconds=None,
        keep_alive_seconds=9,
        will=Will(
            topic="w",
            body=b"body",
            qos=1,
            retain=True,
            delay_seconds=5,
            properties=b"".join(SAMPLES[name][0] for name in stored),
            expiry_seconds=60,
            is_text=True,
        ),
        user="user",
        password=b"password",
        receive_max=10,
        packet_bytes_max=256,
        alias_max=10,
        wants_problem_information=False,
        wants_response_information=True,
        method="M",
        data=b"\x00",
    )


def test_a_password_needs_no_user() -> None:
    """[MQTT-3.1.2-22] of 3.1.1 is gone; and an empty client id is one for any session."""
    found = decode(PacketType.CONNECT, connect(flags=0x40, rest=text("") + text("p")))
    assert (found.user, found.password, found.client_id) == (None, b"p", "")


@pytest.mark.parametrize("flags", [0x03, 0x1E, 0x0A, 0x22])
def test_connect_flags_that_are_none(flags: int) -> None:
    rest = text("c") + block() + text("w") + text("") if flags & 4 else text("c")
    assert reason_of(PacketType.CONNECT, connect(flags=flags, rest=rest)) is MALFORMED


@pytest.mark.parametrize("level", [0, 2, 3, 6, 99, 0x82, 0x85])
def test_levels_that_are_not_supported(level: int) -> None:
    """CONNACK 1, as all versions before had it [MQTT-3.1.2-2] (3.1.1)."""
    with pytest.raises(RemoteProtocolError) as found:
        decode(PacketType.CONNECT, connect(level=level))
    assert found.value.answer == b"\x20\x02\x00\x01"


def test_subscription_options() -> None:
    filters = b"".join(text("a") + bytes((options,)) for options in (0x00, 0x05, 0x0A, 0x12, 0x2D))
    found = decode(PacketType.SUBSCRIBE, b"\x00\x07" + block(b"\x0b\x05") + filters)
    assert (found.packet_id, found.identifier) == (7, 5)
    assert list(found.filters()) == [
        Requested("a", 0),
        Requested("a", 1, no_local=True),
        Requested("a", 2, retain_as_published=True),
        Requested("a", 2, retain_handling=1),
        Requested("a", 1, True, True, 2),
    ]


@pytest.mark.parametrize(
    ("options", "reason"),
    [(0x03, PROTOCOL), (0x30, PROTOCOL), (0x40, MALFORMED), (0x80, MALFORMED)],
)
def test_subscription_options_that_are_none(options: int, reason: ReasonCode) -> None:
    content = b"\x00\x07\x00" + text("a") + bytes((options,))
    assert reason_of(PacketType.SUBSCRIBE, content) is reason


def test_a_packet_without_filters() -> None:
    for kind in (PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE):
        assert reason_of(kind, b"\x00\x07\x00") is PROTOCOL
        assert reason_of(kind, b"\x00\x00\x00" + text("a") + b"\x00") is PROTOCOL


def test_disconnects() -> None:
    for content, expected in (
        (b"", Disconnect()),
        (b"\x04", Disconnect(reason=4)),
        (b"\x00\x00", Disconnect()),
        (b"\x00" + block(b"\x11\x00\x00\x00\x09"), Disconnect(expiry_seconds=9)),
    ):
        assert decode(PacketType.DISCONNECT, content) == expected
    legal = {0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, *range(0x93, 0x9A)}
    for reason in set(range(256)) - legal:
        assert reason_of(PacketType.DISCONNECT, bytes((reason,))) is PROTOCOL
    for reason in legal:
        assert decode(PacketType.DISCONNECT, bytes((reason,))) == Disconnect(reason=reason)


def test_auth() -> None:
    data = SAMPLES[Property.AUTHENTICATION_DATA][0]
    found = decode(PacketType.AUTH, b"\x19" + block(METHOD, data))
    assert found == Authenticate(reason=0x19, method="M", data=b"\x00")
    for content in (b"", b"\x18", b"\x00" + block(METHOD), b"\x18" + block(data)):
        assert reason_of(PacketType.AUTH, content) is PROTOCOL


# --- what the server sends -------------------------------------------------------------------


def test_connack() -> None:
    properties = {
        Property.SESSION_EXPIRY_INTERVAL: 10,
        Property.ASSIGNED_CLIENT_IDENTIFIER: "x",
        Property.USER_PROPERTY: [("a", "b"), ("a", "c")],
    }
    sent = encode_connack(MQTT_5, ReasonCode.SUCCESS, present=True, properties=properties)
    expected = block(
        b"\x11\x00\x00\x00\x0a",
        b"\x12" + text("x"),
        b"\x26" + text("a") + text("b"),
        b"\x26" + text("a") + text("c"),
    )
    assert sent == wire.packet(0x20, b"\x01\x00" + expected)
    assert encode_connack(MQTT_5, ReasonCode.BANNED) == b"\x20\x03\x00\x8a\x00"
    assert encode_connack(MQTT_3_1_1, ReasonCode.BANNED) == b"\x20\x02\x00\x05"
    assert encode_connack(MQTT_3_1_1, ReasonCode.SERVER_MOVED) == b"", "3.1.1 has no code for it"
    with pytest.raises(LocalProtocolError):
        encode_connack(MQTT_5, ReasonCode.BANNED, present=True)


def test_answers_have_properties_and_reasons() -> None:
    assert encode_suback(MQTT_5, 7, [1, 0x87]) == b"\x90\x05\x00\x07\x00\x01\x87"
    assert encode_unsuback(MQTT_5, 7, [0, 0x11]) == b"\xb0\x05\x00\x07\x00\x00\x11"
    assert encode_unsuback(MQTT_3_1_1, 7, [0, 0x11]) == b"\xb0\x02\x00\x07"
    assert encode_disconnect(ReasonCode.SERVER_SHUTTING_DOWN) == b"\xe0\x01\x8b"
    moved = encode_disconnect(ReasonCode.SERVER_MOVED, {Property.SERVER_REFERENCE: "s"})
    assert moved == b"\xe0\x06\x9d\x04\x1c\x00\x01s"


# --- the core --------------------------------------------------------------------------------


def core_in(state: State) -> Protocol:
    core = Protocol(limits=Limits(), inbox=Inbox())
    data = wire.packet(0x10, connect())
    if state is not State.WAIT_CONNECT:
        core.next_event(data, 0, len(data))
    if state is State.OPEN:
        core.accept(present=False, properties={})
    return core


def test_auth_is_for_clients_that_named_a_method() -> None:
    data = wire.packet(0xF0, b"\x19" + block(METHOD))
    for state in (State.ACCEPTING, State.OPEN):
        with pytest.raises(RemoteProtocolError, match=r"MQTT-4\.12\.0-7"):
            core_in(state).next_event(data, 0, len(data))
    with pytest.raises(RemoteProtocolError):
        core_in(State.WAIT_CONNECT).next_event(data, 0, len(data))


def test_how_a_client_is_told_that_it_has_to_go() -> None:
    """No DISCONNECT before CONNACK [MQTT-3.14.0-1]; and nothing to who has not said CONNECT."""
    reason = ReasonCode.QUOTA_EXCEEDED
    for state, expected in (
        (State.WAIT_CONNECT, b""),
        (State.ACCEPTING, b"\x20\x03\x00\x97\x00"),
        (State.OPEN, b"\xe0\x01\x97"),
    ):
        core = core_in(state)
        core.explainer.packet_bytes_max = 9  # too small for a word
        assert core.say_goodbye(reason) == expected
        assert core.say_goodbye(reason) == b""
        assert core.state is State.CLOSED


contents = st.binary(max_size=40) | st.builds(
    lambda found, name: PACKETS[name][2](block(*(SAMPLES[one][0] for one in found))),
    st.lists(st.sampled_from(Property), max_size=5),
    st.sampled_from(sorted(PACKETS)),
)


@given(
    kind=st.sampled_from([kind for _, (kind, _, _) in PACKETS.items()]),
    content=contents,
    damage=st.none() | st.tuples(st.integers(0, 200), st.integers(0, 255)),
)
def test_bytes_are_a_packet_or_a_protocol_error(
    kind: PacketType, content: bytes, damage: tuple[int, int] | None
) -> None:
    """Nothing else; and however they are cut."""
    changed = bytearray(content)
    if damage is not None and changed:
        changed[damage[0] % len(changed)] = damage[1]
    flags = 0x02 if kind in (PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE) else 0
    data = wire.packet(kind << 4 | flags, bytes(changed))
    state = State.WAIT_CONNECT if kind is PacketType.CONNECT else State.OPEN
    answers = []
    for ends in (range(1, len(data) + 1), [len(data)]):
        core = core_in(state)
        for end in ends:
            try:
                event = core.next_event(data, 0, end)
                if isinstance(event, Subscribe | Unsubscribe):
                    event = tuple(event.filters())  # type: ignore[assignment]
            except RemoteProtocolError as error:
                answers.append((error.rule, error.reason))
                break
            if event is not NEED_DATA:
                answers.append(event)  # type: ignore[arg-type]
                break
    assert len(answers) == 2
    assert answers[0] == answers[1]
