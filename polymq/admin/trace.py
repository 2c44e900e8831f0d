"""Traces of MQTT connections: packets as they come and go.

Rules:

* A trace looks at the connections that match while it runs, those that come later included. When
  none runs, no connection has anything in its way.
* The lines of a trace wait in a bounded queue for a client that reads slowly. What finds no room is
  dropped and counted, so a trace never holds up the connection that it looks at.
* Passwords are in no line. Payloads are in the lines if the request asks for them, and then its
  caller has to have the right to read everything.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from typing import Annotated, Any, Final

import msgspec
from aiohttp import web

from polymq.admin.mqtt_clients import is_within
from polymq.admin.mqtt_names import MqttNames
from polymq.admin.operations import Call, Given, Group, Operation, Value
from polymq.admin.pages import Listing, Page, PageQuery, page_of
from polymq.broker.accounts import audit
from polymq.broker.accounts.bans import parse_network
from polymq.broker.engine import Engine
from polymq.broker.errors import Reason, Refused
from polymq.broker.port import REST, ConnectedClient
from polymq.gateways.mqtt.packet_lines import PAYLOAD_MAX, PacketLines
from polymq.gateways.mqtt.topic_filters import matches
from polymq.steps import in_steps

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
"""How long the last lines may take when a trace is ended."""
WRITTEN_AT_ONCE: Final = 256
BEGUN_AT_ONCE: Final = 64
"""Connections that a trace begins to look at in one step, some 10 us each."""
LINES: Final = "application/x-ndjson"


class NewTrace(Given):
    """What is traced: one of client_id, topic and address.

    Attributes:
        client_id: packets of this client.
        topic: messages of all clients whose topics match this topic filter.
        address: packets of clients from this address or network.
        seconds: for how long, at most a day.
        payload: how many bytes of each payload are shown, at most 4,096. 0: none.
    """

    client_id: str | None = None
    topic: str | None = None
    address: str | None = None
    seconds: Annotated[int, msgspec.Meta(ge=1, le=SECONDS_MAX)] = SECONDS_DEFAULT
    payload: Annotated[int, msgspec.Meta(ge=0, le=PAYLOAD_MAX)] = 0


class Trace(Value):
    """A trace that runs.

    Attributes:
        number: by which it is ended.
        client_id: the client that it is about, if it is about one.
        topic: the topic filter that it is about, if it is about one.
        address: the address or network that it is about, if it is about one.
        payload: how many bytes of each payload its lines have.
        by: who began it.
        started_ms: when, in milliseconds since the epoch.
        connections: how many it looks at now.
        dropped: lines that were dropped because its reader is too slow.
    """

    number: int
    client_id: str | None
    topic: str | None
    address: str | None
    payload: int
    by: str
    started_ms: int
    connections: int
    dropped: int


class TraceHandlers:
    """Carries out the operations on traces.

    Args:
        names: of the MQTT listeners.
    """

    def __init__(self, engine: Engine, names: MqttNames) -> None:
        self._engine = engine
        self._names = names
        self._traces: dict[str, _Trace] = {}
        self._begun_count = 0

    def group(self) -> Group:
        """The operations."""
        return Group(
            name="traces",
            about="Packets of MQTT clients as they come and go.",
            operations=[
                Operation(
                    method="GET",
                    path="/mqtt/traces",
                    name="listTraces",
                    summary="List the traces that run",
                    right="monitor",
                    handler=self._list,
                    query=PageQuery,
                    answer=Page[Trace],
                ),
                Operation(
                    method="POST",
                    path="/mqtt/traces",
                    name="trace",
                    summary="Trace packets of MQTT clients",
                    about="The answer is a line of JSON for each packet, as it comes or goes, for "
                    "as long as the trace runs. Neighbouring packets that differ in their packet "
                    "identifiers only are one line with their number (`count`). Passwords are "
                    "never shown. A line with `dropped` says how many lines a slow reader lost. "
                    "With `payload` the caller has to have the right to subscribe to `#`, too.",
                    right="operate",
                    handler=self._trace,
                    body=NewTrace,
                    media_type=LINES,
                ),
                Operation(
                    method="DELETE",
                    path="/mqtt/traces/{number}",
                    name="endTrace",
                    summary="End a trace",
                    right="operate",
                    handler=self._end,
                    path_about={"number": "of the trace, as the list shows it"},
                ),
            ],
        )

    def stop(self) -> None:
        """End all traces. Who does not read the last lines soon loses them."""
        for trace in self._traces.values():
            _end(trace)

    async def _list(self, call: Call[PageQuery]) -> Page[Trace]:
        listing = Listing(
            names=self._traces, find=self._traces.get, row=lambda name, trace: trace.row(name)
        )
        return await in_steps(page_of(listing, call.query))

    async def _end(self, call: Call[Given]) -> None:
        number = call.path["number"]
        found = self._traces.get(number)
        if found is None:
            raise Refused(Reason.NOT_FOUND, f"there is no trace {number!r}")
        audit.note("trace ended", number=number, by=call.caller)
        _end(found)

    async def _trace(self, call: Call[Given]) -> web.StreamResponse:
        asked: NewTrace = call.body
        if asked.payload:
            call.port.principal.check_read((REST,))
        wanted = self._wanted(asked)
        if len(self._traces) >= TRACES_MAX:
            raise Refused(Reason.LIMIT, f"{TRACES_MAX} traces run, which is the limit: end one")
        trace = _Trace(self._engine, wanted, asked, call)
        self._begun_count += 1
        number = str(self._begun_count)
        about = asked.client_id or asked.topic or asked.address
        audit.note("trace started", number=number, about=about, by=call.caller)
        response = web.StreamResponse(headers={"Content-Type": LINES})
        self._traces[number] = trace
        try:
            await response.prepare(call.request)
            await trace.start()
            await self._send(call.request, response, trace, asked.seconds)
        except ConnectionError:
            pass  # who read it is gone
        finally:
            del self._traces[number]
            trace.end()
        return response

    async def _send(
        self, request: web.Request, response: web.StreamResponse, trace: _Trace, seconds: int
    ) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while True:
            left = deadline - loop.time()
            if left <= 0:
                trace.end()
            lines = trace.take(WRITTEN_AT_ONCE)
            if lines:
                await response.write("".join(lines).encode("utf-8", "backslashreplace"))
                continue
            if trace.is_over or request.transport is None or request.transport.is_closing():
                return
            await trace.wait(min(left, LOOK_SECONDS))

    def _wanted(self, asked: NewTrace) -> _Wanted:
        client_id, topic, address = asked.client_id, asked.topic, asked.address
        if [client_id, topic, address].count(None) != 2:
            raise Refused(Reason.BAD_ARGUMENT, "name one of client_id, topic and address")
        if client_id is not None:
            if not client_id:
                raise Refused(Reason.BAD_ARGUMENT, "no client has an empty identifier")
            return _Wanted(lambda client: client.client_id == client_id)
        if address is not None:
            network = parse_network(address)
            return _Wanted(lambda client: is_within(client.address, network))
        assert topic is not None
        self._names.pattern(topic)
        return _Wanted(lambda client: True, topic.split("/"))


def _end(trace: _Trace) -> None:
    """End a trace. Who does not read its last lines soon loses them."""
    trace.end()
    transport = trace.request.transport
    if transport is not None:
        asyncio.get_running_loop().call_later(LAST_SECONDS, transport.abort)


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
        request: who reads it.
    """

    def __init__(self, engine: Engine, wanted: _Wanted, asked: NewTrace, call: Call[Any]) -> None:
        self.dropped_all = 0
        self.is_over = False
        self.request = call.request
        self._engine = engine
        self._wanted = wanted
        self._asked = asked
        self._by = call.caller
        self._started_ms = engine.core.clock_ms()
        self._lines: deque[str] = deque()
        self._dropped = 0  # since the last line that says so
        self._stops: dict[ConnectedClient, Callable[[], None]] = {}
        self._woken = asyncio.Event()

    def row(self, number: str) -> Trace:
        """What operators see of it."""
        asked = self._asked
        return Trace(
            number=int(number),
            client_id=asked.client_id,
            topic=asked.topic,
            address=asked.address,
            payload=asked.payload,
            by=self._by,
            started_ms=self._started_ms,
            connections=len(self._stops),
            dropped=self.dropped_all,
        )

    async def start(self) -> None:
        """Begin to look. Clients that come meanwhile are looked at, too."""
        connections = self._engine.connections
        connections.when_came.append(self._came)
        connections.when_went.append(self._went)
        for at, client in enumerate(list(connections.clients.values()), 1):
            is_there = connections.clients.get(client.client_id) is client
            if is_there and client not in self._stops and not self.is_over:
                self._came(client, is_new=False)
            if at % BEGUN_AT_ONCE == 0:
                await asyncio.sleep(0)

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
            came: PacketLines(is_five=is_five, payload_max=self._asked.payload)
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
