"""The inputs that are kept: what they are, and which of many are worth it.

`cases.txt` has a line in hexadecimal for each. They are what `make fuzz` begins with, and what
`test_cases.py` replays. `chosen` takes, of all inputs that a run has found, few that together reach
all that they reach.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any, Final

from interop_tests import mqtt5_wire as wire5
from interop_tests import mqtt_wire as wire
from interop_tests import websocket_wire as ws
from interop_tests.mqtt5_wire import P
from tests.fuzz.parsers import TARGETS, check

CASES: Final = Path(__file__).parent / "cases.txt"
CASES_MAX: Final = 200
PARSERS: Final = ("/gateways/mqtt/", "/net/")
"""Of which files the steps count."""
OPEN_3, OPEN_5, ACCEPTING_5, HANDSHAKE, FRAMES, MQTT_IN_FRAMES = range(1, 7)
PROPERTIES: Final = len(TARGETS)


def read_cases() -> list[bytes]:
    """Those of `cases.txt`."""
    return [bytes.fromhex(line) for line in CASES.read_text(encoding="ascii").split()]


def write_cases(cases: Iterable[bytes]) -> None:
    """Keep these, in an order that does not depend on anything else."""
    lines = sorted((case.hex() for case in cases), key=lambda line: (line[:2], len(line), line))
    CASES.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")


def chosen(inputs: Iterable[bytes], count_max: int = CASES_MAX) -> list[bytes]:
    """Few of these, the shortest first, that together take all steps that these take.

    Args:
        count_max: where it takes more, those that add least are left out.
    """
    by_size = sorted(set(inputs), key=lambda data: (len(data), data))
    left = {data: steps_of(data) for data in by_size if data}
    reached: set[Step] = set()
    found: list[bytes] = []
    while left and len(found) < count_max:
        best = max(left, key=lambda data: len(left[data] - reached))
        if not left[best] - reached:
            break
        found.append(best)
        reached |= left.pop(best)
    return found


Step = tuple[str, int, int, int]
"""A file, a line of it, the one before, and the input's target."""


def steps_of(data: bytes) -> frozenset[Step]:
    """From which line of the parsers to which it goes."""
    steps: set[Step] = set()
    last: dict[FrameType, int] = {}
    target = data[0] % (len(TARGETS) + 1)

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        name = frame.f_code.co_filename
        if not any(part in name for part in PARSERS):
            return None
        if event == "line":
            steps.add((name, frame.f_lineno, last.get(frame, 0), target))
            last[frame] = frame.f_lineno
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        check(data)
    finally:
        sys.settrace(before)
    return frozenset(steps)


def seeds() -> list[bytes]:
    """A correct packet of each kind, for each parser: where a search without cases begins."""
    will = wire5.Will(topic="w", body=b"x", props=[(P.WILL_DELAY, 1), (P.CONTENT_TYPE, "t")])
    connects = [
        wire.connect("a"),
        wire.connect("a", will=("w", b"gone", 1, True)),
        wire5.connect("a", props=[(P.SESSION_EXPIRY, 9), (P.RECEIVE_MAX, 5)], will=will),
    ]
    packets_3 = [
        wire.publish("a/b", b"body", qos=1, packet_id=7),
        wire.subscribe(1, ("a/+", 1), ("#", 2)),
        wire.unsubscribe(2, "a/+"),
        wire.puback(1) + wire.puback(2) + wire.pubrec(3) + wire.pubrel(4) + wire.pubcomp(5),
        b"\xc0\x00",
        b"\xe0\x00",
    ]
    some: list[wire5.Property] = [
        (P.PAYLOAD_FORMAT, 1),
        (P.MESSAGE_EXPIRY, 60),
        (P.CONTENT_TYPE, "text"),
        (P.RESPONSE_TOPIC, "r/s"),
        (P.CORRELATION_DATA, b"\x00\x01"),
        (P.ALIAS, 3),
        (P.USER, ("k", "v")),
    ]
    packets_5 = [
        wire5.publish("a/b", b"body", qos=2, packet_id=7, props=some),
        wire5.subscribe(1, ("a/+", 0x2D), props=[(P.SUBSCRIPTION_ID, 300)]),
        wire5.unsubscribe(2, "a/+", props=[(P.USER, ("k", "v"))]),
        wire5.pubrec(3, 0x97, [(P.REASON, "full")]) + wire5.puback(1) + wire5.pubrel(9, 0x92),
        wire5.disconnect(4, [(P.SESSION_EXPIRY, 1)]),
        wire5.auth(0x18, [(P.AUTH_METHOD, "m"), (P.AUTH_DATA, b"d")]),
    ]
    frames = [
        ws.frame(b"\xc0\x00", mask=bytes(4)) + ws.frame(b"ping", opcode=ws.PING),
        ws.frame(b"\xc0", last=False) + ws.frame(b"\x00", opcode=ws.CONTINUATION),
        ws.close(1000, b"bye"),
    ]
    blocks = [b"".join(wire5.property_bytes(*one) for one in some)]
    groups = {
        0: connects,
        OPEN_3: packets_3,
        OPEN_5: packets_5,
        ACCEPTING_5: packets_5,
        HANDSHAKE: [ws.request(origin="https://app.example") + frames[0]],
        FRAMES: frames,
        MQTT_IN_FRAMES: [ws.frame(packet, mask=bytes(4)) for packet in packets_5],
        PROPERTIES: [b"\x00" + block for block in blocks],
    }
    return [bytes((target,)) + data for target, group in groups.items() for data in group]
