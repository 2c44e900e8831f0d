"""AUTH packets as the MQTT gateway handles them: an exchange that takes its time, that nobody goes
on with, or whose client goes; with an engine that the test speaks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from interop_tests import mqtt5_wire as wire
from interop_tests.mqtt5_wire import Kind, P, R, decode
from polymq.broker.port import Reason, Refused
from polymq.gateways.mqtt.limits import Limits
from polymq.gateways.mqtt.rules import Rules
from polymq.net.connection import SocketConnection
from tests.gateways.mqtt.mqtt_harness import Broker, Peer, SpyPort
from tests.harness.spy_port import operation

METHOD = (P.AUTH_METHOD, "SPY")
Answer = Callable[[str | Refused], None]


class SpyExchange:
    """An exchange whose last message is the name of who it is."""

    def __init__(self, port: ExchangingPort) -> None:
        self.port = port
        self.user = ""
        self.challenge = b"challenge"
        self.last_message = b""
        self.is_ended = False

    def finish(self, final: bytes, address: str, answer: Answer) -> Callable[[], None]:
        assert address
        self.last_message = b"proof"
        right = bool(final)
        known = final.decode() if right else Refused(Reason.NOT_AUTHENTICATED, "wrong")
        if not self.port.takes_time:
            answer(known)
            return lambda: None
        later = lambda: answer(known)  # noqa: E731
        self.port.answers.append(later)
        return lambda: self.port.answers.remove(later) if later in self.port.answers else None

    def end(self) -> None:
        self.is_ended = True


class ExchangingPort(SpyPort):
    def __init__(self) -> None:
        super().__init__()
        self.exchanges: list[SpyExchange] = []
        self.takes_time = False
        self.answers: list[Callable[[], None]] = []

    @operation("admission.offers")
    def offers(self, method: str) -> bool:
        return method == "SPY"

    @operation("admission.begin_exchange")
    def begin_exchange(self, method: str, first: bytes, address: str) -> SpyExchange:
        if first == b"too many":
            raise Refused(Reason.LIMIT, "too many")
        self.exchanges.append(SpyExchange(self))
        return self.exchanges[-1]

    @property
    def all_ended(self) -> bool:
        return all(one.is_ended for one in self.exchanges)


def make(**options: Any) -> tuple[Broker, ExchangingPort]:
    port = ExchangingPort()
    return Broker(port=port, **options), port


def first(data: bytes = b"first", **options: Any) -> bytes:
    return wire.connect("c", props=[METHOD, (P.AUTH_DATA, data)], **options)


def step(data: bytes, reason: int = R.CONTINUE) -> bytes:
    return wire.auth(reason, [METHOD, (P.AUTH_DATA, data)])


def reads(peer: Peer) -> list[tuple[Kind, int]]:
    found = [decode(data) for data in peer.receive()]
    return [(one.kind, one.reason) for one in found]


def authenticated(broker: Broker, **options: Any) -> Peer:
    peer = broker.peer(None)
    peer.send(first(**options), step(b"ann"))
    assert reads(peer) == [(Kind.AUTH, R.CONTINUE), (Kind.CONNACK, 0)]
    return peer


def test_connack_has_the_proof() -> None:
    broker, port = make()
    peer = broker.peer(None)
    peer.send(first())
    assert decode(peer.receive()[0]).values(P.AUTH_DATA) == [b"challenge"]
    assert not port.all_ended
    peer.send(step(b"ann"))
    connack = decode(peer.receive()[0])
    assert connack.values(P.AUTH_METHOD) == ["SPY"]
    assert connack.values(P.AUTH_DATA) == [b"proof"]
    assert port.all_ended


def test_who_it_proves_to_be_is_the_one_that_its_certificate_names() -> None:
    """A listener that takes users from certificates takes no other user by an exchange."""
    certified: str | None = "bob"

    def user_of(_connection: SocketConnection) -> str | None:
        if certified == "":
            raise Refused(Reason.NOT_AUTHENTICATED, "its certificate names no user")
        return certified

    broker, port = make(rules=Rules(user_of=user_of))
    refused = R.NOT_AUTHORIZED
    for certified, code in (("bob", refused), ("", refused), ("ann", 0), (None, 0)):
        peer = broker.peer(None)
        peer.send(first(), step(b"ann"))
        assert reads(peer)[-1] == (Kind.CONNACK, code), certified
        assert port.all_ended


def test_reason_codes_of_auth_are_counted() -> None:
    broker, _ = make()
    peer = authenticated(broker)
    peer.send(step(b"first", R.AUTHENTICATE_AGAIN), step(b"ann"))
    assert reads(peer) == [(Kind.AUTH, R.CONTINUE), (Kind.AUTH, 0)]
    counts = broker.shared.counters.reasons
    assert counts.all_sent == {(15, R.CONTINUE): 2, (2, 0): 1, (15, 0): 1}
    assert counts.all_received == {(15, R.CONTINUE): 2, (15, R.AUTHENTICATE_AGAIN): 1}


def test_a_proof_that_takes_time() -> None:
    """What comes meanwhile waits, as it does while a password is checked."""
    broker, port = make()
    port.takes_time = True
    peer = broker.peer(None)
    peer.send(first(), step(b"ann"), wire.subscribe(1, ("a", 0)))
    assert reads(peer) == [(Kind.AUTH, R.CONTINUE)]
    broker.loop.call_soon(port.answers.pop())
    broker.loop.run()
    assert [kind for kind, _ in reads(peer)] == [Kind.CONNACK, Kind.SUBACK]


@pytest.mark.parametrize("takes_time", [False, True])
def test_a_client_that_goes_ends_its_exchange(takes_time: bool) -> None:
    broker, port = make()
    port.takes_time = takes_time
    for sent in ([first()], [first(), step(b"ann")] if takes_time else [first()]):
        peer = broker.peer(None)
        peer.send(*sent)
        peer.vanish()
    assert port.all_ended
    assert port.answers == []
    assert port.connected == []


def test_nobody_goes_on_with_it() -> None:
    broker, port = make()
    peer = broker.peer(None)
    peer.send(first())
    peer.receive()
    broker.loop.advance(12)
    assert reads(peer) == [(Kind.CONNACK, R.NOT_AUTHORIZED)]
    assert peer.is_closed()
    assert port.all_ended


@pytest.mark.parametrize("keep_alive", [0, 60])
def test_nobody_goes_on_with_the_next_one(keep_alive: int) -> None:
    """On a running connection it has a time, too, with a keep alive or without."""
    broker, port = make()
    peer = authenticated(broker, keep_alive=keep_alive)
    peer.send(step(b"first", R.AUTHENTICATE_AGAIN))
    assert reads(peer) == [(Kind.AUTH, R.CONTINUE)]
    broker.loop.advance(12)
    assert reads(peer) == [(Kind.DISCONNECT, R.NOT_AUTHORIZED)]
    assert port.all_ended


@pytest.mark.parametrize("keep_alive", [0, 60])
def test_after_the_next_one_only_the_keep_alive_counts(keep_alive: int) -> None:
    broker, _ = make()
    peer = authenticated(broker, keep_alive=keep_alive)
    peer.send(step(b"first", R.AUTHENTICATE_AGAIN), step(b"ann"))
    assert reads(peer) == [(Kind.AUTH, R.CONTINUE), (Kind.AUTH, 0)]
    broker.loop.advance(50)
    assert not peer.is_closed()
    broker.loop.advance(50)
    assert peer.is_closed() == bool(keep_alive)


@pytest.mark.parametrize("data", [b"bob", b""])
def test_who_proves_to_be_another_is_closed(data: bytes) -> None:
    """[MQTT-4.12.1-2], and so is who proves nothing."""
    broker, port = make()
    peer = authenticated(broker)
    peer.send(step(b"first", R.AUTHENTICATE_AGAIN), step(data))
    assert reads(peer) == [(Kind.AUTH, R.CONTINUE), (Kind.DISCONNECT, R.NOT_AUTHORIZED)]
    assert peer.is_closed()
    assert port.all_ended


def test_a_step_before_the_last_one_was_answered_closes() -> None:
    broker, port = make()
    peer = authenticated(broker)
    port.takes_time = True
    peer.send(step(b"first", R.AUTHENTICATE_AGAIN), step(b"ann"), step(b"ann"))
    assert reads(peer) == [(Kind.AUTH, R.CONTINUE), (Kind.DISCONNECT, R.PROTOCOL_ERROR)]
    assert port.all_ended


def test_publishing_goes_on_while_the_proof_is_looked_at() -> None:
    broker, port = make()
    peer = authenticated(broker)
    port.takes_time = True
    peer.send(step(b"first", R.AUTHENTICATE_AGAIN), step(b"ann"))
    peer.send(wire.publish("a", b"x", qos=1, packet_id=1))
    assert [kind for kind, _ in reads(peer)] == [Kind.AUTH, Kind.PUBACK]
    port.answers.pop()()
    broker.loop.run()
    assert reads(peer) == [(Kind.AUTH, 0)]


def test_too_many_are_asked_to_come_again() -> None:
    broker, _ = make()
    peer = broker.peer(None)
    peer.send(first(b"too many"))
    ((kind, reason),) = reads(peer)
    assert (kind, reason) == (Kind.CONNACK, 0x89)


def test_an_empty_first_message_is_asked_for_once() -> None:
    broker, _ = make()
    peer = broker.peer(None)
    peer.send(wire.connect("c", props=[METHOD]), step(b""))
    assert reads(peer) == [(Kind.AUTH, R.CONTINUE), (Kind.CONNACK, R.NOT_AUTHORIZED)]


@pytest.mark.parametrize("size", [30, 60, 90, 120])
def test_no_packet_is_larger_than_the_client_takes(size: int) -> None:
    """[MQTT-3.1.2-24]; a client whose packets have no room for the proof cannot be answered."""
    broker, _ = make()
    peer = broker.peer(None)
    peer.send(wire.connect("c", props=[METHOD, (P.AUTH_DATA, b"x"), (P.PACKET_MAX, size)]))
    peer.send(step(b"ann"))
    found = [decode(data) for data in peer.receive()]
    assert found[-1].reason == (0 if size >= 90 else R.TOO_LARGE)
    assert all(one.size <= size for one in found)


def test_a_large_step_is_refused() -> None:
    broker, _ = make()
    peer = broker.peer(None)
    peer.send(first(), step(b"x" * 10_000))
    assert reads(peer)[-1] == (Kind.CONNACK, R.TOO_LARGE)


def test_what_strangers_send_is_bounded_while_they_authenticate() -> None:
    """A large CONNECT is kept until the end of the exchange, and counts until then."""
    broker, port = make(limits=Limits(early_bytes_max=100_000))
    will = wire.Will(topic="w", body=b"x" * 60_000)
    one, other = broker.peer(None), broker.peer(None)
    for peer in (one, other):
        peer.send(first(will=will), step(b"x" * 2_000)[:-1])
    assert other.is_closed()
    assert not one.is_closed()
    one.vanish()
    assert broker.shared.early_bytes == 0
    assert port.all_ended
