"""What rules mean in use: for administrators, for names that are no words, for what comes later and
for what others have bound."""

from __future__ import annotations

from functools import partial

from tests.harness.broker import Broker, SpyConsumer, batch_of
from tests.harness.people import add_user, allow, deny, forbidden, port_of, template_of


def test_an_admin_has_what_a_rule_denies_to_it_denied(people: Broker) -> None:
    deny(people, "root", "publish", "secret.#")
    port = port_of(people, "root")
    forbidden(lambda: port.topics.route("secret", "x"))
    port.topics.route("open", "x")


def test_a_user_whose_name_is_no_word_gets_nothing_by_its_name(people: Broker) -> None:
    """A name may have dots, and would be more than one word of a place."""
    add_user(people, "ann.smith")
    allow(people, "ann.smith", "publish,create", "fleet.{user}.#")
    allow(people, "ann.smith", "publish,create", "parks.#")
    deny(people, "ann.smith", "publish", "parks.{user}")
    port = port_of(people, "ann.smith")
    for topic, tag in (("fleet", "ann.smith"), ("fleet", "ann"), ("parks", "any")):
        forbidden(partial(port.topics.route, topic, tag))
    port.topics.route("parks", "any.place")


def test_a_delayed_message_needs_the_right_when_it_is_sent(people: Broker) -> None:
    """Not when it is due: it was accepted, and comes although its sender is gone."""
    allow(people, "ann", "publish,create", "a")
    port = port_of(people, "ann")
    template = template_of(port, "a")
    port.delays.publish_later(template, batch_of(b"1"), 0, 1, delay_ms=5_000)
    people.engine.users.delete("ann")
    forbidden(lambda: port.delays.publish_later(template, batch_of(b"2"), 0, 1, delay_ms=5_000))
    people.step(6)
    people.step()
    info = people.port.topics.info("a")
    assert info is not None
    assert info.max_offsets == (1,)


def test_binding_needs_the_right_to_what_the_binding_brings(people: Broker) -> None:
    """And to make the queue; what others bound to it is not the binder's to read."""
    for topic in ("orders", "news"):
        people.publish(people.template(topic, "eu"), b"0")
    people.port.queues.declare(
        "work", durable=True, exclusive=False, auto_delete=False, arguments={}, owner=None
    )
    people.port.exchanges.bind_queue("work", "orders", "#", {}, owner=None)
    port = port_of(people, "ann")

    def bind() -> object:
        return port.exchanges.bind_queue("work", "news", "eu", {}, owner=None)

    allow(people, "ann", "subscribe", "news.eu")
    assert "create work" in forbidden(bind)
    allow(people, "ann", "create", "work")
    bind()
    forbidden(lambda: port.exchanges.bind_queue("work", "news", "#", {}, owner=None))
    forbidden(lambda: port.queues.consume("work", SpyConsumer(), exclusive=False, owner=None))
