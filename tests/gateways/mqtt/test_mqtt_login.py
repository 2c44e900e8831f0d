"""What a client is and may do, as the MQTT gateway handles it: a login that takes its time, what
comes meanwhile, and the client's own port from then on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from interop_tests import mqtt_wire as wire
from polymq.broker.port import Reason, Refused
from polymq.gateways.mqtt.limits import Limits
from tests.gateways.mqtt.mqtt_harness import Broker, Peer, SpyPort, SpySession


def slow_broker(**options: Any) -> Broker:
    broker = Broker(**options)
    broker.port.logins_take_time = True
    return broker


def answer_login(broker: Broker) -> None:
    """As worker threads do: in a turn of the loop of its own."""
    answer = broker.port.logins.pop(0)
    broker.loop.call_soon(answer)
    broker.loop.run()


CONNECT = wire.connect("c", user="u", password=b"p")
SUBSCRIBE = wire.subscribe(1, ("a/#", 0))


def test_nothing_is_looked_at_before_the_login() -> None:
    """And then all of it, in order."""
    broker = slow_broker()
    peer = broker.peer(None)
    peer.send(CONNECT + SUBSCRIBE + wire.publish("a", b"x", qos=1, packet_id=2))
    assert peer.receive() == []
    assert broker.port.connected == []
    assert broker.port.published == []
    assert peer.transport.reading  # else its end would not be noticed
    answer_login(broker)
    assert peer.receive() == [wire.connack(), wire.suback(1, 0), wire.puback(2)]
    assert peer.transport.reading
    assert [found.body for found in broker.port.published] == [b"x"]


def test_half_a_packet_waits_for_the_login_and_its_other_half() -> None:
    broker = slow_broker()
    peer = broker.peer(None)
    peer.send(CONNECT + SUBSCRIBE[:5])
    answer_login(broker)
    assert peer.receive() == [wire.connack()]
    peer.send(SUBSCRIBE[5:])
    assert peer.receive() == [wire.suback(1, 0)]


def test_much_that_comes_before_the_login_is_kept() -> None:
    """More than half of the shared read buffer: it moves into one of the connection's own."""
    broker = slow_broker()
    peer = broker.peer(None)
    many = [wire.publish("a", b"x" * 10_000, qos=1, packet_id=number) for number in range(1, 21)]
    peer.send(CONNECT + b"".join(many))
    answer_login(broker)
    acks = peer.receive()
    assert acks == [wire.connack(), *(wire.puback(number) for number in range(1, 21))]


def test_strangers_together_may_keep_so_much_and_no_more() -> None:
    """One more than there is room for is closed, and room is given back by whoever leaves."""
    limit = 30_000
    broker = slow_broker(limits=Limits(early_bytes_max=limit))
    stored = [broker.peer(None) for _ in range(2)]
    for number, peer in enumerate(stored):
        peer.send(wire.connect(f"c{number}"), wire.publish("a", b"x" * 14_000))
        assert not peer.is_closed()
    over = broker.peer(None)
    over.send(wire.connect("over"), wire.publish("a", b"x" * 14_000))
    assert over.is_closed()
    stored[0].vanish()
    again = broker.peer(None)
    again.send(wire.connect("again"), wire.publish("a", b"x" * 14_000))
    assert not again.is_closed()
    while broker.port.logins:
        answer_login(broker)
    assert broker.shared.early_bytes == 0
    assert len(broker.port.published) == 2


def test_a_client_that_does_not_wait_leaves_no_session() -> None:
    broker = slow_broker()
    peer = broker.peer(None)
    peer.send(wire.connect("c", user="u", password=b"p", will=("w", b"gone", 0, False)))
    peer.vanish()
    assert broker.port.logins == []  # withdrawn
    assert broker.port.connected == []
    assert broker.port.published == []


def test_what_comes_while_the_login_is_looked_at_waits_for_it() -> None:
    """In reads of its own, and so much that the rest is left to the kernel."""
    broker = slow_broker()
    peer = broker.peer(None)
    peer.send(CONNECT)
    peer.send(SUBSCRIBE)
    assert peer.is_read()
    peer.send(wire.publish("a", b"x" * 2000, qos=1, packet_id=2))
    assert not peer.is_read()
    assert peer.receive() == []
    answer_login(broker)
    assert peer.receive() == [wire.connack(), wire.suback(1, 0), wire.puback(2)]
    assert peer.is_read()
    assert broker.shared.early_bytes == 0


def test_a_login_that_takes_too_long_is_the_end() -> None:
    """A guess that has to wait a minute does not keep its socket."""
    broker = slow_broker()
    peer = broker.peer(None)
    peer.send(CONNECT)
    broker.loop.advance(9.0)
    assert not peer.is_closed()
    broker.loop.advance(3.0)
    assert peer.receive() == [wire.connack(3)]
    assert peer.is_closed()
    assert broker.port.logins == []
    assert broker.port.connected == []


