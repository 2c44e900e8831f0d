"""Dead letters and links between exchanges have the rights that their owner has when they run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from polymq.broker.errors import Reason, Refused
from polymq.broker.port import BrokerPort
from tests.broker.queue_bench import look, ready
from tests.harness.broker import Broker, batch_of
from tests.harness.people import add_user, allow, deny, port_of, take_back


@pytest.fixture
def people(broker: Broker) -> Broker:
    """root may do everything; mal may do everything in `mal`; vic has the queue `victim`."""
    return peopled(broker)


def peopled(broker: Broker) -> Broker:
    add_user(broker, "root", "admin")
    add_user(broker, "mal")
    allow(broker, "mal", "publish,subscribe,create", "mal.#")
    declare(port_of(broker, "root"), "victim")
    return broker


def declare(port: BrokerPort, name: str, **arguments: Any) -> None:
    port.queues.declare(
        name,
        durable=True,
        exclusive=False,
        auto_delete=False,
        arguments={key.replace("_", "-"): value for key, value in arguments.items()},
        owner=None,
    )


def exchange(port: BrokerPort, name: str, kind: str = "topic", **arguments: Any) -> None:
    port.exchanges.declare(
        name,
        type=kind,
        durable=True,
        auto_delete=False,
        internal=False,
        arguments={key.replace("_", "-"): value for key, value in arguments.items()},
    )


def publish(broker: Broker, source: str, key: str, body: bytes, user: str = "root") -> None:
    port = port_of(broker, user)
    route = port.exchanges.route(source, key)
    assert route is not None
    named = {"PMQ_EXCHANGE": source} if source != route.topic else {}
    port.publish(port.topics.template(route, properties=named), batch_of(body), 0, 1)
    broker.step(0.1)


def restarted(broker: Broker, restart: str) -> None:
    """Not at all, from the saved state, or by folding the log from its beginning."""
    if restart:
        broker.step()
        broker.stop()
        if restart == "log alone":
            (broker.directory / "state.db").unlink()
        broker.open()


def forbidden_count(broker: Broker) -> int:
    counts = broker.engine.named_queues.dead_letters.counts
    assert sum(counts.dropped.values()) >= sum(counts.forbidden.values())
    assert all(count >= 0 for count in counts.moved.values())
    return sum(counts.forbidden.values())


# --- dead letters -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "key"), [("", "victim"), ("amq.topic", "victim"), ("orders", "eu")]
)
def test_a_dead_letter_keeps_its_key_and_needs_the_right_for_that_place(
    people: Broker, target: str, key: str
) -> None:
    """Without a key of the queue's own, a message's key says where it goes: to others' queues and
    topics only with the right to publish there."""
    root, mal = port_of(people, "root"), port_of(people, "mal")
    exchange(root, "orders")
    exchange(mal, "mal")
    root.exchanges.bind_queue("victim", "orders", "#", {}, owner=None)
    if target == "orders":
        with pytest.raises(Refused):  # there is nothing that mal may publish there
            declare(mal, "mal.q", x_dead_letter_exchange=target, x_message_ttl=50)
        allow(people, "mal", "publish", "orders.harmless")
    declare(mal, "mal.q", x_dead_letter_exchange=target, x_message_ttl=50)
    mal.exchanges.bind_queue("mal.q", "mal", "#", {}, owner=None)
    publish(people, "mal", key, b"forged", user="mal")
    assert look(people, "victim") == []
    assert ready(people, "mal.q") == 0
    assert forbidden_count(people) == 1
    allow(people, "mal", "publish", "victim" if target != "orders" else "orders.eu")
    publish(people, "mal", key, b"allowed", user="mal")
    assert look(people, "victim") == [b"allowed"]
    assert forbidden_count(people) == 1


def test_a_dead_letter_makes_a_topic_only_with_the_right_to_create_it(people: Broker) -> None:
    """As publishing there would."""
    mal = port_of(people, "mal")
    exchange(mal, "mal")
    allow(people, "mal", "publish", "fresh.#")
    declare(mal, "mal.q", x_dead_letter_exchange="amq.topic", x_message_ttl=50)
    mal.exchanges.bind_queue("mal.q", "mal", "#", {}, owner=None)
    publish(people, "mal", "fresh.a", b"1", user="mal")
    assert people.port.topics.info("fresh") is None
    allow(people, "mal", "create", "fresh.#")
    publish(people, "mal", "fresh.a", b"2", user="mal")
    assert people.port.topics.info("fresh") is not None
    assert forbidden_count(people) == 1


@pytest.mark.parametrize("restart", ["", "saved", "log alone"])
@pytest.mark.parametrize("way", ["publish", "subscribe", "disabled", "deleted", "another"])
def test_dead_letters_end_with_a_right_of_their_owner(
    people: Broker, way: str, restart: str
) -> None:
    """With the right to publish there, with the right to read what the queue collects, and with the
    owner itself; also if another user has its name now. The queue goes on."""
    root, mal = port_of(people, "root"), port_of(people, "mal")
    exchange(root, "orders")
    allow(people, "mal", "publish", "victim")
    allow(people, "mal", "subscribe", "orders.#")
    dead: dict[str, Any] = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "victim"}
    declare(mal, "mal.q", x_message_ttl=50, **dead)
    mal.exchanges.bind_queue("mal.q", "orders", "#", {}, owner=None)
    publish(people, "orders", "a", b"before")
    assert look(people, "victim") == [b"before"]
    users = people.engine.users
    if way == "publish":
        take_back(people, "mal", "publish", "victim")
    elif way == "subscribe":
        deny(people, "mal", "subscribe", "orders.secret")
    elif way == "disabled":
        users.set_disabled("mal", True)
    else:
        users.delete("mal")
    if way == "another":
        add_user(people, "mal", "admin")
    restarted(people, restart)
    publish(people, "orders", "a", b"after")
    assert look(people, "victim") == []
    assert ready(people, "mal.q") == 0
    assert forbidden_count(people) == 1
    if way == "disabled":
        people.engine.users.set_disabled("mal", False)
        publish(people, "orders", "a", b"enabled")
        assert look(people, "victim") == [b"enabled"]
    # Who may have it may declare it again: then it is theirs.
    declare(port_of(people, "root"), "mal.q", x_message_ttl=50, **dead)
    publish(people, "orders", "a", b"root's")
    assert look(people, "victim") == [b"root's"]


def test_declaring_a_queue_with_dead_letters_needs_the_right_to_read_it(people: Broker) -> None:
    """Its dead letters are read in the name of who declares it. RabbitMQ asks for the same."""
    add_user(people, "ann")
    allow(people, "ann", "create,publish", "ann.#")
    ann = port_of(people, "ann")
    declare(ann, "ann.plain")
    with pytest.raises(Refused) as refused:
        declare(ann, "ann.q", x_dead_letter_exchange="ann.dlx", x_dead_letter_routing_key="x")
    assert "subscribe ann.q" in refused.value.text
    assert refused.value.reason is Reason.FORBIDDEN


def test_what_a_full_queue_refuses_needs_the_right_as_well(people: Broker) -> None:
    """Dead letters that were never in the queue (`reject-publish-dlx`)."""
    mal = port_of(people, "mal")
    allow(people, "mal", "publish", "victim")
    declare(
        mal,
        "mal.q",
        x_max_length=1,
        x_overflow="reject-publish-dlx",
        x_dead_letter_exchange="",
        x_dead_letter_routing_key="victim",
    )
    publish(people, "", "mal.q", b"1", user="mal")
    publish(people, "", "mal.q", b"2", user="mal")
    assert look(people, "victim") == [b"2"]
    take_back(people, "mal", "publish", "victim")
    publish(people, "", "mal.q", b"3", user="mal")
    assert look(people, "victim") == []
    assert forbidden_count(people) == 1


# --- links between exchanges --------------------------------------------------------------------


def linked(broker: Broker, kind: str) -> None:
    """What is published to `orders` goes on to mal's exchange, and into its queue."""
    root, mal = port_of(broker, "root"), port_of(broker, "mal")
    exchange(mal, "mal")
    allow(broker, "mal", "subscribe", "orders.#")
    declare(mal, "mal.q")
    mal.exchanges.bind_queue("mal.q", "mal", "#", {}, owner=None)
    if kind == "alternate":
        allow(broker, "mal", "create", "orders")
        exchange(mal, "orders", alternate_exchange="mal")
    elif kind == "headers":
        exchange(root, "orders", "headers")
        mal.exchanges.bind_exchange("mal", "orders", "", {"x-match": "any"})
    else:
        exchange(root, "orders")
        mal.exchanges.bind_exchange("mal", "orders", "#", {})


