"""Users and rules of a `Broker`, without the seconds that hashing many passwords would take."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from polymq.broker.accounts.passwords import make_hash
from polymq.broker.accounts.permissions import Action, Effect, Rule, parse_pattern
from polymq.broker.port import BrokerPort, Reason, Refused, Session, Template
from tests.harness.broker import Broker, SpyLink

PASSWORD = b"correct horse"


@cache
def hash_of(password: bytes = PASSWORD) -> str:
    return make_hash(password, b"salt" * 4)


def add_user(broker: Broker, name: str, *roles: str, password: bytes = PASSWORD) -> None:
    broker.engine.users.add(name, hash_of(password), roles)


def rule(effect: Effect, subject: str, actions: str, topic: str) -> list[Rule]:
    return [
        Rule(
            subject=subject,
            effect=effect,
            action=Action(action),
            pattern=parse_pattern(topic),
        )
        for action in actions.split(",")
    ]


def allow(broker: Broker, subject: str, actions: str, topic: str) -> None:
    for one in rule(Effect.ALLOW, subject, actions, topic):
        broker.engine.users.add_rule(one)


def deny(broker: Broker, subject: str, actions: str, topic: str) -> None:
    for one in rule(Effect.DENY, subject, actions, topic):
        broker.engine.users.add_rule(one)


def take_back(
    broker: Broker, subject: str, actions: str, topic: str, effect: Effect = Effect.ALLOW
) -> None:
    for one in rule(effect, subject, actions, topic):
        broker.engine.users.remove_rule(one)


def login(
    broker: Broker, user: str | None, password: bytes | None = PASSWORD, address: str = "10.0.0.1"
) -> list[str | Refused]:
    """The answer, as soon as there is one."""
    answers: list[str | Refused] = []
    broker.port.admission.authenticate(user, password, address, answers.append)
    return answers


def port_of(broker: Broker, user: str, client_id: str | None = None) -> BrokerPort:
    return broker.port.admission.for_principal(user, client_id)


def template_of(
    port: BrokerPort, topic: str, tag: str | None = None, *, retain: bool = False
) -> Template:
    route = port.topics.route(topic, tag)
    return port.topics.template(
        route, properties={"PMQ_PROTO": "mqtt", "PMQ_QOS": "1"}, retain=retain
    )


def forbidden(operation: Callable[[], object]) -> str:
    """The operation is refused for want of a right. Returns the words."""
    with pytest.raises(Refused) as caught:
        operation()
    assert caught.value.reason is Reason.FORBIDDEN, caught.value.text
    return caught.value.text


def connect(
    port: BrokerPort, broker: Broker, client: str, *, clean: bool = False, user: str = "ann"
) -> tuple[Session, SpyLink]:
    """A session over MQTT that goes on with what it had."""
    link = SpyLink()
    session = port.sessions.connect(
        client, clean=clean, expiry_seconds=0 if clean else None, link=link, principal=user
    )
    broker.step()
    session.resume()
    broker.step()
    return session, link


def publish(broker: Broker, topic: str, tag: str | None, *bodies: bytes) -> None:
    """As root, without checks in the way."""
    broker.publish(broker.template(topic, tag), *bodies)
    broker.step()
