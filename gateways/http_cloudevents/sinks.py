"""Talking to a webhook's sink: the consent handshake and one delivery.

Follows Web Hooks for Event Delivery: POST only, redirects never followed, a payload and its type
always sent (so an event without data travels structured), the answer read up to a bound. Every
connection passes the address guard (`ssrf.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver

from polymq.gateways.http_cloudevents.attributes import is_plain_header_value
from polymq.gateways.http_cloudevents.codec import (
    BATCHED,
    STRUCTURED,
    Event,
    encode_batch,
    encode_binary,
    encode_structured,
)
from polymq.gateways.http_cloudevents.errors import Problem
from polymq.gateways.http_cloudevents.limits import Limits, WebhookSettings
from polymq.gateways.http_cloudevents.lookups import Lookups
from polymq.gateways.http_cloudevents.retry import Verdict, retry_after_seconds, verdict_of
from polymq.gateways.http_cloudevents.sink_connection import SinkConnector
from polymq.gateways.http_cloudevents.slots import Reputation, Slots
from polymq.gateways.http_cloudevents.ssrf import AddressPolicy, GuardedResolver
from polymq.gateways.http_cloudevents.subscriptions import Subscription, without_query

KEEP_ALIVE_SECONDS: Final = 15.0
"""How long a connection waits for the next request to its host."""
_NO_CONSENT: Final = "The sink did not consent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How a delivery ended.

    Attributes:
        verdict: what it means for the events.
        status: the HTTP status; 0 without an answer.
        text: one sentence for the log and the dead letter.
        reply: the beginning of the answer's body.
        retry_after: seconds that the sink asked to wait.
        seconds: how long the request took, without the wait for its turn.
    """

    verdict: Verdict
    status: int
    text: str
    reply: bytes = b""
    retry_after: float | None = None
    seconds: float = 0.0


@dataclass(slots=True)
class SinkCounts:
    """What the requests to all sinks came to, since the start.

    Attributes:
        answers: requests by verdict.
        seconds: how long they took together.
        events: those that were delivered.
        bytes_sent: of the bodies of all requests.
    """

    answers: dict[Verdict, int] = field(default_factory=lambda: dict.fromkeys(Verdict, 0))
    seconds: float = 0.0
    events: int = 0
    bytes_sent: int = 0

    def count(self, answer: Answer, events: int, size: int) -> None:
        """Count one request, with so many events and bytes."""
        self.answers[answer.verdict] += 1
        self.seconds += answer.seconds
        self.bytes_sent += size
        if answer.verdict is Verdict.DELIVERED:
            self.events += events


