"""The operations of the admin API over an engine, without HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
from aiohttp import web

from polymq.admin.api import read_body, read_query
from polymq.admin.backups import BackupHandlers
from polymq.admin.gateways import Gateways
from polymq.admin.groups import all_groups
from polymq.admin.mqtt_names import MqttNames
from polymq.admin.node import ShownNode
from polymq.admin.operations import Call, Group, Made
from polymq.admin.trace import TraceHandlers
from polymq.broker.port import Position
from polymq.definitions.group import DefinitionHandlers
from polymq.management.import_group import import_group
from polymq.net.budget import Budget
from polymq.replicating import Replication
from polymq.settings import Settings
from tests.harness.broker import Broker


async def committed(_position: Position) -> None:
    """The disk is not the matter here."""


def shown_node(broker: Broker) -> ShownNode:
    """A broker that has no listeners and no replicas, as the API shows it."""
    engine, store = broker.engine, broker.store
    alone = SimpleNamespace(
        role="master",
        value=lambda: {"role": "master", "name": "", "epoch": 1, "term": 0, "flushed": 0},
    )
    return ShownNode(
        current=Settings,
        engine=engine,
        store=store,
        budget=Budget(100),
        replication=cast("Replication", alone),
        backups=BackupHandlers(engine, store, broker.directory),
        status=lambda: "ok",
        connections=lambda: {"mqtt": 3, "amqp": 0},
        registration=lambda: None,
        started_ms=7,
        reloader=None,
    )


def groups_of(broker: Broker, connections: Iterable[Any] = ()) -> list[Group]:
    """All groups of operations.

    Args:
        connections: see `BanHandlers`.
    """
    names = MqttNames(broker.port, "")
    traces = TraceHandlers(broker.engine, names)
    groups = all_groups(shown_node(broker), committed, names, traces, lambda: connections)
    definitions = DefinitionHandlers(broker.engine, Gateways())
    return [*groups, import_group(broker.engine), definitions.group()]


class Api:
    """Calls operations by their names.

    Args:
        groups: that have them.
    """

    def __init__(self, broker: Broker, groups: list[Group] | None = None) -> None:
        self._broker = broker
        found = groups_of(broker) if groups is None else groups
        self._operations = {one.name: one for group in found for one in group.operations}

    def call(
        self,
        operation: str,
        *,
        path: dict[str, str] | None = None,
        body: object = None,
        **query: Any,
    ) -> Any:
        """The value of an answer. Raises Refused."""
        wanted = self._operations[operation]
        call: Call[Any] = Call(
            path=path or {},
            query=read_query(wanted.query, query.items()),
            body=None
            if wanted.body is None
            else read_body(wanted.body, msgspec.json.encode(body or {})),
            caller="test",
            port=self._broker.port,
            request=cast("web.Request", None),
        )

        async def ask() -> Any:
            return await wanted.handler(call)

        answer = asyncio.run(ask())
        return answer.answer if isinstance(answer, Made) else answer
