"""Which of the connections that have not proven themselves gives way to another."""

from __future__ import annotations

import random

import pytest

from polymq.net.budget import NEWCOMERS_MAX, NEWCOMERS_MIN, Budget, Share
from polymq.net.newcomers import Newcomers, network_of
from polymq.net.roster import CROWD_MIN, REPORT_SECONDS, Roster

FLOOD, OTHER, THIRD = "127.0.0.2", "127.0.0.3", "127.0.0.4"


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("[2001:db8:1:2::9]", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("a name: not an address", "a name: not an address"),
        ("", ""),
    ],
)
def test_what_counts_as_one_address(address: str, network: str) -> None:
    """A /64 of IPv6 belongs to one host."""
    assert network_of(address) == network


def test_the_silent_go_before_those_that_spoke_and_the_oldest_first() -> None:
    pool: Newcomers[str] = Newcomers()
    for name in ("first", "second", "third"):
        pool.add(name, FLOOD)
    pool.spoke("first")
    pool.spoke("first")
    pool.spoke("nobody")
    order = []
    while (found := pool.first_to_go(OTHER)) is not None:
        assert found[1] == FLOOD
        order.append(found[0])
        pool.remove(found[0])
    assert order == ["second", "third", "first"]
    pool.remove("first")
    assert (len(pool), pool.most, pool.count_of(FLOOD)) == (0, 0, 0)


def test_the_network_with_the_most_gives_way_whoever_arrives() -> None:
    pool: Newcomers[str] = Newcomers()
    pool.add("oldest", OTHER)
    for name in ("flood 1", "flood 2"):
        pool.add(name, FLOOD)
    assert pool.first_to_go(OTHER) == ("flood 1", FLOOD)
    assert pool.first_to_go(FLOOD) == ("flood 1", FLOOD)
    pool.remove("flood 1")
    # Both have one now: who arrives competes with itself.
    assert pool.first_to_go(OTHER) == ("oldest", OTHER)
    assert pool.first_to_go(FLOOD) == ("flood 2", FLOOD)


def test_the_largest_network_is_always_known() -> None:
    """Against a count of all, over a random life."""
    chance = random.Random(7)
    pool: Newcomers[int] = Newcomers()
    there: dict[int, str] = {}
    for number in range(4000):
        if there and chance.random() < 0.5:
            gone = chance.choice(list(there))
            del there[gone]
            pool.remove(gone)
        else:
            network = there[number] = str(int(chance.expovariate(0.3)))
            pool.add(number, network)
            if chance.random() < 0.5:
                pool.spoke(number)
        counts: dict[str, int] = {}
        for network in there.values():
            counts[network] = counts.get(network, 0) + 1
        most = max(counts.values(), default=0)
        found = pool.first_to_go("nobody")
        assert (len(pool), pool.most) == (len(there), most)
        assert (found is None) == (not there)
        if found is not None:
            assert there[found[0]] == found[1]
            assert counts[found[1]] == most == pool.count_of(found[1])


class House:
    """A roster of connections that are numbers, with a clock that stands still."""

    def __init__(self, share: Share, newcomers_max: int | None = None) -> None:
        self.share = share
        self.closed: list[int] = []
        self.seconds = 0.0
        self.last = 0
        self.emptied_count = 0
        self.roster: Roster[int] = Roster(
            share,
            close=self.closed.append,
            now=lambda: self.seconds,
            newcomers_max=newcomers_max,
            emptied=self._emptied,
            where="here",
        )

    def _emptied(self) -> None:
        self.emptied_count += 1

    def _next(self) -> int:
        self.last += 1
        return self.last

    def arrive(self, address: str, count: int = 1) -> list[int]:
        """So many connections; those that were let in."""
        found = [self.roster.admit(self._next, address) for _ in range(count)]
        return [number for number in found if number is not None]


