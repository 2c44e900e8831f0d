"""Our own clients with access keys, against a whole server that has users."""

from __future__ import annotations

import asyncio
import json
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import trio
else:
    trio = pytest.importorskip("trio", reason="one of the drivers needs trio")

from polymq.admin.client import AdminClient
from polymq.remoting.codes import ResponseCode
from polymq.remoting.driver_blocking import BlockingClient
from polymq.remoting.errors import LocalProtocolError, RemotingError, RequestFailed
from polymq.remoting.messages import Message
from polymq.remoting.records import Record, iterate_records
from tests.durability.running import Running, running
from tests.remoting.test_remoting_as_users import FIRST, Users

PASSWORD = "pass-4-everybody"


class Operator:
    """Makes users, through the operator's listener."""

    def __init__(self, server: Running) -> None:
        self._listener = AdminClient(server.ports, f"Bearer {server.token()}")

    def ask(self, method: str, path: str, body: object = None) -> Any:
        return json.loads(self._listener.request(method, path, body)[1] or b"null")

    def add(self, name: str, *rules: str) -> dict[str, str]:
        """A user with rules (`publish,create orders.#`); its access key as options of a client."""
        self.ask("PUT", f"/api/v1/users/{name}", {"password": PASSWORD})
        for rule in rules:
            actions, topic = rule.split()
            body = {"effect": "allow", "subject": name, "actions": actions.split(",")}
            self.ask("POST", "/api/v1/permissions", {**body, "topic": topic})
        return self.key(name)

    def key(self, name: str) -> dict[str, str]:
        found: dict[str, str] = self.ask("POST", f"/api/v1/users/{name}/access-keys")
        return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    directory: Path = tmp_path_factory.mktemp("keys")
    with running(directory, names__enabled=True, names__port=0) as started:
        yield started


@pytest.fixture(scope="module")
def operator(server: Running) -> Operator:
    return Operator(server)


@pytest.fixture(scope="module")
def shop(operator: Operator) -> dict[str, str]:
    """The key of a user that may do what a shop does."""
    return operator.add(
        "shop", "publish,create,subscribe orders.#", "subscribe,create %RETRY%billing.#"
    )


@pytest.mark.parametrize("kind", ["threads", "asyncio", "trio"])
def test_a_client_with_a_key_sends_and_consumes(
    kind: str, server: Running, shop: dict[str, str]
) -> None:
    users, got = Users(kind, server), queue.SimpleQueue[Record]()
    body = f"by {kind}".encode()

    async def scenario() -> None:
        async with users.producer(**shop) as call:
            await call("send", Message(topic="orders", body=body))
            await call("send_oneway", Message(topic="orders", body=body))
        async with users.consumer("billing", "orders", got.put, settings=FIRST, **shop):
            count = 0
            while count < 2:
                count += (await users.get(got)).body == body

    users.run(scenario)


def refusal(server: Running, topic: str, **keys: str) -> RequestFailed:
    """How a producer is refused."""
    users = Users("threads", server)

    async def scenario() -> None:
        async with users.producer(**keys) as call:
            with pytest.raises(RemotingError) as caught:
                await call("send", Message(topic=topic, body=b"x"))
            found.append(caught.value)

    found: list[BaseException] = []
    asyncio.run(scenario())
    error: BaseException | None = found[0]
    while error is not None and not isinstance(error, RequestFailed):
        error = error.__cause__
    assert isinstance(error, RequestFailed), found
    return error


def test_who_may_not_is_told_why(server: Running, operator: Operator, shop: dict[str, str]) -> None:
    """Without a key, with a wrong secret, at a topic of others; each in words of its own."""
    wrong = {**shop, "secret_key": "0" * 64}
    for keys, topic, text in (
        ({}, "orders", "sign requests with an access key"),
        (wrong, "orders", "polymq user access-key add"),
        (shop, "invoices", "user 'shop' may not create invoices"),
    ):
        refused = refusal(server, topic, **keys)
        assert refused.code == ResponseCode.NO_PERMISSION
        assert text in refused.remark


def reader(
    server: Running, *, access_key: str | None = None, secret_key: str | None = None
) -> BlockingClient:
    return BlockingClient(
        [f"127.0.0.1:{server.ports.rocketmq}"], access_key=access_key, secret_key=secret_key
    )


def fish_in(client: BlockingClient) -> int:
    """How many messages the topic has."""
    return sum(
        len(list(iterate_records(pulled.records)))
        for number in range(client.route("fish").brokers[0].queue_count)
        for pulled in [client.pull("fish", "broker-a", number, 0, count_max=9, bytes_max=10**6)]
    )


def test_a_removed_key_ends_what_lives_on_it(server: Running, operator: Operator) -> None:
    """At once, also for a connection that is there; the user's other key goes on."""
    first = operator.add("lake", "subscribe,publish,create fish.#")
    second = operator.key("lake")
    users = Users("threads", server)

    async def publish() -> None:
        async with users.producer(**first) as call:
            await call("send", Message(topic="fish", body=b"carp"), key="one queue")

    asyncio.run(publish())
    with reader(server, **first) as old, reader(server, **second) as new:
        assert [fish_in(client) for client in (old, new)] == [1, 1]
        operator.ask("DELETE", f"/api/v1/users/lake/access-keys/{first['access_key']}")
        with pytest.raises(RequestFailed, match="access key"):
            fish_in(old)
        assert fish_in(new) == 1


def test_a_key_without_a_secret_is_refused_before_anything_is_sent(server: Running) -> None:
    with pytest.raises(LocalProtocolError, match="give both"):
        reader(server, access_key="only this")
