"""What each request is answered with.

Rules:

* 2xx for a publish leaves after its fdatasync, or what was chosen by name instead
  (`page_cache`). There is no 202: nothing is taken without it.
* Every error is a problem document (RFC 9457) in words; `responses.problems` makes them.
* What changes a subscription runs to its end even if the client goes away.
"""

from __future__ import annotations

import asyncio
import binascii
import contextlib
from base64 import b64decode
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
from aiohttp import web

from polymq.broker.port import BoundedCache, BrokerPort, Origin, Refused, parse_display_name
from polymq.gateways.http_cloudevents import subscriptions
from polymq.gateways.http_cloudevents.attributes import check_value, decode_header_value, printable
from polymq.gateways.http_cloudevents.bodies import Budget, check_declared_size, read_body
from polymq.gateways.http_cloudevents.bulk_json import (
    decode_batch,
    decode_event,
    scan_batch,
    scan_event,
)
from polymq.gateways.http_cloudevents.codec import (
    Event,
    Mode,
    content_mode,
    decode_binary,
    is_cloudevent,
)
from polymq.gateways.http_cloudevents.connection import Connection
from polymq.gateways.http_cloudevents.errors import Problem
from polymq.gateways.http_cloudevents.limits import Limits
from polymq.gateways.http_cloudevents.publishing import Commits, Publisher
from polymq.gateways.http_cloudevents.pull import Outcome, encode_received
from polymq.gateways.http_cloudevents.registry import Registry
from polymq.gateways.http_cloudevents.responses import json_response, problem_response
from polymq.gateways.http_cloudevents.work import InTurns, Work
from polymq.net.certificates import subject_of
from polymq.net.message_counts import MessageCounts

TAG_HEADER: Final = "PolyMQ-Tag"
"""Tag of a body that is no CloudEvent, percent-encoded like a ce- header."""
DELAY_HEADER: Final = "PolyMQ-Delay-Ms"
"""How long to keep what the request publishes before it is delivered."""
RECEIVE_SECONDS: Final = 60
"""How long a receive waits if it does not say; Event Grid's default."""

_DELAY_DIGITS_MAX: Final = 15
"""Of a delay in ms; the engine's own limit is below that."""
NOBODY: Final = ""
"""Owner of what was stored while there were no users. No user can be called so."""
PUBLISHERS_MAX: Final = 256
"""Principals whose templates are kept between their requests."""

Result = TypeVar("Result")


