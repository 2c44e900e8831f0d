"""Traces of MQTT connections at the operator's listener: what the command `polymq trace` asks for.

Rules:

* A trace looks at the connections that match while it runs, those that come later included. When
  none runs, no connection has anything in its way.
* The lines of a trace wait in a bounded queue for a client that reads slowly. What finds no room is
  dropped and counted, so a trace never holds up the connection that it looks at.
* Passwords are in no line. Payloads are in the lines of `/mqtt/trace/messages` only, which asks for
  the right to read everything (`access.py`).
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from aiohttp import web

from polymq.admin.access import CALLER
from polymq.admin.mqtt import is_within
from polymq.admin.mqtt_names import MqttNames
from polymq.broker.accounts import audit
from polymq.broker.accounts.bans import parse_network
from polymq.broker.engine import Engine
from polymq.broker.errors import Reason, Refused
from polymq.broker.port import ConnectedClient
from polymq.gateways.mqtt.packet_lines import PAYLOAD_MAX, PacketLines
from polymq.gateways.mqtt.topic_filters import matches

TRACES_MAX: Final = 8
"""At a time."""
LINES_MAX: Final = 10_000
"""That wait for who reads a trace: some MiB."""
CONNECTIONS_MAX: Final = 50_000
"""That one trace looks at: all of a listener."""
SECONDS_DEFAULT: Final = 60
SECONDS_MAX: Final = 86_400
LOOK_SECONDS: Final = 1.0
"""How often a trace without lines looks whether anybody still reads it."""
LAST_SECONDS: Final = 1.0
"""How long the last lines may take when the server stops."""
WRITTEN_AT_ONCE: Final = 256


class TraceHandlers:
    """The answers under `/mqtt/trace`."""

    def __init__(self, engine: Engine, names: MqttNames) -> None:
        self._engine = engine
        self._names = names
        self._traces: dict[_Trace, web.Request] = {}

    def routes(self) -> list[web.RouteDef]:
        """For the application."""
        return [
            web.get("/mqtt/trace", self._trace),
            web.get("/mqtt/trace/messages", self._trace),
        ]

    @property
    def dropped_count(self) -> int:
        """Lines that the traces of now have dropped."""
        return sum(trace.dropped_all for trace in self._traces)

    def stop(self) -> None:
        """End all traces. Who does not read the last lines soon loses them."""
        loop = asyncio.get_running_loop()
        for trace, request in self._traces.items():
            trace.end()
            if request.transport is not None:
                loop.call_later(LAST_SECONDS, request.transport.abort)

    async def _trace(self, request: web.Request) -> web.StreamResponse:
        _check_names(request)
        seconds = _number(request, "seconds", SECONDS_DEFAULT, SECONDS_MAX)
        payload_max = 0
        if request.path.endswith("/messages"):
            payload_max = _number(request, "payload", 64, PAYLOAD_MAX)
        trace = _Trace(self._engine, self._wanted(request), payload_max=payload_max)
        if len(self._traces) >= TRACES_MAX:
            raise Refused(Reason.LIMIT, f"{TRACES_MAX} traces run, which is the limit: end one")
        audit.note("trace started", query=request.query_string, by=request[CALLER])
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        self._traces[trace] = request
        try:
            await response.prepare(request)
            trace.start()
            await self._send(request, response, trace, seconds)
        except ConnectionError:
            pass  # who read it is gone
        finally:
            del self._traces[trace]
            trace.end()
        return response

    async def _send(
        self, request: web.Request, response: web.StreamResponse, trace: _Trace, seconds: int
    ) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while True:
            lines = trace.take(WRITTEN_AT_ONCE)
            if lines:
                await response.write("".join(lines).encode("utf-8", "backslashreplace"))
                continue
            left = deadline - loop.time()
            if left <= 0 or trace.is_over or request.transport is None:
                return
            if request.transport.is_closing():
                return
            await trace.wait(min(left, LOOK_SECONDS))

    def _wanted(self, request: web.Request) -> _Wanted:
        query = request.query
        given = [name for name in ("client_id", "topic", "address") if name in query]
        if len(given) != 1:
            raise Refused(Reason.BAD_ARGUMENT, "name one of client_id, topic and address")
        if "client_id" in query:
            client_id = query["client_id"]
            if not client_id:
                raise Refused(Reason.BAD_ARGUMENT, "no client has an empty identifier")
            return _Wanted(lambda client: client.client_id == client_id)
        if "address" in query:
            network = parse_network(query["address"])
            return _Wanted(lambda client: is_within(client.address, network))
        self._names.pattern(query["topic"])
        return _Wanted(lambda client: True, query["topic"].split("/"))


class _Wanted:
    """What a trace is about.

    Args:
        client: whether a client is looked at.
        pattern: the levels of a topic filter; only PUBLISH packets whose topic name matches are
            shown then. None: all packets.
    """

    def __init__(
        self, client: Callable[[ConnectedClient], bool], pattern: list[str] | None = None
    ) -> None:
        self.client = client
        self.pattern = pattern

    def line(self, line: dict[str, Any]) -> bool:
        """Whether a packet is shown."""
        if self.pattern is None:
            return True
        return line["packet"] == "PUBLISH" and matches(self.pattern, line["topic"].split("/"))


class _Trace:
    """One trace that runs, from `start` to `end`.

    Attributes:
        dropped_all: lines that found no room.
        is_over: it was ended from elsewhere.
    """

    def __init__(self, engine: Engine, wanted: _Wanted, *, payload_max: int) -> None:
        self.dropped_all = 0
        self.is_over = False
        self._engine = engine
        self._wanted = wanted
        self._payload_max = payload_max
        self._lines: deque[str] = deque()
        self._dropped = 0  # since the last line that says so
        self._stops: dict[ConnectedClient, Callable[[], None]] = {}
        self._woken = asyncio.Event()

    def start(self) -> None:
        """Begin to look."""
        connections = self._engine.connections
        for client in connections.clients.values():
            self._came(client, is_new=False)
        connections.when_came.append(self._came)
        connections.when_went.append(self._went)

    def end(self) -> None:
        """Look no more. Safe to call again, and before `start`."""
        self.is_over = True
        connections = self._engine.connections
        if self._came in connections.when_came:
            connections.when_came.remove(self._came)
            connections.when_went.remove(self._went)
        for stop in self._stops.values():
            stop()
        self._stops.clear()
        self._woken.set()

    def _came(self, client: ConnectedClient, *, is_new: bool = True) -> None:
        if not self._wanted.client(client) or len(self._stops) >= CONNECTIONS_MAX:
            return
        is_five = client.version == "5.0"
        lines = {
            came: PacketLines(is_five=is_five, payload_max=self._payload_max)
            for came in (True, False)
        }

        def look(came: bool, data: bytes) -> None:
            for line in lines[came].feed(data):
                if self._wanted.line(line):
                    self._add(client, "in" if came else "out", line)

        self._stops[client] = client.trace(look)
        if self._wanted.pattern is None:
            values = {"address": client.peer, "version": client.version, "user": client.user}
            self._add(client, "", {"packet": "CONNECTED" if is_new else "TRACED", **values})

    def _went(self, client: ConnectedClient) -> None:
        stop = self._stops.pop(client, None)
        if stop is not None:
            stop()
            if self._wanted.pattern is None:
                self._add(client, "", {"packet": "ENDED"})

    def _add(self, client: ConnectedClient, direction: str, line: dict[str, Any]) -> None:
        if len(self._lines) >= LINES_MAX:
            self._dropped += 1
            self.dropped_all += 1
            return
        head = {"time_ms": self._engine.core.clock_ms(), "client_id": client.client_id}
        self._lines.append(json.dumps({**head, "direction": direction, **line}) + "\n")
        self._woken.set()

    def take(self, count: int) -> list[str]:
        """The next lines; behind the last of them, how many were dropped."""
        lines = [self._lines.popleft() for _ in range(min(count, len(self._lines)))]
        if not self._lines and self._dropped:
            lines.append(json.dumps({"dropped": self._dropped}) + "\n")
            self._dropped = 0
        return lines

    async def wait(self, seconds: float) -> None:
        """Until there is a line, or the time is over."""
        self._woken.clear()
        if self._lines or self.is_over:
            return
        try:
            await asyncio.wait_for(self._woken.wait(), seconds)
        except TimeoutError:
            return


def _check_names(request: web.Request) -> None:
    """Whether the query asks for what there is. Raises Refused."""
    known = {"client_id", "topic", "address", "seconds"}
    if request.path.endswith("/messages"):
        known.add("payload")
    for name in request.query:
        if name == "payload" and name not in known:
            raise Refused(Reason.BAD_ARGUMENT, "payload is for /mqtt/trace/messages")
        if name not in known:
            raise Refused(Reason.BAD_ARGUMENT, f"there is no parameter {name!r}")


def _number(request: web.Request, name: str, default: int, most: int) -> int:
    text = request.query.get(name, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 7 and 0 < int(text) <= most):
        raise Refused(Reason.BAD_ARGUMENT, f"{name} is 1 to {most}, not {text!r}")
    return int(text)
