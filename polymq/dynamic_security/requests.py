"""Requests to `$CONTROL/dynamic-security/v1`, as mosquitto has them.

A request is a JSON object with `commands`, and its answer one with `responses`, in the same order.
A command that fails says so in its own answer (`error`), and the others are carried out.

Rules:

* Only who may administrate everything is listened to, and no one while there are no users: a client
  that has to prove nothing must not make the first of them.
* Requests are carried out one after the other, in the order in which they came. Those that wait are
  few. The right is asked for again before each command: it may have gone meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from polymq.admin.commits import Commits, Committed
from polymq.admin.permissions import PermissionHandlers
from polymq.admin.users import UserHandlers
from polymq.broker.engine import Engine
from polymq.broker.errors import BrokerError, Reason, Refused
from polymq.broker.port import BrokerPort, StorageFailed
from polymq.dynamic_security.clients import ClientCommands
from polymq.dynamic_security.commands import (
    ANSWER_BYTES_MAX,
    COMMANDS_MAX,
    Caller,
    Command,
    Operations,
    Values,
    decoded,
)
from polymq.dynamic_security.fields import Anything, refuse_groups
from polymq.dynamic_security.roles import RoleCommands
from polymq.lasting_tasks import report_bug
from polymq.settings import Settings

WAITING_MAX: Final = 32
"""Requests that wait, of all clients together: at most 2 MiB."""
UNKNOWN: Final = "Unknown command"
"""How mosquitto calls what it cannot read."""
GROUP_COMMANDS: Final = (
    "createGroup",
    "deleteGroup",
    "getGroup",
    "modifyGroup",
    "addGroupClient",
    "removeGroupClient",
    "addGroupRole",
    "removeGroupRole",
    "getAnonymousGroup",
    "setAnonymousGroup",
)
_ENCODER: Final = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class _Request:
    content: bytes
    caller: Caller
    answer: Callable[[bytes], None]


class DynamicSecurity:
    """Carries out requests: an `Administrator` of the MQTT gateway.

    Args:
        committed: waits until a change is on the disk.
    """

    def __init__(self, engine: Engine, committed: Committed) -> None:
        users = engine.users
        operations = Operations(
            UserHandlers(engine, committed).group(), PermissionHandlers(engine, committed).group()
        )
        self._users = users
        self._commands: Mapping[str, Command] = {
            **ClientCommands(users, operations).commands(),
            **RoleCommands(users, operations).commands(),
            **dict.fromkeys(GROUP_COMMANDS, Command(Anything, _refuse_groups)),
            "listGroups": Command(Anything, _no_groups),
        }
        self._waiting: deque[_Request] = deque()
        self._task: asyncio.Task[None] | None = None

    def take(
        self, request: bytes, *, user: str, port: BrokerPort, answer: Callable[[bytes], None]
    ) -> None:
        """See `Administrator`."""
        if not self._users.closed:
            raise Refused(
                Reason.FORBIDDEN,
                "there are no users yet: create the first with `polymq user add NAME --role admin`",
            )
        port.principal.check_managing("admin")
        if len(self._waiting) >= WAITING_MAX:
            raise Refused(Reason.LIMIT, "too many requests wait: wait for their answers")
        self._waiting.append(_Request(request, Caller(user, port), answer))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work())
            self._task.add_done_callback(report_bug)

    def stop(self) -> None:
        """Carry out nothing more."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()

    async def _work(self) -> None:
        while self._waiting:
            request = self._waiting.popleft()
            request.answer(await self._answer(request))

    async def _answer(self, request: _Request) -> bytes:
        try:
            commands = _read(request.content)
        except Refused as error:
            commands, answers = [], [_ENCODER.encode(_failed(UNKNOWN, error.text))]
        else:
            answers = []
        room = ANSWER_BYTES_MAX
        for command in commands:
            answer = await self._carry_out(command, request.caller)
            encoded = _ENCODER.encode(answer)
            if len(encoded) > room:
                text = "the answer is too long: ask for less at a time (count, offset)"
                encoded = _ENCODER.encode(_failed(answer["command"], text))
            room -= len(encoded)
            answers.append(encoded)
        return b'{"responses":[' + b",".join(answers) + b"]}"

    async def _carry_out(self, command: Any, caller: Caller) -> Values:
        if not isinstance(command, dict):
            return _failed(UNKNOWN, "a command is a JSON object")
        name = command.pop("command", None)
        if not isinstance(name, str):
            return _failed(UNKNOWN, "a command has its name in the field command")
        correlation = command.pop("correlationData", None)
        answer: dict[str, Any] = {"command": name}
        try:
            data = await self._data(name, command, caller)
            if data is not None:
                answer["data"] = data
        except (BrokerError, StorageFailed) as error:
            answer["error"] = error.text if isinstance(error, Refused) else str(error)
        if isinstance(correlation, str):
            answer["correlationData"] = correlation
        return answer

    async def _data(self, name: str, fields: Values, caller: Caller) -> Values | None:
        known = self._commands.get(name)
        if known is None:
            raise Refused(Reason.BAD_ARGUMENT, f"there is no command {name!r}")
        if not self._users.closed:
            raise Refused(Reason.FORBIDDEN, "there are no users any more")
        caller.port.principal.check_managing("admin")
        return await known.handler(decoded(known.given, fields), caller)


def make_administrator(
    settings: Settings, engine: Engine, stack: list[Callable[[], Any]]
) -> DynamicSecurity | None:
    """The administrator of a server, if the settings want one.

    Args:
        stack: gets what stops it.
    """
    if not settings.mqtt.dynamic_security:
        return None
    made = DynamicSecurity(engine, Commits(engine).committed)
    stack.append(made.stop)
    return made


def _read(content: bytes) -> list[Any]:
    """The commands of a request. Raises Refused: BAD_ARGUMENT."""
    try:
        value = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Refused(Reason.BAD_ARGUMENT, "the payload is not valid JSON") from None
    commands = value.get("commands") if isinstance(value, dict) else None
    if not isinstance(commands, list):
        raise Refused(Reason.BAD_ARGUMENT, "send a JSON object with a list of commands")
    if len(commands) > COMMANDS_MAX:
        raise Refused(Reason.BAD_ARGUMENT, f"a request has at most {COMMANDS_MAX} commands")
    return commands


def _failed(command: str, text: str) -> dict[str, Any]:
    return {"command": command, "error": text}


async def _refuse_groups(_given: Anything, _caller: Caller) -> None:
    refuse_groups()


async def _no_groups(_given: Anything, _caller: Caller) -> Values:
    return {"totalCount": 0, "groups": []}