@pytest.mark.parametrize("restart", ["", "saved", "log alone"])
@pytest.mark.parametrize("way", ["publish", "subscribe", "disabled", "deleted", "another"])
@pytest.mark.parametrize("kind", ["link", "alternate"])
def test_a_link_ends_with_a_right_of_its_owner(
    people: Broker, kind: str, way: str, restart: str
) -> None:
    """At once, on a route that is in use; and it goes on when the right is back, or when somebody
    with the right asks for it again."""
    linked(people, kind)
    port = port_of(people, "root")
    route = port.exchanges.route("orders", "eu.copy")
    assert route is not None
    template = port.topics.template(route, properties={})
    port.publish(template, batch_of(b"before"), 0, 1)
    people.step()
    assert look(people, "mal.q") == [b"before"]
    users = people.engine.users
    if way == "publish":
        deny(people, "mal", "publish", "mal.one")
    elif way == "subscribe":
        take_back(people, "mal", "subscribe", "orders.#")
    elif way == "disabled":
        users.set_disabled("mal", True)
    else:
        users.delete("mal")
    if way == "another":
        add_user(people, "mal", "admin")
    restarted(people, restart)
    publish(people, "orders", "eu.copy", b"after")
    assert look(people, "mal.q") == []
    assert people.engine.exchanges.graph.stopped_count() == 1
    if way == "subscribe":
        allow(people, "mal", "subscribe", "orders.#")
    elif way == "disabled":
        people.engine.users.set_disabled("mal", False)
    elif kind == "link":
        port_of(people, "root").exchanges.bind_exchange("mal", "orders", "#", {})
    else:
        exchange(port_of(people, "root"), "orders", alternate_exchange="mal")
    publish(people, "orders", "eu.copy", b"again")
    assert look(people, "mal.q") == [b"again"]
    assert people.engine.exchanges.graph.stopped_count() == 0


