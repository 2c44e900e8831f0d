"""What a client wants of one subscription beside its QoS, live and queued, and after a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from polymq.broker.port import (
    APPENDED,
    FLUSHED,
    ONE_LEVEL,
    PUBLISHER_PROPERTY,
    REST,
    Session,
    SubscriptionOptions,
    Template,
)
from tests.broker.test_engine_sessions import connect, start_again
from tests.harness.broker import Broker, SpyLink, at_qos

WAYS = ["reconnect", "stop", "kill"]


def template(
    broker: Broker,
    tag: str = "b",
    *,
    qos: int = 1,
    publisher: str = "",
    retain: bool = False,
) -> Template:
    """Messages of a client, which say who it is if it wants that."""
    properties = {"PMQ_PROTO": "mqtt", "PMQ_QOS": str(qos)}
    if publisher:
        properties[PUBLISHER_PROPERTY] = publisher
    return broker.port.topics.template(
        broker.port.topics.route("a", tag),
        properties=properties,
        durability=FLUSHED if qos else APPENDED,
        retain=retain,
    )


def subscriber(
    broker: Broker, *, clean: bool, credit: int = 1000, **options: int
) -> tuple[Session, SpyLink]:
    """Client `c` with a subscription to everything in topic `a`."""
    session, link = connect(broker, "c", clean=clean, credit=credit)
    session.subscribe(("a", REST), SubscriptionOptions(**{"qos": 1, **options}))  # type: ignore[arg-type]
    broker.step()
    return session, link


def again(broker: Broker, session: Session, way: str) -> None:
    """The client's connection ends, or the server does."""
    if way == "reconnect":
        session.disconnect()
    else:
        start_again(broker, way)


# --- No Local -------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("credit", [0, 1000])
@pytest.mark.parametrize("clean", [True, False])
def test_a_client_does_not_get_what_it_published_itself(
    broker: Broker, clean: bool, credit: int, qos: int
) -> None:
    """Whether it waited for credit or not; and all that others published."""
    session, link = subscriber(broker, clean=clean, credit=credit, qos=qos, no_local=True)
    for publisher in ("c", "d", "", "c"):
        body = publisher.encode() or b"nobody"
        broker.publish(template(broker, qos=qos, publisher=publisher), body, body)
    broker.step()
    if not credit:
        assert link.bodies == []
        link.left = 1000
        session.ready()
        broker.step()
    assert link.bodies == [b"d", b"d", b"nobody", b"nobody"]
    assert len({packet for _, _, _, packet, _, _ in link.publishes}) == (4 if qos else 1)


def test_its_own_messages_do_not_stay_in_its_queue(broker: Broker) -> None:
    """Else they would hold the log: in front of everything, and behind what is in flight."""
    session, link = subscriber(broker, clean=False, no_local=True)
    group = next(iter(broker.engine.queue_store.groups.values()))
    broker.publish(template(broker, publisher="c"), b"1", b"2")
    broker.step()
    assert group.cursor.floor == group.queue.visible == 2
    broker.publish(template(broker, publisher="d"), b"3")
    broker.publish(template(broker, publisher="c"), b"4")
    broker.step()
    session.acknowledged(link.publishes[0][3], 1)
    assert group.cursor.floor == group.queue.visible == 4


