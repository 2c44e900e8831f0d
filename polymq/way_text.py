"""The way of a message for people: what answers of the admin API say, for the command and the
console. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

Row = dict[str, Any]

ENDS: Final = frozenset(
    ("settled", "dropped", "dead-lettered", "redriven", "released", "copied", "moved", "set aside")
)
"""Events behind which a plain `settled` says nothing more."""
READERS: Final = ("session", "share")
"""Kinds of destinations of which only the log knows whether they were there before the message."""


def merged(answers: Sequence[Row]) -> Row:
    """One answer out of those of requests that follow each other: what is now, of the last one,
    and what happened, of all."""
    first, last = answers[0], answers[-1]
    events = list(_distinct(event for answer in answers for event in answer["events"]))
    later = {
        one["id"]
        for answer in answers
        for one in answer["destinations"]
        if one["state"] == "not routed"
    }
    said = {event["destination"] for event in events}
    is_whole = last["complete"] and first["looked_from"] == first["position"] + first["size"]
    destinations = []
    for one in last["destinations"]:
        state = one["state"]
        if one["kind"] in READERS and one["id"] in later:
            state = "not routed"
        elif one["kind"] in READERS and state == "unknown" and (is_whole or one["id"] in said):
            state = "settled"
        destinations.append({**one, "state": state})
    looked_from = first["looked_from"]
    return {**last, "events": events, "destinations": destinations, "looked_from": looked_from}


def _distinct(events: Iterable[Row]) -> Iterator[Row]:
    """The events without those that only repeat what was said of the same destination."""
    delivered: set[str] = set()
    ended: set[str] = set()
    for event in events:
        destination = event["destination"]
        if destination is not None:
            if event["what"] == "delivered" and destination in delivered | ended:
                continue
            if event["what"] == "settled" and not event["reason"] and destination in ended:
                continue
            if event["what"] in ("delivered", "returned"):
                delivered.add(destination)
                ended.discard(destination)
            elif event["what"] in ENDS:
                ended.add(destination)
        yield event


def published_text(way: Row) -> str:
    """Where a message was published, and by whom, as far as that is known."""
    parts = [f"{way['body_bytes']:,} bytes"]
    if way["protocol"]:
        parts.append(f"by {way['protocol']}")
    if way["sender"]:
        parts.append(f"from {way['sender']}")
    parts.append(f"user {way['user']}" if way["user"] is not None else "user unknown")
    if way["exchange"] != way["topic"] or way["routing_key"]:
        exchange = f"exchange {way['exchange']}" if way["exchange"] else "the default exchange"
        parts.append(f"{exchange}, routing key {way['routing_key']!r}")
    return ", ".join(parts)


def origin_text(origin: Row) -> str:
    """The message that this one took the place of."""
    at = "position unknown" if origin["position"] is None else f"position {origin['position']}"
    where = f" out of {origin['destination']}" if origin["destination"] else ""
    why = f" ({origin['reason']})" if origin["reason"] else ""
    return f"{origin['what']}{why}{where}: {at}"


def destination_text(one: Row) -> str:
    """What there is to say of a destination beside its state."""
    parts = []
    if one["redelivered"]:
        parts.append("given back before")
    if one["returned"]:
        parts.append(f"given back {one['returned']} times")
    holder = one["holder"]
    if holder is not None:
        parts.append(f"with {holder['name']}")
        if holder["connection"]:
            parts.append(f"connection {holder['connection']}")
        if holder["user"]:
            parts.append(f"user {holder['user']}")
    elif one["state"] == "unacknowledged":
        parts.append("it is not known who has it")
    return ", ".join(parts)


def event_text(event: Row) -> str:
    """What there is to say of an event beside what happened and where."""
    parts = [event["reason"]] if event["reason"] else []
    if event["times"] is not None:
        parts.append(f"{event['times']} times by then")
    if event["to_position"] is not None:
        parts.append(f"now position {event['to_position']} of topic {event['to_topic']}")
    return ", ".join(parts)


def search_text(way: Row) -> str:
    """How far the log was read."""
    if way["complete"]:
        return "The log was read to its end."
    return f"The log was read up to position {way['looked_until']}, which is not its end."
