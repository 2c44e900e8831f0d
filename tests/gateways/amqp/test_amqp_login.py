"""What a client is and may do, as the AMQP gateway handles it: a login that takes its time, and the
client's own port from then on. The engine is the real one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from polymq.broker.accounts.quotas import Quotas
from polymq.broker.port import AdmissionPort
from polymq.gateways.amqp import spec
from tests.gateways.amqp import amqp_wire as wire
from tests.gateways.amqp.amqp_core_driver import HEADER, OPEN, TUNE_OK, channel_open
from tests.gateways.amqp.amqp_harness import CAPABILITIES, Bench, Peer
from tests.harness.broker import Broker
from tests.harness.people import PASSWORD, add_user, allow, deny


class LateAdmission:
    """The broker's, whose answers to logins wait for the test."""

    def __init__(self, admission: AdmissionPort) -> None:
        self._admission = admission
        self.logins: list[Callable[[], object]] = []

    def authenticate(self, *credentials: Any) -> Callable[[], None]:
        self.logins.append(ask := partial(self._admission.authenticate, *credentials))
        return lambda: self.logins.remove(ask)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._admission, name)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path / "data")
    add_user(made, "ann")
    yield made
    made.stop()


@pytest.fixture
def bench(broker: Broker) -> Bench:
    made = Bench(broker)
    late = cast("AdmissionPort", LateAdmission(made.port.admission))
    made.port = replace(broker.port, admission=late)
    return made


def logins(bench: Bench) -> list[Callable[[], object]]:
    return cast("LateAdmission", bench.port.admission).logins


def start_ok(user: bytes = b"ann", password: bytes = PASSWORD) -> bytes:
    method = spec.ConnectionStartOk(
        client_properties={"capabilities": CAPABILITIES},
        mechanism="PLAIN",
        response=b"\0" + user + b"\0" + password,
    )
    return wire.method(0, method)


def fresh(bench: Bench) -> Peer:
    return Peer(
        bench.port, bench.broker.loop.call_soon, templates=bench.templates, limits=bench.limits
    )


def logged_in(bench: Bench, *channels: int) -> Peer:
    peer = fresh(bench)
    peer.send(HEADER, start_ok(), TUNE_OK, OPEN, *(channel_open(number) for number in channels))
    logins(bench).pop()()
    bench.broker.step()
    peer.received()
    return peer


def names(peer: Peer) -> list[str]:
    return [type(method).__name__ for method in peer.methods()]


def test_nothing_is_looked_at_before_the_login(bench: Bench) -> None:
    peer = fresh(bench)
    peer.send(HEADER, start_ok(), TUNE_OK, OPEN, channel_open(1))
    bench.broker.step()
    assert names(peer) == ["ConnectionStart"]
    logins(bench).pop()()
    bench.broker.step()
    assert names(peer) == ["ConnectionTune", "ConnectionOpenOk", "ChannelOpenOk"]


def test_a_stranger_may_send_ahead_so_much_and_no_more(bench: Bench) -> None:
    peer = fresh(bench)
    peer.send(HEADER, start_ok())
    for _ in range(2):
        peer.send(bytes(bench.limits.early_bytes_max // 2))
    before = peer.transport.abort_seconds
    peer.send(b"x")
    assert (before, peer.transport.abort_seconds) == (None, 0)
    assert peer.client._rest == b""
    logins(bench).pop()()
    bench.broker.step()
    assert names(peer) == ["ConnectionStart"]


def test_a_late_refusal_closes_the_connection(bench: Bench) -> None:
    peer = fresh(bench)
    peer.send(HEADER, start_ok(password=b"wrong"), TUNE_OK, OPEN)
    logins(bench).pop()()
    bench.broker.step()
    closed = peer.methods()[-1]
    assert isinstance(closed, spec.ConnectionClose)
    assert closed.reply_code == 403


def test_a_client_that_does_not_wait_is_forgotten(bench: Bench) -> None:
    peer = fresh(bench)
    peer.send(HEADER, start_ok())
    assert peer.transport.reading  # else its end would not be noticed
    peer.client.lost()
    assert logins(bench) == []  # withdrawn
    bench.broker.step()
    assert names(peer) == ["ConnectionStart"]
    assert bench.broker.engine.admission._inside == {}


def test_a_login_that_takes_too_long_is_told_so(bench: Bench) -> None:
    """Not that it is wrong: it was not looked at."""
    peer = fresh(bench)
    peer.send(HEADER)
    assert not peer.client.login.is_overdue()
    peer.send(start_ok())
    assert peer.client.login.is_overdue()
    assert logins(bench) == []
    bench.broker.step()
    closed = peer.methods()[-1]
    assert isinstance(closed, spec.ConnectionClose)
    assert closed.reply_code == 530
    assert "try again" in closed.reply_text


def test_a_connection_is_on_the_list_of_its_user_while_it_lasts(bench: Bench) -> None:
    inside = bench.broker.engine.admission._inside
    peer = logged_in(bench)
    assert len(inside) == 1
    peer.client.lost()
    assert inside == {}
    peer = logged_in(bench)
    bench.broker.engine.users.set_disabled("ann", True)
    closed = peer.methods()[-1]
    assert isinstance(closed, spec.ConnectionClose)
    assert closed.reply_code == 320
    assert "disabled" in closed.reply_text


def test_one_connection_too_many_is_told_so(bench: Bench) -> None:
    bench.broker.engine.users.set_quotas("ann", Quotas(connections=1))
    logged_in(bench)
    peer = fresh(bench)
    peer.send(HEADER, start_ok())
    logins(bench).pop()()
    bench.broker.step()
    closed = peer.methods()[-1]
    assert isinstance(closed, spec.ConnectionClose)
    assert closed.reply_code == 530
    assert "connections" in closed.reply_text


def test_two_users_do_not_share_what_they_may_publish(bench: Bench) -> None:
    """A template that one was given is not the other's, and ends with the right."""
    broker = bench.broker
    add_user(broker, "bob")
    allow(broker, "ann", "publish,create", "a.#")
    ann = logged_in(bench, 1)
    publish = wire.publish(1, "amq.topic", "a.x", b"body")
    ann.send(publish)
    broker.step()
    assert ann.methods() == []
    bob = fresh(bench)
    bob.send(HEADER, start_ok(b"bob"), TUNE_OK, OPEN, channel_open(1))
    logins(bench).pop()()
    broker.step()
    bob.received()
    for peer, change in ((bob, None), (ann, partial(deny, broker, "ann", "publish", "a.x"))):
        if change is not None:
            change()
        peer.send(publish)
        broker.step()
        closed = peer.methods()[-1]
        assert isinstance(closed, spec.ChannelClose)
        assert closed.reply_code == 403
    broker.step(1)
    info = broker.port.topics.info("a")
    assert info is not None
    assert info.max_offsets == (1,)


def test_the_user_id_of_a_message_is_the_users(bench: Bench) -> None:
    """`user-id` is checked against who logged in, not against what the client says it is."""
    peer = logged_in(bench)
    assert peer.client.user == "ann"
