"""What an operator sees of the HTTP listener: figures, without the parts that they come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpStatistics:
    """What an operator sees of this listener.

    Attributes:
        connections_refused: connections and heads that got no further, by reason.
        responses: answers to requests, by status.
        webhooks: subscriptions with a sink, by state.
        webhook_requests: deliveries that ended, by what the answer meant.
        webhook_request_seconds: how long they took together.
        webhook_requests_under_way, webhook_requests_waiting: now.
        dead_letters: events that became dead letters.
    """

    connections_refused: Mapping[str, int]
    responses: Mapping[str, int]
    webhooks: Mapping[str, int]
    webhook_requests: Mapping[str, int]
    webhook_request_seconds: float
    webhook_requests_under_way: int
    webhook_requests_waiting: int
    dead_letters: int