def test_newcomers_push_out_only_each_other() -> None:
    house = House(Budget().share(1000), newcomers_max=10)
    [proven, other] = house.arrive(FLOOD) + house.arrive(OTHER)
    house.roster.proven(proven)
    house.roster.proven(proven)
    flood = house.arrive(FLOOD, 30)
    assert len(flood) == 30
    assert house.closed == flood[:21]
    assert house.arrive(OTHER) != []
    assert house.closed == flood[:22]
    assert {proven, other} <= house.roster.connections
    assert (house.roster.newcomers_count, house.roster.crowded_out_count) == (10, 22)
    assert house.share.count == len(house.roster.connections) == 11


def test_room_comes_back_however_a_connection_ends() -> None:
    house = House(Budget().share(1000), newcomers_max=10)
    for _ in range(5):
        flood = house.arrive(FLOOD, 12)
        house.roster.proven(flood[-1])
        for number in flood:
            house.roster.gone(number)  # also those that were crowded out
    assert house.share.count == house.roster.newcomers_count == 0
    assert house.roster.connections == set()
    assert house.emptied_count > 0
    closed = len(house.closed)
    house.arrive(FLOOD, 10)
    assert len(house.closed) == closed


def test_a_full_listener_closes_a_newcomer_and_never_the_proven() -> None:
    house = House(Budget().share(8))
    proven = house.arrive(OTHER, 4)
    for number in proven:
        house.roster.proven(number)
    flood = house.arrive(FLOOD, 4)
    [late] = house.arrive(OTHER)
    assert house.closed == flood[:1]
    house.roster.proven(late)
    for _ in range(2):
        [late] = house.arrive(THIRD)
        house.roster.proven(late)
    assert house.closed == flood[:3]
    # One silent newcomer is no crowd: it has its time, and arrivals are refused.
    assert house.arrive(THIRD) == house.arrive(FLOOD) == []
    house.roster.proven(flood[3])
    assert house.arrive(THIRD) == []
    assert (house.roster.refused_count, house.share.count) == (3, 8)
    assert not set(proven) & set(house.closed)


def test_clients_that_try_again_at_a_full_listener_do_not_push_out_each_other() -> None:
    """A few that are about to finish keep their places; a crowd of one address loses its oldest."""
    house = House(Budget().share(CROWD_MIN - 1), newcomers_max=1000)
    house.arrive(FLOOD, CROWD_MIN - 1)
    assert house.arrive(FLOOD, 5) == []
    assert house.closed == []
    house = House(Budget().share(CROWD_MIN), newcomers_max=1000)
    first = house.arrive(FLOOD, CROWD_MIN)
    assert len(house.arrive(FLOOD, 2)) == 2
    assert house.closed == first[:2]


def test_listeners_leave_room_for_one_another() -> None:
    """Newcomers of all listeners together leave a quarter of what the process may have."""
    budget = Budget(16_000)
    shares = [budget.share(50_000) for _ in range(12)]
    assert sum(share.newcomers_max for share in shares) == 12_000
    for share in shares[1:]:
        House(share).arrive(FLOOD, 5000)
    house = House(shares[0])
    for number in house.arrive(OTHER, 4000):
        house.roster.proven(number)
    assert house.roster.refused_count == 0
    assert Budget().share(50).newcomers_max == 25
    assert Budget(64).share(50_000).newcomers_max == NEWCOMERS_MIN
    assert Budget().share(50_000).newcomers_max == NEWCOMERS_MAX


def test_the_log_names_address_and_listener_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    house = House(Budget().share(20), newcomers_max=10)
    for number in house.arrive(OTHER, 10):
        house.roster.proven(number)
    house.arrive(FLOOD, 20)
    assert len(caplog.records) == 1
    assert "here: closing" in caplog.text
    assert f"10 of 10 such connections are from {FLOOD}" in caplog.text
    caplog.clear()
    for number in list(house.roster.connections):
        house.roster.proven(number)
    house.arrive(THIRD, 3)
    assert len(caplog.records) == 1
    assert f"here: refusing connections, the last one from {THIRD}: there are 20" in caplog.text
    house.seconds = REPORT_SECONDS
    house.arrive(THIRD)
    assert len(caplog.records) == 2
