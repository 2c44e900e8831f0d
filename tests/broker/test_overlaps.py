"""Filters of one session that overlap: which of its subscriptions sends a message, and how."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from polymq.broker.port import (
    ONE_LEVEL,
    PUBLISHER_PROPERTY,
    REST,
    TTL_PROPERTY,
    Address,
    Durability,
    Session,
    SubscriptionOptions,
    Template,
    Will,
    shared_address,
    ttl_property,
)
from polymq.broker.sessions.overlaps import COMPARED_MAX, may_overlap
from polymq.broker.sessions.session import MqttSession
from polymq.broker.sessions.settings import DROP_NEWEST, DROP_OLDEST, SessionSettings
from tests.broker.test_engine_sessions import connect, start_again
from tests.harness.broker import Broker, SpyLink, at_qos

ALL: Address = ("a", REST)
ONE: Address = ("a", ONE_LEVEL)
EXACT: Address = ("a", "x")


def of(session: Session) -> MqttSession:
    assert isinstance(session, MqttSession)
    return session


def follow(session: Session, *filters: tuple[Address, SubscriptionOptions]) -> None:
    for address, options in filters:
        session.subscribe(address, options, retained=False)


def publish(broker: Broker, *bodies: bytes, tag: str = "x", qos: int = 1, **options: Any) -> None:
    broker.publish(broker.template("a", tag, qos=qos, **options), *bodies)
    broker.step()


def kind(broker: Broker, tag: str, name: str, value: str, *, retain: bool = False) -> Template:
    """Messages with this property beside those of QoS 2."""
    topics = broker.port.topics
    found = {"PMQ_PROTO": "mqtt", "PMQ_QOS": "2", name: value}
    return topics.template(
        topics.route("a", tag), properties=found, durability=Durability.FLUSHED, retain=retain
    )


def copies(link: SpyLink) -> list[tuple[bytes, int, tuple[int, ...]]]:
    """Body, QoS and identifiers of what came."""
    found = zip(link.publishes, link.identifiers, strict=True)
    return [(body, qos, identifiers) for (_, body, qos, *_), identifiers in found]


def acknowledge_all(broker: Broker, session: Session, link: SpyLink) -> None:
    """Of QoS 1, what has come and comes then."""
    seen = 0
    while seen < len(link.publishes):
        packets = [packet for _, _, qos, packet, *_ in link.publishes[seen:] if qos == 1]
        seen = len(link.publishes)
        for packet in packets:
            session.acknowledged(packet, 1)
        broker.step(0.1)


# --- which may overlap ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (("a", REST), ("a", ONE_LEVEL), True),
        (("a", REST), ("a",), True),
        (("a", REST), ("b", REST), False),
        (("a", "x"), ("a", "y"), False),
        (("a", ONE_LEVEL), ("a", "x", "y"), False),
        ((ONE_LEVEL, "x"), ("a", ONE_LEVEL), True),
        ((REST,), ("$SYS", REST), False),
        (("$SYS", REST), (ONE_LEVEL, "broker"), False),
        (("$SYS", REST), ("$SYS", "broker", REST), True),
    ],
)
def test_filters_that_may_overlap(first: Address, second: Address, expected: bool) -> None:
    assert may_overlap(first, second) is expected
    assert may_overlap(second, first) is expected


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("qos", [0, 1])
def test_other_sessions_have_nothing_of_it(broker: Broker, qos: int, clean: bool) -> None:
    """Their subscriptions take the short way. So does what is left when others have ended."""
    session, _ = connect(broker, "c", clean=clean)
    shared = shared_address("g", ("b", REST))
    follow(session, (ALL, at_qos(qos)), (("b", REST), at_qos(qos)), (shared, at_qos(qos)))
    assert of(session).overlaps is None
    assert not any(found.special for found in of(session).subscriptions.values())
    follow(session, (ONE, at_qos(qos)))
    assert of(session).overlaps is not None
    there = of(session).subscriptions.values()
    assert [found.special for found in there if not found.is_shared] == [True] * 3
    session.unsubscribe(ONE)
    assert of(session).overlaps is None
    assert not any(found.special for found in of(session).subscriptions.values())


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("wildcard_first", [True, False])
def test_very_many_filters(broker: Broker, wildcard_first: bool, clean: bool) -> None:
    """Beyond a number they are not compared one by one."""
    session, link = connect(broker, "c", clean=clean)
    if wildcard_first:
        follow(session, (ALL, at_qos(1, identifier=1)))
    for number in range(10 * COMPARED_MAX):
        follow(session, (("a", f"{number}"), at_qos(1, identifier=2)))
        assert (of(session).overlaps is not None) == (wildcard_first or number < 0)
    if not wildcard_first:
        follow(session, (ALL, at_qos(1, identifier=1)))
    publish(broker, b"1", tag="77")
    assert copies(link) == [(b"1", 1, (1, 2))]
    for number in range(10 * COMPARED_MAX):
        session.unsubscribe(("a", f"{number}"))
    assert of(session).overlaps is None
    publish(broker, b"2", tag="77")
    assert copies(link)[1:] == [(b"2", 1, (1,))]


# --- one copy ------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("highest", [0, 1, 2])
@pytest.mark.parametrize("clean", [True, False])
def test_one_copy_at_the_highest_qos(broker: Broker, clean: bool, highest: int, qos: int) -> None:
    """Whether the subscriptions are live or durable."""
    for order in ((0, highest), (highest, 0)):
        session, link = connect(broker, f"c{order}", clean=clean)
        for pattern, granted in zip((ALL, ONE), order, strict=True):
            follow(session, (pattern, at_qos(granted, identifier=granted + 1)))
        publish(broker, b"1", b"2", qos=qos)
        wanted = min(qos, highest)
        identifiers = tuple(sorted({1, highest + 1}))
        assert copies(link) == [(b"1", wanted, identifiers), (b"2", wanted, identifiers)]
        session.disconnect()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_no_local_counts_for_each_subscription(broker: Broker, qos: int, clean: bool) -> None:
    session, link = connect(broker, "c", clean=clean)
    own = at_qos(2, no_local=True, retain_as_published=True, identifier=1)
    follow(session, (ALL, own), (ONE, at_qos(qos, identifier=2)))
    for client in ("c", "d"):
        sent = kind(broker, "x", PUBLISHER_PROPERTY, client, retain=True)
        broker.publish(sent, client.encode())
        broker.step()
    assert copies(link) == [(b"c", qos, (2,)), (b"d", 2, (1, 2))]
    assert [retain for *_, retain in link.publishes] == [False, True]
    broker.publish(kind(broker, "x.y", PUBLISHER_PROPERTY, "c"), b"own alone")
    broker.step()
    assert len(link.publishes) == 2


def test_a_bridge_gets_a_copy_for_each(broker: Broker) -> None:
    """Who asks for that, though the session is there already."""
    session, _ = connect(broker, "c")
    follow(session, (ALL, at_qos(1, identifier=1)), (ONE, at_qos(1, identifier=2)))
    session.disconnect()
    link = SpyLink()
    session = broker.port.sessions.connect(
        "c", clean=False, expiry_seconds=None, link=link, principal="u", one_copy=False
    )
    session.resume()
    publish(broker, b"1")
    assert sorted(copies(link)) == [(b"1", 1, (1,)), (b"1", 1, (2,))]
    session.disconnect()
    session, link = connect(broker, "c")
    acknowledge_all(broker, session, link)
    link.publishes.clear()
    link.identifiers.clear()
    publish(broker, b"2")
    assert copies(link) == [(b"2", 1, (1, 2))]


# --- in the order of the log ---------------------------------------------------------------------


@pytest.mark.parametrize("window", [1, 3, 1000])
@pytest.mark.parametrize("way", ["reconnect", "stop", "kill"])
def test_what_waited_comes_in_the_order_of_the_log(broker: Broker, way: str, window: int) -> None:
    """What one queue has and what several have."""
    session, _ = connect(broker, "c")
    follow(session, (ALL, at_qos(1)), (ONE, at_qos(1)), (("a", "x", REST), at_qos(1)))
    session.disconnect()
    expected = []
    for number in range(30):
        expected.append(b"%d" % number)
        publish(broker, expected[-1], tag=("x", "x.y", "y", "z.z")[number % 4])
    if way != "reconnect":
        start_again(broker, way)
    link = SpyLink()
    session = broker.port.sessions.connect(
        "c", clean=False, expiry_seconds=None, link=link, principal="u", inflight_max=window
    )
    session.resume()
    broker.step()
    acknowledge_all(broker, session, link)
    assert link.bodies == expected
    assert not any(duplicate for *_, duplicate, _ in link.publishes)
    groups = [found.group for found in of(session).subscriptions.values()]
    assert [group.ready_count for group in groups if group is not None] == [0, 0, 0]


def test_a_later_subscription_does_not_overtake(broker: Broker) -> None:
    """A message of a topic whose earlier ones wait in another queue waits behind them."""
    session, link = connect(broker, "c", credit=0)
    follow(session, (ALL, at_qos(1)))
    publish(broker, b"1", b"2")
    follow(session, (EXACT, at_qos(2)))
    publish(broker, b"3", b"4", qos=2)
    link.left = 1000
    of(session).subscriptions[EXACT].wake()  # it is asked first
    broker.step()
    assert [(body, qos) for _, body, qos, *_ in link.publishes] == [
        (b"1", 1),
        (b"2", 1),
        (b"3", 2),
        (b"4", 2),
    ]


def test_what_expires_blocks_nobody(broker: Broker) -> None:
    """A subscription that waits behind messages of another goes on when these are gone."""
    session, link = connect(broker, "c", credit=0)
    follow(session, (ALL, at_qos(1)))
    broker.publish(kind(broker, "y", TTL_PROPERTY, ttl_property(5_000, 0)), b"gone")
    broker.step()
    follow(session, (EXACT, at_qos(1)))
    publish(broker, b"stays")
    link.left = 1000
    first = of(session).subscriptions[ALL]
    registration, first.registration = first.registration, None
    assert registration is not None
    registration.active, registration.group.registrations = False, ()
    of(session).subscriptions[EXACT].wake()
    broker.step()
    assert link.bodies == []
    broker.step(6.0)
    assert link.bodies == [b"stays"]


@pytest.mark.parametrize("ended", [ALL, ONE])
@pytest.mark.parametrize("way", ["reconnect", "kill"])
def test_an_unsubscribe_neither_loses_nor_repeats(broker: Broker, way: str, ended: Address) -> None:
    """What had been sent does not come by the other filter, what waited does."""
    link = SpyLink()
    session: Session = broker.port.sessions.connect(
        "c", clean=False, expiry_seconds=None, link=link, principal="u", inflight_max=3
    )
    session.resume()
    follow(session, (ALL, at_qos(2)), (ONE, at_qos(2)))
    bodies = [b"%d" % number for number in range(8)]
    for body in bodies:
        publish(broker, body, qos=2)
    assert link.bodies == bodies[:3]
    session.unsubscribe(ended)
    broker.step(0.1)
    if way == "kill":
        broker.step(1.0)
        start_again(broker, way)
    else:
        session.disconnect()
    session, link = connect(broker, "c")
    assert link.bodies == bodies
    assert [duplicate for *_, duplicate, _ in link.publishes] == [True] * 3 + [False] * 5


def test_a_lower_qos_leaves_messages_to_the_other(broker: Broker) -> None:
    """A subscription of QoS 0 that has a queue sends nothing beyond the window of another."""
    link = SpyLink()
    session = broker.port.sessions.connect(
        "c", clean=False, expiry_seconds=None, link=link, principal="u", inflight_max=2
    )
    session.resume()
    follow(session, (ALL, at_qos(1)), (ONE, at_qos(1)), (ALL, at_qos(0)))
    for number in range(5):
        publish(broker, b"%d" % number)
    assert [(body, qos) for _, body, qos, *_ in link.publishes] == [(b"0", 1), (b"1", 1)]
    acknowledge_all(broker, session, link)
    assert [(body, qos) for _, body, qos, *_ in link.publishes[2:]] == [
        (b"2", 1),
        (b"3", 1),
        (b"4", 1),
    ]


# --- what one of them lets go of -----------------------------------------------------------------


def test_what_was_dropped_from_one_queue_comes_from_the_other(broker: Broker) -> None:
    """The oldest entries give way, one by one."""
    broker.session_settings = SessionSettings(waiting_max=5, overflow=DROP_OLDEST)
    broker.restart()
    session, _ = connect(broker, "c")
    follow(session, (ALL, at_qos(1)), (ONE, at_qos(1)))
    session.disconnect()
    for number in range(5):
        publish(broker, b"%d" % number)
    broker.step(1.0)
    _, link = connect(broker, "c")
    assert link.bodies == [b"2", b"3", b"4"]  # five of ten entries: 3 and 4 twice, 2 once


def test_a_full_queue_does_not_silence_a_live_subscription(broker: Broker) -> None:
    """What a durable one leaves out comes by the live one."""
    broker.session_settings = SessionSettings(waiting_max=2, overflow=DROP_NEWEST)
    broker.restart()
    link = SpyLink()
    session = broker.port.sessions.connect(
        "c", clean=False, expiry_seconds=None, link=link, principal="u", inflight_max=1
    )
    session.resume()
    follow(session, (ALL, at_qos(0)), (ONE, at_qos(1)))
    for number in range(5):
        publish(broker, b"%d" % number)
    assert [(body, qos) for _, body, qos, *_ in link.publishes] == [
        (b"0", 1),
        (b"3", 0),
        (b"4", 0),
    ]
    acknowledge_all(broker, session, link)
    assert link.bodies[3:] == [b"1", b"2"]


def test_what_waits_for_a_live_subscription_that_ends(broker: Broker) -> None:
    """In a session that ends with its connection: the others get it."""
    session, link = connect(broker, "c", clean=True, credit=0)
    follow(session, (ALL, at_qos(1)), (EXACT, at_qos(2)))
    publish(broker, b"1", qos=2)
    publish(broker, b"not wanted any more", tag="y", qos=2)
    session.unsubscribe(ALL)
    assert of(session).overlaps is None
    publish(broker, b"2", qos=2)
    link.left = 1000
    session.ready()
    broker.step()
    assert sorted(link.bodies) == [b"1", b"2"]


def test_a_run_on_its_way_when_a_subscription_ends(broker: Broker) -> None:
    """It was offered to both: who is left sends it, and nobody else."""
    session, link = connect(broker, "c", clean=True)
    follow(session, (ALL, at_qos(1)), (EXACT, at_qos(1)))
    for ended in (ALL, EXACT):
        broker.publish(broker.template("a", "x", qos=1), str(ended).encode())
        session.unsubscribe(ended)
        broker.step()
        follow(session, (ended, at_qos(1)))
    assert len(link.publishes) == 2


def test_a_run_on_its_way_when_a_durable_subscription_begins(broker: Broker) -> None:
    """It stands in no queue for that, so a live one sends it; what comes then has the queue."""
    session, link = connect(broker, "c")
    follow(session, (ALL, at_qos(0)))
    for pattern in (ONE, ALL):
        broker.publish(broker.template("a", "x"), b"before")
        follow(session, (pattern, at_qos(1)))
        publish(broker, b"after")
        session.unsubscribe(ONE)
        acknowledge_all(broker, session, link)
    assert [(body, qos) for _, body, qos, *_ in link.publishes] == [
        (b"before", 0),
        (b"after", 1),
        (b"before", 0),
        (b"after", 1),
    ]


# --- in flight -----------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["reconnect", "stop", "kill"])
def test_what_is_sent_again_is_sent_for_all_that_match_now(broker: Broker, way: str) -> None:
    session, link = connect(broker, "c")
    follow(session, (ALL, at_qos(1, identifier=1)), (ONE, at_qos(2, identifier=2)))
    publish(broker, b"1", qos=2)
    session.unsubscribe(ONE)
    follow(session, (EXACT, at_qos(0, identifier=3)))
    broker.step(1.0)
    if way == "reconnect":
        session.disconnect()
    else:
        start_again(broker, way)
    session, link = connect(broker, "c")
    assert copies(link) == [(b"1", 2, (1, 3))]
    assert of(session).overlaps is not None


class _Guard:
    """The rights of a user who may read nothing any more, or everything."""

    def __init__(self, *, reads: bool) -> None:
        self.reads = reads

    def may_read(self, address: Address) -> bool:
        return self.reads

    def find_rights(self, session: MqttSession, found: Callable[[], None]) -> None:
        found()

    def testator(self, will: Will) -> str:
        raise AssertionError

    def left(self) -> None:
        """Nobody is asked."""

    def check_subscribe(self, session: MqttSession, address: Address) -> None:
        raise AssertionError

    def end_forbidden(self, session: MqttSession, address: Address) -> bool:
        return False


@pytest.mark.parametrize("reads", [True, False])
def test_a_right_that_ends_takes_nothing_from_another_filter(broker: Broker, reads: bool) -> None:
    """What is in flight may be the one copy: it comes again if the message itself may be read."""
    session, link = connect(broker, "c")
    follow(session, (ALL, at_qos(1)), (ONE, at_qos(1)))
    publish(broker, b"1")
    assert link.bodies == [b"1"]
    broker.engine.sessions.unsubscribe(of(session), ALL, forget=True)
    session.disconnect()
    link = SpyLink()
    session = broker.port.sessions.connect(
        "c", clean=False, expiry_seconds=None, link=link, principal="u"
    )
    of(session).guard = _Guard(reads=reads)
    session.resume()
    broker.step(1.0)
    assert [(body, duplicate) for _, body, _, _, duplicate, _ in link.publishes] == (
        [(b"1", True)] if reads else []
    )
    assert of(session).unacked.count == int(reads)
