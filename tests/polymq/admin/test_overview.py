"""The broker, its store, its name servers and its limits in the admin API."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from polymq.admin.limits import ENGINE, USED
from polymq.admin.name_servers import NameServerHandlers
from polymq.broker.limits import Limits
from polymq.names import Registration
from polymq.remoting.registrar import ServerState
from polymq.settings import Settings
from tests.broker.queue_bench import declare, publish
from tests.harness.broker import Broker
from tests.polymq.admin.harness import Api, shown_node


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path / "data")
    yield made
    made.stop()


def test_the_totals_of_a_broker(broker: Broker) -> None:
    """Subscriptions over HTTP are not counted as queues, and what is stored is counted once."""
    api = Api(broker)
    before = api.call("getBroker")
    for name in ("a", "b", "c"):
        declare(broker, name)
    broker.port.queues.declare_subscription("billing", ("orders", "#"))
    publish(broker, "a", b"1", b"2")
    broker.step()
    found = api.call("getBroker")
    assert (found.queues, found.subscriptions) == (3, 1)
    assert found.messages_stored - before.messages_stored == 2
    assert found.log_flushed_bytes == found.log_appended_bytes > before.log_appended_bytes
    assert (found.role, found.status, found.started_ms) == ("master", "ok", 7)
    assert found.connections == {"mqtt": 3, "amqp": 0}
    assert set(found.kernels.values()) <= {"compiled", "pure"}


def test_the_store(broker: Broker) -> None:
    found = Api(broker).call("getStore")
    assert (found.state, found.segments, found.held_by) == ("ok", 1, None)
    assert found.segment_bytes == 1 << 20


def test_limits_and_their_use(broker: Broker) -> None:
    """Those of settings by the setting's key, with its description; those of the engine by name."""
    declare(broker, "a")
    limits = {row.name: row for row in Api(broker).call("listLimits", limit="500").items}
    assert limits["connections_max"].value == 100
    assert limits["connections_max"].used == 3
    queues = limits["queues_max"]
    assert (queues.value, queues.used, queues.setting) == (Limits().queues_max, 1, None)
    retained = limits["mqtt.retained_max"]
    assert (retained.setting, retained.used) == ("mqtt.retained_max", 0)
    assert limits["mqtt.connections_max"].used == 3
    assert limits["http.connections_max"].used is None, "this listener is not open"
    assert all(row.about for row in limits.values())


def test_the_tables_of_limits_name_what_there_is() -> None:
    assert set(Limits.__dataclass_fields__) >= ENGINE.keys()
    settings = Settings()
    for key in USED:
        section, _, name = key.partition(".")
        assert hasattr(getattr(settings, section), name), key


def test_name_servers(broker: Broker) -> None:
    """One that took the broker in, and one that does not answer."""
    states = {
        "10.0.0.1:9876": ServerState(registered=True),
        "10.0.0.2:9876": ServerState(failure="it does not answer", failed_count=3),
    }
    registration = cast("Registration", SimpleNamespace(states=states))
    node = replace(shown_node(broker), registration=lambda: registration)
    api = Api(broker, [NameServerHandlers(node).group()])
    rows: list[Any] = api.call("listNameServers").items
    assert [(row.address, row.registered, row.failed) for row in rows] == [
        ("10.0.0.1:9876", True, 0),
        ("10.0.0.2:9876", False, 3),
    ]
    assert Api(broker).call("listNameServers").items == []


def test_bans_come_in_pages_and_end(broker: Broker) -> None:
    """A ban that has ended is in no list and no total."""
    api = Api(broker)
    for number in range(5):
        api.call("addBan", body={"kind": "user", "value": f"u {number}", "reason": "r"})
    api.call("addBan", body={"kind": "client_id", "value": "u 1", "seconds": 60})
    page = api.call("listBans", limit="3", prefix="u")
    assert [(row.value, row.kind) for row in page.items] == [
        ("u 0", "user"),
        ("u 1", "client_id"),
        ("u 1", "user"),
    ]
    assert page.total == 6
    rest = api.call("listBans", after=page.next, prefix="u")
    assert [row.value for row in rest.items] == ["u 2", "u 3", "u 4"]
    assert api.call("listBans", kind="client_id").total == 1
    broker.step(61)
    assert api.call("listBans").total == 5
    api.call("removeBan", path={"kind": "user", "value": "u 0"})
    assert api.call("listBans", kind="user").total == 4