def test_a_late_refusal_is_answered_like_one_at_once() -> None:
    broker = slow_broker()
    broker.port.users = {"u": b"right"}
    peer = broker.peer(None)
    peer.send(CONNECT + SUBSCRIBE)
    answer_login(broker)
    assert peer.receive() == [wire.connack(4)]
    assert peer.is_closed()
    assert broker.port.connected == []


class OwnPort(SpyPort):
    """A port of a client's own, whose rights the test chooses."""

    def __init__(self) -> None:
        super().__init__()
        self.clients: list[tuple[str, str | None]] = []
        self.inside: list[Callable[[str], None]] = []
        self.refused_publish: Refused | None = None
        self.refused_entry: Refused | None = None

    def for_principal(
        self, principal: str, client_id: str | None = None, *, asked_as: object = None
    ) -> SpyPort:
        self.clients.append((principal, client_id))
        return self

    def enter(
        self,
        expelled: Callable[[str], None],
        *,
        access_key: str | None = None,
        address: str = "",
    ) -> Callable[[], None]:
        if self.refused_entry is not None:
            raise self.refused_entry
        self.inside.append(expelled)
        return lambda: self.inside.remove(expelled)

    def check_publish(self, topic: str, tag: str | None, *, every_tag: bool = False) -> None:
        if self.refused_publish is not None:
            raise self.refused_publish


class Base(SpyPort):
    """The engine, which hands out `own` and must not be spoken to afterwards."""

    def __init__(self, own: OwnPort) -> None:
        super().__init__()
        self.own = own

    def for_principal(
        self, principal: str, client_id: str | None = None, *, asked_as: object = None
    ) -> SpyPort:
        return self.own.for_principal(principal, client_id)

    def route(self, topic: str, tag: str | None) -> Any:
        raise AssertionError("a client's publishes go through its own port")

    def connect_session(self, client_id: str, **options: Any) -> SpySession:
        raise AssertionError("a client's session comes from its own port")


@pytest.fixture
def own() -> OwnPort:
    return OwnPort()


@pytest.fixture
def broker(own: OwnPort) -> Broker:
    return Broker(port=Base(own))


def client(broker: Broker, **options: Any) -> Peer:
    return broker.peer(wire.connect("c", user="u", password=b"p", **options))


def test_a_client_speaks_to_its_own_port(broker: Broker, own: OwnPort) -> None:
    peer = client(broker)
    assert own.clients == [("u", "c")]
    peer.send(wire.publish("a", b"x", qos=1, packet_id=1) + wire.publish("b", b"y"))
    assert [found.topic for found in own.published] == ["a", "b"]


def test_two_clients_do_not_share_what_they_may_publish(own: OwnPort) -> None:
    """A template that one was given is not the other's."""
    other = OwnPort()
    other.refused_topics["a"] = Refused(Reason.FORBIDDEN, "no")
    base = Base(own)
    broker = Broker(port=base)
    first = client(broker)
    first.send(wire.publish("a", b"1", qos=1, packet_id=1))
    base.own = other
    second = broker.peer(wire.connect("d", user="v", password=b"p"))
    second.send(wire.publish("a", b"2", qos=1, packet_id=1))
    assert second.is_closed()
    first.send(wire.publish("a", b"3", qos=1, packet_id=2))
    assert [found.body for found in own.published] == [b"1", b"3"]
    assert other.published == []


def test_a_will_is_checked_at_connect_and_published_through_the_own_port(
    broker: Broker, own: OwnPort
) -> None:
    will = ("w", b"gone", 1, False)
    peer = client(broker, will=will)
    peer.vanish()
    assert [found.body for found in own.published] == [b"gone"]
    own.refused_publish = Refused(Reason.FORBIDDEN, "no")
    refused = broker.peer(None)
    refused.send(wire.connect("d", user="u", password=b"p", will=will))
    assert refused.receive() == [wire.connack(5)]
    assert len(own.published) == 1


def test_a_connection_is_on_the_list_of_its_user_while_it_lasts(
    broker: Broker, own: OwnPort
) -> None:
    peer = client(broker)
    assert len(own.inside) == 1
    peer.send(wire.DISCONNECT)
    assert own.inside == []
    peer = client(broker, will=("w", b"gone", 1, False))
    own.inside[0]("the user was deleted")
    broker.loop.run()
    assert peer.is_closed()
    assert own.inside == []
    assert [found.body for found in own.published] == [b"gone"]


def test_one_connection_too_many_is_told_to_come_again(broker: Broker, own: OwnPort) -> None:
    own.refused_entry = Refused(Reason.LIMIT, "too many connections")
    peer = broker.peer(None)
    peer.send(CONNECT)
    assert peer.receive() == [wire.connack(3)]
    assert own.connected == []
