"""The ban list as state of the log, and what a ban is compared with."""

from __future__ import annotations

import pytest

from polymq.broker.accounts.bans import ADDRESS, CLIENT, USER, Ban, Bans
from polymq.broker.errors import Reason, Refused
from tests.harness.broker import Broker

HOUR_MS = 3_600_000


def add(broker: Broker, kind: str, value: str, *, seconds: float | None = None) -> None:
    bans = broker.engine.bans
    until = None if seconds is None else broker.loop.clock_ms() + round(1000 * seconds)
    bans.add(kind, value, reason="why", until_ms=until, by="root")


def listed(broker: Broker) -> list[tuple[str, str]]:
    return [(ban.kind, ban.value) for ban in in_force(broker)]


def in_force(broker: Broker) -> list[Ban]:
    bans = broker.engine.bans
    found = (bans.named(ban.kind, ban.value) for ban in bans.entries())
    return sorted((ban for ban in found if ban is not None), key=lambda ban: ban.key)


@pytest.mark.parametrize("end", ["kill", "restart", "from the log alone"])
def test_bans_survive(broker: Broker, end: str) -> None:
    add(broker, CLIENT, "c\x00\u20ac")
    add(broker, USER, "ann", seconds=60)
    add(broker, ADDRESS, "10.0.0.0/8")
    add(broker, ADDRESS, "10.0.0.7")
    broker.engine.bans.remove(ADDRESS, "10.0.0.7")
    before = in_force(broker)
    broker.save()
    add(broker, USER, "bob")
    broker.step()
    if end == "restart":
        broker.restart()
    else:
        broker.with_state_db = end == "kill"
        broker.kill()
        broker.open()
    assert listed(broker) == [*[(ban.kind, ban.value) for ban in before], (USER, "bob")]
    assert in_force(broker)[:3] == before
    assert not broker.engine.bans.accepts("10.0.0.7")


def test_addresses_and_networks(broker: Broker) -> None:
    bans = broker.engine.bans
    for value in ("192.0.2.7", "10.1.0.0/16", "2001:db8::/32", "::ffff:198.51.100.9"):
        add(broker, ADDRESS, value)
    banned = ("192.0.2.7", "10.1.255.255", "2001:db8:7::1", "198.51.100.9", "::ffff:192.0.2.7")
    free = ("192.0.2.8", "10.2.0.0", "2001:db9::", "::", "", "no address", "0.0.0.0")
    for address in banned:
        assert not bans.accepts(address), address
    for address in free:
        assert bans.accepts(address), address
    assert bans.refused == {CLIENT: 0, USER: 0, ADDRESS: len(banned)}
    for value in ("192.0.2.7/32", "10.1.0.0/16", "2001:0db8::/32", "198.51.100.9"):
        bans.remove(ADDRESS, value)
    assert all(map(bans.accepts, banned))
    assert bans.count == 0


def test_a_ban_ends_by_the_clock_and_makes_room(broker: Broker) -> None:
    bans = broker.engine.bans
    add(broker, CLIENT, "c", seconds=10)
    add(broker, ADDRESS, "10.0.0.1", seconds=10)
    broker.loop.jump_ms = 9_999
    assert len(listed(broker)) == 2
    assert not bans.accepts("10.0.0.1")
    broker.loop.jump_ms = 10_000
    assert listed(broker) == []
    assert bans.accepts("10.0.0.1")
    bans.check(CLIENT, "c")
    with pytest.raises(Refused) as error:
        bans.remove(CLIENT, "c")
    assert error.value.reason is Reason.NOT_FOUND
    assert bans.count == 2
    add(broker, USER, "ann")
    assert bans.count == 1, "those without effect went with the next change"


def test_a_list_is_full(broker: Broker) -> None:
    broker.stop()
    broker.limits = type(broker.limits)(bans_max=2)
    broker.open()
    add(broker, CLIENT, "1")
    add(broker, CLIENT, "2")
    with pytest.raises(Refused) as error:
        add(broker, CLIENT, "3")
    assert error.value.reason is Reason.LIMIT
    add(broker, CLIENT, "2", seconds=5)  # it replaces one


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("client", "c"),
        (CLIENT, ""),
        (CLIENT, "c" * 600),
        (ADDRESS, "10.0.0.5/8"),
        (ADDRESS, "10.0.0"),
        (ADDRESS, "host.example"),
        (ADDRESS, "::/129"),
    ],
)
def test_what_cannot_be_banned(broker: Broker, kind: str, value: str) -> None:
    for change in (broker.engine.bans.add, broker.engine.bans.remove):
        with pytest.raises(Refused) as error:
            change(kind, value)
        assert error.value.reason is Reason.BAD_ARGUMENT
        assert "\n" not in error.value.text
    assert broker.engine.bans.count == 0


def test_a_ban_is_text(broker: Broker) -> None:
    """What is not UTF-8 could be written to the log, and not to the saved state."""
    for value, reason in (("\udcff", ""), ("c", "\udce9")):
        with pytest.raises(Refused, match="not UTF-8"):
            broker.engine.bans.add(CLIENT, value, reason=reason)
    assert listed(broker) == []


def test_a_banned_user_does_not_log_in(people: Broker) -> None:
    """Its connections end, also those that came in by other protocols, and its password is not even
    checked."""
    said: list[str] = []
    leave = people.port.admission.for_principal("ann").principal.enter(said.append)
    add(people, USER, "ann")
    assert said == ["the user was banned"]
    leave()
    answers: list[object] = []
    people.port.admission.authenticate("ann", b"anything", "10.0.0.1", answers.append)
    (refused,) = answers
    assert isinstance(refused, Refused)
    assert refused.reason is Reason.BANNED
    assert people.engine.bans.refused[USER] == 1


def test_without_networks_nothing_is_parsed(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_self: Bans, _address: str) -> None:
        raise AssertionError

    monkeypatch.setattr(Bans, "of_address", fail)
    assert broker.engine.bans.accepts("10.0.0.1")
