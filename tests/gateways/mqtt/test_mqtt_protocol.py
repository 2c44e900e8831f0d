"""The protocol core: wire cases however they are cut, and every pair of state and packet."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from interop_tests import mqtt5_wire
from interop_tests import mqtt_wire as wire
from interop_tests.mqtt5_wire import P
from polymq.gateways.mqtt.errors import LocalProtocolError, RemoteProtocolError
from polymq.gateways.mqtt.fields import encode_length
from polymq.gateways.mqtt.kernels import codes
from polymq.gateways.mqtt.limits import Limits
from polymq.gateways.mqtt.packets import (
    MQTT_3_1_1,
    MQTT_5,
    PING_RESPONSE,
    Connect,
    Disconnect,
    PacketType,
    Subscribe,
    Unsubscribe,
    encode_connack,
    encode_suback,
    encode_unsuback,
)
from polymq.gateways.mqtt.protocol import (
    BULK,
    NEED_DATA,
    PUBLISHES,
    TRANSITIONS,
    TRANSITIONS_WITH_METHOD,
    Event,
    Inbox,
    State,
)
from polymq.gateways.mqtt.protocol import Protocol as ConnectionCore
from polymq.gateways.mqtt.reason_codes import CONNECT_CODES_3, ReasonCode

CASES = Path(__file__).resolve().parents[2] / "wire_cases"
INBOX = Inbox()
LIMITS = Limits()
BEFORE_5 = ("level", "client_id", "clean", "keep_alive_seconds", "will", "user", "password")
"""What a CONNECT before MQTT 5 has."""
WILL_BEFORE_5 = ("topic", "body", "qos", "retain")
RETURNED = {code: reason for reason, code in reversed(list(CONNECT_CODES_3.items()))}
"""The first reason of each return code of 3.1.1."""
ACK_NAMES = {4: "PubAck", 5: "PubRec", 6: "PubRel", 7: "PubComp"}


def load(name: str) -> list[Any]:
    return [
        pytest.param(case, id=case["name"])
        for case in json.loads((CASES / name).read_text(encoding="utf-8"))
    ]


WITH_METHOD = mqtt5_wire.connect("c", props=[(P.AUTH_METHOD, "X")])


def make_core(state: State = State.WAIT_CONNECT, *, limits: Limits = LIMITS) -> ConnectionCore:
    core = ConnectionCore(limits=limits, inbox=INBOX)
    if state is not State.WAIT_CONNECT:
        data = WITH_METHOD if state is State.AUTHENTICATING else wire.connect()
        core.next_event(data, 0, len(data))
    if state is State.OPEN:
        core.accept(present=False, properties={})
    if state is State.CLOSED:
        core.close()
    assert core.state is state
    return core


def plain(value: Any) -> Any:
    """An event as the JSON of the wire cases has it."""
    if isinstance(value, bytes):
        return f"hex:{value.hex()}"
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return value


def describe(event: Event) -> list[dict[str, Any]]:
    if isinstance(event, Subscribe | Unsubscribe):
        filters = plain(list(event.filters()))
        if isinstance(event, Subscribe):
            assert all(more == [False, False, 0] for _, _, *more in filters)
            filters = [found[:2] for found in filters]
        kind = type(event).__name__
        return [{"type": kind, "packet_id": event.packet_id, "filters": filters}]
    if isinstance(event, Connect):
        assert event.expiry_seconds == (0 if event.clean else None)
        fields = {name: getattr(event, name) for name in BEFORE_5}
        if event.will is not None:
            fields["will"] = {name: getattr(event.will, name) for name in WILL_BEFORE_5}
        return [{"type": "Connect", **plain(fields)}]
    if isinstance(event, Disconnect):
        assert event == Disconnect()
        return [{"type": "Disconnect"}]
    if event is not PUBLISHES:
        assert dataclasses.is_dataclass(event)
        return [{"type": type(event).__name__, **plain(dataclasses.asdict(event))}]
    found: list[dict[str, Any]] = []
    batch = INBOX.batch
    for index in range(batch.count):
        row = batch.row(index)
        found.append(
            {
                "type": "Publish",
                "topic": plain(batch.topic(index)),
                "body": plain(bytes(batch.buffer[row[2] : row[2] + row[3]])),
                "packet_id": row[6],
                "flags": row[7],
            }
        )
    for at in range(0, 3 * INBOX.ack_count, 3):
        ack, first, count = INBOX.acks[at : at + 3]
        for packet_id in range(first, first + count):
            found.append({"type": ACK_NAMES[ack], "packet_id": packet_id})
    return found


def converse(core: ConnectionCore, data: bytes, cuts: Iterable[int]) -> dict[str, Any]:
    """What the core says to a stream that comes in pieces: packets, then the error or the rest."""
    packets: list[dict[str, Any]] = []
    used = 0
    for end in [*sorted(cuts), len(data)]:
        try:
            while (event := core.next_event(data, used, end)) is not NEED_DATA:
                packets += describe(event)
                used = core.at
        except RemoteProtocolError as error:
            said: dict[str, Any] = {"rule": error.rule}
            if error.answer:
                said["answer"] = error.answer.hex()
            return {"packets": packets, **said}
        used = core.at
    return {"packets": packets, **({"rest": data[used:].hex()} if used < len(data) else {})}


def publishes_first(said: dict[str, Any]) -> dict[str, Any]:
    """The same, with publishes before acknowledgements in each stretch of both. One read gives them
    so: only among equals, and around all other packets, does the order mean something."""
    ordered: list[dict[str, Any]] = []
    for bulk, stretch in itertools.groupby(
        said["packets"], lambda packet: packet["type"] in {"Publish", *ACK_NAMES.values()}
    ):
        packets = list(stretch)
        ordered += sorted(packets, key=lambda packet: packet["type"] != "Publish" and bulk)
    return {**said, "packets": ordered}


def ways_to_cut(data: bytes) -> Iterable[list[int]]:
    yield []
    yield list(range(1, len(data)))
    yield list(range(3, len(data), 5))


@pytest.mark.parametrize("case", load("mqtt_connect.json"))
def test_first_packets(case: dict[str, Any]) -> None:
    expect(case, State.WAIT_CONNECT)


@pytest.mark.parametrize("state", [State.ACCEPTING, State.OPEN])
@pytest.mark.parametrize("case", load("mqtt_session.json"))
def test_packets_after_connect(case: dict[str, Any], state: State) -> None:
    """Before CONNACK was sent a client may already say everything (3.1.1 part 3.1.4)."""
    expect(case, state)


def expect(case: dict[str, Any], state: State) -> None:
    data = bytes.fromhex(case["hex"])
    expected = {key: value for key, value in case.items() if key not in ("name", "hex")}
    expected.setdefault("packets", [])
    for cuts in ways_to_cut(data):
        assert converse(make_core(state), data, cuts) == expected


@pytest.mark.parametrize("case", load("mqtt_server.json"))
def test_packets_of_the_server(case: dict[str, Any]) -> None:
    packet = case["packet"]
    match packet["type"]:
        case "ConnAck":
            reason = RETURNED[packet["code"]]
            data = encode_connack(MQTT_3_1_1, reason, present=packet["present"])
        case "SubAck":
            data = encode_suback(MQTT_3_1_1, packet["packet_id"], packet["codes"])
        case "UnsubAck":
            data = encode_unsuback(MQTT_3_1_1, packet["packet_id"], [0])
        case _:
            data = PING_RESPONSE
    assert data.hex() == case["hex"]


# --- the table -------------------------------------------------------------------------------

SAMPLES: dict[int, bytes] = {
    0: b"\x00\x00",
    PacketType.CONNECT: wire.connect(),
    PacketType.CONNACK: wire.connack(),
    PacketType.PUBLISH: wire.publish("a"),
    PacketType.PUBACK: wire.puback(1),
    PacketType.PUBREC: wire.pubrec(1),
    PacketType.PUBREL: wire.pubrel(1),
    PacketType.PUBCOMP: wire.pubcomp(1),
    PacketType.SUBSCRIBE: wire.subscribe(1, ("a", 0)),
    PacketType.SUBACK: wire.suback(1, 0),
    PacketType.UNSUBSCRIBE: wire.unsubscribe(1, "a"),
    PacketType.UNSUBACK: wire.unsuback(1),
    PacketType.PINGREQ: wire.PINGREQ,
    PacketType.PINGRESP: wire.PINGRESP,
    PacketType.DISCONNECT: wire.DISCONNECT,
    15: b"\xf0\x00",
}


@pytest.mark.parametrize(("state", "number"), list(itertools.product(State, SAMPLES)))
def test_every_pair_of_state_and_packet(state: State, number: int) -> None:
    """A pair in the table leads where the table says; any other is the client's error."""
    core = make_core(state)
    data = SAMPLES[number]
    following = None
    if number not in (0, 15):
        table = TRANSITIONS_WITH_METHOD if state is State.AUTHENTICATING else TRANSITIONS
        following = table.get((state, PacketType(number)))
    if state is State.CLOSED:
        assert core.next_event(data, 0, len(data)) is NEED_DATA
        assert core.at == len(data)
    elif following is None:
        with pytest.raises(RemoteProtocolError):
            core.next_event(data, 0, len(data))
    else:
        assert core.next_event(data, 0, len(data)) is not NEED_DATA
        assert core.at == len(data)
        assert core.state is following


