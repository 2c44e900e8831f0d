"""Calling operations of the admin API without HTTP, as requests do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any, cast

from aiohttp import web

from polymq.admin.api import read_body, read_query
from polymq.admin.operations import Call, Group
from polymq.broker.port import BrokerPort, Position
from tests.harness.broker import Broker
from tests.harness.spy_port import SpyPort


async def committed(_position: Position) -> None:
    """The disk is not the matter here."""


def call(
    groups: Iterable[Group],
    name: str,
    path: dict[str, str] | None = None,
    *,
    broker: Broker | None = None,
    port: BrokerPort | None = None,
    **given: Any,
) -> Any:
    """What the operation of this name returns.

    Args:
        broker: whose loop moves meanwhile.
        given: its body if it has one, else its query.
    """
    (wanted,) = (one for group in groups for one in group.operations if one.name == name)
    has_body = wanted.body is not None
    made: Call[Any] = Call(
        path=path or {},
        query=read_query(wanted.query, [] if has_body else given.items()),
        body=None if wanted.body is None else read_body(wanted.body, json.dumps(given).encode()),
        caller="test",
        port=port or (cast(BrokerPort, SpyPort()) if broker is None else broker.port),
        request=cast(web.Request, None),
    )

    async def run() -> Any:
        task = asyncio.ensure_future(wanted.handler(made))
        while not task.done():
            if broker is not None:
                broker.step()
            await asyncio.sleep(0)
        return task.result()

    return asyncio.run(run())
