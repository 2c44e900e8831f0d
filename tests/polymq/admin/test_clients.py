"""Connections of clients at the admin API: filters and pages of very many, and who is closed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import pytest

from polymq import steps
from polymq.admin.clients import Closed, Connection, ConnectionHandlers
from polymq.admin.pages import Page
from polymq.broker.port import Refused
from polymq.net.clients import ClientInfo, state_of
from polymq.net.flow import DISK, LOGIN, Flow
from tests.polymq.admin.operation_calls import call

BEGAN_MS = 1_700_000_000_000


@dataclass
class FakeConnection:
    """A `ClientConnection`."""

    number: int
    protocol: str = "mqtt"
    user: str = ""
    address: str = "10.0.0.1"
    client_name: str = ""
    has_socket: bool = True
    ended: list[str] = field(default_factory=list)

    @property
    def began_ms(self) -> int:
        return BEGAN_MS + self.number

    @property
    def peer(self) -> str:
        return f"{self.address}:{self.number}"

    def describe(self) -> ClientInfo:
        return ClientInfo(listener="10.0.0.9:1883", tls=False, state="running")

    def end(self, why: str) -> None:
        self.ended.append(why)


CROWD = [
    FakeConnection(1, client_name="pump-1", user="ann"),
    FakeConnection(2, protocol="amqp", user="ann", address="10.1.0.1"),
    FakeConnection(3, client_name="pump-2", address="::ffff:10.1.0.2"),
    FakeConnection(4, protocol="http", address="2001:db8::1"),
    FakeConnection(5, client_name="tap-1", has_socket=False),
]


def ask(connections: list[FakeConnection], name: str, **given: Any) -> Any:
    """What an operation returns; `given` is its query or body, and `id` of the path."""
    path = {"id": given.pop("id", "")}
    return call([ConnectionHandlers(lambda: connections).group()], name, path, **given)


def numbers(page: Page[Connection]) -> list[int]:
    return [int(row.id.rpartition("-")[2]) for row in page.items]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, [1, 2, 3, 4]),
        ({"sort": "newest"}, [4, 3, 2, 1]),
        ({"protocol": "amqp"}, [2]),
        ({"user": "ann"}, [1, 2]),
        ({"address": "10.1.0.0/16"}, [2, 3]),
        ({"address": "2001:db8::/32"}, [4]),
        ({"prefix": "pump"}, [1, 3]),
        ({"prefix": "pump", "user": "ann"}, [1]),
        ({"prefix": "tap"}, []),
    ],
)
def test_filters(query: dict[str, str], expected: list[int]) -> None:
    """One whose socket is gone, or not yet made, is no connection of a client."""
    page = ask(CROWD, "listConnections", **query)
    assert numbers(page) == expected
    assert page.total == len(expected)


@pytest.mark.parametrize("sort", ["oldest", "newest"])
def test_pages_go_on_where_they_ended(sort: str) -> None:
    seen: list[int] = []
    after: dict[str, str] = {}
    while True:
        page = ask(CROWD, "listConnections", sort=sort, limit="1", **after)
        seen += numbers(page)
        if page.next is None:
            break
        after = {"after": page.next}
    assert sorted(seen) == [1, 2, 3, 4]
    assert seen == sorted(seen, reverse=sort == "newest")


def test_one_by_its_id() -> None:
    (first, *_) = ask(CROWD, "listConnections").items
    row = ask(CROWD, "getConnection", id=first.id)
    assert row == first
    assert (row.peer, row.client, row.connected_ms) == ("10.0.0.1:1", "pump-1", BEGAN_MS + 1)
    for wrong in ("x", "1-1", f"{BEGAN_MS}-000000001", f"{BEGAN_MS + 5}-000000005"):
        with pytest.raises(Refused, match="there is no connection"):
            ask(CROWD, "getConnection", id=wrong)


def test_closing() -> None:
    """One, or all that pass; a dry run closes none."""
    crowd = [FakeConnection(n, user="ann" if n % 2 else "bob") for n in range(100)]
    (first, *_) = ask(crowd, "listConnections").items
    ask(crowd, "closeConnection", id=first.id, reason="too loud")
    assert [one.ended for one in crowd[:2]] == [["too loud"], []]
    assert ask(crowd, "closeConnections", user="ann", dry_run=True) == Closed(connections=50)
    assert not any(one.ended for one in crowd[1:])
    assert ask(crowd, "closeConnections", user="ann") == Closed(connections=50)
    assert all(bool(one.ended) == (one.user == "ann") for one in crowd[1:])
    with pytest.raises(Refused, match="name a user, an address or a prefix"):
        ask(crowd, "closeConnections", protocol="mqtt")


def test_a_crowd_does_not_hold_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand are looked at in many steps, with others between them."""
    crowd = [FakeConnection(number) for number in range(10_000)]
    turns = 0

    sleep = asyncio.sleep

    async def counted(seconds: float) -> None:
        nonlocal turns
        turns += 1
        await sleep(seconds)

    monkeypatch.setattr(steps, "SLICE_SECONDS", 0.0)
    monkeypatch.setattr(steps, "asyncio", SimpleNamespace(sleep=counted))
    begin = perf_counter()
    page = ask(crowd, "listConnections", address="10.0.0.0/8", limit="1")
    assert (page.total, len(page.items)) == (10_000, 1)
    assert turns >= 21
    assert perf_counter() - begin < 10


def test_states() -> None:
    """From what a connection waits for, as `net.flow` has it."""
    flow = Flow()
    assert state_of(flow, proven=False, closing=False) == "connecting"
    assert state_of(flow, proven=True, closing=False) == "running"
    flow.begin(LOGIN)
    assert state_of(flow, proven=True, closing=False) == "waiting"
    flow.begin(DISK)
    assert state_of(flow, proven=True, closing=False) == "blocked"
    assert flow.names() == (
        "who the client is",
        "the disk, which has to take what was published",
    )
    assert state_of(flow, proven=True, closing=True) == "closing"
