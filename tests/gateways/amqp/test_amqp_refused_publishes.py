"""A publish that is refused leaves nothing behind: no topic of its routing key, and no message."""

from __future__ import annotations

from typing import Any

import pytest

from polymq.broker.accounts.permissions import Effect
from polymq.gateways.amqp import spec
from tests.gateways.amqp import amqp_wire as wire
from tests.gateways.amqp.amqp_harness import Bench, Peer, answer
from tests.harness.people import add_user, rule

OWN_TOPICS = {"public"}


@pytest.fixture
def peer(bench: Bench) -> Peer:
    """A client that may publish everywhere below `public` and `new`, and create both."""
    users = bench.broker.engine.users
    add_user(bench.broker, "guest", password=b"guest")
    for topic in ("public/#", "new/#"):
        for one in rule(Effect.ALLOW, "guest", "publish,create", topic):
            users.add_rule(one)
    bench.broker.port.topics.create("public", 1)
    made = bench.peer(1)
    bench.step(1.0)
    return made


def topics(bench: Bench) -> set[str]:
    bench.step()
    return {topic.name for topic in bench.broker.port.topics.infos()}


def message(key: str, **properties: Any) -> bytes:
    return wire.publish(1, "amq.topic", key, b"m", properties=wire.properties(**properties))


REFUSED: dict[str, tuple[int, dict[str, Any]]] = {
    "a copy to where it may not go": (403, {"headers": {"CC": ["secret.x"]}}),
    "a hidden copy": (403, {"headers": {"BCC": ["secret.x"]}}),
    "copies that are no list": (406, {"headers": {"CC": "secret.x"}}),
    "a time to live that is none": (406, {"expiration": "soon"}),
    "another user": (406, {"user_id": "root"}),
    "an answer that nobody waits for": (406, {"reply_to": "amq.rabbitmq.reply-to"}),
    "headers beyond the limit": (406, {"headers": {"x": "y" * 131_042}}),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("where", ["first", "behind others", "before others"])
def test_a_refused_publish_makes_no_topic(bench: Bench, peer: Peer, case: str, where: str) -> None:
    """Alone or in one read with good ones: those before it count, those behind it do not."""
    code, properties = REFUSED[case]
    parts = [message("new.eu", **properties)]
    if where == "behind others":
        parts.insert(0, message("public.eu", expiration="1000") * 3)
    if where == "before others":
        parts.append(message("new.eu", expiration="1000") * 3)
    peer.send(*parts)
    closed = answer(peer, spec.ChannelClose)
    assert isinstance(closed, spec.ChannelClose)
    assert closed.reply_code == code
    assert topics(bench) == OWN_TOPICS
    stored = 3 if where == "behind others" else 0
    assert bench.broker.engine.topics.topic("public").queues[0].visible == stored
