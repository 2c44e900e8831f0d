"""The lists of the operator's listener beside very many clients: what a page costs, in steps. (How
long the steps take is measured, not tested: it is the machine's.)"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from multidict import CIMultiDict

from polymq.admin.mqtt import MqttHandlers, Page, _Asked
from polymq.admin.mqtt_names import MqttNames
from polymq.broker.port import ConnectedClient, Position
from tests.harness.broker import Broker, SpyLink, at_qos

CLIENTS = 10_000


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Ten thousand sessions, of which each tenth is connected, and one has many subscriptions."""
    broker = Broker(tmp_path_factory.mktemp("crowd") / "data", with_state_db=False)
    for number in range(CLIENTS):
        client_id = f"c{number * 7919 % CLIENTS:05}"
        session = broker.port.sessions.connect(
            client_id,
            clean=False,
            expiry_seconds=None,
            link=SpyLink(),
            principal=f"user{number % 2}",
        )
        if client_id == "c00050":
            for topic in range(300):
                session.subscribe((f"t{topic}",), at_qos(1))
        if number % 10:
            session.disconnect()
        else:
            broker.engine.connections.came(
                ConnectedClient(
                    client_id=client_id,
                    user="ann",
                    peer=f"10.0.{number >> 8 & 255}.{number & 255}:1",
                    address=f"10.0.{number >> 8 & 255}.{number & 255}",
                    listener="127.0.0.1:1883",
                    version="5.0",
                    keep_alive_seconds=60,
                    connected_ms=0,
                    end=lambda why: None,
                    trace=lambda look: lambda: None,
                )
            )
    yield broker
    broker.stop()


async def _committed(_position: Position) -> None:
    """The disk is not the matter here."""


def handlers(broker: Broker) -> MqttHandlers:
    return MqttHandlers(broker.engine, _committed, MqttNames(broker.port, ""))


def asked(**query: str) -> _Asked:
    request = SimpleNamespace(query=CIMultiDict(query))
    return _Asked(cast("web.Request", request))


def taken(steps: Any) -> tuple[Page, int]:
    """A page, and in how many steps it was made."""
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, count
        count += 1


def test_a_page_looks_at_no_more_sessions_than_it_shows(crowd: Broker) -> None:
    """From any place on; and a session of many subscriptions is many steps."""
    for after in (None, "c00049", "c07000", "c09950"):
        query = {"limit": "100"} if after is None else {"limit": "100", "after": after}
        (rows, following), steps = taken(handlers(crowd)._session_page(asked(**query)))
        first = 0 if after is None else int(after[1:]) + 1
        assert [row["client_id"] for row in rows] == [
            f"c{number:05}" for number in range(first, min(first + 100, CLIENTS))
        ]
        has_many = first <= 50 < first + 100
        assert len(rows) <= steps <= len(rows) + 1 + 300 * has_many
        assert (following is None) == (first + 100 >= CLIENTS)


def test_all_pages_show_each_session_once(crowd: Broker) -> None:
    shown: list[str] = []
    after: str | None = ""
    for _ in range(CLIENTS // 500):
        assert after is not None
        (rows, after), _ = taken(handlers(crowd)._session_page(asked(limit="500", after=after)))
        shown += [row["client_id"] for row in rows]
    assert after is None
    assert shown == [f"c{number:05}" for number in range(CLIENTS)]


def test_clients_and_filters(crowd: Broker) -> None:
    """A filter that few pass is still answered in small steps."""
    page = handlers(crowd)._client_page
    (rows, after), _ = taken(page(asked(limit="100", prefix="c000")))
    assert [row["client_id"] for row in rows] == [f"c000{number}0" for number in range(10)]
    assert after is None
    (rows, after), steps = taken(page(asked(limit="100", address="10.0.39.6")))
    assert len(rows) == 1
    assert after is None
    assert steps >= CLIENTS / 10, "each look is a step"
    (rows, _), _ = taken(handlers(crowd)._session_page(asked(user="user1", state="disconnected")))
    assert all(not row["connected"] and row["user"] == "user1" for row in rows)