class Sinks:
    """The one HTTP client of all webhooks.

    Args:
        loop: the loop of the server, for its clock.
        clock_seconds: the time of day, for Retry-After with a date.
        resolver: DNS; the system's if None.
        tls: how sinks are trusted; the system's certificates if None.
    """

    def __init__(
        self,
        *,
        settings: WebhookSettings,
        limits: Limits,
        loop: asyncio.AbstractEventLoop,
        clock_seconds: Callable[[], float],
        resolver: AbstractResolver | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._settings = settings
        self._limits = limits
        self._loop = loop
        self._clock_seconds = clock_seconds
        self._policy = AddressPolicy(
            allow=settings.allow_networks,
            deny=settings.deny_networks,
            allow_http=settings.allow_http,
        )
        self.counts = SinkCounts()
        self._idle: OrderedDict[str, float] = OrderedDict()  # last use of hosts, oldest first
        self.slots = Slots(
            count_max=limits.webhook_requests_max,
            per_host_max=min(limits.webhook_requests_per_host_max, limits.webhook_requests_max),
            slow_seconds=limits.webhook_slow_seconds,
            now=loop.time,
            call_at=loop.call_at,
        )
        lookups = resolver or Lookups(loop, threads_max=limits.webhook_requests_max)
        connector = SinkConnector(
            head_bytes_max=limits.webhook_head_bytes_max,
            resolver=GuardedResolver(self._policy, lookups),
            socket_factory=self._socket,
            use_dns_cache=False,  # A cached answer is a way in for a name that changes its address.
            limit=0,  # The slots bound what is under way.
            keepalive_timeout=KEEP_ALIVE_SECONDS,
            ssl=True if tls is None else tls,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
            headers={"User-Agent": "PolyMQ", "WebHook-Request-Origin": settings.origin},
        )

    def change(self, settings: WebhookSettings) -> None:
        """What may be reached from now on. The origin stays as it was."""
        self._policy.change(
            allow=settings.allow_networks,
            deny=settings.deny_networks,
            allow_http=settings.allow_http,
        )

    def _socket(self, addr_info: aiohttp.AddrInfoType) -> socket.socket:
        return self._policy.socket(addr_info)

    async def close(self) -> None:
        """Close all connections."""
        self.slots.close()
        await self._session.close()

    def check_url(self, url: str) -> None:
        """Raise Problem unless the URL may be a sink."""
        try:
            self._policy.check_url(url)
        except (ValueError, OSError) as error:
            raise Problem(400, "Bad sink", str(error)) from None

    async def handshake(self, subscription: Subscription) -> int | None:
        """Ask the sink for its consent (part 4). Returns the rate that it grants, or None.

        Raises:
            Problem: 422, it did not consent.
        """
        sink = subscription.sink
        assert sink is not None
        headers = {}
        wanted = subscription.config.rate_per_minute
        if wanted is not None:
            headers["WebHook-Request-Rate"] = str(wanted)
        seconds = subscription.config.timeout_seconds
        try:
            async with (
                asyncio.timeout(seconds),  # with the wait for its turn
                self.slots.slot(*_host_of(sink), Reputation.NEW),
                self._session.options(
                    sink,
                    headers=headers,
                    allow_redirects=False,
                    timeout=self._timeout(seconds),
                ) as response,
            ):
                origin = response.headers.get("WebHook-Allowed-Origin", "").strip()
                rate = response.headers.get("WebHook-Allowed-Rate")
                status = response.status
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Problem(
                422, _NO_CONSENT, f"OPTIONS to the sink failed: {_address(error)}"
            ) from None
        if origin != "*" and origin.lower() != self._settings.origin.lower():
            raise Problem(
                422,
                _NO_CONSENT,
                f"the answer to OPTIONS (status {status}) has no WebHook-Allowed-Origin with "
                f"{self._settings.origin!r} or '*'",
            )
        return _granted(rate, wanted)

    async def deliver(
        self, subscription: Subscription, events: Sequence[Event], *, reputation: Reputation
    ) -> Answer:
        """Send events in one request. Never raises for what the sink or the network does.

        Args:
            reputation: what the subscription's last request says of it.
        """
        sink = subscription.sink
        assert sink is not None
        name, port = _host_of(sink)
        headers, body = self._delivery(subscription, events, f"{name}:{port}")
        async with self.slots.slot(name, port, reputation):
            began = self._loop.time()
            answer = await self._post(sink, headers, body, subscription.config.timeout_seconds)
            answer = replace(answer, seconds=self._loop.time() - began)
        self.counts.count(answer, len(events), len(body))
        return answer

    def _delivery(
        self, subscription: Subscription, events: Sequence[Event], host: str
    ) -> tuple[list[tuple[str, str]], bytes]:
        headers, body = encode_delivery(
            events,
            mode=subscription.config.mode,
            headers_bytes_max=self._limits.webhook_headers_bytes_max,
        )
        if "access_token=" in (subscription.sink or ""):
            headers.append(("Cache-Control", "no-store"))
        if not self._may_idle(host):
            headers.append(("Connection", "close"))
        return headers, body

    async def _post(
        self, sink: str, headers: list[tuple[str, str]], body: bytes, seconds: float
    ) -> Answer:
        try:
            async with self._session.post(
                sink,
                data=body,
                headers=headers,
                allow_redirects=False,
                timeout=self._timeout(seconds),
            ) as response:
                reply = await self._read(response)
                return Answer(
                    verdict=verdict_of(response.status),
                    status=response.status,
                    text=f"the sink answered {response.status}",
                    reply=reply,
                    retry_after=retry_after_seconds(
                        response.headers.get("Retry-After"),
                        now_seconds=self._clock_seconds(),
                        maximum=self._limits.retry_after_seconds_max,
                    ),
                )
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            text = f"{without_query(sink)} could not be reached: {_address(error)}"
            return Answer(verdict=Verdict.RETRY, status=0, text=text)

    def _may_idle(self, host: str) -> bool:
        """Whether a connection to the host may stay open for the next request."""
        now, idle = self._loop.time(), self._idle
        idle.pop(host, None)
        while idle and next(iter(idle.values())) < now - KEEP_ALIVE_SECONDS:
            idle.popitem(last=False)
        if len(idle) >= self._limits.webhook_idle_hosts_max:
            return False
        idle[host] = now
        return True

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        """The beginning of the body. The status has said everything: a broken body is no error."""
        parts = bytearray()
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
            while len(parts) < self._limits.webhook_reply_bytes_max:
                chunk = await response.content.readany()
                if not chunk:
                    return bytes(parts)
                parts += chunk
        response.close()  # There is more, or it never ends: this connection is not used again.
        return bytes(parts)

    def _timeout(self, seconds: float) -> aiohttp.ClientTimeout:
        connect = min(seconds, self._limits.webhook_connect_seconds_max)
        return aiohttp.ClientTimeout(total=seconds, sock_connect=connect)


def encode_delivery(
    events: Sequence[Event], *, mode: str, headers_bytes_max: int
) -> tuple[list[tuple[str, str]], bytes]:
    """Headers and body of one delivery.

    An event in binary mode is sent structured where binary mode does not carry it well:

    * without data, because a webhook request has a payload;
    * without a media type, because it has to name one;
    * with an attribute that a header has to percent-encode, because the official SDKs for Go,
      JavaScript and Java do not decode it;
    * with attributes that most servers' headers have no room for.
    """
    if mode == "batch":
        return [("Content-Type", f"{BATCHED}; charset=utf-8")], encode_batch(events)
    (event,) = events
    if mode == "binary" and _fits_headers(event):
        headers, body = encode_binary(event)
        if sum(len(name) + len(value) + 4 for name, value in headers) <= headers_bytes_max:
            return headers, body
    return [("Content-Type", f"{STRUCTURED}; charset=utf-8")], encode_structured(event)


def _fits_headers(event: Event) -> bool:
    """Whether receivers read the same event from binary mode."""
    return (
        event.data is not None
        and event.content_type is not None
        and all(
            is_plain_header_value(value)
            for name, value in event.attributes.items()
            if name != "datacontenttype"  # travels as Content-Type, which is never encoded
        )
    )


def _host_of(url: str) -> tuple[str, int]:
    """Host and port of a sink that passed `check_url`, the same for every spelling of them."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return (parts.hostname or "").rstrip("."), port


def _granted(rate: str | None, wanted: int | None) -> int | None:
    """The deliveries per minute that WebHook-Allowed-Rate grants; None without bound."""
    text = (rate or "").strip()
    if text.isascii() and text.isdigit() and int(text[:12]) > 0:
        return int(text[:12])
    return None if text == "*" else wanted


def _address(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it took too long"
    if isinstance(error, aiohttp.ClientConnectorError):
        return str(error.os_error)
    return str(error) or type(error).__name__