def test_bulk_packets_never_change_the_state() -> None:
    """The kernel takes runs of them without looking at the table: it may, because of this."""
    for (state, kind), following in TRANSITIONS.items():
        assert kind not in BULK or following is state
    assert {(s, k) for s in (State.ACCEPTING, State.OPEN) for k in BULK} <= set(TRANSITIONS)


def test_the_readme_prints_the_table() -> None:
    """In README.md of the gateway: the packet, and the state that follows in each state."""
    states = [state for state in State if state is not State.CLOSED]
    rows = [["packet", *(state.name for state in states)], ["---"] * (len(states) + 1)]
    for kind in PacketType:
        following = [TRANSITIONS_WITH_METHOD.get((state, kind)) for state in states]
        rows.append([kind.name, *(state.name if state else "error" for state in following)])
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows).replace(" --- ", "---")
    root = Path(__file__).resolve().parents[3]
    assert table in (root / "gateways/mqtt/README.md").read_text(encoding="utf-8")


@given(
    state=st.sampled_from(State),
    data=st.lists(st.sampled_from(list(SAMPLES.values())) | st.binary(max_size=9), max_size=6).map(
        b"".join
    ),
    cuts=st.lists(st.integers(0, 60)),
)
@example(state=State.ACCEPTING, data=wire.puback(1) + wire.publish("a"), cuts=[])
def test_bytes_give_packets_or_a_protocol_error_and_nothing_else(
    state: State, data: bytes, cuts: list[int]
) -> None:
    inside = [cut for cut in cuts if cut < len(data)]
    whole, single, cut = (
        publishes_first(converse(make_core(state), data, ends))
        for ends in ([], range(1, len(data)), inside)
    )
    assert single == whole
    assert cut == whole


