"""Dialogs about queues: a new one, its bindings, and moving what waits in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from polymq.console.forms import Field, Form, Row, Values
from polymq.console.texts import number

OVERFLOWS: Final = {
    "drop-head": "the oldest message",
    "reject-publish": "what is published",
    "reject-publish-dlx": "what is published, as a dead letter",
}
NEW_QUEUE: Final = {
    "name": Field(label="Name of the queue", is_needed=True),
    "durable": Field(label="Survives a restart", kind="switch", value=True),
    "auto_delete": Field(label="Ends with its last consumer", kind="switch"),
    "max_length": Field(label="Messages at most", kind="number", hint="empty: no limit"),
    "max_length_bytes": Field(label="Bytes at most", kind="number", is_rare=True),
    "overflow": Field(label="What gives way", choices=OVERFLOWS, is_rare=True),
    "message_ttl_ms": Field(label="Messages expire after (ms)", kind="number", is_rare=True),
    "expires_ms": Field(label="Ends when unused for (ms)", kind="number", is_rare=True),
    "dead_letter_exchange": Field(label="Dead letters go to the exchange", is_rare=True),
    "dead_letter_routing_key": Field(label="with the routing key", is_rare=True),
    "max_priority": Field(label="Highest priority", kind="number", is_rare=True),
    "delivery_limit": Field(label="Deliveries of a message at most", kind="number", is_rare=True),
    "single_active_consumer": Field(
        label="One consumer at a time gets messages", kind="switch", is_rare=True
    ),
}
ARGUMENTS: Final = Field(
    label="Arguments", hint='of an exchange of type headers: {"x-match": "all"}', is_rare=True
)


def _named(values: Values, _row: Row) -> Mapping[str, Any]:
    """The body: what has its name in the path, and switches that are off, are left out of it."""
    return {
        name: value
        for name, value in values.items()
        if name != "name" and (value is not False or name == "durable")
    }


def new_queue(path: str) -> Form:
    """A new queue.

    Args:
        path: of the screens of queues.
    """
    return Form(
        label="New queue",
        verb="Create",
        title="New queue",
        icon="add",
        right="operate",
        fields=lambda _row: NEW_QUEUE,
        method="PUT",
        parts=lambda values: ("queues", values["name"]),
        body=_named,
        leads_to=lambda values: f"{path}/{quote(values['name'], safe='')}",
    )


def queue_forms(name: str) -> list[Form]:
    """What is done to one queue with a dialog."""
    return [
        Form(
            label="Bind",
            title=f"Bind queue {name} to an exchange",
            icon="link",
            right="operate",
            fields=lambda _row: {
                "exchange": Field(label="Exchange", is_needed=True, hint="a topic is one, too"),
                "routing_key": Field(label="Routing key"),
                "arguments": ARGUMENTS,
            },
            method="POST",
            parts=lambda _values: ("queues", name, "bind"),
            body=_binding,
            done=lambda _answer: "bound",
        ),
        Form(
            label="Unbind",
            title=f"Remove a binding of queue {name}",
            icon="link_off",
            right="operate",
            fields=lambda row: {
                "binding": Field(label="Binding", choices=bindings_of(row), is_needed=True),
                "arguments": ARGUMENTS,
            },
            method="POST",
            parts=lambda _values: ("queues", name, "unbind"),
            body=_binding,
            done=lambda _answer: "the binding is removed",
            is_harmless=False,
        ),
        Form(
            label="Move",
            title=f"Move messages of queue {name}",
            icon="drive_file_move",
            right="operate",
            fields=lambda _row: {
                "to": Field(label="To the queue", is_needed=True),
                "count": Field(label="At most", kind="number", value=1_000, is_needed=True),
            },
            method="POST",
            parts=lambda _values: ("queues", name, "move"),
            tries=True,
            question=lambda answer: (
                f"Move {number(answer['messages'])} messages from {name} to {answer['to']}?"
            ),
            done=moved_text,
        ),
    ]


def bindings_of(row: Row) -> dict[str, str]:
    """The bindings that can be removed: of each its exchange and routing key, as JSON, and what it
    is called. That to the default exchange stays."""
    return {
        json.dumps([one["exchange"], one["routing_key"]]): (
            f"{one['exchange']}: {one['routing_key'] or '(no routing key)'}"
        )
        for one in row.get("bindings", ())
        if one["exchange"]
    }


def moved_text(answer: Row) -> str:
    """What became of a move, in words."""
    text = f"{number(answer['messages'])} messages were moved"
    for reason, count in answer["failed"].items():
        text += f"; {number(count)} not: {reason}"
    return text if answer["complete"] else f"{text}; there are more"


def _binding(values: Values, _row: Row) -> Mapping[str, Any]:
    body = {name: value for name, value in values.items() if name in ("exchange", "routing_key")}
    if "binding" in values:
        body["exchange"], body["routing_key"] = json.loads(values["binding"])
    if "arguments" in values:
        body["arguments"] = arguments_of(values["arguments"])
    return body


def arguments_of(text: str) -> dict[str, Any]:
    """Arguments as they are typed. Raises ValueError."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError('arguments are a JSON object, such as {"x-match": "all"}')
    return found