def test_a_stopped_link_is_no_way_for_headers_either(people: Broker) -> None:
    """Branches of a route by headers are made under the same rights."""
    linked(people, "headers")
    port = port_of(people, "root")

    def send(body: bytes) -> None:
        route = port.exchanges.route("orders", "")
        assert route is not None
        port.publish(
            port.topics.template(route, properties={"colour": "red"}), batch_of(body), 0, 1
        )
        people.step()

    root = port_of(people, "root")
    root.exchanges.bind_exchange("mal", "orders", "", {"x-match": "all", "colour": "red"})
    port_of(people, "mal").exchanges.unbind_exchange("mal", "orders", "", {"x-match": "any"})
    send(b"1")
    assert look(people, "mal.q") == [b"1"]
    root.exchanges.unbind_exchange("mal", "orders", "", {"x-match": "all", "colour": "red"})
    port_of(people, "mal").exchanges.bind_exchange(
        "mal", "orders", "", {"x-match": "all", "colour": "red"}
    )
    send(b"2")
    assert look(people, "mal.q") == [b"2"]
    take_back(people, "mal", "subscribe", "orders.#")
    send(b"3")
    assert look(people, "mal.q") == []


def test_changes_that_do_not_concern_an_owner_leave_routes_alone(people: Broker) -> None:
    """A fleet that is given rules does not make routes anew."""
    linked(people, "link")
    publish(people, "orders", "eu", b"1")
    route = people.port.exchanges.route("orders", "eu")
    add_user(people, "device")
    allow(people, "device", "subscribe", "orders.#")
    assert people.port.exchanges.route("orders", "eu") is route
    allow(people, "mal", "subscribe", "elsewhere")
    assert people.port.exchanges.route("orders", "eu") is not route