# --- limits ----------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [None, 10])
def test_a_stranger_may_send_only_a_small_packet(cut: int | None) -> None:
    """The length is refused when the version is read, not when its bytes have been kept."""
    limits = Limits(connect_bytes_max=200)
    fits = wire.connect("c", will=("w", b"x" * 179, 0, False))
    assert len(fits) == 200
    core = make_core(limits=limits)
    assert core.next_event(fits, 0, len(fits)) is not NEED_DATA
    large = wire.connect("c", will=("w", b"x" * 180, 0, False))
    assert make_core(limits=limits).next_event(large, 0, 9) is NEED_DATA, "it may be MQTT 5"
    with pytest.raises(RemoteProtocolError, match="too large") as caught:
        make_core(limits=limits).next_event(large, 0, cut or len(large))
    assert caught.value.answer == b"", "before MQTT 5 there is no answer to it"
    five = large[:9] + b"\5"
    assert make_core(limits=limits).next_event(five, 0, 9) is NEED_DATA
    with pytest.raises(RemoteProtocolError, match="too large") as caught:
        make_core(limits=limits).next_event(five, 0, 10)
    assert caught.value.answer == b"\x20\x03\x00\x95\x00"


@pytest.mark.parametrize(
    "packet", [wire.publish("a", b"x" * 200), wire.subscribe(1, ("a" * 200, 0))]
)
def test_packets_are_bounded(packet: bytes) -> None:
    core = make_core(State.OPEN, limits=Limits(packet_bytes_max=len(packet)))
    assert core.next_event(packet, 0, len(packet)) is not NEED_DATA
    core = make_core(State.OPEN, limits=Limits(packet_bytes_max=len(packet) - 1))
    with pytest.raises(RemoteProtocolError, match="too large"):
        core.next_event(packet, 0, 3)


