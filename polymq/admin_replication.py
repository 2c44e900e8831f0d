"""The operator's door to replication: who follows whom, and a promotion."""

from __future__ import annotations

from aiohttp import web

from broker.port import Reason, Refused
from polymq.errors import Failure
from polymq.replicating import Replication


def replication_routes(replication: Replication) -> list[web.RouteDef]:
    """`GET /replication` and `POST /replication/promote`."""

    async def get(_request: web.Request) -> web.Response:
        return web.json_response(replication.value())

    async def promote(_request: web.Request) -> web.Response:
        try:
            replication.promote()
        except Failure as failure:
            raise Refused(Reason.DIFFERENT, failure.text) from failure
        return web.json_response(replication.value(), status=202)

    return [web.get("/replication", get), web.post("/replication/promote", promote)]
