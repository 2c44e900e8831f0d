"""Work in turns, done at once: for tests of what it comes to."""

from __future__ import annotations

from typing import TypeVar

from polymq.gateways.http_cloudevents import bulk_json
from polymq.gateways.http_cloudevents.codec import Event
from polymq.gateways.http_cloudevents.work import Work

Result = TypeVar("Result")


def at_once(work: Work[Result]) -> Result:
    """All steps of the work. Returns what it returns."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: Result = end.value
            return result


def decode_batch(body: bytes, *, count_max: int, faults_max: int = 100) -> list[Event]:
    """The events of a batch."""
    elements = bulk_json.scan_batch(body, count_max=count_max)
    return at_once(bulk_json.decode_batch(elements, faults_max=faults_max))


def decode_event(body: bytes) -> Event:
    """The event of a request in structured mode."""
    return at_once(bulk_json.decode_event(bulk_json.scan_event(body)))