def test_a_batch_that_is_full_is_followed_by_the_rest() -> None:
    """More publishes than rows come as several events, none lost."""
    count = 2 * len(INBOX.runs) + 7
    data = wire.publish("a", b"x") * count
    core = make_core(State.OPEN)
    sizes = []
    at = 0
    while core.next_event(data, at, len(data)) is PUBLISHES:
        sizes.append(INBOX.batch.count)
        at = core.at
    assert sizes == [len(INBOX.runs), len(INBOX.runs), 7]


def test_acknowledgements_out_of_order_that_fill_their_runs() -> None:
    ids = [k for pair in zip(range(1, 6001), range(30_000, 24_000, -1), strict=True) for k in pair]
    data = b"".join(map(wire.puback, ids))
    core = make_core(State.OPEN)
    seen: list[int] = []
    at = 0
    while core.next_event(data, at, len(data)) is PUBLISHES:
        assert INBOX.batch.count == 0
        for to in range(0, 3 * INBOX.ack_count, codes.ACK_COLUMNS):
            assert INBOX.acks[to + 2] == 1
            seen.append(INBOX.acks[to + 1])
        at = core.at
    assert seen == ids


# --- sending ---------------------------------------------------------------------------------


def test_connack_goes_first() -> None:
    """[MQTT-3.2.0-1]: answers to pipelined packets wait for it, in their order."""
    core = make_core(State.ACCEPTING)
    assert core.answer(b"one") == b""
    assert core.answer(b"two") == b""
    accepted = core.accept(present=True, properties={})
    assert accepted == wire.connack(present=True) + b"onetwo"
    assert core.answer(b"three") == b"three"


def test_a_refusal_drops_what_was_held_and_what_comes() -> None:
    """[MQTT-3.1.4-5]."""
    core = make_core(State.ACCEPTING)
    core.answer(b"one")
    assert core.refuse(ReasonCode.NOT_AUTHORIZED) == wire.connack(5)
    assert core.answer(b"two") == b""
    data = wire.publish("a")
    assert core.next_event(data, 0, len(data)) is NEED_DATA
    assert core.at == len(data)


def test_what_the_server_must_not_do_is_its_bug() -> None:
    for state in (State.WAIT_CONNECT, State.OPEN, State.CLOSED):
        with pytest.raises(LocalProtocolError):
            make_core(state).accept(present=False, properties={})
        with pytest.raises(LocalProtocolError):
            make_core(state).refuse(ReasonCode.NOT_AUTHORIZED)
    with pytest.raises(LocalProtocolError):
        make_core().answer(b"x")
    with pytest.raises(LocalProtocolError):
        make_core(State.ACCEPTING).refuse(ReasonCode.SUCCESS)
    with pytest.raises(LocalProtocolError):
        encode_connack(MQTT_5, ReasonCode.NOT_AUTHORIZED, present=True)
    with pytest.raises(LocalProtocolError):
        encode_length(268_435_456)


@pytest.mark.parametrize("size", [0, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152, 268_435_455])
def test_remaining_lengths(size: int) -> None:
    """The table of 3.1.1 part 2.2.3, at both ends of each row."""
    assert encode_length(size) == wire.remaining_length(size)
