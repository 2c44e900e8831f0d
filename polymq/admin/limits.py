"""The limits in force, and how much of them is used.

Those that a setting chooses are all settings whose names end in `_max`. The others are the engine's
own (`broker/limits.py`): here are those that an operator may meet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from polymq.admin.node import ShownNode
from polymq.admin.operations import Call, Group, Operation, Value
from polymq.admin.pages import Listing, Page, PageQuery, page_of
from polymq.broker.engine import Engine
from polymq.steps import in_steps

Used = Callable[[Engine], float]


class Limit(Value):
    """A limit.

    Attributes:
        name: of the limit.
        about: what it limits.
        value: the most that is allowed. What 0 means is said in `about`.
        setting: the setting that chooses it; null: it is fixed, or follows from the system.
        used: how much of it is used now; null: that is not known, or it is not of that kind.
    """

    name: str
    about: str
    value: float
    setting: str | None
    used: float | None


ENGINE: Final[Mapping[str, tuple[str, Used | None]]] = {
    "auto_topics_max": ("Topics.", lambda engine: len(engine.topics.topics)),
    "queues_max": (
        "Queues of AMQP and subscriptions over HTTP.",
        lambda e: len(e.named_queues.queues),
    ),
    "exchanges_max": ("Exchanges of AMQP.", lambda engine: len(engine.exchanges.exchanges)),
    "links_max": (
        "Bindings between exchanges.",
        lambda engine: engine.exchanges.graph.link_count,
    ),
    "bindings_per_queue_max": ("Bindings of one queue.", None),
    "bindings_per_exchange_max": ("Bindings to one exchange.", None),
    "sessions_max": (
        "MQTT sessions that outlive their connections.",
        lambda engine: len(engine.sessions.by_number),
    ),
    "backlog_count_max": (
        "Messages that wait for a slow subscriber without a durable queue.",
        None,
    ),
    "delayed_max": ("Delayed messages that wait.", lambda engine: engine.delays.waiting_count),
    "half_max": ("Half messages of RocketMQ transactions.", None),
    "bans_max": ("Entries of the ban list.", lambda engine: engine.bans.count),
    "users_max": ("Users.", lambda engine: len(engine.users.users)),
    "roles_per_user_max": ("Roles of one user.", None),
    "access_keys_per_user_max": ("Access keys of one user.", None),
    "rules_max": ("Rules of permissions.", lambda engine: len(engine.users.rule_table())),
    "rules_per_subject_max": ("Rules of one user or role.", None),
    "logins_pending_max": (
        "Logins that wait for their password to be checked.",
        lambda engine: engine.logins.waiting_count,
    ),
    "query_count_max": ("Messages that one search by key finds.", None),
}
"""Field of `broker.limits.Limits` -> what it limits, and how much of it is used."""
USED: Final[Mapping[str, Used]] = {
    "mqtt.retained_max": lambda engine: engine.retained.count,
    "mqtt.retained_bytes_max": lambda engine: engine.retained.bytes,
    "storage.log_bytes_max": lambda engine: engine.retention.size_bytes,
}
"""Setting -> how much of it is used."""
CONNECTIONS_MAX: Final = "connections_max"


class LimitHandlers:
    """Carries out the operations on limits."""

    def __init__(self, node: ShownNode) -> None:
        self._node = node

    def group(self) -> Group:
        """The operations."""
        return Group(
            name="limits",
            about="The limits in force. What would exceed one is refused, and nothing that exists "
            "is lost.",
            operations=[
                Operation(
                    method="GET",
                    path="/limits",
                    name="listLimits",
                    summary="List the limits in force, and how much of them is used",
                    right="monitor",
                    handler=self._list,
                    query=PageQuery,
                    answer=Page[Limit],
                ),
            ],
        )

    async def _list(self, call: Call[PageQuery]) -> Page[Limit]:
        limits = {limit.name: limit for limit in self._limits()}
        listing = Listing(names=limits, find=limits.get, row=lambda _, limit: limit)
        return await in_steps(page_of(listing, call.query))

    def _limits(self) -> list[Limit]:
        node, engine = self._node, self._node.engine
        connected = node.connections()
        found = [
            Limit(
                name=CONNECTIONS_MAX,
                about="Connections of all listeners together, as open files allow.",
                value=node.budget.total,
                setting=None,
                used=sum(connected.values()),
            )
        ]
        for name, (about, used) in ENGINE.items():
            found.append(
                Limit(
                    name=name,
                    about=about,
                    value=getattr(engine.core.limits, name),
                    setting=None,
                    used=None if used is None else used(engine),
                )
            )
        return [*found, *self._of_settings(connected)]

    def _of_settings(self, connected: Mapping[str, int]) -> list[Limit]:
        found = []
        for section, values in self._node.settings:
            for name, field in type(values).model_fields.items():
                key = f"{section}.{name}"
                value = getattr(values, name)
                if not name.endswith("_max") or not isinstance(value, int | float):
                    continue
                used = USED[key](self._node.engine) if key in USED else None
                if name == CONNECTIONS_MAX:
                    used = connected.get(section)
                about = " ".join((field.description or "").split())
                found.append(Limit(name=key, about=about, value=value, setting=key, used=used))
        return found
