"""The limits of new MQTT connections, and clients that connect and vanish."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from polymq.broker.admission.connections import BUCKETS_MAX, Connections, ConnectionSettings
from polymq.broker.admission.flapping import Flapping
from polymq.broker.errors import Reason, Refused
from polymq.broker.port import ConnectedClient
from tests.harness.broker import Broker


@pytest.fixture
def make(broker: Broker) -> Callable[[ConnectionSettings], Connections]:
    return lambda settings: Connections(broker.engine.bans, settings, clock_ms=broker.loop.clock_ms)


def client(client_id: str, address: str = "10.0.0.1") -> ConnectedClient:
    return ConnectedClient(
        client_id=client_id,
        user="ann",
        peer=f"{address}:1",
        address=address,
        listener="127.0.0.1:1883",
        version="5.0",
        keep_alive_seconds=0,
        connected_ms=0,
        end=lambda why: None,
        trace=lambda look: lambda: None,
    )


def reason_of(connections: Connections, client_id: str, address: str = "10.0.0.1") -> Reason | None:
    try:
        connections.check(client_id, None, address)
    except Refused as error:
        return error.reason
    return None


Make = Callable[[ConnectionSettings], Connections]


def test_connections_of_an_address(make: Make) -> None:
    """An IPv6 host may choose among the addresses of its /64: they count together."""
    connections = make(ConnectionSettings(per_address_max=2))
    leave = [
        connections.came(client("a", "2001:db8::1")),
        connections.came(client("b", "2001:db8::2")),
    ]
    assert reason_of(connections, "c", "2001:db8::3") is Reason.LIMIT
    assert reason_of(connections, "c", "2001:db8:1::3") is None
    leave[0]()
    assert reason_of(connections, "c", "2001:db8::3") is None
    leave[1]()
    assert connections.refused["address_connections"] == 1
    assert not connections.clients


def test_rates_of_an_address_and_in_all(make: Make, broker: Broker) -> None:
    connections = make(ConnectionSettings(per_second=4, per_address_per_second=2))

    def burst(address: str) -> list[Reason | None]:
        return [reason_of(connections, "c", address) for _ in range(4)]

    assert burst("10.0.0.1") == [None, None, Reason.RATE, Reason.RATE]
    assert burst("10.0.0.2") == [None, None, Reason.RATE, Reason.RATE]
    assert burst("10.0.0.3") == [Reason.RATE] * 4, "all together were four, which is a second's"
    assert connections.refused["rate"] == 4
    assert connections.refused["address_rate"] == 4
    broker.loop.now += 1.0
    assert burst("10.0.0.3")[:2] == [None, None], "what was refused does not count"


def test_a_flood_of_addresses_has_bounded_memory(make: Make) -> None:
    connections = make(ConnectionSettings(per_address_per_second=1))
    for number in range(BUCKETS_MAX + 100):
        reason_of(connections, "c", f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert len(connections._buckets) == BUCKETS_MAX


def test_a_session_that_is_taken_over_stays_listed(make: Make) -> None:
    connections = make(ConnectionSettings())
    leave_first = connections.came(client("c", "10.0.0.1"))
    second = client("c", "10.0.0.2")
    leave_second = connections.came(second)
    leave_first()
    assert [connections.clients[name] for name in connections.clients.walk()] == [second]
    leave_second()
    assert not connections.clients


def test_flapping() -> None:
    flapping = Flapping(count=3, window_seconds=10, ban_seconds=100)
    assert not flapping.ended("slow", 0)
    assert not flapping.ended("slow", 5)
    assert not flapping.ended("slow", 11), "the window is over"
    assert not flapping.is_out("slow", 11)
    assert [flapping.ended("quick", at) for at in (0, 1, 2)] == [False, False, True]
    assert flapping.is_out("quick", 2)
    assert flapping.is_out("quick", 101.9)
    assert not flapping.is_out("quick", 102)
    assert not flapping.is_out("other", 2)


def test_flapping_is_bounded_and_forgets_those_not_seen_for_longest() -> None:
    flapping = Flapping(count=2, window_seconds=10, ban_seconds=100, watched_max=3)
    for name in ("a", "b", "c"):
        flapping.ended(name, 0)
    flapping.ended("a", 1)
    flapping.ended("d", 1)
    assert len(flapping) == 3
    assert flapping.is_out("a", 2), "it was seen later than b"
    assert not flapping.ended("b", 2), "b was forgotten: this is its first end"


def test_flapping_is_off() -> None:
    flapping = Flapping(count=0, window_seconds=10, ban_seconds=100)
    assert not any(flapping.ended("c", 0) for _ in range(1_000))
    assert len(flapping) == 0


def test_a_clock_that_is_set_back_keeps_nobody_out_for_longer() -> None:
    flapping = Flapping(count=1, window_seconds=10, ban_seconds=100)
    assert flapping.ended("c", 1_000_000)
    assert flapping.is_out("c", 1_000_001)
    assert not flapping.is_out("c", 500)


def test_settings_reach_the_engine(tmp_path: Path) -> None:
    """The engine's own: off."""
    made = Broker(tmp_path / "data")
    for _ in range(1_000):
        made.engine.admission.check_connection("c", "ann", "10.0.0.1")
    made.stop()
