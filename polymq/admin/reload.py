"""The operator's listener to reloads: `POST /reload`."""

from __future__ import annotations

from aiohttp import web

from polymq.broker.port import Reason, Refused
from polymq.errors import Failure
from polymq.reloading.reloader import Reloader, value_of


def reload_routes(reloader: Reloader | None) -> list[web.RouteDef]:
    """`POST /reload`: what has changed, or why nothing was changed."""

    async def reload(_request: web.Request) -> web.Response:
        assert reloader is not None
        try:
            return web.json_response(value_of(await reloader.reload()))
        except Failure as failure:
            text = f"nothing was changed: {failure.text}"
            raise Refused(Reason.BAD_ARGUMENT, text) from failure

    return [] if reloader is None else [web.post("/reload", reload)]
