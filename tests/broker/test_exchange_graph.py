"""Headers exchanges, exchanges bound to exchanges, alternate exchanges: who gets a message."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from polymq.broker.exchanges.entities import PREDECLARED
from polymq.broker.port import REST, Publishing, Reason, Refused
from polymq.broker.routing.header_match import pattern_of, pattern_text, tag_headers
from polymq.broker.routing.patterns import matches
from polymq.broker.topics.routes import TopicRoute
from tests.broker.queue_bench import OWNER, bind, consume, declare, exchange, look, publish, ready
from tests.broker.test_engine_sessions import connect, start_again
from tests.harness.broker import Broker, SpyLink, at_qos, batch_of


def make(broker: Broker, name: str, kind: str, *, durable: bool = True, **more: Any) -> None:
    """An exchange; `alternate="x"` is its alternate exchange."""
    alternate = more.pop("alternate", None)
    broker.port.exchanges.declare(
        name,
        type=kind,
        durable=durable,
        auto_delete=more.get("auto_delete", False),
        internal=more.get("internal", False),
        arguments={} if alternate is None else {"alternate-exchange": alternate},
    )


def link(broker: Broker, destination: str, source: str, key: str = "", **headers: Any) -> None:
    broker.port.exchanges.bind_exchange(destination, source, key, headers)


def unlink(broker: Broker, destination: str, source: str, key: str = "", **headers: Any) -> None:
    broker.port.exchanges.unbind_exchange(destination, source, key, headers)


def match(broker: Broker, queue: str, source: str, mode: str = "all", **headers: Any) -> None:
    arguments = {"x-match": mode, **headers}
    broker.port.exchanges.bind_queue(queue, source, "", arguments, owner=OWNER)


def exists(broker: Broker, name: str) -> bool:
    return broker.port.exchanges.info(name) is not None


Change = Callable[[str, str, str, Mapping[str, Any]], object]
"""Binds or unbinds: the target, the source, the key, the arguments."""

# --- headers ----------------------------------------------------------------------------------


def test_a_headers_exchange_routes_each_message_by_its_headers(broker: Broker) -> None:
    declare(broker, "red")
    declare(broker, "any")
    match(broker, "red", "amq.headers", colour="red", size="big")
    match(broker, "any", "amq.headers", "any", colour="red", size="big")
    publish(broker, "", b"both", source="amq.headers", colour="red", size="big")
    publish(broker, "", b"one", source="amq.headers", colour="red")
    publish(broker, "", b"none", source="amq.headers", colour="green")
    broker.step()
    assert look(broker, "red") == [b"both"]
    assert look(broker, "any") == [b"both", b"one"]


def test_a_binding_without_arguments_gets_what_has_no_headers_too(broker: Broker) -> None:
    """So does whoever subscribes to the topic that the exchange is."""
    make(broker, "h", "headers")
    declare(broker, "q")
    match(broker, "q", "h")
    seen = SpyLink()
    session = broker.port.sessions.connect(
        "c", clean=True, expiry_seconds=0, link=seen, principal=""
    )
    broker.step()
    session.resume()
    session.subscribe(("h", REST), at_qos(1))
    broker.publish(broker.template("h", "from.mqtt"), b"1")
    broker.step()
    assert look(broker, "q") == seen.bodies == [b"1"]


@pytest.mark.parametrize("how", ["stop", "no state.db", "kill"])
def test_bindings_survive(tmp_path: Path, how: str) -> None:
    broker = Broker(tmp_path / "data", with_state_db=how != "no state.db")
    make(broker, "h", "headers")
    make(broker, "feed", "topic")
    make(broker, "gone", "headers", durable=False)
    for name in ("q", "linked", "emptied"):
        declare(broker, name)
    match(broker, "q", "h", "any", colour="red", level=None)
    match(broker, "emptied", "gone")
    link(broker, "h", "feed", "news.#")
    link(broker, "gone", "feed", "#")
    publish(broker, "news.x", b"before", source="feed", colour="red")
    publish(broker, "", b"gone", source="gone")
    broker.step()
    assert look(broker, "emptied") == [b"before", b"gone"]
    broker.step(1.0)
    if how == "kill":
        broker.kill()
        broker.open()
    else:
        broker.restart()
    assert look(broker, "q") == [b"before"]
    publish(broker, "news.x", b"red", source="feed", colour="red")
    publish(broker, "sport", b"elsewhere", source="feed", colour="red")
    publish(broker, "", b"green", source="h", colour="green")
    # What went with the process matches nothing any more, though its topic is still there.
    publish(broker, "", b"after", source="gone")
    broker.step()
    assert look(broker, "q") == [b"red"]
    assert b"after" not in look(broker, "emptied")
    unlink(broker, "h", "feed", "news.#")
    publish(broker, "news.x", b"late", source="feed", colour="red")
    broker.step()
    assert look(broker, "q") == []
    broker.stop()


@pytest.mark.parametrize("with_state_db", [True, False])
@pytest.mark.parametrize("way", ["stop", "kill"])
def test_bindings_of_an_exchange_that_went_do_not_come_back_with_its_name(
    tmp_path: Path, way: str, with_state_db: bool
) -> None:
    """It is declared again, and lasts; then the broker starts once more."""
    broker = Broker(tmp_path / "data", with_state_db=with_state_db)
    make(broker, "gone", "headers", durable=False)
    make(broker, "feed", "topic")
    make(broker, "end", "topic")
    declare(broker, "q")
    match(broker, "q", "gone", "any", colour="red")
    link(broker, "gone", "feed", "#")
    link(broker, "end", "gone", "")
    broker.step()
    start_again(broker, "stop")
    graph = broker.engine.exchanges.graph
    assert graph.bound_count("gone") == graph.link_count == 0
    make(broker, "gone", "headers")
    broker.step()
    start_again(broker, way)
    graph = broker.engine.exchanges.graph
    assert broker.port.exchanges.info("gone") is not None
    assert graph.bound_count("gone") == graph.link_count == 0
    found = broker.engine.exchanges.queues["q"]
    assert [key for key, _ in broker.engine.exchanges.bindings_of(found) if key[0]] == []
    match(broker, "q", "gone", "any", colour="red")
    broker.step()
    start_again(broker, way)
    assert broker.engine.exchanges.graph.bound_count("gone") == 1


def test_unbinding_one_of_two_bindings_leaves_the_other(broker: Broker) -> None:
    make(broker, "h", "headers", auto_delete=True)
    declare(broker, "q")
    match(broker, "q", "h", colour="red")
    match(broker, "q", "h", colour="blue")
    unbind = broker.port.exchanges.unbind_queue
    unbind("q", "h", "", {"x-match": "all", "colour": "red"}, owner=OWNER)
    publish(broker, "", b"r", source="h", colour="red")
    publish(broker, "", b"b", source="h", colour="blue")
    broker.step()
    assert look(broker, "q") == [b"b"]
    assert broker.engine.exchanges.graph.bound_count("h") == 1
    unbind("q", "h", "", {"colour": "blue"}, owner=OWNER)  # `all` is what is meant without it
    assert "h" not in broker.engine.exchanges.exchanges


def test_rows_of_one_run_go_different_ways_and_keep_their_order(broker: Broker) -> None:
    """A dead letter's headers, a transaction's and a delayed message's count as well."""
    make(broker, "h", "headers")
    declare(broker, "red", durable=False)
    match(broker, "red", "h", colour="red")
    declare(broker, "work", x_dead_letter_exchange="h")
    publish(broker, "work", b"1", b"2", colour="red")
    publish(broker, "work", b"3", colour="blue")
    publish(broker, "work", b"4", colour="red")
    broker.step()
    consumer, registration = consume(broker, "work")
    for offset, _, _ in consumer.got:
        registration.reject(offset, 1)
    broker.step()
    assert look(broker, "red") == [b"1", b"2", b"4"]

    route = broker.port.exchanges.route("h", "")
    assert route is not None
    assert route.by_headers
    parts = []
    for colour in ("red", "blue"):
        template = broker.port.topics.template(route, properties={"colour": colour})
        body = colour.encode()
        assert broker.port.exchanges.is_routed(template, batch_of(body), 0) is (colour == "red")
        broker.port.delays.publish_later(template, batch_of(body), 0, 1, delay_ms=5_000)
        parts.append(Publishing(template=template, batch=batch_of(body), first=0, last=1))
    broker.port.transactions.commit(parts, [])
    broker.step()
    assert look(broker, "red") == [b"red"]
    broker.step(6.0)
    assert look(broker, "red") == [b"red"]


