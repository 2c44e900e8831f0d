"""Liveness, readiness and startup, as Kubernetes asks for them: 200 or 503, and one word why.

* Live: the server answers. It is live also after its disk has failed or is full: a restart would
  take away what clients can still do, and helps only after somebody has seen to the disk.
* Ready: it accepts clients. A full disk leaves it ready, because consumers make room.
* Started: the log is recovered, the state is folded, and all listeners are open.

The answers name nothing that a stranger should not know: `/health` of the operator's listener says
more.
"""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

HEALTH_PATHS = frozenset({"/health/live", "/health/ready", "/health/startup"})


class Health:
    """What the answers come from.

    Args:
        refusal: why the server accepts no clients, in a few words; empty if it does.

    Attributes:
        started: all listeners are open.
    """

    def __init__(self, refusal: Callable[[], str]) -> None:
        self._refusal = refusal
        self.started = False

    def routes(self) -> list[web.RouteDef]:
        """The three paths."""
        return [
            web.get("/health/live", self._live),
            web.get("/health/ready", self._ready),
            web.get("/health/startup", self._startup),
        ]

    def why_not_started(self) -> str:
        """Empty if it has."""
        return "" if self.started else "starting"

    def why_not_ready(self) -> str:
        """Empty if it is."""
        return self.why_not_started() or self._refusal()

    async def _live(self, _request: web.Request) -> web.Response:
        return _answer("")

    async def _ready(self, _request: web.Request) -> web.Response:
        return _answer(self.why_not_ready())

    async def _startup(self, _request: web.Request) -> web.Response:
        return _answer(self.why_not_started())


def _answer(why_not: str) -> web.Response:
    headers = {"Cache-Control": "no-store"}
    status = 503 if why_not else 200
    return web.json_response({"status": why_not or "ok"}, status=status, headers=headers)
