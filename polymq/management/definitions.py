"""Definitions out and in: RabbitMQ's JSON for exchanges, queues, bindings, users and permissions.

Rules:

* What goes out is what is durable and was declared, without the topics that are exchanges by
  themselves. Passwords never go out.
* What comes in is merged with what there is, as RabbitMQ does it: what exists stays, and a
  definition that differs from it is not an error. Users and permissions are replaced.
* What cannot be taken is said, and the rest is taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from polymq.broker.accounts import audit
from polymq.broker.errors import Reason, Refused
from polymq.broker.named_queues.named_queues import SUBSCRIPTION_PREFIX
from polymq.broker.port import BrokerPort, Position
from polymq.gateways.amqp import mapping
from polymq.management.bindings import Binding, BindingHandlers
from polymq.management.bodies import flag_of, table_of, text_of
from polymq.management.callers import Rank
from polymq.management.context import RABBITMQ_VERSION, Broker, Context
from polymq.management.definitions_file import definitions_of, read_definitions
from polymq.management.errors import Problem, bad
from polymq.management.exchanges import PREDECLARED_PREFIX
from polymq.management.json_values import plain
from polymq.management.lists import NOTHING, Items, Sections, itself
from polymq.management.permissions import PermissionHandlers
from polymq.management.plans import Planned, Remark, Step, planned
from polymq.management.routing import VHOST, Call, Route
from polymq.management.users import UserHandlers
from polymq.steps import in_steps

IMPORT_BYTES_MAX: Final = 32 * 1024 * 1024
STEP_DEFINITIONS: Final = 20
"""Definitions that are looked at, or taken, before others have their turn."""
REMARKS_MAX: Final = 1_000
"""Definitions that could not be taken, of which something is remembered."""
REMARKS_SHOWN: Final = 20
"""Those of which an answer tells."""


class DefinitionHandlers:
    """The answers below `/definitions`."""

    def __init__(
        self,
        context: Context,
        users: UserHandlers,
        permissions: PermissionHandlers,
        bindings: BindingHandlers,
    ) -> None:
        self._context = context
        self._engine = context.engine
        self._users = users
        self._permissions = permissions
        self._bindings = bindings
        self._importer = Importer(context, users, permissions)

    def routes(self) -> list[Route]:
        """For the table."""
        rank, size = Rank.ADMINISTRATOR, IMPORT_BYTES_MAX
        return [
            Route("GET", "/definitions", rank, self._export),
            Route("GET", "/all-configuration", rank, self._export),
            Route("GET", "/definitions/{vhost}", rank, self._export_vhost),
            Route("POST", "/definitions", rank, self._import, size),
            Route("POST", "/all-configuration", rank, self._import, size),
            Route("POST", "/definitions/{vhost}", rank, self._import, size),
            Route("PUT", "/definitions", rank, self._import, size),
        ]

    # --- out ------------------------------------------------------------------------------

    async def _export(self, call: Call) -> Sections:
        node = self._context.node
        head = {
            "rabbit_version": RABBITMQ_VERSION,
            "rabbitmq_version": RABBITMQ_VERSION,
            "product_name": "PolyMQ",
            "product_version": node.version,
            "rabbitmq_definition_format": "cluster",
            "original_cluster_name": node.cluster,
        }
        users = list(self._engine.users.users)
        vhosts = [{"name": VHOST, "description": "Default virtual host", "tags": []}]
        lists = {
            "users": Items(entries=users, row=self._users.row, name=str),
            "vhosts": Items(entries=vhosts, row=itself),
            "permissions": Items(entries=users, row=self._permissions.row, name=str),
            "topic_permissions": NOTHING,
            "parameters": NOTHING,
            "global_parameters": NOTHING,
            "policies": NOTHING,
        }
        return Sections(head, {**lists, **self._topology(call, with_vhost=True)})

    async def _export_vhost(self, call: Call) -> Sections:
        head = {
            "rabbit_version": RABBITMQ_VERSION,
            "rabbitmq_version": RABBITMQ_VERSION,
            "rabbitmq_definition_format": "single_virtual_host",
            "metadata": {"description": "Default virtual host", "tags": []},
        }
        lists = {"parameters": NOTHING, "policies": NOTHING}
        return Sections(head, {**lists, **self._topology(call, with_vhost=False)})

    def _topology(self, call: Call, *, with_vhost: bool) -> Mapping[str, Items]:
        exchanges, queues = self._engine.exchanges.exchanges, self._engine.named_queues.queues
        where = {"vhost": VHOST} if with_vhost else {}

        def queue(name: str) -> Mapping[str, Any] | None:
            found = queues.get(name)
            if found is None or not found.queue.durable or name.startswith(SUBSCRIPTION_PREFIX):
                return None
            terms = found.terms
            flags = {"durable": True, "auto_delete": terms.auto_delete}
            return {"name": name, **where, **flags, "arguments": plain(terms.arguments)}

        def exchange(name: str) -> Mapping[str, Any] | None:
            found = exchanges.get(name)
            is_own = not name or name.startswith(PREDECLARED_PREFIX)
            if found is None or is_own or not found.durable:
                return None
            value = found.value()
            return {"name": name, **where, **value, "arguments": plain(found.arguments)}

        def binding(one: Binding) -> Mapping[str, Any] | None:
            if not one.source or not self._is_durable(one):
                return None
            row = {key: value for key, value in one.row().items() if key != "properties_key"}
            if not with_vhost:
                del row["vhost"]
            return row

        return {
            "queues": Items(entries=list(queues), row=queue, name=str),
            "exchanges": Items(entries=list(exchanges), row=exchange, name=str),
            "bindings": Items(entries=self._bindings.everything(call.caller), row=binding),
        }

    def _is_durable(self, one: Binding) -> bool:
        """Whether both ends are in the file, or are always there."""
        exchanges = self._engine.exchanges.exchanges
        source = exchanges.get(one.source)
        if source is None or not source.durable:
            return False
        queue = self._engine.named_queues.queues.get(one.destination)
        if one.kind == "queue":
            return queue is not None and queue.queue.durable
        destination = exchanges.get(one.destination)
        return destination is not None and destination.durable

    # --- in -------------------------------------------------------------------------------

    async def _import(self, call: Call) -> None:
        content = _file_in_form(call.body.content, call.body.content_type)
        definitions = await in_steps(read_definitions(content))
        plans = (planned(section, value) for section, value in definitions_of(definitions))
        taken = await self._importer.take(plans, call.caller.port, call.caller.name)
        if taken.refused_count:
            raise bad(_summary(taken))


@dataclass(slots=True)
class Taken:
    """What an import has come to.

    Attributes:
        counts: definitions that were taken, or were there, by section.
        refused_count: those that could not be.
        remarks: what is said of the first of these.
    """

    counts: dict[str, int] = field(default_factory=dict)
    refused_count: int = 0
    remarks: list[Remark] = field(default_factory=list)

    @property
    def count(self) -> int:
        """All that were taken."""
        return sum(self.counts.values())

    def refuse(self, remark: Remark) -> None:
        """One that could not be taken."""
        self.refused_count += 1
        if len(self.remarks) < REMARKS_MAX:
            self.remarks.append(remark)


class Importer:
    """Takes definitions that were planned."""

    def __init__(
        self, broker: Broker, users: UserHandlers, permissions: PermissionHandlers
    ) -> None:
        self._broker = broker
        self._users = users
        self._permissions = permissions

    async def take(self, plans: Iterable[Planned], port: BrokerPort, by: str) -> Taken:
        """Take what can be taken, one after the other; returns when it is on the disk.

        Args:
            port: who does that may do it all.
            by: who that is, for the audit log.
        """
        taken = Taken()
        position = Position(0)
        for number, plan in enumerate(plans):
            if isinstance(plan, Remark) and plan.is_loss:
                taken.refuse(plan)
            elif isinstance(plan, Step):
                position = max(position, await self._try(plan, port, by, taken))
            if number % STEP_DEFINITIONS == 0:
                await self._broker.pause()
        audit.note("definitions imported", taken=taken.count, refused=taken.refused_count, by=by)
        await self._broker.committed(position)
        return taken

    async def _try(self, step: Step, port: BrokerPort, by: str, taken: Taken) -> Position:
        try:
            position = await self._take(step, port, by)
        except (Problem, Refused) as error:
            if not isinstance(error, Refused) or error.reason is not Reason.DIFFERENT:
                text = error.reason if isinstance(error, Problem) else error.text
                taken.refuse(Remark(step.section, step.name, str(text)))
                return Position(0)
            position = Position(0)  # what exists stays
        taken.counts[step.section] = taken.counts.get(step.section, 0) + 1
        return position

    async def _take(self, step: Step, port: BrokerPort, by: str) -> Position:
        value = step.value
        arguments = table_of(value, "arguments")
        match step.section:
            case "users":
                return await self._users.put(step.name, value, by=by, keeps_password=True)
            case "permissions":
                return self._permissions.put(step.name, value, by=by)
            case "exchanges":
                return port.exchanges.declare(
                    step.name,
                    type=text_of(value, "type"),
                    durable=flag_of(value, "durable", True),
                    auto_delete=flag_of(value, "auto_delete", False),
                    internal=flag_of(value, "internal", False),
                    arguments=mapping.exchange_arguments(arguments),
                )
            case "queues":
                return port.queues.declare(
                    step.name,
                    durable=flag_of(value, "durable", True),
                    exclusive=False,
                    auto_delete=flag_of(value, "auto_delete", False),
                    arguments=mapping.queue_arguments(arguments),
                    owner=None,
                )[1]
        return self._bind(value, arguments, port)

    def _bind(
        self, value: Mapping[str, Any], arguments: Mapping[str, Any], port: BrokerPort
    ) -> Position:
        source, destination = text_of(value, "source"), text_of(value, "destination")
        key = text_of(value, "routing_key", "")
        bound = mapping.binding_arguments(arguments)
        if text_of(value, "destination_type", "queue") == "queue":
            return port.exchanges.bind_queue(destination, source, key, bound, owner=None)
        return port.exchanges.bind_exchange(destination, source, key, bound)


def _summary(taken: Taken) -> str:
    shown = "; ".join(map(str, taken.remarks[:REMARKS_SHOWN]))
    more = taken.refused_count - REMARKS_SHOWN
    rest = f"; and {more} more" if more > 0 else ""
    counts = f"{taken.count} definitions were taken, and {taken.refused_count} cannot be"
    return f"{counts}: {shown}{rest}"


def _file_in_form(content: bytes, content_type: str) -> bytes:
    """The file of a form that a browser or curl sends; other bodies are the file themselves."""
    if content_type != "multipart/form-data":
        return content
    boundary, separator, _ = content.partition(b"\r\n")
    for part in content.split(boundary)[1:]:
        head, found, body = part.partition(b"\r\n\r\n")
        if found and b'name="file"' in head:
            return body.removesuffix(b"\r\n")
    raise bad(f"the form has no field 'file'{'' if separator else ', and no parts'}")
