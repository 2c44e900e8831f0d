"""The connections of the admin listener: aiohttp's, counted."""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web

from net.budget import Share

ADMIN_CONNECTIONS_MAX: Final = 256
"""Operators, their tools and a few monitors: more are refused."""


class AdminConnection(web.RequestHandler):
    """One connection; one over the limit is closed at once."""

    __slots__ = ("_counted", "_share")

    def __init__(
        self, manager: web.Server, *, loop: asyncio.AbstractEventLoop, share: Share
    ) -> None:
        super().__init__(
            manager,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]  # aiohttp means Logger | None
        )
        self._share = share
        self._counted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count."""
        super().connection_made(transport)
        self._counted = self._share.take()
        if not self._counted:
            self.force_close()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Count."""
        if self._counted:
            self._counted = False
            self._share.give()
        super().connection_lost(exc)
