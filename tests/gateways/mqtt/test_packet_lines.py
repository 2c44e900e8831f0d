"""Lines about traced packets: any cut of the stream gives the same, and secrets are in none."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from typing import Any

import pytest

from interop_tests import mqtt5_wire as five
from interop_tests import mqtt_wire as wire
from interop_tests.mqtt5_wire import P
from polymq.gateways.mqtt.packet_lines import HEAD_BYTES, PacketLines, Splitter
from polymq.gateways.mqtt.topic_filters import matches
from polymq.gateways.mqtt.tracing import Tap

SECRET = b"s3cret-of-ann"
PACKETS = [
    five.connect("c", user="ann", password=SECRET, will=five.Will(topic="w", body=SECRET)),
    five.publish("a/b", b"x" * 10, qos=1, packet_id=1, props=((P.ALIAS, 3),)),
    *[five.publish("a/b", b"x", qos=1, packet_id=number) for number in range(2, 40)],
    five.publish("", b"y", props=((P.USER, ("k", "v")), (P.ALIAS, 3))),
    five.publish("t" * 3_000, b"z" * 70_000, retain=True),
    five.subscribe(7, ("a/+", 1), ("#", 2)),
    wire.PINGREQ,
    five.disconnect(0x04, ()),
]


def lines_of(chunks: list[bytes], **options: Any) -> list[dict[str, Any]]:
    lines = PacketLines(is_five=True, **options)
    return [line for chunk in chunks for line in lines.feed(chunk)]


def counted(lines: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """What lines say however they are put together."""
    return [
        (line["packet"], line.get("topic"), line.get("filters"))
        for line in lines
        for _ in range(line["count"])
    ]


def test_lines() -> None:
    found = lines_of([b"".join(PACKETS)])
    assert [(line["packet"], line["count"]) for line in found] == [
        ("CONNECT", 1),
        ("PUBLISH", 39),
        ("PUBLISH", 1),
        ("PUBLISH", 1),
        ("SUBSCRIBE", 1),
        ("PINGREQ", 1),
        ("DISCONNECT", 1),
    ]
    _, run, aliased, large, subscribe, _, disconnect = found
    assert (run["topic"], run["qos"], run["packet_id"]) == ("a/b", 1, 1)
    assert run["bytes"] == sum(map(len, PACKETS[1:40]))
    assert aliased["topic"] == "a/b", "its alias was set before"
    assert large["bytes"] == len(PACKETS[41])
    assert large["retain"]
    assert len(large["topic"]) == 500
    assert subscribe["filters"] == ["a/+ (qos 1)", "# (qos 2)"]
    assert disconnect["reason"] == 0x04


@pytest.mark.parametrize("seed", range(5))
def test_any_cut_of_the_stream(seed: int) -> None:
    """And what is kept of a packet in part is bounded."""
    dice, data = random.Random(seed), b"".join(PACKETS)
    cuts = sorted({0, len(data), *(dice.randrange(len(data)) for _ in range(400)), *range(90)})
    chunks = [data[first:last] for first, last in pairwise(cuts)]
    assert counted(lines_of(chunks)) == counted(lines_of([data]))
    splitter = Splitter(HEAD_BYTES)
    for chunk in chunks:
        list(splitter.feed(chunk))
        assert len(splitter._head) <= HEAD_BYTES + 90


def test_passwords_are_in_no_line_and_payloads_only_if_asked_for() -> None:
    data = [b"".join([*PACKETS, five.publish("p", SECRET)])]
    assert SECRET.decode() not in json.dumps(lines_of(data))
    shown = [line.get("payload") for line in lines_of(data, payload_max=6)]
    assert shown[-1] == SECRET[:6].decode()
    assert SECRET.decode() not in json.dumps(lines_of(data[:1], payload_max=6))
    assert lines_of(PACKETS[:1], payload_max=4096) == [
        {"packet": "CONNECT", "count": 1, "bytes": len(PACKETS[0])}
    ]


@pytest.mark.parametrize("seed", range(20))
def test_anything_at_all(seed: int) -> None:
    dice = random.Random(seed)
    lines = PacketLines(is_five=bool(seed % 2), payload_max=100)
    for _ in range(50):
        data = bytes(dice.choices((*range(256), 0x30, 0x82, 0xFF), k=dice.randrange(200)))
        json.dumps(list(lines.feed(data)))


def test_what_is_no_packet_ends_the_lines() -> None:
    lines = PacketLines(is_five=False)
    (ping,) = lines.feed(wire.PINGREQ + b"\x30\xff\xff\xff\xff\xff")
    assert ping["packet"] == "PINGREQ"
    assert list(lines.feed(wire.PINGREQ)) == []


@pytest.mark.parametrize(
    ("pattern", "topic", "right"),
    [
        ("a/b", "a/b", True),
        ("a/b", "a/b/c", False),
        ("a/+", "a/b", True),
        ("a/+", "a", False),
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("+/+", "/b", True),
        ("#", "a/b", True),
        ("#", "$SYS/x", False),
        ("+/x", "$SYS/x", False),
        ("$SYS/#", "$SYS/x", True),
    ],
)
def test_matching(pattern: str, topic: str, right: bool) -> None:
    assert matches(pattern.split("/"), topic.split("/")) is right


def test_who_begins_to_look_within_a_packet_sees_its_beginning() -> None:
    """The others have seen it, and see each byte once."""
    tap = Tap(None)
    first: list[bytes] = []
    second: list[bytes] = []
    tap.looks[lambda _came, data: first.append(data)] = False
    buffer = bytearray(b"abcdef")
    assert tap.take(buffer, 2, 4) == 4
    tap.looks[lambda _came, data: second.append(data)] = False
    assert tap.take(buffer, 4, 6) == 6
    assert tap.wrap(b"out") == b"out"
    assert first == [b"abcd", b"ef", b"out"]
    assert second == [b"abcdef", b"out"]
