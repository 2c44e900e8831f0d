"""Dialogs about one consumer: pausing it, and letting it go on at another place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from polymq.console.details import Action
from polymq.console.forms import Field, Form, Row, Values
from polymq.console.texts import milliseconds, number

TARGETS: Final = {
    "oldest": "the oldest message",
    "newest": "the end",
    "time": "a time",
    "offset": "an offset of one queue",
}
TOPIC: Final = Field(label="Topic", hint="needed if the group reads several")


def reader_forms(identity: str) -> list[Action | Form]:
    """What is done to one consumer.

    Args:
        identity: its kind, a colon and its name. Sessions and shares of MQTT have none of this.
    """
    is_group = identity.startswith("group:")
    pauses = (("Pause", "pause", "pause"), ("Resume", "play_arrow", "resume"))
    reset = Form(
        label="Reset",
        title=f"Let {identity} go on at another place",
        icon="restore",
        right="operate",
        fields=lambda _row: _reset_fields(is_group=is_group),
        method="POST",
        parts=lambda _values: ("consumers", identity, "reset"),
        body=reset_body,
        tries=True,
        question=lambda answer: (
            f"{number(answer['skipped'])} messages are skipped, and {number(answer['again'])} "
            f"come again. Reset {identity}?"
        ),
        done=lambda answer: f"{number(answer['skipped'])} messages were skipped",
        is_harmless=False,
    )
    return [*(_pause(identity, is_group, *one) for one in pauses), reset]


def _pause(identity: str, is_group: bool, label: str, icon: str, verb: str) -> Action | Form:
    """A group is paused in one topic."""
    parts: Sequence[str] = ("consumers", identity, verb)
    if not is_group:
        return Action(
            label=label, icon=icon, right="operate", method="POST", parts=parts, is_harmless=True
        )
    return Form(
        label=label,
        title=f"{label} {identity} in a topic",
        icon=icon,
        right="operate",
        fields=lambda _row: {"topic": TOPIC},
        method="POST",
        parts=lambda _values: parts,
    )


def _reset_fields(*, is_group: bool) -> Mapping[str, Field]:
    fields = {
        "to": Field(label="Go on at", choices=TARGETS, value="oldest"),
        "time": Field(label="Time (UTC)", hint="such as 2026-01-31 08:00"),
        "offset": Field(label="Offset", kind="number"),
    }
    if is_group:
        fields["topic"] = TOPIC
        fields["queue"] = Field(label="Queue of the topic", kind="number", hint="empty: all")
    return fields


def reset_body(values: Values, _row: Row) -> Mapping[str, Any]:
    """Only what belongs to the place is sent. Raises ValueError."""
    body = {name: value for name, value in values.items() if name not in ("time", "offset")}
    if values["to"] == "offset":
        if "offset" not in values:
            raise ValueError("the offset is missing")
        body["offset"] = values["offset"]
    if values["to"] == "time":
        try:
            body["time_ms"] = milliseconds(values.get("time", ""))
        except ValueError:
            body["time_ms"] = None
        if body["time_ms"] is None:
            raise ValueError("a time is written as 2026-01-31 08:00")
    return body
