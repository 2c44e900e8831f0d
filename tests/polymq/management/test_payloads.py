"""Payloads of messages that were got: what they become in JSON, and in how small steps."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from polymq.management.payloads import STEP_BYTES, Encoding, Shown, write_messages


def written(*payloads: bytes, encoding: Encoding = "auto") -> tuple[list[dict[str, Any]], int]:
    """The messages, and the bytes of the largest part."""
    shown = [Shown({"n": at}, memoryview(one)) for at, one in enumerate(payloads)]
    parts = [part or b"" for part in write_messages(shown, encoding)]
    return json.loads(b"".join(parts)), max(map(len, parts))


# The first character of two bytes lies across the end of a step.
LONG_TEXT = ("x" * (STEP_BYTES - 1) + '\u00e4"\n' * 70_000).encode()


@pytest.mark.parametrize("payload", [b"", b"a", '\u20ac"\n'.encode(), LONG_TEXT])
def test_text_is_text(payload: bytes) -> None:
    """Also where a step ends within a character."""
    ((found,), largest) = written(payload)
    assert found == {"n": 0, "payload": payload.decode(), "payload_encoding": "string"}
    assert largest <= 3 * STEP_BYTES


@pytest.mark.parametrize("payload", [b"\xff", LONG_TEXT + b"\xc3", bytes(STEP_BYTES + 1) + b"\xff"])
def test_what_is_no_text_is_base64(payload: bytes) -> None:
    """Whatever the length, it is one text in base64. An end within a character is no text."""
    ((found,), largest) = written(payload)
    assert found["payload_encoding"] == "base64"
    assert base64.b64decode(found["payload"], validate=True) == payload
    assert largest <= 2 * STEP_BYTES


def test_base64_is_for_who_asks_for_it() -> None:
    """Of every message."""
    found, _ = written(b"a", b"b", encoding="base64")
    assert [one["payload"] for one in found] == ["YQ==", "Yg=="]
    assert written()[0] == []