class Handlers:
    """The handlers of one server.

    Args:
        events: what they publish and hand out is added there.
    """

    def __init__(
        self,
        *,
        port: BrokerPort,
        limits: Limits,
        loop: asyncio.AbstractEventLoop,
        in_turns: InTurns,
        commits: Commits,
        registry: Registry,
        clock_seconds: Callable[[], float],
        events: MessageCounts,
    ) -> None:
        self._events = events
        self._clock_seconds = clock_seconds
        self._port = port
        self._limits = limits
        self._loop = loop
        self._in_turns = in_turns
        self._commits = commits
        self._registry = registry
        self._budget = Budget(limits)
        # The least recent first.
        self._publishers: BoundedCache[BrokerPort, Publisher] = BoundedCache(PUBLISHERS_MAX)
        self._scanners = ThreadPoolExecutor(1, thread_name_prefix="polymq-http")
        self._changes: set[asyncio.Task[Any]] = set()  # subscription changes under way
        self._stopping = False

    def stop(self) -> None:
        """Health says so, and long polls are answered at once."""
        self._stopping = True

    async def wait_for_changes(self) -> None:
        """Return when the subscription changes under way have ended, and what is half stored is
        stored."""
        await asyncio.gather(self._in_turns.wait_finished(), *self._changes, return_exceptions=True)

    def close(self) -> None:
        """End the worker thread."""
        self._scanners.shutdown(wait=False)

    # --- publishing ---------------------------------------------------------------------------

    async def publish(self, request: web.Request) -> web.Response:
        client = await self._authenticate(request)
        publisher = self._publisher(client.port)
        topic = _topic(request)
        content_type = _one_content_type(request)
        mode = content_mode(content_type)
        delay_ms = _delay_ms(request)
        with self._budget.request() as share:
            body = await read_body(
                request,
                size_max=self._limits.body_bytes_max,
                seconds_max=self._limits.body_seconds_max,
                pause=self._budget.pause,
                share=share,
            )
            if mode is Mode.BINARY and not is_cloudevent(request.raw_headers):
                preparing = publisher.prepare_raw(
                    topic, _tag(request), body, content_type, delay_ms=delay_ms
                )
            else:
                events = await self._decode(request, mode, content_type, body)
                if not events:
                    return web.Response(status=204)
                preparing = publisher.prepare(topic, events, delay_ms=delay_ms)
            prepared = await self._in_turns.do(preparing)
            stored = await self._in_turns.finish(publisher.store(prepared))
            self._events.received += prepared.runs[-1].last
            await self._commits.wait(*stored)
        await self._pace(client.port)
        headers = {"Cache-Control": "private"} if client.in_url else None
        return web.Response(status=204, headers=headers)

    async def _decode(
        self, request: web.Request, mode: Mode, content_type: str | None, body: bytes
    ) -> list[Event]:
        if mode is Mode.BINARY:
            return [decode_binary(request.raw_headers, content_type, body)]
        if mode is Mode.STRUCTURED:
            element = await self._scan(len(body), lambda: scan_event(body))
            return [await self._in_turns.do(decode_event(element))]
        count_max = self._limits.events_per_batch_max
        elements = await self._scan(len(body), lambda: scan_batch(body, count_max=count_max))
        return await self._in_turns.do(decode_batch(elements))

    async def _scan(self, size: int, scan: Callable[[], Result]) -> Result:
        """Scan a small body here, a large one in the worker thread."""
        if size < self._limits.large_body_bytes:
            return scan()
        return await self._loop.run_in_executor(self._scanners, scan)

    async def consent(self, request: web.Request) -> web.Response:
        """Web Hooks for Event Delivery 4.2: any system may send here, as fast as it likes."""
        headers = {"Allow": "POST, OPTIONS"}
        if "WebHook-Request-Origin" in request.headers:
            headers |= {"WebHook-Allowed-Origin": "*", "WebHook-Allowed-Rate": "*"}
        return web.Response(status=200, headers=headers)

    async def expect(self, request: web.Request) -> web.Response | None:
        """Look at the head before `100 Continue` asks for the body."""
        if request.headers.get("Expect", "").lower() != "100-continue":
            return problem_response(
                Problem(417, "Expectation failed", "only 100-continue can be expected")
            )
        try:
            check_declared_size(request, self._limits.body_bytes_max)
        except Problem as problem:
            response = problem_response(problem)
            response.force_close()
            return response
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # Only the final answer counts as one.
        return None

    # --- receiving ----------------------------------------------------------------------------

    async def pull(self, request: web.Request) -> web.Response:
        client = await self._authenticate(request)
        verb = request.match_info["verb"]
        name = request.match_info["name"]
        part = self._registry.pull(name, parse_display_name(request.match_info["topic"]))
        address = self._registry.get(name).address
        client.port.principal.check_read(address)
        limits = self._limits
        if verb == "receive":
            count = _number(request, "maxEvents", 1, limits.receive_events_max, default=1)
            wait = _number(
                request, "maxWaitTime", 0, limits.receive_seconds_max, default=RECEIVE_SECONDS
            )
            wait = 0 if self._stopping else max(wait, limits.receive_seconds_min)
            locks = await part.receive(int(count), wait)
            try:
                if locks and wait > 0:  # the password may be another one since it asked
                    client = await self._authenticate(request)
                client.port.principal.check_read(address)
            except (Refused, asyncio.CancelledError):
                part.release([lock.token for lock in locks], 0)
                raise
            self._events.sent += len(locks)
            body = encode_received(locks, msgspec.json.encode)
            return web.Response(body=body, content_type="application/json")
        if verb not in ("acknowledge", "release", "reject", "renewLock"):
            raise Problem(404, "Not Found", f"there is no operation :{verb} on a subscription")
        tokens = await self._tokens(request)
        outcome: Outcome
        if verb == "acknowledge":
            outcome = part.acknowledge(tokens)
        elif verb == "release":
            delay = _number(
                request, "releaseDelayInSeconds", 0, limits.release_seconds_max, default=0
            )
            outcome = part.release(tokens, delay)
        elif verb == "reject":
            outcome = await self._in_turns.finish(part.reject(tokens))
        else:
            outcome = await self._in_turns.finish(part.renew(tokens))
        return json_response(
            {"succeededLockTokens": outcome.succeeded, "failedLockTokens": outcome.failed}
        )

    async def _tokens(self, request: web.Request) -> list[str]:
        body = await self._small_body(request)
        try:
            tokens = msgspec.json.decode(body, type=_Tokens).lockTokens
        except (msgspec.DecodeError, RecursionError) as error:
            raise Problem(
                400, "Bad lock tokens", f'send {{"lockTokens": ["..."]}}: {error}'
            ) from None
        if len(tokens) > self._limits.lock_tokens_max:
            raise Problem(
                413, "Too many lock tokens", f"the limit is {self._limits.lock_tokens_max}"
            )
        return tokens

    # --- subscriptions ------------------------------------------------------------------------

    async def list_all(self, request: web.Request) -> web.Response:
        client = await self._authenticate(request)
        return json_response(await self._in_turns.do(self._all_shown(client)))

    async def show(self, request: web.Request) -> web.Response:
        client = await self._authenticate(request)
        found = self._registry.get(request.match_info["name"])
        client.port.principal.check_read(found.address)
        return json_response(self._shown(client, found))

    async def create(self, request: web.Request) -> web.Response:
        client = await self._authenticate(request)
        return await self._store(request, client, name=None)

    async def put(self, request: web.Request) -> web.Response:
        client = await self._authenticate(request)
        return await self._store(request, client, name=request.match_info["name"])

    async def _store(
        self, request: web.Request, client: _Client, *, name: str | None
    ) -> web.Response:
        body = await self._small_body(request)
        parsed = subscriptions.parse(body, name=name, limits=self._limits)
        wanted = replace(parsed, owner=client.owner)
        principal = client.port.principal
        if wanted.sink is not None or wanted.config.dead_letter_topic is not None:
            principal = principal.lasting
        principal.check_read(wanted.address)
        if wanted.config.dead_letter_topic is not None:
            principal.check_publish(wanted.dead_letter_topic, None, every_tag=True)
        self._check_owner(client, wanted.name)
        is_new = await self._to_the_end(self._registry.put(wanted, create_only=name is None))
        headers = {"Location": f"/subscriptions/{wanted.name}"} if is_new else None
        shown = self._registry.get(wanted.name).shown(
            to_owner=True, paused=self._registry.is_paused(wanted.name)
        )
        return json_response(shown, status=201 if is_new else 200, headers=headers)

    async def delete(self, request: web.Request) -> web.Response:
        client = await self._authenticate(request)
        name = request.match_info["name"]
        self._check_owner(client, name)
        await self._to_the_end(self._registry.delete(name))
        return web.Response(status=204)

    async def _to_the_end(self, change: Coroutine[Any, Any, Result]) -> Result:
        task = self._loop.create_task(change)
        self._changes.add(task)
        task.add_done_callback(self._change_ended)
        return await asyncio.shield(task)

    def _change_ended(self, task: asyncio.Task[Any]) -> None:
        self._changes.discard(task)
        if not task.cancelled():
            task.exception()  # Seen, although the client may have gone.

    # --- the rest -----------------------------------------------------------------------------

    async def health(self, request: web.Request) -> web.Response:
        if self._commits.failed or self._stopping:
            status = "storage failed" if self._commits.failed else "stopping"
            return json_response({"status": status}, status=503)
        return json_response({"status": "ok"})

    async def _small_body(self, request: web.Request) -> bytes:
        return await read_body(
            request,
            size_max=max(self._limits.subscription_bytes_max, 64 * self._limits.lock_tokens_max),
            seconds_max=self._limits.body_seconds_max,
            pause=self._budget.pause,
        )

    async def _authenticate(self, request: web.Request) -> _Client:
        """Check the credentials. Raises Refused: 401, 429.

        A webhook target has to take a token as Bearer and as `access_token` (Web Hooks for Event
        Delivery 3): the token is what Basic carries, base64 of `user:password`.
        """
        user, password, in_url = _credentials(request)
        known: asyncio.Future[_Client | Refused] = self._loop.create_future()

        def answer(principal: str | Refused) -> None:
            if known.done():  # the client has gone
                return
            if isinstance(principal, Refused):
                known.set_result(principal)
                return
            # Here and not behind the await: until then the first user may come, and a name that
            # was only claimed would be one that has rights.
            port = self._port.admission.for_principal(principal)
            name = NOBODY if port is self._port else principal
            known.set_result(_Client(name, port.principal.as_owner, port, in_url))

        origin = Origin(protocol="http", certificate=partial(subject_of, request.transport))
        withdraw = self._port.admission.authenticate(
            user, password, request.remote or "", answer, origin
        )
        try:
            client = await known
        finally:
            withdraw()  # if the client has gone
        if isinstance(client, Refused):
            raise client
        connection = request.protocol
        assert isinstance(connection, Connection)
        connection.proven()
        connection.user = client.principal
        return client

    def _publisher(self, port: BrokerPort) -> Publisher:
        """The publisher over a principal's port, with its templates."""
        found = self._publishers.pop(port, None) or Publisher(
            port, self._limits, self._clock_seconds
        )
        self._publishers.add(port, found)
        return found

    async def _pace(self, port: BrokerPort) -> None:
        """Let a client that is ahead of its rates wait for its answer."""
        ready = asyncio.Event()
        if port.overloaded(ready.set):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._limits.commit_seconds_max):
                    await ready.wait()

    def _all_shown(self, client: _Client) -> Work[list[dict[str, Any]]]:
        """All subscriptions that this client may read."""
        found = []
        for one in self._registry.all():
            if _may_read(client.port, one):
                found.append(self._shown(client, one))
            yield
        return found

    def _shown(self, client: _Client, subscription: subscriptions.Subscription) -> dict[str, Any]:
        """A subscription as this client may see it."""
        paused = self._registry.is_paused(subscription.name)
        try:
            _check_owner_of(client, subscription)
        except Refused:
            return subscription.shown(to_owner=False, paused=paused)
        return subscription.shown(to_owner=True, paused=paused)

    def _check_owner(self, client: _Client, name: str) -> None:
        """Whether a subscription is the client's to change; one that is not there is anybody's.
        Raises Refused."""
        try:
            found = self._registry.get(name)
        except Problem:
            return
        _check_owner_of(client, found)


