"""Permissions: RabbitMQ's three expressions for each user, kept as rules.

`configure` is the right to create, `write` to publish, and `read` to subscribe. What was written
here is shown again as it was, as long as the rules are those that it stands for; other rules are
shown as the expressions that say the same (`regexes.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from polymq.broker.accounts import audit
from polymq.broker.accounts.permissions import (
    ADMIN_ROLE,
    Action,
    Effect,
    Rule,
)
from polymq.broker.port import Position
from polymq.broker.port.values import Address
from polymq.management.bodies import text_of
from polymq.management.callers import Rank
from polymq.management.context import Broker
from polymq.management.errors import bad, missing
from polymq.management.lists import NOTHING, Items
from polymq.management.regexes import NoCounterpart, expression_of, patterns_of
from polymq.management.routing import VHOST, Call, Created, Route

ACTIONS: Final[Mapping[str, Action]] = {
    "configure": Action.CREATE,
    "write": Action.PUBLISH,
    "read": Action.SUBSCRIBE,
}
DOCUMENT: Final = "management-permissions"
"""The kind of the documents in which expressions stand as they were written, by user."""
_EVERYTHING: Final = ".*"
NO_TOPIC_PERMISSIONS: Final = (
    "topic permissions are not kept apart here: rules are about exchange and routing key together. "
    "Use `polymq permission allow`, such as `USER publish EXCHANGE.key.#`"
)


class PermissionHandlers:
    """The answers about permissions."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._users = broker.engine.users
        self._documents = broker.engine.documents

    def routes(self) -> list[Route]:
        """For the table."""
        rank = Rank.ADMINISTRATOR
        one, topics = "/permissions/{vhost}/{user}", "/topic-permissions/{vhost}/{user}"
        return [
            Route("GET", "/permissions", rank, self._list),
            Route("GET", "/permissions/{vhost}", rank, self._list),
            Route("GET", "/vhosts/{vhost}/permissions", rank, self._list),
            Route("GET", "/users/{user}/permissions", rank, self._of_user),
            Route("GET", one, rank, self._show),
            Route("PUT", one, rank, self._put),
            Route("DELETE", one, rank, self._delete),
            Route("GET", "/topic-permissions", rank, self._no_topics),
            Route("GET", "/topic-permissions/{vhost}", rank, self._no_topics),
            Route("GET", "/vhosts/{vhost}/topic-permissions", rank, self._no_topics),
            Route("GET", "/users/{user}/topic-permissions", rank, self._no_topics_of_user),
            Route("GET", topics, rank, self._no_topics_of_user),
            Route("PUT", topics, rank, self._refuse_topics),
            Route("DELETE", topics, rank, self._delete_topics),
            Route("DELETE", f"{topics}/{{exchange}}", rank, self._delete_topics),
        ]

    # --- what there is --------------------------------------------------------------------

    async def _list(self, _call: Call) -> Items:
        return Items(entries=list(self._users.users), row=self.row, name=str)

    async def _of_user(self, call: Call) -> Items:
        self._need(call.names["user"])
        return Items(entries=[call.names["user"]], row=self.row, name=str)

    async def _show(self, call: Call) -> Mapping[str, Any]:
        row = self.row(call.names["user"])
        if row is None:
            raise missing()
        return row

    def row(self, name: str) -> Mapping[str, Any] | None:
        """The expressions of a user; None if it has no permissions."""
        user = self._users.users.get(name)
        if user is None:
            return None
        if ADMIN_ROLE in user.roles:
            shown: Mapping[str, str] = dict.fromkeys(ACTIONS, _EVERYTHING)
        else:
            patterns = self._patterns(name)
            if not any(patterns.values()) and name not in self._documents.of_kind(DOCUMENT):
                return None
            shown = self._as_written(name, patterns)
        return {"user": name, "vhost": VHOST, **shown}

    def _patterns(self, name: str) -> dict[Action, list[Address]]:
        """What a user is allowed by its own rules, by action."""
        found: dict[Action, list[Address]] = {action: [] for action in ACTIONS.values()}
        for rule in self._users.rules(name):
            if rule.effect is Effect.ALLOW and rule.action in found:
                found[rule.action].append(rule.pattern)
        return found

    def _as_written(
        self, name: str, patterns: Mapping[Action, Iterable[Address]]
    ) -> Mapping[str, str]:
        written = self._documents.of_kind(DOCUMENT).get(name, {})
        shown: dict[str, str] = {}
        for field, action in ACTIONS.items():
            current = patterns[action]
            text = written.get(field)
            shown[field] = expression_of(current)
            if isinstance(text, str) and set(patterns_of(text)) == set(current):
                shown[field] = text
        return shown

    def _need(self, name: str) -> None:
        if name not in self._users.users:
            raise missing()

    # --- changes --------------------------------------------------------------------------

    async def _put(self, call: Call) -> Created | None:
        name = call.names["user"]
        existed = self.row(name) is not None
        position = self.put(name, call.body.value, by=call.caller.name)
        await self._broker.committed(position)
        return None if existed else Created()

    def put(self, name: str, value: Mapping[str, Any], *, by: str) -> Position:
        """Give a user these permissions, and no others of its own. Raises Problem, Refused.

        Args:
            value: RabbitMQ's three expressions.
        """
        if name not in self._users.users:
            raise bad(f"no_such_user: {name}")
        written = {field: text_of(value, field) for field in ACTIONS}
        rules = wanted_rules(name, written)
        before = self._own(name)
        self._users.check_new_rules(name, rules)  # before the first of them is added
        position = Position(0)
        for rule in rules:
            if rule not in before:
                position = max(position, self._users.add_rule(rule))
                audit.note("permission added", rule=str(rule), by=by)
        position = max(position, self._remove(before - set(rules), by))
        return max(position, self._documents.put(DOCUMENT, name, written))

    def _own(self, name: str) -> set[Rule]:
        actions = set(ACTIONS.values())
        return {
            rule
            for rule in self._users.rules(name)
            if rule.effect is Effect.ALLOW and rule.action in actions
        }

    def _remove(self, rules: Iterable[Rule], by: str) -> Position:
        position = Position(0)
        for rule in rules:
            position = max(position, self._users.remove_rule(rule))
            audit.note("permission removed", rule=str(rule), by=by)
        return position

    async def _delete(self, call: Call) -> None:
        name = call.names["user"]
        self._need(name)
        position = self._remove(self._own(name), call.caller.name)
        if name in self._documents.of_kind(DOCUMENT):
            position = max(position, self._documents.put(DOCUMENT, name, None))
        await self._broker.committed(position)

    # --- topic permissions ----------------------------------------------------------------

    async def _no_topics(self, _call: Call) -> Items:
        return NOTHING

    async def _no_topics_of_user(self, call: Call) -> Items:
        self._need(call.names["user"])
        return NOTHING

    async def _refuse_topics(self, call: Call) -> None:
        self._need(call.names["user"])
        raise bad(NO_TOPIC_PERMISSIONS)

    async def _delete_topics(self, call: Call) -> None:
        self._need(call.names["user"])


def wanted_rules(name: str, written: Mapping[str, str]) -> list[Rule]:
    """The rules that stand for a user's expressions. Raises Problem."""
    rules: list[Rule] = []
    for field, action in ACTIONS.items():
        try:
            patterns = patterns_of(written[field])
        except NoCounterpart as error:
            raise bad(f"{field}: {error}") from None
        rules += [
            Rule(subject=name, effect=Effect.ALLOW, action=action, pattern=pattern)
            for pattern in patterns
        ]
    return rules
