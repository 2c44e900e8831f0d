"""The ban list at the operator's listener: what the commands `polymq ban` ask for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict
from typing import Any, Final

from aiohttp import web

from polymq.admin.access import CALLER
from polymq.admin.bodies import json_object
from polymq.admin.mqtt import is_within
from polymq.broker.accounts import audit
from polymq.broker.accounts.bans import ADDRESS, CLIENT, Ban, normal_value, parse_network
from polymq.broker.engine import Engine
from polymq.broker.errors import Reason, Refused
from polymq.broker.port import Position

LOOKED_AT_ONCE: Final = 256
"""Connections that are compared with a new ban in one step, some microseconds each."""
SECONDS_MAX: Final = 100 * 366 * 86_400
_KNOWN: Final = frozenset({"kind", "value", "reason", "seconds"})


class BanHandlers:
    """The answers under `/bans`.

    Args:
        committed: waits until a change is on the disk.
        connections: all connections of the listeners for clients: objects with `address` and
            `abort`, as far as a listener knows addresses.
    """

    def __init__(
        self,
        engine: Engine,
        committed: Callable[[Position], Awaitable[None]],
        connections: Callable[[], Iterable[Any]],
    ) -> None:
        self._engine = engine
        self._bans = engine.bans
        self._committed = committed
        self._connections = connections

    def routes(self) -> list[web.RouteDef]:
        """For the application."""
        return [
            web.get("/bans", self._list),
            web.post("/bans", self._add),
            web.delete("/bans", self._remove),
        ]

    async def _list(self, _request: web.Request) -> web.Response:
        return web.json_response({"bans": [asdict(ban) for ban in self._bans.all()]})

    async def _add(self, request: web.Request) -> web.Response:
        body = await json_object(request, _KNOWN)
        kind, value = _text(body, "kind"), _text(body, "value")
        seconds = body.get("seconds")
        if seconds is not None and (
            isinstance(seconds, bool)
            or not isinstance(seconds, int | float)
            or not 0 < seconds <= SECONDS_MAX
        ):
            raise Refused(Reason.BAD_ARGUMENT, "seconds must be a number above 0")
        until_ms = None
        if seconds is not None:
            until_ms = self._engine.core.clock_ms() + max(1, round(1000 * seconds))
        position = self._bans.add(
            kind,
            value,
            reason=_text(body, "reason", ""),
            until_ms=until_ms,
            by=request[CALLER],
        )
        ban = self._bans.named(kind, normal_value(kind, value))
        audit.note("ban added", kind=kind, value=value, by=request[CALLER])
        ended = 0 if ban is None else await self._end_connections(ban)
        await self._committed(position)
        shown = {} if ban is None else asdict(ban)
        return web.json_response({**shown, "ended": ended}, status=201)

    async def _end_connections(self, ban: Ban) -> int:
        """End those that the ban is about. Returns how many. (Those of a user end by the ban
        itself.)"""
        if ban.kind == CLIENT:
            client = self._engine.connections.clients.get(ban.value)
            if client is not None:
                client.end("its client identifier was banned")
            return int(client is not None)
        if ban.kind != ADDRESS:
            return 0
        network = parse_network(ban.value)
        ended = 0
        for number, client in enumerate(list(self._engine.connections.clients.values())):
            if is_within(client.address, network):
                client.end("its address was banned")
                ended += 1
            if number % LOOKED_AT_ONCE == LOOKED_AT_ONCE - 1:
                await asyncio.sleep(0)
        for number, connection in enumerate(list(self._connections())):
            if is_within(getattr(connection, "address", ""), network) and not getattr(
                connection, "closing", False
            ):
                connection.abort()
                ended += 1
            if number % LOOKED_AT_ONCE == LOOKED_AT_ONCE - 1:
                await asyncio.sleep(0)
        return ended

    async def _remove(self, request: web.Request) -> web.Response:
        body = await json_object(request, _KNOWN)
        kind, value = _text(body, "kind"), _text(body, "value")
        position = self._bans.remove(kind, value)
        audit.note("ban removed", kind=kind, value=value, by=request[CALLER])
        await self._committed(position)
        return web.json_response({"kind": kind, "value": normal_value(kind, value)})


def _text(body: dict[str, Any], name: str, default: str | None = None) -> str:
    value = body.get(name, default)
    if not isinstance(value, str):
        raise Refused(Reason.BAD_ARGUMENT, f"{name} must be a text")
    return value
