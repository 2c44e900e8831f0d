"""Every bound of the HTTP gateway, with its reason, and what an operator may set."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one HTTP listener and of its subscriptions. Units are in the names."""

    connections_max: int = 10_000
    """Open connections. aiohttp has no bound of its own; each costs about 25 KiB."""
    request_target_bytes_max: int = 8_000
    """Path and query; beyond it the answer is 414. RFC 9112 (3) recommends at least 8,000."""
    header_bytes_max: int = 8_190
    """Each header, aiohttp's default; beyond it the answer is 431. nginx has 8 KiB."""
    headers_count_max: int = 128
    """aiohttp's default; beyond it the answer is 431. Apache has 100."""
    head_seconds_max: float = 10.0
    """From the first byte of a request to the end of its headers. nginx has 60; slow heads are an
    attack far more often than a slow network."""
    idle_seconds_max: float = 75.0
    """Of a connection between requests, nginx's keep-alive default."""
    body_seconds_max: float = 60.0
    """For a whole body. nginx allows 60 between two reads."""
    linger_seconds_max: float = 2.0
    """How long a refused body is read on, so that the client gets to read why."""
    body_bytes_max: int = 8 * 1024 * 1024
    """Of a request after decompression: two of the largest messages, or a batch."""
    events_per_batch_max: int = 4_096
    """Rows of one Batch; a larger HTTP batch gains nothing."""
    message_bytes_max: int = 4 * 1024 * 1024
    """Data of one event: RocketMQ's message limit. CloudEvents asks for at least 64 KiB."""
    attributes_bytes_max: int = 27_000
    """All attributes of one event as stored. RocketMQ's properties end at 32,767 bytes; of them
    5,127 stay for the queues that the record names, the rest for the tag's and our own."""
    pending_requests_max: int = 4_096
    """Publish requests that wait for their commit: beyond it the clients outrun the disk."""
    pending_bytes_max: int = 64 * 1024 * 1024
    """Bodies being read or waiting for their commit; one body is always taken."""
    commit_seconds_max: float = 30.0
    """How long a request waits for its commit before it is told that the outcome is unknown."""
    large_body_bytes: int = 128 * 1024
    """From this size on a body is parsed in a worker thread: about 5 ms of parsing."""

    subscriptions_max: int = 10_000
    """Each has a queue, a consumer and, as a webhook, a task. The setting
    `http.subscriptions_max`."""
    subscription_bytes_max: int = 32 * 1024
    """Of a subscription as JSON; the store takes 64 KiB."""
    filters_depth_max: int = 8
    filters_count_max: int = 64
    """Filter expressions of one subscription; every message passes through them."""

    webhook_window_count: int = 1_024
    """Messages that one subscription holds in memory, so that a batch can fill."""
    webhook_window_bytes: int = 8 * 1024 * 1024
    """Likewise in bytes; one message more than that may be held."""
    webhook_batch_max: int = 1_000
    webhook_batch_bytes_max: int = 1024 * 1024
    """Body of one delivery, unless one event alone is larger. Event Grid has 1 MiB."""
    webhook_headers_bytes_max: int = 6_000
    """Of an event in binary mode; a larger one is sent structured. Most servers take 8 KiB."""
    webhook_requests_max: int = 256
    """Requests to sinks under way at once, over all subscriptions: each has a descriptor, and a
    thread while its host is looked up."""
    webhook_starts_max: int = 16
    """Idle webhooks that begin to deliver in one iteration of the loop: some 8 ms."""
    webhook_requests_per_host_max: int = 32
    """Of them, those to one host, so that one slow host does not delay the others (`slots.py`)."""
    webhook_idle_hosts_max: int = 256
    """Hosts to which connections stay open between requests; to others each request connects."""
    webhook_slow_seconds: float = 5.0
    """A request that has been under way for longer counts as slow, and its subscription shares a
    quarter of all requests with the others that are slow or failing."""
    webhook_connect_seconds_max: float = 5.0
    webhook_head_bytes_max: int = 64 * 1024
    """Of a sink's answer up to the end of its headers, with all interim answers (1xx) before it;
    beyond it the connection is dropped and the delivery has failed. nginx has 8 KiB."""
    webhook_reply_bytes_max: int = 64 * 1024
    """Of an answer read, so that the connection can be used again; the rest is not read."""
    retry_after_seconds_max: float = 3_600.0
    """A sink can ask for a pause, but not for ever."""

    polls_per_subscription_max: int = 64
    """Long polls waiting on one subscription."""
    receive_events_max: int = 1_000
    receive_bytes_max: int = 4 * 1024 * 1024
    """Of one answer, unless one event alone is larger."""
    receive_seconds_max: float = 120.0
    """maxWaitTime, as Event Grid."""
    receive_seconds_min: float = 0.1
    """What any receive waits, so that an event on disk can be read."""
    locked_events_max: int = 10_000
    """Received and not yet settled, of one subscription: about 200 bytes each."""
    lock_tokens_max: int = 10_000
    """Of one acknowledge, release, reject or renew."""
    release_seconds_max: float = 3_600.0

    def __post_init__(self) -> None:
        assert self.message_bytes_max <= self.body_bytes_max
        # aiohttp's error names only the limit that was exceeded.
        assert self.request_target_bytes_max != self.header_bytes_max
        assert self.attributes_bytes_max + 5_127 + 256 <= 32_767


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    """What an operator decides about webhooks.

    Attributes:
        origin: the name that this system gives in WebHook-Request-Origin: a DNS name.
        allow_http: whether sinks may be reached without TLS.
        allow_networks: networks that may be reached although they are not public.
        deny_networks: networks that may not be reached although they are public.
        handshake: whether a sink must consent (Web Hooks for Event Delivery, part 4). Without it
            anybody who may subscribe can make this broker send to any public address.
    """

    origin: str = "polymq.invalid"
    allow_http: bool = False
    allow_networks: tuple[Network, ...] = ()
    deny_networks: tuple[Network, ...] = ()
    handshake: bool = True
