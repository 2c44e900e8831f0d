"""The ban list: which clients, users and addresses may not connect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Annotated, Any, Final, Literal

import msgspec

from polymq.admin.commits import Committed
from polymq.admin.mqtt_clients import is_within
from polymq.admin.operations import Call, Given, Group, Operation, Value
from polymq.admin.pages import Listing, Page, PageQuery, page_of
from polymq.broker.accounts import audit, bans
from polymq.broker.accounts.bans import ADDRESS, CLIENT, normal_value, parse_network
from polymq.broker.engine import Engine
from polymq.steps import in_steps

LOOKED_AT_ONCE: Final = 256
"""Connections that are compared with a new ban in one step, some microseconds each."""
SECONDS_MAX: Final = 100 * 366 * 86_400

Kind = Literal["client_id", "user", "address"]


class Ban(Value):
    """An entry of the ban list.

    Attributes:
        kind: what is banned: a client_id of MQTT, a user, or an address.
        value: the client identifier, the user name, or the address or network.
        reason: why, in the operator's words; may be empty.
        until_ms: when it ends, in milliseconds since the epoch; null: it does not.
        since_ms: when it was added.
        by: who added it.
    """

    kind: Kind
    value: str
    reason: str
    until_ms: int | None
    since_ms: int
    by: str


class AddedBan(Ban):
    """A ban that was added.

    Attributes:
        ended: how many connections of clients and addresses it ended. Those of a user end, too,
            and are not counted.
    """

    ended: int


class BansQuery(PageQuery):
    """Which bans.

    Attributes:
        prefix: only bans whose values begin with this text.
        kind: only bans of this kind.
    """

    kind: Literal["all", "client_id", "user", "address"] = "all"


class NewBan(Given):
    """Who is banned.

    Attributes:
        kind: what is banned.
        value: a client identifier, a user name, or an address or network such as 10.1.0.0/16.
        reason: why, for the list.
        seconds: for how long; null: for ever.
    """

    kind: Kind
    value: str
    reason: str = ""
    seconds: Annotated[float, msgspec.Meta(gt=0, le=SECONDS_MAX)] | None = None


class BanHandlers:
    """Carries out the operations on bans.

    Args:
        committed: waits until a change is on the disk.
        connections: all connections that a banned address may not have: objects with `address` and
            `abort`, as far as a listener knows addresses.
    """

    def __init__(
        self,
        engine: Engine,
        committed: Committed,
        connections: Callable[[], Iterable[Any]],
    ) -> None:
        self._engine = engine
        self._bans = engine.bans
        self._committed = committed
        self._connections = connections

    def group(self) -> Group:
        """The operations."""
        return Group(
            name="bans",
            about="Client identifiers, users and addresses that may not connect.",
            operations=[
                Operation(
                    method="GET",
                    path="/bans",
                    name="listBans",
                    summary="List the bans that are in force",
                    right="monitor",
                    handler=self._list,
                    query=BansQuery,
                    answer=Page[Ban],
                ),
                Operation(
                    method="POST",
                    path="/bans",
                    name="addBan",
                    summary="Ban a client identifier, a user or an address",
                    about="Its connections end. A ban that exists is replaced.",
                    right="operate",
                    handler=self._add,
                    body=NewBan,
                    answer=AddedBan,
                    status=201,
                ),
                Operation(
                    method="DELETE",
                    path="/bans/{kind}/{value}",
                    name="removeBan",
                    summary="Remove a ban",
                    right="operate",
                    handler=self._remove,
                    path_about={
                        "kind": "client_id, user or address",
                        "value": "what is banned, as the list shows it",
                    },
                ),
            ],
        )

    async def _list(self, call: Call[BansQuery]) -> Page[Ban]:
        kind = call.query.kind

        def find(key: str) -> bans.Ban | None:
            value, _, of_kind = key.rpartition(" ")
            return self._bans.named(of_kind, value)

        listing = Listing(
            names=(f"{ban.value} {ban.kind}" for ban in self._bans.entries()),
            find=find,
            row=lambda _, ban: Ban(**asdict(ban)),
            wants_name=None if kind == "all" else lambda key: key.endswith(f" {kind}"),
            wants=lambda _: True,  # `find` leaves out those that have ended
        )
        return await in_steps(page_of(listing, call.query))

    async def _add(self, call: Call[Given]) -> AddedBan:
        body: NewBan = call.body
        until_ms = None
        if body.seconds is not None:
            until_ms = self._engine.core.clock_ms() + max(1, round(1000 * body.seconds))
        position = self._bans.add(
            body.kind, body.value, reason=body.reason, until_ms=until_ms, by=call.caller
        )
        value = normal_value(body.kind, body.value)
        since_ms = self._engine.core.clock_ms()
        audit.note("ban added", kind=body.kind, value=value, by=call.caller)
        ended = await self._end_connections(body.kind, value)
        await self._committed(position)
        return AddedBan(
            kind=body.kind,
            value=value,
            reason=body.reason,
            until_ms=until_ms,
            since_ms=since_ms,
            by=call.caller,
            ended=ended,
        )

    async def _end_connections(self, kind: Kind, value: str) -> int:
        """End those that a ban is about. Returns how many. (Those of a user end by the ban
        itself.)"""
        if kind == CLIENT:
            client = self._engine.connections.clients.get(value)
            if client is not None:
                client.end("its client identifier was banned")
            return int(client is not None)
        if kind != ADDRESS:
            return 0
        network = parse_network(value)
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

    async def _remove(self, call: Call[Given]) -> None:
        kind, value = call.path["kind"], call.path["value"]
        position = self._bans.remove(kind, value)
        audit.note("ban removed", kind=kind, value=value, by=call.caller)
        await self._committed(position)
