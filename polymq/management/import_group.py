"""The admin API takes definitions that `polymq config import rabbitmq-definitions` has read: they
can be imported where RabbitMQ's API is not open."""

from __future__ import annotations

from typing import Any, Final, Literal

from polymq.admin.commits import Commits
from polymq.admin.operations import Call, Given, Group, Operation, Value
from polymq.broker.engine import Engine
from polymq.management.context import Broker
from polymq.management.definitions import Importer
from polymq.management.permissions import PermissionHandlers
from polymq.management.plans import planned
from polymq.management.users import UserHandlers

PATH: Final = "/rabbitmq-definitions"


class Definition(Given):
    """One definition of RabbitMQ.

    Attributes:
        section: of the file of definitions that it stands in.
        value: as it stands there.
    """

    section: Literal["users", "permissions", "exchanges", "queues", "bindings"]
    value: dict[str, Any]


class SomeDefinitions(Given):
    """Definitions of RabbitMQ, in the order in which they are taken.

    Attributes:
        definitions: some of a file.
    """

    definitions: list[Definition]


class ImportedDefinitions(Value):
    """What became of the definitions.

    Attributes:
        taken: how many were taken or were there already, by section.
        refused: a sentence for each that could not be taken.
    """

    taken: dict[str, int]
    refused: list[str]


def import_group(engine: Engine) -> Group:
    """The operation."""
    broker = Broker(engine=engine, commits=Commits(engine))
    importer = Importer(broker, UserHandlers(broker), PermissionHandlers(broker))

    async def take(call: Call[Given]) -> ImportedDefinitions:
        given: list[Definition] = call.body.definitions
        plans = [planned(one.section, one.value) for one in given]
        taken = await importer.take(plans, call.port, call.caller)
        refused = [str(remark) for remark in taken.remarks]
        return ImportedDefinitions(taken=taken.counts, refused=refused)

    return Group(
        name="rabbitmq-definitions",
        about="What RabbitMQ exports: users, permissions, exchanges, queues and bindings.",
        operations=[
            Operation(
                method="POST",
                path=PATH,
                name="importRabbitmqDefinitions",
                summary="Take over definitions of a RabbitMQ broker",
                about="What exists stays as it is; users and permissions are replaced.",
                right="admin",
                handler=take,
                body=SomeDefinitions,
                answer=ImportedDefinitions,
            )
        ],
    )