@pytest.mark.parametrize("behind_others", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_what_it_published_does_not_wait_for_it(
    broker: Broker, way: str, behind_others: bool
) -> None:
    """A message may come when the client has gone, as its will does."""
    session, _ = subscriber(broker, clean=False, no_local=True)
    session.disconnect()
    if behind_others:
        broker.publish(template(broker, publisher="d"), b"other")
        broker.step()
    broker.publish(template(broker, publisher="c"), b"own")
    broker.step()
    if not behind_others:
        assert next(iter(broker.engine.queue_store.groups.values())).ready_count == 0
    again(broker, session, way)
    _, link = connect(broker, "c")
    assert link.bodies == ([b"other"] if behind_others else [])


@pytest.mark.parametrize("clean", [True, False])
def test_a_client_does_not_get_what_it_retained_itself(broker: Broker, clean: bool) -> None:
    broker.publish(template(broker, "1", publisher="c", retain=True), b"own")
    broker.publish(template(broker, "2", publisher="d", retain=True), b"other")
    broker.step()
    session, link = connect(broker, "c", clean=clean)
    since = session.subscribe(("a", REST), at_qos(1, no_local=True))
    broker.step()
    session.replay_retained(("a", REST), since)
    broker.step()
    assert link.bodies == [b"other"]


@pytest.mark.parametrize("clean", [True, False])
def test_another_subscription_gets_what_this_one_does_not_want(broker: Broker, clean: bool) -> None:
    session, link = subscriber(broker, clean=clean, no_local=True)
    session.subscribe(("a", "b"), at_qos(1))
    broker.step()
    broker.publish(template(broker, publisher="c"), b"x")
    broker.step()
    assert link.bodies == [b"x"]


# --- Retain As Published --------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("credit", [0, 1000])
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("as_published", [True, False])
def test_retain_is_sent_as_published(
    broker: Broker, as_published: bool, clean: bool, credit: int, qos: int
) -> None:
    """Where that was asked for; else a new message never has the flag [MQTT-3.3.1-12]."""
    session, link = subscriber(
        broker, clean=clean, credit=credit, qos=qos, retain_as_published=as_published
    )
    for retain in (True, False):
        broker.publish(template(broker, qos=qos, retain=retain), b"%d" % retain)
    broker.step()
    link.left = 1000
    session.ready()
    broker.step()
    assert [(body, retain) for _, body, *_, retain in link.publishes] == [
        (b"1", as_published),
        (b"0", False),
    ]


@pytest.mark.parametrize("with_state_db", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_what_is_sent_again_has_its_flag_and_its_identifier(
    tmp_path: Path, way: str, with_state_db: bool
) -> None:
    """What came from its queue, what was retained, and what had not left yet."""
    broker = Broker(tmp_path / "data", with_state_db=with_state_db)
    broker.publish(template(broker, "old", retain=True), b"old")
    broker.step()
    session, link = connect(broker, "c")
    options = at_qos(1, retain_as_published=True, identifier=268_435_455)
    since = session.subscribe(("a", REST), options)
    broker.step()
    session.replay_retained(("a", REST), since)
    broker.step()
    broker.publish(template(broker, "new", retain=True), b"new")
    broker.publish(template(broker, "plain"), b"plain")
    broker.step()
    wanted = [(b"old", True), (b"new", True), (b"plain", False)]
    assert [(body, retain) for _, body, *_, retain in link.publishes] == wanted
    assert link.identifiers == [(268_435_455,)] * 3
    again(broker, session, way)
    broker.publish(template(broker, "away", retain=True), b"away")
    broker.step()
    session, link = connect(broker, "c")
    wanted.append((b"away", True))
    assert [(body, retain) for _, body, *_, retain in link.publishes] == wanted
    assert [duplicate for *_, duplicate, _ in link.publishes] == [True, True, True, False]
    assert link.identifiers == [(268_435_455,)] * 4
    broker.stop()


# --- Subscription Identifiers, and replacing -------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("clean", [True, False])
def test_one_copy_has_the_identifiers_of_all_subscriptions(
    broker: Broker, clean: bool, qos: int
) -> None:
    session, link = connect(broker, "c", clean=clean)
    session.subscribe(("a", REST), at_qos(qos, identifier=9))
    session.subscribe(("a", "b"), at_qos(qos, identifier=7))
    session.subscribe((REST,), at_qos(qos))
    session.subscribe(("a", ONE_LEVEL), at_qos(qos, identifier=7))
    broker.step()
    broker.publish(template(broker, qos=qos), b"x")
    broker.step()
    assert link.identifiers == [(7, 9)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("qos", [0, 1])
def test_a_subscribe_replaces_all_options(broker: Broker, way: str, qos: int) -> None:
    """[MQTT-3.8.4-3] Also with none."""
    session, _ = subscriber(
        broker, clean=False, qos=qos, no_local=True, retain_as_published=True, identifier=3
    )
    again(broker, session, way)
    session, link = connect(broker, "c")
    own = template(broker, qos=qos, publisher="c", retain=True)
    broker.publish(own, b"not sent")
    session.subscribe(("a", REST), at_qos(qos, identifier=4))
    broker.step()
    broker.publish(own, b"sent")
    broker.step()
    assert [(body, retain) for _, body, *_, retain in link.publishes][-1:] == [(b"sent", False)]
    assert link.identifiers[-1:] == [(4,)]
    session.subscribe(("a", REST), at_qos(qos))
    broker.step()
    broker.publish(own, b"plain")
    broker.step()
    assert link.bodies[-1:] == [b"plain"]
    assert link.identifiers[-1:] == [()]


@pytest.mark.parametrize("way", WAYS)
def test_options_of_live_subscriptions_last_as_well(broker: Broker, way: str) -> None:
    """Those of QoS 0 have no queue, and are the session's nevertheless."""
    session, _ = subscriber(broker, clean=False, qos=0, no_local=True, identifier=3)
    again(broker, session, way)
    _, link = connect(broker, "c")
    broker.publish(template(broker, qos=0, publisher="c"), b"own")
    broker.publish(template(broker, qos=0, publisher="d"), b"other")
    broker.step()
    assert link.bodies == [b"other"]
    assert link.identifiers == [(3,)]


def test_a_subscription_that_changes_nothing_is_not_written(broker: Broker) -> None:
    """Many clients subscribe again whenever they connect, and so do automatic subscriptions."""
    session, _ = connect(broker, "c")
    session.subscribe(("a", REST), at_qos(1, no_local=True))
    before = broker.store.log.appended
    session.subscribe(("a", REST), at_qos(1, no_local=True))
    assert broker.store.log.appended == before
    for options in (at_qos(1), at_qos(2), at_qos(0), at_qos(1)):
        session.subscribe(("a", REST), options)
        assert broker.store.log.appended > before
        before = broker.store.log.appended


@pytest.mark.parametrize("clean", [True, False])
def test_a_session_says_whether_it_has_a_subscription(broker: Broker, clean: bool) -> None:
    """Also after one has ended: Retain Handling 1 asks for it."""
    session, _ = connect(broker, "c", clean=clean)
    session.subscribe(("a",), at_qos(1))
    assert session.is_subscribed(("a",))
    assert not session.is_subscribed(("a", REST))
    session.unsubscribe(("a",))
    assert not session.is_subscribed(("a",))
