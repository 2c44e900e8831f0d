"""The operator's listener to replication: who follows whom, and a promotion."""

from __future__ import annotations

from aiohttp import web

from polymq.broker.port import Reason, Refused
from polymq.errors import Failure
from polymq.replicating import Replication

YES = "true"


def replication_routes(replication: Replication) -> list[web.RouteDef]:
    """`GET /replication`, `POST /replication/promote` and `POST /replication/follow`."""

    async def get(_request: web.Request) -> web.Response:
        return web.json_response(replication.value())

    async def promote(request: web.Request) -> web.Response:
        """Answers when the log is open in its new role, or says why it is not."""
        try:
            turned = await replication.promote(force=is_forced(request))
        except Failure as failure:
            raise Refused(Reason.DIFFERENT, failure.text) from failure
        try:
            return web.json_response(await turned)
        except Failure as failure:
            raise Refused(Reason.READ_ONLY, f"the promotion failed: {failure.text}") from failure

    async def follow(request: web.Request) -> web.Response:
        try:
            given_up = replication.follow(force=is_forced(request))
        except Failure as failure:
            raise Refused(Reason.DIFFERENT, failure.text) from failure
        return web.json_response(given_up, status=202)

    return [
        web.get("/replication", get),
        web.post("/replication/promote", promote),
        web.post("/replication/follow", follow),
    ]


def is_forced(request: web.Request) -> bool:
    """Whether the request says `force=true`. Raises Refused for anything else than that or
    `false`."""
    value = request.query.get("force", "false")
    if value not in (YES, "false"):
        raise Refused(Reason.BAD_ARGUMENT, f"force must be true or false, not {value!r}")
    return value == YES
