"""The connections of the admin listener: aiohttp's, counted."""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web

from polymq.gateways.http_cloudevents.cycle_free import RequestHandler
from polymq.net.roster import Roster

ADMIN_CONNECTIONS_MAX: Final = 256
"""Operators, their tools and a few monitors: more are refused, unless some have not made a valid
request yet (`net/roster.py`)."""


class AdminConnection(RequestHandler):
    """One connection; one over the limit is closed at once."""

    __slots__ = ("_roster",)

    def __init__(
        self,
        manager: web.Server,
        *,
        loop: asyncio.AbstractEventLoop,
        roster: Roster[AdminConnection],
    ) -> None:
        super().__init__(
            manager,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]  # aiohttp means Logger | None
            auto_decompress=False,  # aiohttp would decode any body to its end, in one step
        )
        self._roster = roster

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count."""
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        address = peer[0] if isinstance(peer, tuple) else ""
        if self._roster.admit(lambda: self, address) is None:
            self.force_close()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Count."""
        self._roster.gone(self)
        super().connection_lost(exc)

    def abort(self) -> None:
        """Close without sending what is unsent."""
        if self.transport is not None:
            self.transport.abort()

    def proven(self) -> None:
        """The client made a request that it may make. Safe to call again."""
        self._roster.proven(self)
