"""Users, their quotas, and their access keys.

Passwords come in bodies only, never in a path or a query, and go nowhere but into their hash. The
secret of an access key is in one answer, to who had it made, and in no other.
"""

from __future__ import annotations

import secrets
from dataclasses import asdict, replace
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from polymq.admin.commits import Committed
from polymq.admin.hashing import hash_password
from polymq.admin.operations import Call, Given, Group, Operation, Value
from polymq.admin.pages import Listing, Page, PageQuery, page_of
from polymq.broker.accounts import access_keys, audit, passwords, quotas
from polymq.broker.accounts.user import User as BrokerUser
from polymq.broker.engine import Engine
from polymq.broker.errors import Reason, Refused
from polymq.broker.port import Position
from polymq.steps import in_steps

Count = Annotated[int, msgspec.Meta(ge=1, le=2**53)]
"""Of a quota: what JSON numbers hold exactly."""
Wanted = Count | Literal["default"] | None | UnsetType


class Quotas(Value):
    """What a user may use over all its connections; null: there is no limit.

    Attributes:
        connections: at a time.
        sessions: MQTT sessions that outlive their connections.
        subscriptions: of all its MQTT sessions together.
        inflight: unacknowledged messages of one MQTT session.
        queues: AMQP queues that it declared.
        messages_per_second: that it publishes.
        bytes_per_second: that it publishes, as stored.
    """

    connections: int | None
    sessions: int | None
    subscriptions: int | None
    inflight: int | None
    queues: int | None
    messages_per_second: int | None
    bytes_per_second: int | None


class QuotaChange(Given):
    """New quotas: a number, null for no limit, or "default". What is left out stays.

    Attributes:
        connections: at a time.
        sessions: MQTT sessions that outlive their connections.
        subscriptions: of all its MQTT sessions together.
        inflight: unacknowledged messages of one MQTT session.
        queues: AMQP queues that it declared.
        messages_per_second: that it publishes.
        bytes_per_second: that it publishes, as stored.
    """

    connections: Wanted = UNSET
    sessions: Wanted = UNSET
    subscriptions: Wanted = UNSET
    inflight: Wanted = UNSET
    queues: Wanted = UNSET
    messages_per_second: Wanted = UNSET
    bytes_per_second: Wanted = UNSET


class AccessKey(Value):
    """An access key, without its secret.

    Attributes:
        access_key: its name.
        created_ms: when it was made, in milliseconds since the epoch.
    """

    access_key: str
    created_ms: int


class NewAccessKey(Value):
    """An access key that was made. Its secret is not shown again.

    Attributes:
        access_key: its name.
        secret_key: what programs sign with.
    """

    access_key: str
    secret_key: str


class User(Value):
    """A user.

    Attributes:
        name: of the user.
        roles: whose rules apply to it.
        disabled: whether it cannot log in.
        quotas: what it may use.
        access_keys: what RocketMQ clients sign with, oldest first.
    """

    name: str
    roles: list[str]
    disabled: bool
    quotas: Quotas
    access_keys: list[AccessKey]


class UsersQuery(PageQuery):
    """Which users.

    Attributes:
        role: only users that have this role.
    """

    role: str | None = None


class NewUser(Given):
    """What a new user has: a password, or the hash of one.

    Attributes:
        password: in plain text.
        hash: of a password, in mosquitto's form $6$ or $7$; it is replaced by a stronger one at the
            user's next login.
        roles: whose rules apply to it.
    """

    password: str | None = None
    hash: str | None = None
    roles: list[str] = msgspec.field(default_factory=list)


class UserChange(Given):
    """What changes of a user. What is left out stays.

    Attributes:
        password: a new one; connections that were made with the old one end.
        disabled: whether it cannot log in; its connections end.
        add_roles: roles that it gets.
        remove_roles: roles that it loses.
        quotas: what it may use.
    """

    password: str | UnsetType = UNSET
    disabled: bool | UnsetType = UNSET
    add_roles: list[str] | UnsetType = UNSET
    remove_roles: list[str] | UnsetType = UNSET
    quotas: QuotaChange | UnsetType = UNSET


