"""The engine as one principal sees it: each operation with and without the right, and the moment
in which a right is lost."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from polymq.broker.accounts.quotas import Pace, Quotas, TokenBucket
from polymq.broker.admission.permitted_amqp import PermittedExchanges, PermittedQueues
from polymq.broker.admission.permitted_publishing import (
    PermittedDelays,
    PermittedHalfMessages,
    PermittedTopics,
    PermittedTransactions,
)
from polymq.broker.admission.permitted_reading import PermittedGroups, PermittedQueries
from polymq.broker.admission.permitted_sessions import PermittedSessions
from polymq.broker.admission.principal import Principal
from polymq.broker.port import (
    ONE_LEVEL,
    REST,
    BrokerPort,
    DelayPort,
    ExchangePort,
    GroupPort,
    HalfMessagePort,
    PrincipalPort,
    Publishing,
    QueryPort,
    QueueConsumer,
    QueueInfo,
    QueuePort,
    Reason,
    Refused,
    SessionPort,
    TopicPort,
    TransactionPort,
)
from tests.harness.broker import Broker, SpyConsumer, SpyLink, at_qos, batch_of
from tests.harness.people import (
    add_user,
    allow,
    connect,
    deny,
    forbidden,
    hash_of,
    port_of,
    publish,
    take_back,
    template_of,
)


def reason_of(operation: Callable[[], object]) -> Reason | None:
    try:
        operation()
    except Refused as error:
        return error.reason
    return None


def declare(port: BrokerPort, name: str, owner: object = None, **arguments: Any) -> None:
    port.queues.declare(
        name, durable=True, exclusive=False, auto_delete=False, arguments=arguments, owner=owner
    )


SUB_PORTS = {
    "topics": (TopicPort, PermittedTopics),
    "exchanges": (ExchangePort, PermittedExchanges),
    "queues": (QueuePort, PermittedQueues),
    "sessions": (SessionPort, PermittedSessions),
    "delays": (DelayPort, PermittedDelays),
    "transactions": (TransactionPort, PermittedTransactions),
    "half_messages": (HalfMessagePort, PermittedHalfMessages),
    "queries": (QueryPort, PermittedQueries),
    "groups": (GroupPort, PermittedGroups),
    "principal": (PrincipalPort, Principal),
}
"""What stands in front of each part."""
HANDED_ON = {"documents", "storage", "admission"}
"""Parts that clients cannot name: the gateway uses them for itself."""


def operations(port: type) -> set[str]:
    return {name for name in vars(port) if not name.startswith("_")}


@pytest.mark.parametrize("name", SUB_PORTS)
def test_every_operation_of_a_part_is_checked_or_handed_on_by_choice(name: str) -> None:
    """Who adds an operation to a part has to say in its class what right it needs."""
    port, permitted = SUB_PORTS[name]
    defined = {name for part in permitted.__mro__[:-1] for name in vars(part)}
    assert operations(port)
    assert operations(port) <= defined, operations(port) - defined


def test_every_part_has_its_checks(people: Broker) -> None:
    """Who adds a part to the port has to say whether somebody stands in front of it."""
    port = port_of(people, "ann")
    parts = {
        name for name in operations(BrokerPort) if isinstance(vars(BrokerPort)[name], property)
    }
    runs = {"publish", "when_committed", "committed", "overloaded", "state_durability"}
    assert parts - runs == {*SUB_PORTS, *HANDED_ON}
    for name, (_, permitted) in SUB_PORTS.items():
        assert isinstance(getattr(port, name), permitted)
    for name in HANDED_ON:
        assert getattr(port, name) is getattr(people.port, name)


# --- without any right ------------------------------------------------------------------------


def nothing(port: BrokerPort, link: SpyLink) -> dict[str, Callable[[], object]]:
    """Every operation that needs a right, on things that are there."""
    session = port.sessions.connect("c", clean=True, expiry_seconds=0, link=link, principal="ann")
    owner = object()
    return {
        "route": lambda: port.topics.route("orders", "eu"),
        "exchange_route": lambda: port.exchanges.route("orders", "eu"),
        "root exchange": lambda: port.exchanges.route("amq.topic", "orders.eu"),
        "default exchange": lambda: port.exchanges.route("", "work"),
        "copying_route": lambda: port.exchanges.copying_route("orders", "eu", ["us"]),
        "check_publish": lambda: port.principal.check_publish("orders", None),
        "every tag": lambda: port.principal.check_publish("orders", None, every_tag=True),
        "check_read": lambda: port.principal.check_read(("orders",)),
        "check_admin": lambda: port.principal.check_admin((REST,)),
        "check_managing": lambda: port.principal.check_managing("monitor"),
        "check_known": lambda: port.principal.check_known("orders"),
        "subscribe": lambda: session.subscribe(("orders", REST), at_qos(1)),
        "subscribe to all": lambda: session.subscribe((REST,), at_qos(0)),
        "declare_exchange": lambda: port.exchanges.declare(
            "x", type="topic", durable=True, auto_delete=False, internal=False, arguments={}
        ),
        "delete_exchange": lambda: port.exchanges.delete("orders", if_unused=False),
        "bind_exchange": lambda: port.exchanges.bind_exchange("amq.fanout", "orders", "#", {}),
        "unbind_exchange": lambda: port.exchanges.unbind_exchange("amq.fanout", "orders", "#", {}),
        "queue": lambda: port.queues.info("work", owner=owner),
        "declare_queue": lambda: declare(port, "work", owner),
        "delete_queue": lambda: port.queues.delete(
            "work", if_unused=False, if_empty=False, owner=owner
        ),
        "purge_queue": lambda: port.queues.purge("work", owner=owner),
        "bind_queue": lambda: port.exchanges.bind_queue("work", "orders", "#", {}, owner=owner),
        "unbind_queue": lambda: port.exchanges.unbind_queue("work", "orders", "#", {}, owner=owner),
        "consume": lambda: port.queues.consume("work", SpyConsumer(), exclusive=False, owner=owner),
        "get": lambda: port.queues.get("work", lambda *_: None, owner=owner),
        "declare_subscription": lambda: port.queues.declare_subscription("s", ("orders", REST)),
        "create_topic": lambda: port.topics.create("new", 1),
        "set_topic": lambda: port.topics.set("orders", {}),
        "delete_topic": lambda: port.topics.delete("orders"),
        "pull": lambda: port.queries.pull(
            "orders", 0, 0, count_max=1, bytes_max=1, callback=lambda *_: None
        ),
    }


def test_who_has_no_right_may_do_nothing_and_changes_nothing(people: Broker) -> None:
    publish(people, "orders", "eu", b"1")
    declare(people.port, "work")
    end = people.store.log.appended
    for name, operation in nothing(port_of(people, "ann"), SpyLink()).items():
        assert "'ann' may not" in forbidden(operation), name
    assert people.store.log.appended == end
    assert port_of(people, "ann").topics.infos() == []


def test_an_admin_may_do_all_of_it(people: Broker) -> None:
    publish(people, "orders", "eu", b"1")
    declare(people.port, "work")
    port_of(people, "root").exchanges.bind_queue("work", "orders", "#", {}, owner=None)
    for operation in nothing(port_of(people, "root"), SpyLink()).values():
        assert reason_of(operation) is not Reason.FORBIDDEN


def test_topics_of_the_broker_are_closed_to_admins_too(people: Broker) -> None:
    port = port_of(people, "root")
    for topic in ("RMQ_SYS_POLYMQ_STATE", "SCHEDULE_TOPIC_XXXX", "%DLQ%x"):
        forbidden(partial(port.topics.route, topic, None))
        forbidden(partial(port.exchanges.route, "amq.topic", topic))
    forbidden(lambda: port.principal.check_read(("RMQ_SYS_POLYMQ_STATE", REST)))


# --- publishing -----------------------------------------------------------------------------


def test_publishing_where_it_is_allowed(people: Broker) -> None:
    allow(people, "ann", "publish,create", "fleet.{user}.#")
    port = port_of(people, "ann")
    template = template_of(port, "fleet", "ann.temp")
    assert template.valid
    port.publish(template, batch_of(b"1", b"2"), 0, 2)
    people.step()
    assert people.info("fleet").max_offsets == (2,)
    forbidden(lambda: port.topics.route("fleet", "bob.temp"))


def test_copies_need_the_right_for_each_key(people: Broker) -> None:
    publish(people, "orders", "eu", b"1")
    allow(people, "ann", "publish", "orders.eu")
    port = port_of(people, "ann")
    assert port.exchanges.copying_route("orders", "eu", ["eu"]) is not None
    forbidden(lambda: port.exchanges.copying_route("orders", "eu", ["eu", "us"]))


def test_queues_that_the_server_named_are_their_makers(people: Broker) -> None:
    """A reply-to gives their names away."""
    add_user(people, "mal")
    allow(people, "ann", "subscribe", "orders.#")
    allow(people, "mal", "subscribe", "orders.#")
    allow(people, "mal", "publish,create", "mine.#")
    publish(people, "orders", "eu", b"1")
    ann, mal, root = (port_of(people, name) for name in ("ann", "mal", "root"))
    owner = object()
    other = object()

    def declare_for(port: BrokerPort, name: str, owner: object) -> QueueInfo:
        return port.queues.declare(
            name, durable=True, exclusive=False, auto_delete=False, arguments={}, owner=owner
        )[0]

    name = declare_for(ann, "", owner).name

    def attempts(port: BrokerPort) -> dict[str, Callable[[], object]]:
        return {
            "look": lambda: port.queues.info(name, owner=other),
            "bind": lambda: port.exchanges.bind_queue(name, "orders", "#", {}, owner=other),
            "unbind": lambda: port.exchanges.unbind_queue(name, "orders", "#", {}, owner=other),
            "consume": lambda: port.queues.consume(
                name, SpyConsumer(), exclusive=False, owner=other
            ),
            "get": lambda: port.queues.get(name, lambda *_: None, owner=other),
            "purge": lambda: port.queues.purge(name, owner=other),
            "declare": lambda: declare_for(port, name, other),
            "delete": lambda: port.queues.delete(
                name, if_unused=False, if_empty=False, owner=other
            ),
        }

    for bound in (False, True):
        for attempt, operation in attempts(mal).items():
            assert "'mal' may not" in forbidden(operation), (attempt, bound)
        ann.exchanges.bind_queue(name, "orders", "#", {}, owner=owner)
    for port in (ann, root):
        for operation in list(attempts(port).values())[:-1]:
            operation()
    forbidden(lambda: mal.exchanges.route("", name))
    allow(people, "mal", "publish", name)
    assert mal.exchanges.route("", name) is not None  # an answer to who asked
    assert mal.queues.delete("amq.gen-gone", if_unused=False, if_empty=False, owner=other)[0] == 0
    ann.queues.delete(name, if_unused=False, if_empty=False, owner=owner)


@pytest.mark.parametrize("saved", [False, True])
def test_a_new_user_of_the_same_name_has_no_queue_of_the_old_one(
    people: Broker, saved: bool
) -> None:
    """Nor does it count for its quota; also after a restart, from the state or from the log."""
    allow(people, "ann", "subscribe,create", "#")
    settings: dict[str, Any] = {
        "durable": True, "exclusive": False, "auto_delete": False, "arguments": {}, "owner": None,
    }  # fmt: skip
    name = port_of(people, "ann").queues.declare("", **settings)[0].name
    if saved:
        people.save()
    people.restart()
    ann = port_of(people, "ann")
    ann.queues.get(name, lambda *_: None, owner=None)
    people.engine.users.delete("ann")
    add_user(people, "ann")
    people.engine.users.set_quotas("ann", Quotas(queues=1))
    for _ in range(2):
        port = port_of(people, "ann")
        for operation in (
            partial(port.queues.info, name, owner=None),
            partial(port.queues.get, name, lambda *_: None, owner=None),
            partial(port.queues.purge, name, owner=None),
            partial(port.queues.delete, name, if_unused=False, if_empty=False, owner=None),
        ):
            forbidden(operation)
        people.restart()
    ann = port_of(people, "ann")
    ann.queues.declare("", **settings)
    assert reason_of(lambda: ann.queues.declare("", **settings)) is Reason.LIMIT


def test_a_topic_is_made_only_with_the_right_to(people: Broker) -> None:
    """And an exchange or a queue that was declared is right enough."""
    allow(people, "ann", "publish", "#")
    port = port_of(people, "ann")
    for make in (
        lambda: port.topics.route("new", "x"),
        lambda: port.principal.check_publish("new", "x"),
        lambda: port.exchanges.route("amq.topic", "new.x"),
    ):
        assert "create" in forbidden(make)
    assert people.port.topics.info("new") is None
    assert port.exchanges.route("", "nowhere") is None
    people.port.exchanges.declare(
        "made", type="topic", durable=True, auto_delete=False, internal=False, arguments={}
    )
    declare(people.port, "queue")
    assert port.exchanges.route("made", "x") is not None
    assert port.exchanges.route("", "queue") is not None
    allow(people, "ann", "create", "new.#")
    port.topics.route("new", "x")


@pytest.mark.parametrize("how", ["deny", "take back", "role", "disable", "delete"])
def test_a_template_ends_with_the_right(people: Broker, how: str) -> None:
    """`valid` says so, and a publish with the old one is refused and stores nothing."""
    people.engine.users.set_roles("ann", ["ops"])
    allow(people, "role:ops" if how == "role" else "ann", "publish,create", "a.#")
    port = port_of(people, "ann")
    template = template_of(port, "a", "x")
    port.publish(template, batch_of(b"1"), 0, 1)
    if how == "deny":
        deny(people, "role:ops", "publish", "a.x")
    elif how == "take back":
        take_back(people, "ann", "publish", "a.#")
    elif how == "role":
        people.engine.users.set_roles("ann", [])
    elif how == "disable":
        people.engine.users.set_disabled("ann", True)
    else:
        people.engine.users.delete("ann")
    assert not template.valid
    end = people.store.log.appended
    session, _ = connect(people.port, people, "c", clean=True)
    batch = batch_of(b"2")
    for operation in (
        lambda: port.publish(template, batch, 0, 1),
        lambda: port.sessions.publish_once(template, batch, 0, 1, session, (1,)),
        lambda: port.transactions.publish_settling(template, batch, 0, None, 0),  # type: ignore[arg-type]
        lambda: port.transactions.commit(
            [Publishing(template=template, batch=batch, first=0, last=1)], []
        ),
        lambda: port.topics.template(people.port.topics.route("a", "x"), properties={}),
    ):
        forbidden(operation)
    assert people.store.log.appended == end


def test_a_template_that_is_still_allowed_goes_on_after_a_change(people: Broker) -> None:
    allow(people, "ann", "publish,create", "a.#")
    port = port_of(people, "ann")
    template = template_of(port, "a", "x")
    add_user(people, "bob")
    assert not template.valid  # a gateway builds it anew
    port.publish(template, batch_of(b"1"), 0, 1)  # one in the middle of a call need not
    assert template.valid


def test_retained_messages_are_checked_as_publishes(people: Broker) -> None:
    port = port_of(people, "ann")
    forbidden(lambda: template_of(port, "a", None, retain=True))
    allow(people, "ann", "publish,create", "a")
    port.publish(template_of(port, "a", None, retain=True), batch_of(b"kept"), 0, 1)
    assert people.engine.retained.count == 1


# --- sessions -------------------------------------------------------------------------------


def test_a_subscription_needs_the_right_to_all_that_it_matches(people: Broker) -> None:
    allow(people, "ann", "subscribe", "a.#")
    deny(people, "ann", "subscribe", "a.secret.#")
    session, link = connect(port_of(people, "ann"), people, "c", clean=True)
    session.subscribe(("a", "b", REST), at_qos(1))
    for wanted in (("a", REST), ("a", ONE_LEVEL), (REST,), ("a", "secret", "x"), ("b",)):
        forbidden(partial(session.subscribe, wanted, at_qos(0)))
    publish(people, "a", "b.c", b"seen")
    publish(people, "a", "secret", b"unseen")
    assert link.bodies == [b"seen"]


def test_a_client_id_in_a_rule_is_the_connections_own(people: Broker) -> None:
    allow(people, "ann", "subscribe", "devices.{client_id}.#")
    for client, may in (("d1", True), ("d2", False), ("#", False), ("", False)):
        port = port_of(people, "ann", client)
        session = port.sessions.connect(
            client or "none", clean=True, expiry_seconds=0, link=SpyLink(), principal="ann"
        )
        subscribe = partial(session.subscribe, ("devices", "d1", REST), at_qos(0))
        if may:
            subscribe()
        else:
            forbidden(subscribe)


def test_a_session_belongs_to_its_user(people: Broker) -> None:
    add_user(people, "bob")
    allow(people, "ann", "subscribe", "a")
    session, link = connect(port_of(people, "ann"), people, "c")
    for clean in (True, False):
        connecting = partial(port_of(people, "bob").sessions.connect, "c", clean=clean)
        forbidden(partial(connecting, expiry_seconds=None, link=SpyLink(), principal="bob"))
    # Whatever name a gateway gave: it is the port's own that counts.
    with pytest.raises(Refused):
        port_of(people, "bob").sessions.connect(
            "c", clean=True, expiry_seconds=0, link=SpyLink(), principal="ann"
        )
    assert not link.over
    session.subscribe(("a",), at_qos(1))
    publish(people, "a", None, b"mine")
    assert link.bodies == [b"mine"]


def test_the_sessions_of_a_deleted_user_end(people: Broker) -> None:
    allow(people, "ann", "subscribe", "a")
    session, link = connect(port_of(people, "ann"), people, "c")
    session.subscribe(("a",), at_qos(1))
    connect(port_of(people, "root"), people, "other", user="root")
    people.step()
    people.engine.users.delete("ann")
    assert link.expelled_for
    people.step()
    assert set(people.engine.sessions.by_client) == {"other"}
    assert people.engine.sessions.filters == {}
    people.restart()
    assert set(people.engine.sessions.by_client) == {"other"}


# --- queues ---------------------------------------------------------------------------------


def test_consuming_needs_the_right_to_all_that_the_queue_collects(people: Broker) -> None:
    publish(people, "orders", "eu", b"0")
    declare(people.port, "work")
    people.port.exchanges.bind_queue("work", "orders", "eu.#", {}, owner=None)
    port = port_of(people, "ann")

    def consume() -> QueueConsumer:
        return port.queues.consume("work", SpyConsumer(), exclusive=False, owner=None)

    allow(people, "ann", "subscribe", "work")
    assert "orders.eu.#" in forbidden(consume)
    allow(people, "ann", "subscribe", "orders.eu.#")
    take_back(people, "ann", "subscribe", "work")
    assert "subscribe work" in forbidden(consume)
    allow(people, "ann", "subscribe", "work")
    consume()
    assert port.queues.info("work", owner=None).consumer_count == 1


@pytest.mark.parametrize("how", ["deny", "disable", "binding"])
def test_a_consumer_ends_with_the_right(people: Broker, how: str) -> None:
    allow(people, "ann", "subscribe", "work")
    declare(people.port, "work")
    consumer, roots = SpyConsumer(), SpyConsumer()
    port_of(people, "ann").queues.consume("work", consumer, exclusive=False, owner=None).ready()
    publish(people, "work", None, b"1")
    assert consumer.bodies == [b"1"]
    port_of(people, "root").queues.consume("work", roots, exclusive=False, owner=None)
    if how == "deny":
        deny(people, "ann", "subscribe", "work.#")
    elif how == "disable":
        people.engine.users.set_disabled("ann", True)
    else:
        publish(people, "orders", "eu", b"")
        port_of(people, "root").exchanges.bind_queue("work", "orders", "#", {}, owner=None)
    assert consumer.gone
    publish(people, "work", None, b"2", b"3")
    assert consumer.bodies == [b"1"]
    assert roots.bodies == [b"2", b"3"]
    assert not roots.gone


def test_a_queue_with_a_made_up_name_needs_the_rights_of_its_bindings_only(people: Broker) -> None:
    publish(people, "news", "a", b"0")
    allow(people, "ann", "subscribe", "news.#")
    port, owner = port_of(people, "ann"), object()
    info, _ = port.queues.declare(
        "", durable=False, exclusive=True, auto_delete=True, arguments={}, owner=owner
    )
    port.exchanges.bind_queue(info.name, "news", "#", {}, owner=owner)
    forbidden(lambda: port.exchanges.bind_queue(info.name, "amq.topic", "#", {}, owner=owner))
    consumer = SpyConsumer()
    port.queues.consume(info.name, consumer, exclusive=False, owner=owner)
    publish(people, "news", "a", b"1")
    assert consumer.bodies == [b"1"]
    take_back(people, "ann", "subscribe", "news.#")
    assert consumer.gone
    publish(people, "news", "a", b"2")
    assert consumer.bodies == [b"1"]


def test_dead_letters_are_published_in_the_name_of_who_declares(people: Broker) -> None:
    publish(people, "secret", "x", b"0")
    allow(people, "ann", "create,subscribe", "work")
    port = port_of(people, "ann")
    arguments = {"x-dead-letter-exchange": "secret", "x-dead-letter-routing-key": "x"}
    assert "publish secret.x" in forbidden(lambda: declare(port, "work", **arguments))
    allow(people, "ann", "publish", "secret.#")
    declare(port, "work", **arguments)


def test_binding_exchanges_needs_both_rights(people: Broker) -> None:
    """To read what the source has, and to publish to the destination with every key: what a program
    would need that takes messages from here to there. An alternate exchange needs the same."""
    publish(people, "orders", "eu.x", b"1")
    publish(people, "inbox", "x", b"1")
    allow(people, "ann", "create", "mine.#")
    port = port_of(people, "ann")

    def bind() -> object:
        return port.exchanges.bind_exchange("inbox", "orders", "eu.#", {})

    def declare_one() -> object:
        return port.exchanges.declare(
            "mine",
            type="topic",
            durable=True,
            auto_delete=False,
            internal=False,
            arguments={"alternate-exchange": "inbox"},
        )

    assert "subscribe orders.eu.#" in forbidden(bind)
    assert "subscribe mine.#" in forbidden(declare_one)
    allow(people, "ann", "subscribe", "orders.eu.#")
    allow(people, "ann", "subscribe", "mine.#")
    allow(people, "ann", "publish", "inbox.x")
    for operation in (bind, declare_one):
        assert "publish inbox.#" in forbidden(operation)
    allow(people, "ann", "publish", "inbox.#")
    bind()
    declare_one()
    forbidden(lambda: port.exchanges.bind_exchange("inbox", "orders", "#", {}))
    forbidden(lambda: port.exchanges.bind_exchange("amq.topic", "orders", "eu.#", {}))


def test_a_headers_binding_reads_the_whole_exchange(people: Broker) -> None:
    """Whatever the headers leave out of it: who may consume sees no less than who may bind."""
    people.port.exchanges.declare(
        "h", type="headers", durable=True, auto_delete=False, internal=False, arguments={}
    )
    allow(people, "ann", "create,subscribe", "q")
    allow(people, "ann", "subscribe", "h.x")
    port = port_of(people, "ann")
    declare(port, "q")
    arguments = {"x-match": "any", "colour": "red"}
    forbidden(lambda: port.exchanges.bind_queue("q", "h", "x", arguments, owner=None))
    people.port.exchanges.bind_queue("q", "h", "x", arguments, owner=None)
    forbidden(lambda: port.queues.consume("q", SpyConsumer(), exclusive=False, owner=None))
    allow(people, "ann", "subscribe", "h.#")
    port.queues.consume("q", SpyConsumer(), exclusive=False, owner=None)


def test_topics_that_may_be_read_are_those_that_are_listed(people: Broker) -> None:
    for topic in ("a", "b"):
        publish(people, topic, "x", b"1")
    allow(people, "ann", "subscribe", "a.#")
    allow(people, "ann", "subscribe", "b.x")
    port = port_of(people, "ann")
    assert [info.name for info in port.topics.infos()] == ["a"]
    got: list[int] = []
    port.queries.pull(
        "a", 0, 0, count_max=9, bytes_max=999, callback=lambda _, end: got.append(end)
    )
    assert got == [1]
    forbidden(
        lambda: port.queries.pull("b", 0, 0, count_max=9, bytes_max=999, callback=lambda *_: None)
    )


# --- connections and quotas -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda users: users.delete("ann"), "deleted"),
        (lambda users: users.set_disabled("ann", True), "disabled"),
        (lambda users: users.set_password("ann", hash_of(b"another")), "password"),
    ],
)
def test_connections_end_with_their_user(people: Broker, change: Any, why: str) -> None:
    reported: list[str] = []
    gone: list[str] = []
    others: list[str] = []
    port_of(people, "ann").principal.enter(reported.append)
    port_of(people, "ann").principal.enter(gone.append)()
    port_of(people, "root").principal.enter(others.append)
    change(people.engine.users)
    assert len(reported) == 1
    assert why in reported[0]
    assert gone == others == []


@pytest.mark.parametrize(("asked", "most"), [(None, 3), (2, 2), (10, 3)])
def test_a_quota_bounds_what_is_in_flight(people: Broker, asked: int | None, most: int) -> None:
    """Beside what the listener allows: the lower one counts."""
    allow(people, "ann", "subscribe,create", "#")
    people.engine.users.set_quotas("ann", Quotas(inflight=3))
    link = SpyLink()
    session = port_of(people, "ann").sessions.connect(
        "c", clean=True, expiry_seconds=0, link=link, principal="ann", inflight_max=asked
    )
    people.step()
    session.resume()
    session.subscribe(("a",), at_qos(1))
    people.publish(people.template("a"), *[b"x"] * 5)
    people.step()
    assert len(link.publishes) == most


def test_quotas_count_what_a_user_has(people: Broker) -> None:
    """Each at its bound, and again after something has gone."""
    allow(people, "ann", "subscribe,create", "#")
    people.engine.users.set_quotas(
        "ann", Quotas(connections=1, sessions=1, subscriptions=2, queues=1)
    )
    port = port_of(people, "ann")

    def limited(operation: Callable[[], object]) -> None:
        with pytest.raises(Refused) as caught:
            operation()
        assert caught.value.reason is Reason.LIMIT
        assert "'ann' has" in caught.value.text

    leave = port.principal.enter(lambda _: None)
    limited(lambda: port.principal.enter(lambda _: None))
    leave()
    leave()
    port.principal.enter(lambda _: None)

    session, _ = connect(port, people, "c")
    limited(lambda: connect(port, people, "c2"))
    session.subscribe(("a",), at_qos(1))
    clean, _ = connect(port, people, "c3", clean=True)
    clean.subscribe(("a",), at_qos(0))
    limited(lambda: clean.subscribe(("b",), at_qos(0)))
    clean.subscribe(("a",), at_qos(1))
    clean.disconnect()
    session.subscribe(("b",), at_qos(0))
    limited(lambda: session.subscribe(("d",), at_qos(1)))
    session.unsubscribe(("a",))
    session.subscribe(("d",), at_qos(1))

    declare(port, "q")
    declare(port, "q")
    limited(lambda: declare(port, "q2"))
    port.queues.delete("q", if_unused=False, if_empty=False, owner=None)
    declare(port, "q2")
    people.restart()
    assert people.engine.sessions.counts == {"ann": 1}
    assert people.engine.sessions.subscription_counts == {"ann": 2}
    assert people.engine.named_queues.counts == {port.principal.as_owner: 1}


def test_who_is_ahead_of_its_rate_is_not_read_for_a_while(people: Broker) -> None:
    """Nothing is refused and nothing is lost: the debt is a pause, of all its connections."""
    allow(people, "ann", "publish,create", "#")
    people.engine.users.set_quotas("ann", Quotas(messages_per_second=100))
    port, other = port_of(people, "ann", "c1"), port_of(people, "ann", "c2")
    template = template_of(port, "a", None)
    resumed: list[str] = []
    port.publish(template, batch_of(*[b"x"] * 100), 0, 100)  # a second's burst
    assert not port.overloaded(lambda: resumed.append("never"))
    port.publish(template, batch_of(*[b"x"] * 200), 0, 200)
    assert port.overloaded(lambda: resumed.append("one"))
    assert other.overloaded(lambda: resumed.append("other"))
    people.step(1.9)
    assert resumed == []
    people.step(0.2)
    assert resumed == ["one", "other"]
    assert not port.overloaded(lambda: resumed.append("never"))
    assert people.info("a").max_offsets == (300,)
    people.engine.users.set_quotas("ann", Quotas(bytes_per_second=1000))
    port.publish(template_of(port, "a", None), batch_of(b"x" * 5000), 0, 1)
    assert port.overloaded(lambda: resumed.append("bytes"))


def test_a_bucket_pays_its_debt_and_saves_a_second() -> None:
    bucket = TokenBucket(10, 0.0)
    bucket.take(30, 0.0)
    assert bucket.debt_seconds(0.0) == pytest.approx(2.0)
    assert bucket.debt_seconds(1.5) == pytest.approx(0.5)
    assert bucket.debt_seconds(100.0) == 0
    bucket.take(10, 100.0)
    assert bucket.debt_seconds(100.0) == 0
    bucket.take(1, 100.0)
    assert bucket.debt_seconds(100.0) == pytest.approx(0.1)
    assert bucket.debt_seconds(50.0) == pytest.approx(0.1)  # a clock that was set back
    assert Pace(Quotas(), 0.0).pause_seconds(0.0) == 0


def test_an_open_broker_costs_nothing(tmp_path: Path) -> None:
    """Without users a client uses the parts themselves: no check can be in its way."""
    broker = Broker(tmp_path / "data")
    assert port_of(broker, "ann", "client") is broker.port
    broker.port.admission.for_owner("ann").principal.check_read((REST,))
    broker.stop()
