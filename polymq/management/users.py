"""Users.

Rules:

* A hash never leaves the broker: `password_hash` is empty in every answer. What comes in may be a
  password, or a hash of RabbitMQ's, which is replaced at the user's next login.
* A user without a password may not log in with one, as in RabbitMQ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from polymq.admin.hashing import hash_password
from polymq.broker.accounts import audit, passwords
from polymq.broker.accounts.passwords import UNKNOWN, BadPassword
from polymq.broker.accounts.user import User
from polymq.broker.port import Position
from polymq.management.bodies import text_of
from polymq.management.callers import Rank
from polymq.management.context import Broker
from polymq.management.errors import bad, missing
from polymq.management.lists import Items
from polymq.management.routing import Call, Created, Route
from polymq.management.tags import BadTag, read_tags, roles_of, tags_of

SHA256: Final = "rabbit_password_hashing_sha256"
NO_PASSWORD: Final = UNKNOWN
"""The hash of a user whom no password lets in."""
BULK_MAX: Final = 1_000


class UserHandlers:
    """The answers below `/users`, but for permissions."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._users = broker.engine.users
        self._logins = broker.engine.logins

    def routes(self) -> list[Route]:
        """For the table."""
        rank = Rank.ADMINISTRATOR
        return [
            Route("GET", "/users", rank, self._list),
            Route("GET", "/users/without-permissions", rank, self._without_permissions),
            Route("POST", "/users/bulk-delete", rank, self._delete_many),
            Route("GET", "/users/{name}", rank, self._show),
            Route("PUT", "/users/{name}", rank, self._put),
            Route("DELETE", "/users/{name}", rank, self._delete),
        ]

    async def _list(self, _call: Call) -> Items:
        return Items(entries=list(self._users.users), row=self.row, name=str)

    def row(self, name: str) -> Mapping[str, Any] | None:
        """What lists show of a user."""
        user = self._users.users.get(name)
        return None if user is None else _shown(user)

    async def _without_permissions(self, _call: Call) -> Items:
        entries = [
            name
            for name, user in self._users.users.items()
            if not user.roles and not self._users.rules(name)
        ]
        return Items(entries=entries, row=self.row, name=str)

    async def _show(self, call: Call) -> Mapping[str, Any]:
        row = self.row(call.names["name"])
        if row is None:
            raise missing()
        return row

    async def _put(self, call: Call) -> Created | None:
        name = call.names["name"]
        existed = name in self._users.users
        await self._broker.committed(await self.put(name, call.body.value, by=call.caller.name))
        return None if existed else Created()

    async def put(
        self, name: str, value: Mapping[str, Any], *, by: str, keeps_password: bool = False
    ) -> Position:
        """Make a user, or give it another password and other tags. Raises Problem, Refused.

        Args:
            value: as RabbitMQ has it.
            by: who does that, for the audit log.
            keeps_password: a user that exists keeps its password if none is given.
        """
        if "tags" not in value:
            raise bad("key_missing: tags")
        try:
            roles = roles_of(read_tags(value["tags"]))
        except BadTag as error:
            raise bad(str(error)) from None
        user = self._users.users.get(name)
        if user is None:
            self._users.check_new(name)
        stored = await self._hash(value)
        if user is None:
            position = self._users.add(name, stored, roles)
            audit.note("user added", user=name, by=by)
            return position
        position = self._users.set_roles(name, roles)
        if stored != NO_PASSWORD or not keeps_password:
            position = max(position, self._users.set_password(name, stored))
        audit.note("user changed", user=name, by=by)
        return position

    async def _hash(self, value: Mapping[str, Any]) -> str:
        if "password" in value and value["password"] != "":
            return await hash_password(self._logins, text_of(value, "password"))
        encoded = text_of(value, "password_hash", "") if value.get("password_hash") else ""
        if not encoded:
            return NO_PASSWORD
        try:
            algorithm = text_of(value, "hashing_algorithm", SHA256)
            return passwords.from_rabbit(algorithm, encoded)
        except BadPassword as error:
            raise bad(str(error)) from None

    async def _delete(self, call: Call) -> None:
        name = call.names["name"]
        if name not in self._users.users:
            raise missing()
        position = self._users.delete(name)
        audit.note("user deleted", user=name, by=call.caller.name)
        await self._broker.committed(position)

    async def _delete_many(self, call: Call) -> None:
        names = call.body.value.get("users")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise bad("users has to be a list of names")
        if len(names) > BULK_MAX:
            raise bad(f"at most {BULK_MAX} users are deleted at once")
        position = Position(0)
        for name in names:
            if name in self._users.users:
                position = max(position, self._users.delete(name))
                audit.note("user deleted", user=name, by=call.caller.name)
                await self._broker.pause()
        await self._broker.committed(position)


def _shown(user: User) -> Mapping[str, Any]:
    return {
        "name": user.name,
        "password_hash": "",
        "hashing_algorithm": SHA256,
        "tags": tags_of(user.roles),
        "limits": {},
    }