@dataclass(frozen=True, slots=True)
class _Client:
    """Who sent a request.

    Attributes:
        principal: its name; `NOBODY` while there are no users, whatever it claims.
        owner: the owner of what it stores (`PrincipalPort.as_owner`).
        port: what it may do.
        in_url: its credentials stood in the URL, so no cache may keep the answer.
    """

    principal: str
    owner: str
    port: BrokerPort
    in_url: bool


def _credentials(request: web.Request) -> tuple[str | None, bytes | None, bool]:
    """User and password, and whether they stood in the URL; none of both if none were sent."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    in_url = False
    if not scheme and "access_token" in request.query:
        scheme, token, in_url = "bearer", request.query["access_token"], True
    if not scheme:
        return None, None, False
    if scheme.lower() not in ("basic", "bearer"):
        return "", b"", False
    try:
        user, _, password = b64decode(token.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        user, password = b"", b""
    return user.decode("utf-8", "surrogateescape"), password, in_url


def _check_owner_of(client: _Client, subscription: subscriptions.Subscription) -> None:
    """Whether a subscription is the client's to change. Raises Refused. A name alone was stored
    by an earlier version."""
    if subscription.owner not in (client.owner, client.principal):
        client.port.principal.check_admin(subscription.address)


def _may_read(port: BrokerPort, subscription: subscriptions.Subscription) -> bool:
    try:
        port.principal.check_read(subscription.address)
    except Refused:
        return False
    return True


class _Tokens(msgspec.Struct):
    lockTokens: list[str]  # noqa: N815  (the name on the wire)


def allow(methods: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def options(request: web.Request) -> web.StreamResponse:
        return web.Response(status=204, headers={"Allow": methods})

    return options


def _topic(request: web.Request) -> str:
    """The topic that the path names.

    A colon in the last segment of a path begins an operation, as in `:receive`, and topics have
    none. In a topic's name it is percent-encoded.
    """
    segment = request.raw_path.partition("?")[0].rpartition("/")[2]
    if ":" in segment:
        operation = segment[segment.index(":") :]
        raise Problem(
            404,
            "Not Found",
            f"there is no operation {printable(operation)} on a topic; POST to /topics/{{topic}} "
            "publishes, and a colon in a topic's name is written %3A",
        )
    try:
        unquote_to_bytes(segment).decode("utf-8")
    except UnicodeDecodeError:
        raise Problem(
            400, "Bad Request", f"the topic {printable(segment)} in the path is not UTF-8"
        ) from None
    return parse_display_name(request.match_info["topic"])


def _one_content_type(request: web.Request) -> str | None:
    values = request.headers.getall("Content-Type", [])
    if len(values) > 1:
        raise Problem(400, "Bad header", "Content-Type was sent twice; send it once")
    if not values:
        return None
    check_value("datacontenttype", values[0])
    return values[0]


def _delay_ms(request: web.Request) -> int:
    text = request.headers.get(DELAY_HEADER, "0")
    if not (text.isascii() and text.isdigit() and len(text) <= _DELAY_DIGITS_MAX):
        raise Problem(
            400,
            "Bad delay",
            f"the header {DELAY_HEADER} must be a whole number of milliseconds",
        )
    return int(text)


def _tag(request: web.Request) -> str | None:
    values = [value for name, value in request.raw_headers if name.lower() == b"polymq-tag"]
    if len(values) > 1:
        raise Problem(400, "Bad header", f"{TAG_HEADER} was sent twice; send it once")
    if not values:
        return None
    tag = decode_header_value(TAG_HEADER, values[0])
    check_value(TAG_HEADER, tag)
    return tag


def _number(request: web.Request, name: str, least: float, most: float, *, default: float) -> float:
    text = request.query.get(name)
    if text is None:
        return min(default, most)
    if not (text.isascii() and text.isdigit() and least <= int(text[:12]) <= most):
        raise Problem(
            400, "Bad parameter", f"{name} must be a whole number from {least} to {most:g}"
        )
    return float(text)
