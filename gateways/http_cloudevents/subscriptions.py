"""A subscription as users write it (JSON), as it is stored (a document), and as it works.

The JSON follows the CloudEvents Subscriptions API: `id`, `sink`, `protocol`, `filters`, `config`;
`topic` is ours. A subscription with a sink is a webhook; without one it is received from. Members
that nobody knows are refused, because a misspelt limit is worse than an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec
from msgspec import Meta

from polymq.broker.port import Address, display_name, parse_display_name
from polymq.gateways.http_cloudevents.errors import Problem
from polymq.gateways.http_cloudevents.filters import Predicate, compile_filters
from polymq.gateways.http_cloudevents.limits import Limits
from polymq.gateways.http_cloudevents.mapping import address_of
from polymq.gateways.http_cloudevents.retry import RetryPolicy

DOCUMENT_KIND: Final = "http.subscription"
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-]{0,63}")
ACCESS_TOKEN: Final = "access_token"
"""The parameter of a sink's URL that carries a token (Web Hooks for Event Delivery 3.2)."""
HIDDEN: Final = "***"
"""What stands for a value that is not shown."""
DEAD_LETTER_PREFIX: Final = "%DLQ%"
"""RocketMQ's prefix of dead-letter topics; there the consumer group follows, here the name."""

Seconds = Annotated[float, Meta(gt=0, le=3600)]


class Retry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Member `config.retry`."""

    attempts_max: Annotated[int, Meta(ge=1, le=1000)] = 10
    first_seconds: Seconds = 1.0
    wait_seconds_max: Seconds = 60.0


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Member `config`.

    Attributes:
        mode: content mode of deliveries.
        max_batch: events in one delivery of mode `batch`.
        timeout_seconds: for one delivery, from connecting to the end of the answer.
        rate_per_minute: asked for in the handshake; the sink may grant another.
        lock_seconds: how long a received event is locked.
        dead_letter_topic: where what cannot be delivered goes; `%DLQ%<name>` if not given.
        retry: how often and how fast a delivery is tried again.
    """

    mode: Literal["binary", "structured", "batch"] = "binary"
    max_batch: Annotated[int, Meta(ge=1)] = 100
    timeout_seconds: Annotated[float, Meta(gt=0, le=120)] = 15.0
    rate_per_minute: Annotated[int, Meta(ge=1)] | None = None
    lock_seconds: Annotated[float, Meta(gt=0, le=43_200)] = 60.0
    dead_letter_topic: Annotated[str, Meta(min_length=1)] | None = None
    retry: Retry = Retry()