def test_an_owner_has_the_rights_of_its_user_alone(people: Broker) -> None:
    """For what a gateway keeps, such as webhooks."""
    engine = people.engine
    allow(people, "mal", "subscribe", "orders.#")
    owner = port_of(people, "mal").principal.as_owner
    reads = ("orders", "eu")
    engine.port.admission.for_owner(owner).principal.check_read(reads)
    engine.port.admission.for_owner("mal").principal.check_read(
        reads
    )  # as earlier versions stored it
    engine.users.delete("mal")
    add_user(people, "mal", "admin")
    assert port_of(people, "mal").principal.as_owner != owner
    with pytest.raises(Refused):
        engine.port.admission.for_owner(owner).principal.check_read(reads)
    allow(people, "role:anonymous", "subscribe", "orders.#")
    engine.port.admission.for_owner(
        port_of(people, "anonymous").principal.as_owner
    ).principal.check_read(reads)


# --- without an owner ---------------------------------------------------------------------------


def test_what_was_made_before_there_were_users_goes_on(broker: Broker) -> None:
    """Everybody might do everything then: the first user does not end what the operator set up."""
    exchange(broker.port, "orders")
    exchange(broker.port, "copies")
    broker.port.exchanges.bind_exchange("copies", "orders", "#", {})
    declare(broker.port, "copy")
    broker.port.exchanges.bind_queue("copy", "copies", "#", {}, owner=None)
    dead: dict[str, Any] = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "copy"}
    declare(broker.port, "short", x_message_ttl=50, **dead)
    add_user(broker, "root", "admin")
    for _ in range(2):
        publish(broker, "orders", "a", b"linked")
        publish(broker, "", "short", b"dead")
        assert look(broker, "copy") == [b"linked", b"dead"]
        assert forbidden_count(broker) == 0
        broker.restart()


def test_state_from_before_owners_is_read(tmp_path: Path) -> None:
    """Links and exchanges had no owner, queues had their user's name, and users no number."""
    broker = Broker(tmp_path / "data")
    peopled(broker)
    write = broker.engine.core.journal.write
    user = broker.engine.users.row_user("mal")
    assert user is not None
    write({"op": "user=", "name": "mal", **{k: v for k, v in user.items() if k != "n"}})
    kind = {"type": "topic", "durable": True, "auto_delete": False, "internal": False}
    write({"op": "exchange+", "name": "orders", **kind, "arguments": {"alternate-exchange": "mal"}})
    write({"op": "exchange+", "name": "mal", **kind, "arguments": {}})
    write({"op": "link+", "from": "orders", "key": ["mal", "x", "{}"], "w": ["orders", "x"]})
    arguments = {
        "x-message-ttl": 50,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "mal.dead",
    }
    flags = {"durable": True, "exclusive": False, "auto_delete": False}
    bindings = [[["", "mal.q", "{}"], ["mal.q"]]]
    op = {"op": "queue+", "name": "mal.q", "n": broker.engine.core.take_number(), **flags}
    write({**op, "arguments": arguments, "bindings": bindings, "u": "mal"})
    mal = port_of(broker, "mal")
    declare(mal, "mal.dead")
    declare(mal, "mal.all")
    mal.exchanges.bind_queue("mal.all", "mal", "#", {}, owner=None)
    for saved in (False, True):
        publish(broker, "orders", "x", b"linked")
        publish(broker, "orders", "y", b"alternate")
        publish(broker, "", "mal.q", b"dead")
        assert look(broker, "mal.all") == [b"linked", b"alternate"]
        assert look(broker, "mal.dead") == [b"dead"]
        if not saved:
            broker.restart()
    take_back(broker, "mal", "publish", "mal.#")
    publish(broker, "", "mal.q", b"dead")
    assert look(broker, "mal.dead") == []
    broker.engine.users.delete("mal")
    add_user(broker, "mal", "admin")
    publish(broker, "", "mal.q", b"dead")
    assert look(broker, "mal.dead") == []
    broker.stop()