# --- links ------------------------------------------------------------------------------------


def test_a_message_goes_on_with_its_key_and_arrives_once(broker: Broker) -> None:
    """In a cycle of exchanges of all types, with a queue that is bound to each of them."""
    declare(broker, "q")
    declare(broker, "far")
    kinds = {"t": "topic", "d": "direct", "f": "fanout", "h": "headers"}
    for name, kind in kinds.items():
        make(broker, name, kind)
        bind(broker, "q", name, "a.b")
    for source, destination in ("td", "df", "fh", "ht"):
        link(broker, destination, source, "a.b")
    bind(broker, "far", "d", "a.b")
    publish(broker, "a.b", b"1", source="f")
    publish(broker, "a.c", b"2", source="t")
    broker.step()
    assert look(broker, "q") == [b"1"]
    consumer, _ = consume(broker, "far")
    assert [(m.topic, m.tag) for m in consumer.messages] == [("f", "a.b")]


def test_the_root_exchange_is_linked_like_any_other(broker: Broker) -> None:
    """From it: whatever is published anywhere, under the key that it has there. To it: only queues
    that AMQP bound; a message stays in its own topic."""
    declare(broker, "from")
    declare(broker, "to")
    make(broker, "mine", "topic")
    bind(broker, "from", "mine", "sensors.#")
    bind(broker, "to", "amq.topic", "x.y")
    link(broker, "mine", "amq.topic", "sensors.*.temp")
    link(broker, "amq.topic", "mine", "x.y")
    seen = SpyLink()
    session = broker.port.sessions.connect(
        "c", clean=True, expiry_seconds=0, link=seen, principal=""
    )
    broker.step()
    session.resume()
    session.subscribe(("x", "y"), at_qos(0))
    broker.publish(broker.template("sensors", "room.temp"), b"mqtt")
    broker.publish(broker.template("sensors", "room.humidity"), b"other")
    publish(broker, "x.y", b"amqp", source="mine")
    broker.step()
    assert look(broker, "from") == [b"mqtt"]
    assert look(broker, "to") == [b"amqp"]
    assert seen.bodies == []