class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """What a user sends. `status` is accepted and ignored, so that what was read can be sent."""

    topic: Annotated[str, Meta(min_length=1)]
    id: str | None = None
    sink: str | None = None
    protocol: Literal["HTTP"] = "HTTP"
    filters: list[dict[str, Any]] = []
    config: Config = Config()
    status: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A subscription.

    Attributes:
        name: its name, unique in the broker.
        topic: where its events come from.
        sink: the webhook's URL; None for one that is received from.
        filters: as sent.
        config: as sent, defaults filled in.
        granted_per_minute: what the sink allows; None without bound.
        disabled: why nothing is delivered; None while it works.
        owner: who stored it (`PrincipalPort.as_owner`), and whose rights a webhook has.
    """

    name: str
    topic: str
    sink: str | None
    filters: tuple[Mapping[str, Any], ...]
    config: Config
    granted_per_minute: int | None = None
    disabled: str | None = None
    owner: str = ""

    @property
    def address(self) -> Address:
        """What its queue collects."""
        return address_of(self.topic, self.filters)

    @property
    def dead_letter_topic(self) -> str:
        """Where what cannot be delivered goes."""
        return parse_display_name(self.config.dead_letter_topic or DEAD_LETTER_PREFIX + self.name)

    @property
    def retry(self) -> RetryPolicy:
        """When a delivery is tried again."""
        retry = self.config.retry
        return RetryPolicy(
            attempts_max=retry.attempts_max,
            first_seconds=retry.first_seconds,
            wait_seconds_max=retry.wait_seconds_max,
        )

    def predicate(self, limits: Limits) -> Predicate:
        """The compiled filters."""
        return compile_filters(
            list(self.filters),
            depth_max=limits.filters_depth_max,
            count_max=limits.filters_count_max,
        )

    def document(self) -> dict[str, Any]:
        """What is stored."""
        return {
            "topic": self.topic,
            "sink": self.sink,
            "filters": list(self.filters),
            "config": msgspec.to_builtins(self.config),
            "granted": self.granted_per_minute,
            "disabled": self.disabled,
            "owner": self.owner,
        }

    def shown(self, *, to_owner: bool, paused: bool) -> dict[str, Any]:
        """What users read.

        Args:
            to_owner: whether the reader may change the subscription. Others do not see the query
                of its sink, where keys often are. Nobody sees an access token again.
            paused: an operator has paused it.
        """
        shown: dict[str, Any] = {"id": self.name, "topic": display_name(self.topic)}
        if self.sink is not None:
            sink = hide_token(self.sink) if to_owner else hide_query(self.sink)
            shown |= {"sink": sink, "protocol": "HTTP"}
        shown |= {
            "filters": list(self.filters),
            "config": msgspec.to_builtins(self.config)
            | {"deadLetterTopic": display_name(self.dead_letter_topic)},
            "status": {"state": "paused" if paused else "active"},
        }
        if self.disabled is not None:
            shown["status"]["state"] = "disabled"
            shown["status"]["reason"] = self.disabled
        if self.granted_per_minute is not None:
            shown["status"]["grantedRatePerMinute"] = self.granted_per_minute
        return shown


def _each_once(members: list[tuple[str, object]]) -> None:
    """An object of a subscription. Raises Problem: which of two equal names counts is a guess
    (RFC 8259 4)."""
    names = set()
    for name, _ in members:
        if name in names:
            raise Problem(400, "Bad subscription", f"the member {name!r} occurs twice")
        names.add(name)


def parse(body: bytes, *, name: str | None, limits: Limits) -> Subscription:
    """The subscription that a user asks for.

    Args:
        body: JSON.
        name: from the path; None if the body names it.

    Raises:
        Problem: 400, naming the member at fault.
    """
    if len(body) > limits.subscription_bytes_max:
        raise Problem(
            413,
            "Subscription too large",
            f"it has {len(body)} bytes and the limit is {limits.subscription_bytes_max}",
        )
    try:
        wanted = msgspec.json.decode(body, type=Body)
        json.loads(body, object_pairs_hook=_each_once)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Problem(400, "Bad subscription", str(error)) from None
    if name is not None and wanted.id not in (None, name):
        raise Problem(400, "Bad subscription", f"id is {wanted.id!r} but the path says {name!r}")
    subscription = Subscription(
        name=name or wanted.id or "",
        topic=parse_display_name(wanted.topic),
        sink=wanted.sink,
        filters=tuple(wanted.filters),
        config=wanted.config,
    )
    check(subscription, limits)
    return subscription


def check(subscription: Subscription, limits: Limits) -> None:
    """Whether there can be such a subscription. Raises Problem: 400, naming the member at fault."""
    if NAME.fullmatch(subscription.name) is None:
        raise Problem(
            400,
            "Bad subscription",
            "id must be 1 to 64 letters, digits, '.', '_' and '-', and begin with a letter or "
            "digit",
        )
    if subscription.config.max_batch > limits.webhook_batch_max:
        raise Problem(
            400, "Bad subscription", f"config.maxBatch must be at most {limits.webhook_batch_max}"
        )
    if subscription.sink is not None:
        _check_sink(subscription.sink)
    subscription.predicate(limits)  # Only for its errors.


def from_document(name: str, document: Mapping[str, Any]) -> Subscription:
    """A stored subscription."""
    return Subscription(
        name=name,
        topic=document["topic"],
        sink=document["sink"],
        filters=tuple(document["filters"]),
        config=msgspec.convert(dict(document["config"]), Config),
        granted_per_minute=document["granted"],
        disabled=document["disabled"],
        owner=document.get("owner", ""),
    )


def disabled(subscription: Subscription, reason: str) -> Subscription:
    """The same, stopped."""
    return replace(subscription, disabled=reason)


def hide_token(url: str) -> str:
    """The URL with its access token replaced."""
    parts = urlsplit(url)
    if ACCESS_TOKEN not in parts.query:
        return url
    pairs = [
        (key, HIDDEN if key == ACCESS_TOKEN else value)
        for key, value in parse_qsl(parts.query, keep_blank_values=True)
    ]
    return parts._replace(query=urlencode(pairs, safe="*")).geturl()


def hide_query(url: str) -> str:
    """The URL with its whole query replaced: any part of it may be a key."""
    parts = urlsplit(url)
    return parts._replace(query=HIDDEN).geturl() if parts.query else url


def _check_sink(url: str) -> None:
    """Raise Problem for a sink as this API shows it, without what is hidden."""
    query = urlsplit(url).query
    if query == HIDDEN or HIDDEN in [value for _, value in parse_qsl(query)]:
        raise Problem(
            400,
            "Bad subscription",
            f"{HIDDEN} in the sink's URL stands for what is not shown; send the whole URL",
        )


def without_query(url: str) -> str:
    """The URL for logs and dead letters: no query, where secrets are."""
    return urlsplit(url)._replace(query="", fragment="").geturl()
