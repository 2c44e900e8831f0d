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
from base64 import b64decode
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import msgspec
from aiohttp import web

from broker.port import BrokerPort
from gateways.http_cloudevents import subscriptions
from gateways.http_cloudevents.attributes import check_value, decode_header_value
from gateways.http_cloudevents.bodies import Budget, check_declared_size, read_body
from gateways.http_cloudevents.codec import (
    Event,
    Mode,
    content_mode,
    decode_batch,
    decode_binary,
    decode_structured,
    is_cloudevent,
)
from gateways.http_cloudevents.errors import Problem
from gateways.http_cloudevents.limits import HttpLimits
from gateways.http_cloudevents.publishing import Commits, Publisher
from gateways.http_cloudevents.pull import Outcome, encode_received
from gateways.http_cloudevents.registry import Registry
from gateways.http_cloudevents.responses import json_response, problem_response

TAG_HEADER: Final = "PolyMQ-Tag"
"""Tag of a body that is no CloudEvent, percent-encoded like a ce- header."""
RECEIVE_SECONDS: Final = 60
"""How long a receive waits if it does not say; Event Grid's default."""

Result = TypeVar("Result")


class Handlers:
    """The handlers of one server."""

    def __init__(
        self,
        *,
        port: BrokerPort,
        limits: HttpLimits,
        loop: asyncio.AbstractEventLoop,
        commits: Commits,
        registry: Registry,
    ) -> None:
        self._port = port
        self._limits = limits
        self._loop = loop
        self._commits = commits
        self._registry = registry
        self._budget = Budget(limits)
        self._publisher = Publisher(port, limits)
        self._parsers = ThreadPoolExecutor(1, thread_name_prefix="polymq-http")
        self._changes: set[asyncio.Task[Any]] = set()  # subscription changes under way
        self._stopping = False

    def stop(self) -> None:
        """Health says so, and long polls are answered at once."""
        self._stopping = True

    async def wait_for_changes(self) -> None:
        """Return when the subscription changes under way have ended."""
        await asyncio.gather(*self._changes, return_exceptions=True)

    def close(self) -> None:
        """End the worker thread."""
        self._parsers.shutdown(wait=False)

    # --- publishing ---------------------------------------------------------------------------

    async def publish(self, request: web.Request) -> web.Response:
        private = self._authenticate(request)
        content_type = _one_content_type(request)
        mode = content_mode(content_type)
        with self._budget.request() as share:
            body = await read_body(
                request,
                size_max=self._limits.body_bytes_max,
                seconds_max=self._limits.body_seconds_max,
                share=share,
            )
            topic = request.match_info["topic"]
            if mode is Mode.BINARY and not is_cloudevent(request.raw_headers):
                stored = self._publisher.publish_raw(topic, _tag(request), body, content_type)
            else:
                events = await self._decode(request, mode, content_type, body)
                if not events:
                    return web.Response(status=204)
                stored = self._publisher.publish(topic, events)
            await self._commits.wait(*stored)
        headers = {"Cache-Control": "private"} if private else None
        return web.Response(status=204, headers=headers)

    async def _decode(
        self, request: web.Request, mode: Mode, content_type: str | None, body: bytes
    ) -> list[Event]:
        if mode is Mode.BINARY:
            return [decode_binary(request.raw_headers, content_type, body)]
        if mode is Mode.STRUCTURED:
            return [await self._parse(len(body), lambda: decode_structured(body))]
        count_max = self._limits.events_per_batch_max
        return await self._parse(len(body), lambda: decode_batch(body, count_max=count_max))

    async def _parse(self, size: int, parse: Callable[[], Result]) -> Result:
        """Parse a small body here, a large one in the worker thread."""
        if size < self._limits.large_body_bytes:
            return parse()
        return await self._loop.run_in_executor(self._parsers, parse)

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
        self._authenticate(request)
        verb = request.match_info["verb"]
        part = self._registry.pull(request.match_info["name"], request.match_info["topic"])
        limits = self._limits
        if verb == "receive":
            count = _number(request, "maxEvents", 1, limits.receive_events_max, default=1)
            wait = _number(
                request, "maxWaitTime", 0, limits.receive_seconds_max, default=RECEIVE_SECONDS
            )
            wait = 0 if self._stopping else max(wait, limits.receive_seconds_min)
            locks = await part.receive(int(count), wait)
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
            outcome = part.reject(tokens)
        else:
            outcome = part.renew(tokens)
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
        self._authenticate(request)
        return json_response([one.shown() for one in self._registry.all()])

    async def show(self, request: web.Request) -> web.Response:
        self._authenticate(request)
        return json_response(self._registry.get(request.match_info["name"]).shown())

    async def create(self, request: web.Request) -> web.Response:
        self._authenticate(request)
        return await self._store(request, name=None)

    async def put(self, request: web.Request) -> web.Response:
        self._authenticate(request)
        return await self._store(request, name=request.match_info["name"])

    async def _store(self, request: web.Request, *, name: str | None) -> web.Response:
        body = await self._small_body(request)
        wanted = subscriptions.parse(body, name=name, limits=self._limits)
        is_new = await self._to_the_end(self._registry.put(wanted, create_only=name is None))
        headers = {"Location": f"/subscriptions/{wanted.name}"} if is_new else None
        shown = self._registry.get(wanted.name).shown()
        return json_response(shown, status=201 if is_new else 200, headers=headers)

    async def delete(self, request: web.Request) -> web.Response:
        self._authenticate(request)
        await self._to_the_end(self._registry.delete(request.match_info["name"]))
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
        )

    def _authenticate(self, request: web.Request) -> bool:
        """Check the credentials. Returns whether they stood in the URL. Raises Refused: 401.

        A webhook target has to take a token as Bearer and as `access_token` (Web Hooks for Event
        Delivery 3): the token is what Basic carries, base64 of `user:password`.
        """
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        in_url = False
        if not scheme and "access_token" in request.query:
            scheme, token, in_url = "bearer", request.query["access_token"], True
        if scheme.lower() not in ("basic", "bearer"):
            self._port.authenticate(None, None)
            return False
        try:
            user, _, password = b64decode(token.strip(), validate=True).partition(b":")
        except (binascii.Error, ValueError):
            user, password = b"", b""
        self._port.authenticate(user.decode("utf-8", "surrogateescape"), password)
        return in_url


class _Tokens(msgspec.Struct):
    lockTokens: list[str]  # noqa: N815  (the name on the wire)


def allow(methods: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def options(request: web.Request) -> web.StreamResponse:
        return web.Response(status=204, headers={"Allow": methods})

    return options


def _one_content_type(request: web.Request) -> str | None:
    values = request.headers.getall("Content-Type", [])
    if len(values) > 1:
        raise Problem(400, "Bad header", "Content-Type came twice; send it once")
    if not values:
        return None
    check_value("datacontenttype", values[0])
    return values[0]


def _tag(request: web.Request) -> str | None:
    values = [value for name, value in request.raw_headers if name.lower() == b"polymq-tag"]
    if len(values) > 1:
        raise Problem(400, "Bad header", f"{TAG_HEADER} came twice; send it once")
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
        raise Problem(400, "Bad parameter", f"{name} is a whole number from {least} to {most:g}")
    return float(text)