def test_auto_delete_and_if_unused_count_what_is_bound_to_an_exchange(broker: Broker) -> None:
    """Not what it is bound to, as in RabbitMQ; and what becomes unused by this goes, too."""
    make(broker, "first", "fanout", auto_delete=True)
    make(broker, "second", "fanout", auto_delete=True)
    make(broker, "third", "fanout")
    link(broker, "second", "first")
    link(broker, "third", "second")
    with pytest.raises(Refused) as caught:
        broker.port.exchanges.delete("second", if_unused=True)
    assert caught.value.reason is Reason.IN_USE
    broker.port.exchanges.delete("third", if_unused=True)  # it is bound, nothing is bound to it
    assert not exists(broker, "second")
    assert not exists(broker, "first")


def test_an_auto_delete_exchange_goes_with_its_last_queue(broker: Broker) -> None:
    make(broker, "x", "fanout", auto_delete=True)
    declare(broker, "q")
    bind(broker, "q", "x")
    broker.port.queues.delete("q", if_unused=False, if_empty=False, owner=OWNER)
    assert not exists(broker, "x")


def test_links_have_a_limit_and_refuse_the_default_exchange(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data", exchange_links_max=1)
    make(broker, "a", "fanout")
    make(broker, "b", "fanout")
    link(broker, "b", "a")
    link(broker, "b", "a")
    for ends, reason in (
        (("a", "a"), Reason.LIMIT),
        (("none", "b"), Reason.NOT_FOUND),
        (("b", "none"), Reason.NOT_FOUND),
        (("", "b"), Reason.FORBIDDEN),
        (("b", ""), Reason.FORBIDDEN),
    ):
        with pytest.raises(Refused) as caught:
            link(broker, *ends)
        assert caught.value.reason is reason, ends
    unlink(broker, "a", "b")
    broker.stop()


def test_bindings_have_limits(tmp_path: Path) -> None:
    """Each says what has too many of them; what was there stays, and a place that is free again is
    taken again."""
    broker = Broker(
        tmp_path / "data",
        bindings_per_queue_max=2,
        bindings_per_exchange_max=3,
        headers_bindings_per_exchange_max=1,
        links_max=1,
        exchanges_max=len(PREDECLARED) + 3,
        complex_levels_max=4,
    )
    for name in ("a", "b", "c"):
        make(broker, name, "topic")
    for name in ("p", "q", "r"):
        declare(broker, name)
    bind(broker, "q", "a", "1")
    bind(broker, "q", "a", "2")
    bind(broker, "q", "a", "2")  # it is there already
    bind(broker, "p", "a", "1")
    bind(broker, "p", "b", "#.x.y")
    match(broker, "r", "amq.headers", colour="red")
    link(broker, "b", "a")
    for attempt in (
        partial(bind, broker, "q", "b", "3"),
        partial(bind, broker, "r", "a", "3"),
        partial(bind, broker, "r", "b", "#.x"),
        partial(match, broker, "r", "amq.headers", colour="blue"),
        partial(link, broker, "c", "a"),
        partial(make, broker, "d", "topic"),
    ):
        with pytest.raises(Refused) as caught:
            attempt()
        assert caught.value.reason is Reason.LIMIT
    broker.port.exchanges.unbind_queue("q", "a", "1", {}, owner=OWNER)
    bind(broker, "r", "a", "#")
    publish(broker, "2", b"1", source="a")
    broker.step()
    assert look(broker, "q") == look(broker, "r") == [b"1"]
    broker.stop()


def test_a_message_is_led_through_a_bounded_number_of_exchanges(tmp_path: Path) -> None:
    """The publisher learns it, before anything of the message is stored."""
    broker = Broker(tmp_path / "data", exchanges_walked_max=3)
    for name in "abcd":
        make(broker, name, "fanout")
    declare(broker, "q")
    bind(broker, "q", "c")
    link(broker, "b", "a")
    link(broker, "c", "b")
    publish(broker, "", b"1", source="a")
    broker.step()
    assert look(broker, "q") == [b"1"]
    link(broker, "d", "b")
    with pytest.raises(Refused, match="more than 3 exchanges") as caught:
        publish(broker, "", b"2", source="a")
    assert caught.value.reason is Reason.LIMIT
    publish(broker, "", b"3", source="b")
    broker.step()
    assert look(broker, "q") == [b"3"]
    broker.stop()


def test_two_keys_with_one_normal_form_are_two_bindings(broker: Broker) -> None:
    """`#` and `#.#` match the same. One of them may go while the other stays, at the exchange
    and behind a link."""
    make(broker, "x", "topic")
    make(broker, "front", "fanout")
    link(broker, "x", "front")
    declare(broker, "q")
    for key in ("#", "#.#", "a.#.*.#"):
        bind(broker, "q", "x", key)
    for gone in ("#.#", "a.#.*.#", "#"):
        publish(broker, "a.b", gone.encode(), source="x")
        publish(broker, "a.b", gone.encode(), source="front")
        broker.step()
        assert look(broker, "q") == [gone.encode()] * 2
        broker.port.exchanges.unbind_queue("q", "x", gone, {}, owner=OWNER)
    publish(broker, "a.b", b"late", source="x")
    publish(broker, "a.b", b"late", source="front")
    broker.step()
    assert look(broker, "q") == []


# --- alternate exchanges ----------------------------------------------------------------------


def test_what_nothing_is_bound_for_goes_to_the_alternate_exchange(broker: Broker) -> None:
    """On from there, if nothing is bound there either; a cycle ends; a live subscriber counts."""
    make(broker, "last", "fanout", alternate="orders")
    make(broker, "spare", "direct", alternate="last")
    make(broker, "orders", "topic", alternate="spare")
    for queue, source, key in (
        ("known", "orders", "eu.#"),
        ("spares", "spare", "us"),
        ("rest", "last", ""),
    ):
        declare(broker, queue)
        bind(broker, queue, source, key)
    for key in ("eu.x", "us", "asia"):
        publish(broker, key, key.encode(), source="orders")
    broker.step()
    assert look(broker, "known") == [b"eu.x"]
    assert look(broker, "spares") == [b"us"]
    assert look(broker, "rest") == [b"asia"]
    route = broker.port.exchanges.route("orders", "asia")
    assert route is not None
    assert route.routed
    link_ = SpyLink()
    session = broker.port.sessions.connect(
        "c", clean=True, expiry_seconds=0, link=link_, principal=""
    )
    broker.step()
    session.resume()
    session.subscribe(("orders", "asia"), at_qos(0))
    publish(broker, "asia", b"live", source="orders")
    broker.step()
    assert link_.bodies == [b"live"]
    assert look(broker, "rest") == []


def test_an_alternate_exchange_may_come_later_and_go(broker: Broker) -> None:
    make(broker, "x", "direct", alternate="later")
    declare(broker, "q")
    route = broker.port.exchanges.route("x", "k")
    assert route is not None
    assert not route.routed
    exchange(broker, "later")
    bind(broker, "q", "later")
    publish(broker, "k", b"1", source="x")
    broker.port.exchanges.delete("later", if_unused=False)
    publish(broker, "k", b"2", source="x")
    broker.step()
    assert look(broker, "q") == [b"1"]
    with pytest.raises(Refused, match="alternate-exchange"):
        broker.port.exchanges.declare(
            "y",
            type="direct",
            durable=True,
            auto_delete=False,
            internal=False,
            arguments={"alternate-exchange": 1},
        )


# --- templates --------------------------------------------------------------------------------


def test_a_template_ends_with_its_exchange(broker: Broker) -> None:
    """Its topic stays, and messages with it; but what the exchange allowed is asked again."""
    make(broker, "x", "direct")
    declare(broker, "q")
    bind(broker, "q", "x", "k")
    route = broker.port.exchanges.route("x", "k")
    assert route is not None
    template = broker.port.topics.template(route, properties={})
    broker.publish(template, b"1")
    valid = [template.valid]
    broker.port.exchanges.delete("x", if_unused=False)
    valid.append(template.valid)
    assert valid == [True, False]
    broker.port.exchanges.declare(
        "x", type="direct", durable=True, auto_delete=False, internal=True, arguments={}
    )
    with pytest.raises(Refused, match="internal"):
        broker.port.exchanges.route("x", "k")
    broker.step()


# --- against a model --------------------------------------------------------------------------

EXCHANGES = ("t1", "t2", "d1", "f1", "h1", "h2", "amq.topic")
KINDS = {"t": "topic", "d": "direct", "f": "fanout", "h": "headers", "a": "topic"}
QUEUES = ("q1", "q2", "q3", "q4")
KEYS = ("", "a", "a.b", "t1.a", "#", "*.b", "t2.#")
HEADERS: tuple[Mapping[str, Any], ...] = ({}, {"c": 1}, {"c": 2}, {"c": 1, "d": "x"})
ADDRESSES = (
    ("t1", "a"),
    ("t1", "a.b"),
    ("t2", "a"),
    ("d1", "a"),
    ("f1", ""),
    ("h1", ""),
    ("h2", "a"),
)


class Model:
    """Who gets a message, by a walk that knows nothing of the trie, of caches and of changes."""

    def __init__(self) -> None:
        self.bindings: set[tuple[str, str, str, str]] = set()  # queue, exchange, key, headers
        self.links: set[tuple[str, str, str, str]] = set()  # destination, source, key, headers

    def end_exchange(self, name: str) -> None:
        self.bindings = {entry for entry in self.bindings if entry[1] != name}
        self.links = {entry for entry in self.links if name not in entry[:2]}

    def end_queue(self, name: str) -> None:
        self.bindings = {entry for entry in self.bindings if entry[0] != name}

    def reached(self, source: str, key: str, headers: Mapping[str, Any]) -> set[str]:
        found: set[str] = set()
        full = ".".join(part for part in (source, key) if part)
        for start, start_key in ((source, key), ("amq.topic", full)):
            seen, work = {start}, [start]
            while work:
                here = work.pop()
                for queue, at, pattern, wanted in self.bindings:
                    if at == here and self._hits(here, pattern, wanted, start_key, headers):
                        found.add(queue)
                for destination, at, pattern, wanted in self.links:
                    if (
                        at == here
                        and destination not in seen
                        and self._hits(here, pattern, wanted, start_key, headers)
                    ):
                        seen.add(destination)
                        work.append(destination)
        return found

    def _hits(
        self, at: str, pattern: str, wanted: str, key: str, headers: Mapping[str, Any]
    ) -> bool:
        kind = KINDS[at[0]]
        if kind == "headers":
            return pattern_of(wanted).matches(tag_headers(headers))
        if kind == "fanout":
            return True
        if kind == "direct":
            return key == pattern
        swap = {"*": "\x00*", "#": "\x00#"}
        address = tuple(swap.get(level, level) for level in pattern.split("."))
        return matches(address, tuple(key.split("."))) if key else pattern in ("#", "")


@pytest.mark.parametrize("seed", range(2))
def test_routes_agree_with_a_model_after_every_change(
    broker: Broker, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Routes are kept as a gateway keeps them, and asked for anew when they say so. What ends is
    swept away so slowly that much of it is still there when something of its name comes again."""
    monkeypatch.setattr("polymq.broker.pacing.sweeping.SWEPT_AT_ONCE", 1)
    monkeypatch.setattr("polymq.broker.exchanges.exchanges.UNBOUND_AT_ONCE", 1)
    chance = random.Random(seed)
    engine, model = broker.engine, Model()
    for name in EXCHANGES:
        if name not in PREDECLARED:
            make(broker, name, KINDS[name[0]], durable=chance.random() < 0.5)
    for name in QUEUES:
        declare(broker, name, durable=False)
    routes: dict[tuple[str, str], TopicRoute] = {}
    for _ in range(120):
        name = chance.choice((*EXCHANGES, *QUEUES))
        if chance.random() < 0.1 and name not in PREDECLARED:
            if name in EXCHANGES:
                engine.port.exchanges.delete(name, if_unused=False)
                make(broker, name, KINDS[name[0]], durable=chance.random() < 0.5)
                model.end_exchange(name)
            else:
                engine.port.queues.delete(name, if_unused=False, if_empty=False, owner=OWNER)
                declare(broker, name, durable=False)
                model.end_queue(name)
        source = chance.choice(EXCHANGES)
        key = chance.choice(KEYS)
        headers = chance.choice(HEADERS)
        wanted = pattern_text(headers)
        arguments = headers if KINDS[source[0]] == "headers" else {}
        text = wanted if arguments or KINDS[source[0]] == "headers" else ""
        if chance.random() < 0.5:
            target, source_exchange = chance.choice(QUEUES), model.bindings
            add: Change = partial(engine.port.exchanges.bind_queue, owner=OWNER)
            remove: Change = partial(engine.port.exchanges.unbind_queue, owner=OWNER)
        else:
            target, source_exchange = chance.choice(EXCHANGES), model.links
            add = engine.port.exchanges.bind_exchange
            remove = engine.port.exchanges.unbind_exchange
        entry = (target, source, key, text)
        adds = entry not in source_exchange
        (add if adds else remove)(target, source, key, arguments)
        (source_exchange.add if adds else source_exchange.remove)(entry)
        for where in ADDRESSES:
            route = routes.get(where)
            if route is None or route.evicted:
                found = engine.port.exchanges.route(*where)
                assert isinstance(found, TopicRoute)
                route = routes[where] = found
            engine.topics.router.refresh(route)
            for some in HEADERS:
                used = route
                if route.by_headers:
                    used = engine.topics.branch(route, tag_headers(some))
                    engine.topics.router.refresh(used)
                got = {queue.name for queue in used.queues}
                assert got == model.reached(*where, some), (where, some, entry, adds)
    broker.step()
    assert engine.core.sweeper.is_done
    for name in QUEUES:
        keys = engine.exchanges.queues[name].bindings.chosen()
        assert {entry[1] for entry in model.bindings if entry[0] == name} == {
            key[0] for key in keys
        }


def test_ready_counts_are_those_of_the_outcome(broker: Broker) -> None:
    """A message that reaches a queue in three ways is in it once."""
    make(broker, "a", "fanout")
    make(broker, "b", "fanout")
    declare(broker, "q")
    for name in ("a", "b"):
        bind(broker, "q", name)
    link(broker, "b", "a")
    link(broker, "a", "b")
    publish(broker, "", b"1", source="a")
    broker.step()
    assert ready(broker, "q") == 1


def test_unbinding_what_is_gone_is_no_error(broker: Broker) -> None:
    """A queue that went with its last consumer takes its bindings along, and clients unbind it."""
    engine = broker.engine
    declare(broker, "q", durable=False)
    assert engine.port.exchanges.unbind_queue("gone", "amq.direct", "k", {}, owner=OWNER) == 0
    assert engine.port.exchanges.unbind_queue("q", "gone", "k", {}, owner=OWNER) == 0
    assert engine.port.exchanges.unbind_exchange("gone", "amq.direct", "k", {}) == 0
    assert engine.port.exchanges.unbind_exchange("amq.direct", "gone", "k", {}) == 0
    with pytest.raises(Refused):
        engine.port.exchanges.unbind_queue("q", "", "q", {}, owner=OWNER)


@pytest.mark.parametrize("kind", ["direct", "fanout"])
def test_a_template_knows_of_queues_that_were_bound_since_its_last_use(
    broker: Broker, kind: str
) -> None:
    """Fewer messages are stored at once from then on, before the first of them was."""
    exchange(broker, "x", kind)
    declare(broker, "q0")
    bind(broker, "q0", "x", "k")
    route = broker.port.exchanges.route("x", "k")
    assert route is not None
    template = broker.port.topics.template(route, properties={"PMQ_EXCHANGE": "x"})
    broker.publish(template, b"1")
    alone = template.rows_at_once
    for number in range(1, 10):
        declare(broker, f"q{number}")
        bind(broker, f"q{number}", "x", "k")
    assert template.rows_at_once < alone / 3
    broker.publish(template, b"2")
    broker.step()
    assert [ready(broker, f"q{number}") for number in range(10)] == [2] + [1] * 9
    assert len(template.queues) == 11


def test_a_subscriber_of_the_exact_key_counts_for_messages_with_known_headers(
    broker: Broker,
) -> None:
    """A mandatory message that only this subscriber gets is not returned, though the way of
    messages with such headers was found before; and it is again when the subscriber has left."""
    make(broker, "h", "headers")
    declare(broker, "red")
    match(broker, "red", "h", colour="red")
    route = broker.port.exchanges.route("h", "k")
    assert route is not None
    template = broker.port.topics.template(route, properties={"colour": "blue"})
    row = batch_of(b"1")
    assert not broker.port.exchanges.is_routed(template, row, 0)
    session, _ = connect(broker, "device", clean=True)
    session.subscribe(("h", "k"), at_qos(1))
    assert broker.port.exchanges.is_routed(template, row, 0)
    session.unsubscribe(("h", "k"))
    assert not broker.port.exchanges.is_routed(template, row, 0)
