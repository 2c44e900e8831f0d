"""Traces of MQTT connections, packets as they come and go, and of messages (`message_trace.py`).

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
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

import msgspec
from aiohttp import web

from polymq.admin.message_trace import MessageTrace, NewMessageTrace
from polymq.admin.mqtt_clients import is_within
from polymq.admin.mqtt_names import MqttNames
from polymq.admin.operations import Call, Given, Group, Operation, Value
from polymq.admin.pages import Listing, Page, PageQuery, page_of
from polymq.admin.trace_lines import TraceLines
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
        kind: `packets` of MQTT clients, or `messages` of all protocols.
        client_id: the client that it is about, if it is about one.
        topic: the topic filter that it is about, if it is about one.
        sample: it is about one in so many messages.
        address: the address or network that it is about, if it is about one.
        payload: how many bytes of each payload its lines have.
        by: who began it.
        started_ms: when, in milliseconds since the epoch.
        connections: how many it looks at now.
        dropped: lines that were dropped because its reader is too slow.
    """

    number: int
    kind: Literal["packets", "messages"]
    client_id: str | None
    topic: str | None
    sample: int
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
            about="Packets of MQTT clients as they come and go, and deliveries of messages.",
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
                    method="POST",
                    path="/messages/traces",
                    name="traceMessages",
                    summary="Trace messages of all protocols: each delivery, and its end",
                    about="The answer is a line of JSON for each event, for as long as the trace "
                    "runs: `delivered` and `pulled` for each attempt, `settled` when a queue or "
                    "subscription is done with the message, `received` and `acknowledged` for what "
                    "an MQTT client answers. `position` names the message. A line with `dropped` "
                    "says how many messages or lines were left out. The list of traces has it, "
                    "too.",
                    right="operate",
                    handler=self._trace_messages,
                    body=NewMessageTrace,
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
        listing: Listing[_Trace, Trace] = Listing(
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
        trace = _PacketTrace(self._engine, wanted, asked, call)
        about = asked.client_id or asked.topic or asked.address
        return await self._run(call, trace, str(about), asked.seconds)

    async def _trace_messages(self, call: Call[Given]) -> web.StreamResponse:
        asked: NewMessageTrace = call.body
        if asked.topic is not None:
            self._names.pattern(asked.topic)
        if any(isinstance(one, _MessageTrace) for one in self._traces.values()):
            raise Refused(Reason.LIMIT, "a trace of messages runs already: end it, or wait")
        trace = _MessageTrace(self._engine, self._names, asked, call)
        about = asked.topic or "messages of all topics"
        return await self._run(call, trace, about, asked.seconds)

    async def _run(
        self, call: Call[Given], trace: _Trace, about: str, seconds: int
    ) -> web.StreamResponse:
        """A trace from its beginning to its end."""
        if len(self._traces) >= TRACES_MAX:
            raise Refused(Reason.LIMIT, f"{TRACES_MAX} traces run, which is the limit: end one")
        self._begun_count += 1
        number = str(self._begun_count)
        audit.note("trace started", number=number, about=about, by=call.caller)
        response = web.StreamResponse(headers={"Content-Type": LINES})
        self._traces[number] = trace
        try:
            await response.prepare(call.request)
            await trace.start()
            await self._send(call.request, response, trace, seconds)
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
            lines = trace.lines.take(WRITTEN_AT_ONCE)
            if lines:
                await response.write("".join(lines).encode("utf-8", "backslashreplace"))
                continue
            if trace.lines.is_over or request.transport is None or request.transport.is_closing():
                return
            await trace.lines.wait(min(left, LOOK_SECONDS))

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
    transport = trace.lines.request.transport
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


class _MessageTrace(MessageTrace):
    """A trace of messages, and who began it."""

    def __init__(
        self, engine: Engine, names: MqttNames, asked: NewMessageTrace, call: Call[Any]
    ) -> None:
        super().__init__(engine, names, asked, TraceLines(call.request))
        self._by = call.caller
        self._started_ms = engine.core.clock_ms()

    def row(self, number: str) -> Trace:
        """What operators see of it."""
        return Trace(
            number=int(number),
            kind="messages",
            client_id=None,
            topic=self._asked.topic,
            sample=self._asked.sample,
            address=None,
            payload=0,
            by=self._by,
            started_ms=self._started_ms,
            connections=self.watched,
            dropped=self.lines.dropped_all,
        )


class _PacketTrace:
    """One trace of packets that runs, from `start` to `end`.

    Attributes:
        lines: for who reads it.
    """

    def __init__(self, engine: Engine, wanted: _Wanted, asked: NewTrace, call: Call[Any]) -> None:
        self.lines = TraceLines(call.request)
        self._engine = engine
        self._wanted = wanted
        self._asked = asked
        self._by = call.caller
        self._started_ms = engine.core.clock_ms()
        self._stops: dict[ConnectedClient, Callable[[], None]] = {}

    def row(self, number: str) -> Trace:
        """What operators see of it."""
        asked = self._asked
        return Trace(
            number=int(number),
            kind="packets",
            client_id=asked.client_id,
            topic=asked.topic,
            sample=1,
            address=asked.address,
            payload=asked.payload,
            by=self._by,
            started_ms=self._started_ms,
            connections=len(self._stops),
            dropped=self.lines.dropped_all,
        )

    async def start(self) -> None:
        """Begin to look. Clients that come meanwhile are looked at, too."""
        connections = self._engine.connections
        connections.when_came.append(self._came)
        connections.when_went.append(self._went)
        for at, client in enumerate(list(connections.clients.values()), 1):
            is_there = connections.clients.get(client.client_id) is client
            if is_there and client not in self._stops and not self.lines.is_over:
                self._came(client, is_new=False)
            if at % BEGUN_AT_ONCE == 0:
                await asyncio.sleep(0)

    def end(self) -> None:
        """Look no more. Safe to call again, and before `start`."""
        connections = self._engine.connections
        if self._came in connections.when_came:
            connections.when_came.remove(self._came)
            connections.when_went.remove(self._went)
        for stop in self._stops.values():
            stop()
        self._stops.clear()
        self.lines.close()

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
        head = {"time_ms": self._engine.core.clock_ms(), "client_id": client.client_id}
        self.lines.add({**head, "direction": direction, **line})


_Trace = _PacketTrace | _MessageTrace
