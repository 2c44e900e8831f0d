"""MQTT clients, sessions and retained messages at the operator's listener: what the commands
`polymq mqtt client`, `polymq session` and `polymq retained` ask for.

Rules:

* A list comes in pages. A page says where the next one begins (`after`), and each page is put
  together in steps, so a broker with very many clients serves them meanwhile.
* Client identifiers and topic names may have any character, so they are in the query, not in the
  path.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from ipaddress import IPv4Network, IPv6Network
from typing import Any, Final

from aiohttp import web

from polymq.admin.access import CALLER
from polymq.admin.mqtt_names import MqttNames
from polymq.admin.queries import RECORDS, fetch_record
from polymq.admin.steps import in_steps, page_limit
from polymq.broker.accounts import audit
from polymq.broker.accounts.bans import parse_address, parse_network
from polymq.broker.engine import Engine
from polymq.broker.errors import Reason, Refused
from polymq.broker.port import Address, ConnectedClient, Position
from polymq.broker.sessions.inspection import inspect_session, inspect_subscriptions
from polymq.broker.sessions.session import MqttSession
from polymq.broker.topics.retained import position_of, size_of

CLEARED_AT_ONCE: Final = 256
"""Retained messages that one record of the log clears."""
CLEARED_CHARACTERS: Final = 64 * 1024
"""Of their names: a topic name may have 64 KiB."""

Committed = Callable[[Position], Awaitable[None]]
Page = tuple[list[dict[str, Any]], str | None]


class MqttHandlers:
    """The answers under `/mqtt`.

    Args:
        committed: waits until a change is on the disk.
        names: of the MQTT listeners.
    """

    def __init__(self, engine: Engine, committed: Committed, names: MqttNames) -> None:
        self._engine = engine
        self._committed = committed
        self._names = names

    def routes(self) -> list[web.RouteDef]:
        """For the application."""
        return [
            web.get("/mqtt/clients", self._list_clients),
            web.get("/mqtt/client", self._show_client),
            web.delete("/mqtt/client", self._kick),
            web.get("/mqtt/sessions", self._list_sessions),
            web.get("/mqtt/session", self._show_session),
            web.delete("/mqtt/session", self._delete_session),
            web.get("/mqtt/retained", self._list_retained),
            web.get("/mqtt/retained/messages", self._show_retained),
            web.post("/mqtt/retained/clear", self._clear_retained),
        ]

    # --- clients --------------------------------------------------------------------------

    async def _list_clients(self, request: web.Request) -> web.Response:
        rows, after = await in_steps(self._client_page(_Asked(request)))
        return web.json_response({"clients": rows, "after": after})

    def _client_page(self, asked: _Asked) -> Generator[None, None, Page]:
        rows: list[dict[str, Any]] = []
        for client in self._engine.connections.clients.walk(asked.prefix, asked.after):
            yield
            if not asked.wants_client(client):
                continue
            if len(rows) == asked.limit:
                return rows, str(rows[-1]["client_id"])
            rows.append((yield from self._client_row(client)))
        return rows, None

    def _client_row(self, client: ConnectedClient) -> Generator[None, None, dict[str, Any]]:
        row = {
            "client_id": client.client_id,
            "user": client.user,
            "address": client.peer,
            "listener": client.listener,
            "version": client.version,
            "keep_alive_seconds": client.keep_alive_seconds,
            "connected_ms": client.connected_ms,
        }
        session = self._engine.sessions.by_client.get(client.client_id)
        if session is None:
            return row
        info = yield from inspect_session(session)
        return row | {
            "clean": info.clean,
            "subscriptions": info.subscriptions_count,
            "inflight": info.inflight_count,
            "queued": info.waiting_count,
            "dropped": info.dropped_count,
            "expiry_seconds": info.expiry_seconds,
            "will": info.has_will,
        }

    def _client(self, request: web.Request) -> ConnectedClient:
        name = _client_id(request)
        client = self._engine.connections.clients.get(name)
        if client is None:
            raise Refused(Reason.NOT_FOUND, f"no client {name!r} is connected")
        return client

    async def _show_client(self, request: web.Request) -> web.Response:
        client = self._client(request)
        row = await in_steps(self._client_row(client))
        session = self._engine.sessions.by_client.get(client.client_id)
        return web.json_response(row | await self._subscriptions(session))

    async def _kick(self, request: web.Request) -> web.Response:
        client = self._client(request)
        audit.note("client disconnected", client_id=client.client_id, by=request[CALLER])
        client.end("disconnected by an operator")
        return web.json_response({"client_id": client.client_id, "address": client.peer})

    # --- sessions -------------------------------------------------------------------------

    async def _list_sessions(self, request: web.Request) -> web.Response:
        rows, after = await in_steps(self._session_page(_Asked(request)))
        return web.json_response({"sessions": rows, "after": after})

    def _session_page(self, asked: _Asked) -> Generator[None, None, Page]:
        rows: list[dict[str, Any]] = []
        for session in self._engine.sessions.by_client.walk(asked.prefix, asked.after):
            yield
            if not asked.wants_session(session):
                continue
            if len(rows) == asked.limit:
                return rows, str(rows[-1]["client_id"])
            rows.append((yield from _session_row(session)))
        return rows, None

    def _session(self, request: web.Request) -> MqttSession:
        name = _client_id(request)
        session = self._engine.sessions.by_client.get(name)
        if session is None:
            raise Refused(Reason.NOT_FOUND, f"there is no session of client {name!r}")
        return session

    async def _show_session(self, request: web.Request) -> web.Response:
        session = self._session(request)
        row = await in_steps(_session_row(session))
        return web.json_response(row | await self._subscriptions(session))

    async def _subscriptions(self, session: MqttSession | None) -> dict[str, Any]:
        if session is None:
            return {"subscription_list": [], "queued_bytes": 0, "queued_bytes_complete": True}
        steps = inspect_subscriptions(session)
        found, complete = await in_steps(steps, self._engine.core.reading)
        rows = [
            {
                "filter": self._names.name(one.address),
                "qos": one.options.qos,
                "no_local": one.options.no_local,
                "retain_as_published": one.options.retain_as_published,
                "identifier": one.options.identifier or None,
                "durable": one.durable,
                "queued": one.waiting_count,
                "queued_bytes": one.waiting_bytes,
            }
            for one in found
        ]
        return {
            "subscription_list": rows,
            "queued_bytes": sum(one.waiting_bytes for one in found),
            "queued_bytes_complete": complete,
        }

    async def _delete_session(self, request: web.Request) -> web.Response:
        session = self._session(request)
        sessions, client_id = self._engine.sessions, session.client_id
        self._engine.core.check_writable(frees=True)
        client = self._engine.connections.clients.get(client_id)
        if client is not None:
            client.end("its session was deleted by an operator")
        audit.note("session deleted", client_id=client_id, by=request[CALLER])
        if sessions.by_client.get(client_id) is session and not session.clean:
            await self._committed(sessions.end_session(session))
        return web.json_response({"client_id": client_id})

    # --- retained messages ----------------------------------------------------------------

    async def _list_retained(self, request: web.Request) -> web.Response:
        query = request.query
        pattern = self._names.pattern(query.get("filter", "#"))
        behind = self._names.address(query["after"]) if "after" in query else None
        rows, after = await in_steps(
            self._retained_page(pattern, behind, page_limit(request.query))
        )
        total = {"total": self._engine.retained.count, "total_bytes": self._engine.retained.bytes}
        return web.json_response({"retained": rows, "after": after, **total})

    def _retained_page(
        self, pattern: Address, behind: Address | None, limit: int
    ) -> Generator[None, None, Page]:
        rows: list[dict[str, Any]] = []
        for found in self._engine.retained.match(pattern, behind):
            yield
            if found is None:
                continue
            if len(rows) == limit:
                return rows, str(rows[-1]["topic"])
            address, entry = found
            rows.append(
                {
                    "topic": self._names.name(address),
                    "bytes": size_of(entry),
                    "position": position_of(entry),
                }
            )
        return rows, None

    async def _show_retained(self, request: web.Request) -> web.Response:
        """The record of the message, as it is in the log."""
        name = request.query.get("topic", "")
        entry = self._engine.retained.get(self._names.address(name))
        if entry is None:
            raise Refused(Reason.NOT_FOUND, f"there is no retained message at {name!r}")
        record = await fetch_record(self._engine.port, position_of(entry))
        return web.Response(body=record, content_type=RECORDS)

    async def _clear_retained(self, request: web.Request) -> web.Response:
        query = request.query
        text = query.get("filter")
        if text is None:
            raise Refused(Reason.BAD_ARGUMENT, "name the filter whose messages are cleared")
        dry = query.get("dry_run", "false")
        if dry not in ("true", "false"):
            raise Refused(Reason.BAD_ARGUMENT, f"dry_run is true or false, not {dry!r}")
        pattern = self._names.pattern(text)
        steps = self._clear(pattern, dry=dry == "true")
        count, size, position = await in_steps(steps)
        if dry == "false":
            audit.note("retained cleared", filter=text, count=count, by=request[CALLER])
            await self._committed(position)
        return web.json_response({"count": count, "bytes": size})

    def _clear(
        self, pattern: Address, *, dry: bool
    ) -> Generator[None, None, tuple[int, int, Position]]:
        """How many there were, their bytes, and what the answer waits for."""
        core, count, size, position = self._engine.core, 0, 0, Position(0)
        cleared: list[Address] = []
        characters = 0

        def write() -> Position:
            core.check_writable(frees=True)
            return core.journal.write({"op": "retained-", "w": [list(one) for one in cleared]})

        for found in self._engine.retained.match(pattern):
            yield
            if found is None:
                continue
            address, entry = found
            count, size = count + 1, size + size_of(entry)
            if dry:
                continue
            cleared.append(address)
            characters += sum(map(len, address))
            if len(cleared) >= CLEARED_AT_ONCE or characters >= CLEARED_CHARACTERS:
                position, characters = write(), 0
                cleared.clear()
        if cleared:
            position = write()
        return count, size, position


def _session_row(session: MqttSession) -> Generator[None, None, dict[str, Any]]:
    info = yield from inspect_session(session)
    return {
        "client_id": info.client_id,
        "user": info.user,
        "connected": info.connected,
        "clean": info.clean,
        "expiry_seconds": info.expiry_seconds,
        "away_ms": info.away_ms or None,
        "ends_ms": info.ends_ms or None,
        "subscriptions": info.subscriptions_count,
        "inflight": info.inflight_count,
        "queued": info.waiting_count,
        "dropped": info.dropped_count,
        "will": info.has_will,
    }


class _Asked:
    """What a request for a list asks for: a page, and filters. Raises Refused: BAD_ARGUMENT."""

    def __init__(self, request: web.Request) -> None:
        query = request.query
        self.limit = page_limit(request.query)
        self.after = query.get("after")
        self.prefix = query.get("prefix", "")
        self._user = query.get("user")
        address = query.get("address")
        self._network = None if address is None else parse_network(address)
        state = query.get("state", "all")
        if state not in ("all", "connected", "disconnected"):
            raise Refused(
                Reason.BAD_ARGUMENT, f"state is all, connected or disconnected, not {state!r}"
            )
        self._connected = {"connected": True, "disconnected": False}.get(state)

    def wants_client(self, client: ConnectedClient) -> bool:
        """Whether a client passes the filters."""
        if self._user is not None and client.user != self._user:
            return False
        return self._network is None or is_within(client.address, self._network)

    def wants_session(self, session: MqttSession) -> bool:
        """Whether a session passes the filters."""
        if self._user is not None and session.principal != self._user:
            return False
        return self._connected is None or self._connected == (session.link is not None)


def is_within(address: str, network: IPv4Network | IPv6Network) -> bool:
    """Whether the address of a socket is in a network."""
    found = parse_address(address)
    return found is not None and found.version == network.version and found in network


def _client_id(request: web.Request) -> str:
    name = request.query.get("client_id")
    if not name:
        raise Refused(Reason.BAD_ARGUMENT, "name the client: client_id")
    return name