class UserHandlers:
    """Carries out the operations on users.

    Args:
        committed: waits until a change is on the disk.
    """

    def __init__(self, engine: Engine, committed: Committed) -> None:
        self._users = engine.users
        self._logins = engine.logins
        self._committed = committed

    def group(self) -> Group:
        """The operations."""
        named = {"name": "the user"}
        return Group(
            name="users",
            about="Who may log in. Once there is a user, every client has to.",
            operations=[
                Operation(
                    method="GET",
                    path="/users",
                    name="listUsers",
                    summary="List users",
                    right="monitor",
                    handler=self._list,
                    query=UsersQuery,
                    answer=Page[User],
                ),
                Operation(
                    method="GET",
                    path="/users/{name}",
                    name="getUser",
                    summary="Show a user",
                    right="monitor",
                    handler=self._show,
                    answer=User,
                    path_about=named,
                ),
                Operation(
                    method="PUT",
                    path="/users/{name}",
                    name="addUser",
                    summary="Create a user",
                    about="A user that exists is refused with 409.",
                    right="admin",
                    handler=self._add,
                    body=NewUser,
                    answer=User,
                    status=201,
                    path_about=named,
                ),
                Operation(
                    method="PATCH",
                    path="/users/{name}",
                    name="changeUser",
                    summary="Change the password, roles or quotas of a user",
                    right="admin",
                    handler=self._change,
                    body=UserChange,
                    answer=User,
                    path_about=named,
                ),
                Operation(
                    method="DELETE",
                    path="/users/{name}",
                    name="deleteUser",
                    summary="Delete a user with its permissions and MQTT sessions",
                    about="Its connections end.",
                    right="admin",
                    handler=self._delete,
                    path_about=named,
                ),
                Operation(
                    method="POST",
                    path="/users/{name}/access-keys",
                    name="addAccessKey",
                    summary="Create an access key for a user",
                    right="admin",
                    handler=self._add_access_key,
                    answer=NewAccessKey,
                    status=201,
                    path_about=named,
                ),
                Operation(
                    method="DELETE",
                    path="/users/{name}/access-keys/{key}",
                    name="removeAccessKey",
                    summary="Remove an access key",
                    about="Connections that sign with it end.",
                    right="admin",
                    handler=self._remove_access_key,
                    path_about={**named, "key": "the access key"},
                ),
            ],
        )

    async def _list(self, call: Call[UsersQuery]) -> Page[User]:
        users, role = self._users.users, call.query.role
        listing = Listing(
            names=users,
            find=users.get,
            row=lambda _, user: _shown(user),
            wants=None if role is None else lambda user: role in user.roles,
        )
        return await in_steps(page_of(listing, call.query))

    async def _show(self, call: Call[Given]) -> User:
        return _shown(self._users.need(call.path["name"]))

    async def _add(self, call: Call[Given]) -> User:
        name, body = call.path["name"], call.body
        self._users.check_new(name)
        stored = await self._stored(body)
        position = self._users.add(name, stored, body.roles)
        audit.note("user added", user=name, roles=" ".join(body.roles), by=call.caller)
        await self._committed(position)
        return _shown(self._users.need(name))

    async def _change(self, call: Call[Given]) -> User:
        name, body = call.path["name"], call.body
        self._users.need(name)
        position = Position(0)
        stored = None if body.password is UNSET else await self._hash(body.password)
        user = self._users.need(name)
        # First what may be refused for itself: of the rest, nothing is done then.
        if body.add_roles or body.remove_roles:
            roles = set(user.roles) | set(body.add_roles or ())
            roles -= set(body.remove_roles or ())
            position = max(position, self._users.set_roles(name, sorted(roles)))
        if stored is not None:
            position = max(position, self._users.set_password(name, stored))
        if body.disabled is not UNSET:
            position = max(position, self._users.set_disabled(name, body.disabled))
        if body.quotas is not UNSET:
            wanted = _changed(user.quotas, body.quotas)
            position = max(position, self._users.set_quotas(name, wanted))
        what = [
            field for field, value in msgspec.structs.asdict(body).items() if value is not UNSET
        ]
        audit.note("user changed", user=name, what=" ".join(sorted(what)), by=call.caller)
        await self._committed(position)
        return _shown(self._users.need(name))

    async def _delete(self, call: Call[Given]) -> None:
        name = call.path["name"]
        position = self._users.delete(name)
        audit.note("user deleted", user=name, by=call.caller)
        await self._committed(position)

    async def _add_access_key(self, call: Call[Given]) -> NewAccessKey:
        name = call.path["name"]
        key = secrets.token_hex(access_keys.KEY_BYTES).upper()
        secret = secrets.token_hex(access_keys.SECRET_BYTES)
        position = self._users.add_access_key(name, key, secret)
        audit.note("access key added", user=name, access_key=key, by=call.caller)
        await self._committed(position)
        return NewAccessKey(access_key=key, secret_key=secret)

    async def _remove_access_key(self, call: Call[Given]) -> None:
        name, key = call.path["name"], call.path["key"]
        position = self._users.remove_access_key(name, key)
        audit.note("access key removed", user=name, access_key=key, by=call.caller)
        await self._committed(position)

    async def _stored(self, body: NewUser) -> str:
        """What is stored of a new user's password. Raises Refused."""
        if body.password is not None:
            return await self._hash(body.password)
        if body.hash is None:
            raise Refused(Reason.BAD_ARGUMENT, 'send {"password": "..."}')
        if not passwords.is_importable(body.hash):
            raise Refused(
                Reason.BAD_ARGUMENT,
                "hash must be of mosquitto's form $6$ or $7$, or $rabbit-sha256$ or "
                "$rabbit-sha512$",
            )
        return body.hash

    async def _hash(self, password: str) -> str:
        return await hash_password(self._logins, password)


def _changed(before: quotas.Quotas, change: QuotaChange) -> quotas.Quotas:
    """Quotas after a change."""
    changed: dict[str, Any] = {}
    for name, wanted in msgspec.structs.asdict(change).items():
        if wanted is not UNSET:
            changed[name] = getattr(quotas.DEFAULT, name) if wanted == "default" else wanted
    return replace(before, **changed)


def _shown(user: BrokerUser) -> User:
    """A user without its hash, and its access keys without their secrets."""
    return User(
        name=user.name,
        roles=list(user.roles),
        disabled=user.disabled,
        quotas=Quotas(**asdict(user.quotas)),
        access_keys=[
            AccessKey(access_key=key.name, created_ms=key.created_ms) for key in user.access_keys
        ],
    )
