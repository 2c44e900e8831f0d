"""MQTT clients and sessions in the admin API, beside very many of them. (How long a page takes is
measured, not tested: it is the machine's.)"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from polymq.broker.port import ConnectedClient, Reason, Refused
from tests.harness.broker import Broker, SpyLink, at_qos
from tests.polymq.admin.harness import Api

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


@pytest.fixture(scope="module")
def api(crowd: Broker) -> Api:
    return Api(crowd)


def test_all_pages_show_each_session_once(api: Api) -> None:
    shown: list[str] = []
    after: dict[str, Any] = {}
    while True:
        page = api.call("listSessions", limit="500", **after)
        assert page.total == CLIENTS
        shown += [row.client_id for row in page.items]
        if page.next is None:
            break
        after = {"after": page.next}
    assert shown == [f"c{number:05}" for number in range(CLIENTS)]


def test_the_sessions_with_the_most_of_something_first(crowd: Broker, api: Api) -> None:
    """What waits counts over all subscriptions of a session."""
    (row,) = api.call("listSessions", sort="subscriptions", limit="1").items
    assert (row.client_id, row.subscriptions) == ("c00050", 300)
    assert not row.connected or row.away_ms is None
    page = api.call("listSessions", sort="queued", limit="2")
    assert [row.client_id for row in page.items] == ["c00000", "c00001"]
    assert page.next == "0 c00001"


def test_filters(api: Api) -> None:
    page = api.call("listMqttClients", prefix="c000", limit="100")
    assert [row.client_id for row in page.items] == [f"c000{number}0" for number in range(10)]
    assert (page.next, page.total) == (None, 10)
    page = api.call("listMqttClients", address="10.0.39.6")
    assert page.total == 1
    assert page.items[0].address == "10.0.39.6:1"
    page = api.call("listSessions", user="user1", state="disconnected")
    assert page.total == CLIENTS // 2, "those with odd numbers, none of which is a tenth"
    assert all(not row.connected and row.user == "user1" for row in page.items)
    connected = api.call("listSessions", state="connected").total
    assert connected + api.call("listSessions", state="disconnected").total == CLIENTS
    assert connected == CLIENTS // 10


def test_one_of_them(api: Api) -> None:
    shown = api.call("getSession", path={"client_id": "c00050"})
    assert len(shown.subscription_list) == shown.subscriptions == 300
    assert (shown.queued, shown.queued_bytes, shown.queued_bytes_complete) == (0, 0, True)
    client = api.call("getMqttClient", path={"client_id": "c00050"})
    assert (client.user, client.subscriptions, client.version) == ("ann", 300, "5.0")
    for operation in ("getSession", "deleteSession", "getMqttClient", "disconnectMqttClient"):
        with pytest.raises(Refused) as refused:
            api.call(operation, path={"client_id": "nobody"})
        assert refused.value.reason is Reason.NOT_FOUND


def test_wrong_parameters(api: Api) -> None:
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("listSessions", {"state": "away"}),
        ("listSessions", {"sort": "age"}),
        ("listMqttClients", {"address": "10.0.0.1/8"}),
        ("listMqttClients", {"address": "x"}),
    ]
    for operation, query in wrong:
        with pytest.raises(Refused) as refused:
            api.call(operation, **query)
        assert refused.value.reason is Reason.BAD_ARGUMENT, query
