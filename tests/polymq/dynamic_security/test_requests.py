"""Requests to administrate over MQTT: their bounds, and what the right is asked for. How they come
and go is in `interop_tests/test_mqtt_dynamic_security.py`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from polymq.broker.errors import Reason, Refused
from polymq.broker.port import BrokerPort, Position, StorageFailed
from polymq.dynamic_security.requests import WAITING_MAX, DynamicSecurity
from tests.harness.broker import Broker
from tests.harness.people import add_user, allow


class Administered:
    """A broker with the administrator root, whose disk is done when the test says so."""

    def __init__(self, broker: Broker) -> None:
        add_user(broker, "root", "admin")
        self.broker = broker
        self.answers: list[Any] = []
        self.fails = False
        self.disk = asyncio.Event()
        self.disk.set()
        self.requests = DynamicSecurity(broker.engine, self._committed)
        self.root = self.port("root")

    async def _committed(self, _position: Position) -> None:
        await self.disk.wait()
        if self.fails:
            raise StorageFailed("the disk is gone")

    def port(self, user: str) -> BrokerPort:
        return self.broker.port.admission.for_principal(user)

    def take(self, *commands: object, port: BrokerPort | None = None) -> None:
        self.requests.take(
            json.dumps({"commands": commands}).encode(),
            user="root",
            port=port or self.root,
            answer=lambda body: self.answers.extend(json.loads(body)["responses"]),
        )

    async def answered(self, count: int) -> list[Any]:
        """The answers to so many commands."""
        async with asyncio.timeout(10):
            while len(self.answers) < count:
                await asyncio.sleep(0)
        return self.answers


def run(tmp_path: Path, script: Callable[[Administered], Awaitable[None]], **limits: Any) -> None:
    async def main() -> None:
        broker = Broker(tmp_path / "data", with_state_db=False, **limits)
        await script(Administered(broker))
        broker.stop()

    asyncio.run(main())


DISABLE = {"command": "disableClient", "username": "ann"}


def test_an_answer_waits_for_the_disk(tmp_path: Path) -> None:
    """And says so if the disk fails."""

    async def script(it: Administered) -> None:
        add_user(it.broker, "ann")
        it.disk.clear()
        it.take(DISABLE)
        for _ in range(100):
            await asyncio.sleep(0)
        assert it.broker.engine.users.need("ann").disabled
        assert it.answers == []
        it.disk.set()
        assert await it.answered(1) == [{"command": "disableClient"}]
        it.fails = True
        it.take(DISABLE)
        assert (await it.answered(2))[1]["error"] == "the disk is gone"

    run(tmp_path, script)


def test_few_requests_wait(tmp_path: Path) -> None:
    """One is carried out, so many wait, and the next is refused; when they are done, there is room
    again."""

    async def script(it: Administered) -> None:
        add_user(it.broker, "ann")
        it.disk.clear()
        it.take(DISABLE)
        await asyncio.sleep(0)
        for _ in range(WAITING_MAX):
            it.take(DISABLE)
        with pytest.raises(Refused) as refused:
            it.take(DISABLE)
        assert refused.value.reason is Reason.LIMIT
        it.disk.set()
        await it.answered(WAITING_MAX + 1)
        it.take(DISABLE)
        await it.answered(WAITING_MAX + 2)

    run(tmp_path, script)


def test_the_right_is_asked_for_again(tmp_path: Path) -> None:
    """A request that waits while its sender loses the right is not carried out; nor is one of
    somebody who never had it taken."""

    async def script(it: Administered) -> None:
        add_user(it.broker, "ann")
        add_user(it.broker, "second", "admin")
        second, olga = it.port("second"), it.port("olga")
        allow(it.broker, "role:ops", "operate,publish", "#")
        add_user(it.broker, "olga", "ops")
        with pytest.raises(Refused):
            it.take(DISABLE, port=olga)
        it.take({"command": "removeClientRole", "username": "second", "rolename": "admin"})
        it.take(DISABLE, port=second)
        answers = await it.answered(2)
        assert "error" not in answers[0]
        assert "may not" in answers[1]["error"]
        assert not it.broker.engine.users.need("ann").disabled

    run(tmp_path, script)


def test_when_the_last_user_has_gone_nobody_administrates(tmp_path: Path) -> None:
    """Not even who was the administrator until then."""

    async def script(it: Administered) -> None:
        create = {"command": "createClient", "username": "ann", "password": "x"}
        it.take({"command": "deleteClient", "username": "root"}, create)
        assert "no users" in (await it.answered(2))[1]["error"]
        with pytest.raises(Refused):
            it.take(create)
        assert not it.broker.engine.users.users

    run(tmp_path, script)


def test_an_answer_that_is_too_long(tmp_path: Path) -> None:
    """The command whose answer finds no room says so, and those behind it are carried out."""

    async def script(it: Administered) -> None:
        topic = "/".join(["x" * 100] * 9)
        for number in range(400):
            allow(it.broker, f"role:r{number % 2}", "subscribe", f"{{exact}}/{number}/{topic}")
        add_user(it.broker, "ann")
        get = {"command": "getRole", "rolename": "r0"}
        it.take(*[get] * 8, DISABLE)
        answers = await it.answered(9)
        assert "data" in answers[0]
        assert "too long" in answers[7]["error"]
        assert answers[8] == {"command": "disableClient"}

    run(tmp_path, script)


def test_a_role_of_very_many_clients_is_not_deleted(tmp_path: Path) -> None:
    """It would be a change for each of them."""

    async def script(it: Administered) -> None:
        for number in range(101):
            add_user(it.broker, f"d{number}", "device")
        it.take({"command": "deleteRole", "rolename": "device"})
        assert "more than 100 clients" in (await it.answered(1))[0]["error"]
        it.take({"command": "deleteClient", "username": "d0"})
        it.take({"command": "deleteRole", "rolename": "device"})
        assert "error" not in (await it.answered(3))[2]
        assert not any(user.roles == ("device",) for user in it.broker.engine.users.users.values())

    run(tmp_path, script)


def test_the_rules_of_a_role_that_find_no_room(tmp_path: Path) -> None:
    """None of them is added."""

    async def script(it: Administered) -> None:
        acls = [
            {"acltype": "subscribePattern", "topic": f"t{number}", "allow": True}
            for number in range(4)
        ]
        it.take({"command": "createRole", "rolename": "r", "acls": acls})
        assert "can have 3 rules" in (await it.answered(1))[0]["error"]
        assert not it.broker.engine.users.rule_table()

    run(tmp_path, script, rules_per_subject_max=3)
