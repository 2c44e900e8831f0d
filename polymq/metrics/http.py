"""What the HTTP listener and its webhooks did: as metrics."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Literal, Protocol, runtime_checkable

from polymq.gateways.http_cloudevents.statistics import HttpStatistics
from polymq.metrics.registry import Probe, Value


@runtime_checkable
class HasStatistics(Protocol):
    """The HTTP server. Its module is loaded only where the listener is open."""

    def statistics(self) -> HttpStatistics:
        """What happened since the start, and what is under way now."""


@runtime_checkable
class HasWebhooks(Protocol):
    """The HTTP server."""

    def webhook_names(self) -> Set[str]:
        """The names of the subscriptions that have a sink."""


def webhook_names(server: Callable[[], object]) -> Set[str]:
    """The names of all webhooks; none without a server."""
    found = server()
    return found.webhook_names() if isinstance(found, HasWebhooks) else frozenset()


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

        return Probe(kind, name, text, value, label=label)

    return [
        probe(
            "polymq_http_responses",
            "counter",
            "Responses to HTTP requests.",
            lambda found: found.responses,
            "status",
        ),
        probe(
            "polymq_http_refused",
            "counter",
            "HTTP connections that were refused because there were too many (full) or closed "
            "because their headers took too long (slow), and requests that could not be parsed "
            "(malformed).",
            lambda found: found.connections_refused,
            "reason",
        ),
        probe(
            "polymq_webhooks",
            "gauge",
            "Webhook subscriptions: active, failing (the last request failed), paused by an "
            "operator, or disabled.",
            lambda found: found.webhooks,
            "state",
        ),
        probe(
            "polymq_webhook_requests",
            "counter",
            "Completed requests to sinks.",
            lambda found: found.webhook_requests,
            "result",
        ),
        probe(
            "polymq_webhook_request_seconds",
            "counter",
            "Total duration of these requests, without the time that they waited for others to "
            "end.",
            lambda found: found.webhook_request_seconds,
        ),
        probe(
            "polymq_webhook_requests_under_way",
            "gauge",
            "Requests to sinks that wait for the response.",
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
