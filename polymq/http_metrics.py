"""What the HTTP listener and its webhooks did: as metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol, runtime_checkable

from polymq.gateways.http_cloudevents.statistics import HttpStatistics
from polymq.metrics import Probe, Value


@runtime_checkable
class HasStatistics(Protocol):
    """The HTTP server. Its module is loaded only where the listener is open."""

    def statistics(self) -> HttpStatistics:
        """What happened since the start, and what is under way now."""


def http_probes(server: Callable[[], object]) -> list[Probe]:
    """The metrics of the HTTP listener.

    Args:
        server: the server, as soon as it is made; None without one.
    """

    def probe(
        name: str,
        kind: Literal["gauge", "counter"],
        text: str,
        read: Callable[[HttpStatistics], Value],
        label: str = "",
    ) -> Probe:
        def value() -> Value:
            found = server()
            if not isinstance(found, HasStatistics):
                return {} if label else 0.0
            return read(found.statistics())

        return Probe(name=name, kind=kind, text=text, read=value, label=label)

    return [
        probe(
            "polymq_http_responses",
            "counter",
            "Answers to HTTP requests.",
            lambda found: found.responses,
            "status",
        ),
        probe(
            "polymq_http_refused",
            "counter",
            "HTTP connections that were refused because there were too many, that were closed "
            "because their head was slow, and heads that could not be read.",
            lambda found: found.connections_refused,
            "reason",
        ),
        probe(
            "polymq_webhooks",
            "gauge",
            "Subscriptions with a sink: active, failing (the last request failed) and disabled.",
            lambda found: found.webhooks,
            "state",
        ),
        probe(
            "polymq_webhook_requests",
            "counter",
            "Requests to sinks that ended.",
            lambda found: found.webhook_requests,
            "result",
        ),
        probe(
            "polymq_webhook_request_seconds",
            "counter",
            "How long these requests took together, without the wait for their turn.",
            lambda found: found.webhook_request_seconds,
        ),
        probe(
            "polymq_webhook_requests_under_way",
            "gauge",
            "Requests to sinks that wait for an answer.",
            lambda found: found.webhook_requests_under_way,
        ),
        probe(
            "polymq_webhook_requests_waiting",
            "gauge",
            "Requests to sinks that wait until others have ended.",
            lambda found: found.webhook_requests_waiting,
        ),
        probe(
            "polymq_subscription_dead_letters",
            "counter",
            "Events of webhooks and pull subscriptions that became dead letters.",
            lambda found: found.dead_letters,
        ),
    ]
