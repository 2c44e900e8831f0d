"""Permissions that a service decides topic by topic: when it is asked, how long an answer counts,
and that nothing is allowed without one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from polymq.broker.accounts.outside import Outside
from polymq.broker.accounts.permission_answers import PermissionQuestion, parse_permission
from polymq.broker.accounts.service_answers import BadAnswer, Result
from polymq.broker.accounts.service_calls import ServiceLimits
from polymq.broker.accounts.service_permissions import TOPIC_BYTES_MAX, ServicePermissions
from polymq.broker.admission import asking
from polymq.broker.admission.permitted_port import PermittedPort
from polymq.broker.port import (
    REST,
    RIGHTS_UNKNOWN,
    AskedAs,
    BrokerPort,
    Reason,
    Refused,
    SubscriptionOptions,
    Template,
    Unanswered,
    Will,
)
from polymq.broker.port.values import Address
from polymq.gateways.mqtt.mapping import broker_name
from tests.harness.broker import Broker, SpyLink
from tests.harness.people import add_user, allow, deny, forbidden, publish, take_back, template_of

LIMITS = ServiceLimits(
    calls_max=20,
    waiting_max=40,
    wait_seconds_max=5,
    cache_max=100,
    cache_seconds=60,
    denied_cache_seconds=5,
)
FILTER: Address = ("a", REST)


class SpyService:
    """Remembers what it is asked, and answers when a test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[PermissionQuestion, Callable[[Result | str], None]]] = []
        self.topics: list[tuple[str, str]] = []
        self.step: Callable[[], None]

    def ask(self, question: PermissionQuestion, answer: Callable[[Result | str], None]) -> None:
        self.asked.append((question, answer))
        self.topics.append((question.action, question.topic))

    def answer(self, result: Result | str) -> None:
        """All that is asked, and what is asked by that."""
        while self.asked:
            self.asked.pop(0)[1](result)
            self.step()


@pytest.fixture
def service() -> SpyService:
    return SpyService()


@pytest.fixture
def house(broker: Broker, service: SpyService) -> Broker:
    """A broker with the user ann, no rules, and a service."""
    add_user(broker, "ann")
    service.step = broker.step
    use(broker, service, LIMITS)
    return broker


def use(broker: Broker, service: SpyService, limits: ServiceLimits) -> ServicePermissions:
    engine = broker.engine
    made = ServicePermissions(
        service=service,
        limits=limits,
        scheduler=broker.loop,
        now=lambda: broker.loop.clock_ms() / 1000,
        secret=b"s" * 32,
        notices=engine.core.notices,
    )
    engine.service_permissions = engine.admission._permissions = made
    return made


def port_of(broker: Broker, client_id: str = "c", user: str = "ann") -> PermittedPort:
    asked_as = AskedAs(
        user=user, client_id=client_id, address="10.0.0.1", mount_point="", name_of=broker_name
    )
    port = broker.port.admission.for_principal(user, client_id, asked_as=asked_as)
    assert isinstance(port, PermittedPort)
    return port


def ask(port: BrokerPort, operation: Callable[[], object]) -> list[Any]:
    """What the operation needs is asked. Returns the answers, when they come; they are in hand."""
    found: list[Any] = []
    with pytest.raises(Unanswered) as caught:
        operation()

    def answered(answers: Any) -> None:
        found.append(answers)
        port.principal.know(answers)

    port.principal.ask([caught.value.wanted], answered)
    return found


def undecided(operation: Callable[[], object]) -> None:
    with pytest.raises(Refused) as caught:
        operation()
    assert not isinstance(caught.value, Unanswered)
    assert caught.value.reason is Reason.UNDECIDED


def is_valid(template: Template) -> bool:
    return template.valid


def test_a_server_with_a_service_is_not_open(service: SpyService) -> None:
    assert Outside(permission_service=service).outsiders
    assert not Outside().outsiders


def test_an_answer_counts_for_its_time(house: Broker, service: SpyService) -> None:
    port = port_of(house)
    ask(port, lambda: template_of(port, "a", "x"))
    assert service.topics == [("publish", "a/x")]
    service.answer(Result.ALLOW)
    port.principal.know(None)
    template = template_of(port, "a", "x")
    template_of(port_of(house), "a", "x")  # the same client, with another connection
    house.loop.run(59.9)
    assert is_valid(template)
    house.loop.run(0.2)
    assert not is_valid(template)
    ask(port, lambda: template_of(port, "a", "x"))
    service.answer(Result.DENY)
    port.principal.know(None)
    forbidden(lambda: template_of(port, "a", "x"))
    house.loop.run(5.1)
    ask(port, lambda: template_of(port, "a", "x"))
    assert len(service.topics) == 3


def test_answers_are_of_one_client_and_one_topic(house: Broker, service: SpyService) -> None:
    port = port_of(house)
    ask(port, lambda: template_of(port, "a", "x"))
    service.answer(Result.ALLOW)
    for other, topic, tag in (
        (port, "a", "y"),
        (port, "a", "x/y"),
        (port, "a.x", None),
        (port, "a/x", None),
        (port_of(house, "other"), "a", "x"),
    ):
        ask(other, lambda other=other, topic=topic, tag=tag: template_of(other, topic, tag))  # type: ignore[misc]
    assert len(set(service.topics)) == 5
    assert len(service.asked) == 5


def test_rules_are_enough(house: Broker, service: SpyService) -> None:
    allow(house, "ann", "publish,create,subscribe", "mine.#")
    deny(house, "ann", "publish,subscribe", "closed.#")
    port = port_of(house)
    template_of(port, "mine", "x")
    forbidden(lambda: template_of(port, "closed", "x"))
    forbidden(lambda: port.principal.check_read(("closed", "x")))
    forbidden(lambda: port.principal.check_read((REST,)))
    forbidden(lambda: port.principal.check_read(("$SYS", REST)))
    forbidden(lambda: port.principal.check_admin((REST,)))
    assert port.principal.wanted_read(("mine", REST)) is None
    assert port.principal.wanted_publish("closed", "x") is None
    assert service.topics == []
    ask(port, lambda: template_of(port, "else", "x"))
    service.answer(Result.ALLOW)
    template = template_of(port, "else", "x")
    deny(house, "ann", "publish", "else.#")
    assert not template.valid
    forbidden(lambda: template_of(port, "else", "x"))


def test_what_is_not_answered_is_refused_and_asked_again(
    house: Broker, service: SpyService
) -> None:
    port = port_of(house)
    for failure in ("it answers with status 500", "there is no whole answer"):
        ask(port, lambda: template_of(port, "a", "x"))
        service.answer(failure)
        undecided(lambda: template_of(port, "a", "x"))
        port.principal.know(None)
    ask(port, lambda: template_of(port, "a", "x"))
    service.answer(Result.IGNORE)
    forbidden(lambda: template_of(port, "a", "x"))
    found = house.engine.service_permissions
    assert found is not None
    assert found.counts == {"allow": 0, "deny": 0, "ignore": 1, "failed": 2, "not_asked": 0}


def test_without_a_memory_an_answer_counts_once(house: Broker, service: SpyService) -> None:
    limits = ServiceLimits(cache_seconds=0, denied_cache_seconds=0)
    use(house, service, limits)
    port = port_of(house)
    ask(port, lambda: template_of(port, "a", "x"))
    service.answer(Result.ALLOW)
    assert not template_of(port, "a", "x").valid
    port.principal.know(None)
    ask(port, lambda: template_of(port, "a", "x"))


def test_answers_that_are_dropped(house: Broker, service: SpyService) -> None:
    port = port_of(house)
    ask(port, lambda: template_of(port, "a", "x"))
    service.answer(Result.ALLOW)
    template = template_of(port, "a", "x")
    ask(port, lambda: template_of(port, "b"))
    found = house.engine.service_permissions
    assert found is not None
    found.forget_all()
    assert not template.valid
    service.answer(Result.ALLOW)  # to what was asked before: it counts for who waits, once
    assert not template_of(port, "b").valid
    port.principal.know(None)
    for topic in ("a", "b"):
        ask(port, lambda topic=topic: template_of(port, topic))  # type: ignore[misc]


def test_a_client_has_few_questions_at_a_time(house: Broker, service: SpyService) -> None:
    port = port_of(house)
    wanted = [port.principal.wanted_publish("a", str(number)) for number in range(50)]
    found: list[Any] = []
    port.principal.ask(wanted, found.append)
    assert len(service.asked) == asking.ASKED_AT_ONCE
    service.asked.pop(0)[1](Result.ALLOW)
    assert len(service.asked) == asking.ASKED_AT_ONCE
    while not found:
        service.answer(Result.ALLOW)
        house.step()
    assert len(found[0]) == len(service.topics) == 50


def test_who_goes_takes_its_questions_back(house: Broker, service: SpyService) -> None:
    use(house, service, ServiceLimits(calls_max=1))
    port = port_of(house)
    wanted = [port.principal.wanted_publish("a", str(number)) for number in range(50)]
    found: list[Any] = []
    end = port.principal.ask(wanted, found.append)
    end()
    permissions = house.engine.service_permissions
    assert permissions is not None
    assert permissions.waiting_count == 0
    service.answer(Result.ALLOW)
    house.step()
    assert (found, len(service.topics), permissions.calling) == ([], 1, 0)


def test_a_crowd_is_refused(house: Broker, service: SpyService) -> None:
    """No more wait than may; who finds no room is not allowed anything."""
    limits = ServiceLimits(calls_max=1, waiting_max=4)
    permissions = use(house, service, limits)
    answers: list[Any] = []
    for number in range(20):
        port = port_of(house, f"c{number}")
        wanted = [port.principal.wanted_publish("a", None)]
        port.principal.ask(wanted, answers.append)
    house.step()
    assert permissions.waiting_count == 4
    assert len(answers) == 15
    assert {answer.said.name for found in answers for answer in found.values()} == {"UNKNOWN"}
    assert permissions.counts["not_asked"] == 15


def test_memory_is_bounded(house: Broker, service: SpyService) -> None:
    permissions = use(house, service, ServiceLimits(cache_max=10))
    port = port_of(house)
    for number in range(100):
        ask(port, lambda number=number: template_of(port, "a", str(number)))  # type: ignore[misc]
        service.answer(Result.ALLOW)
    assert len(permissions._known) == 10
    assert not permissions._pending
    long = "x" * TOPIC_BYTES_MAX
    forbidden(lambda: port.principal.check_publish("a", long))
    assert len(service.topics) == 100


# --- sessions --------------------------------------------------------------------------------


def connect(broker: Broker, service: SpyService, client: str = "s", **options: Any) -> Any:
    port = port_of(broker, client)
    link = SpyLink()
    session = port.sessions.connect(
        client, clean=False, expiry_seconds=None, link=link, principal="ann", **options
    )
    broker.step()
    session.resume()
    broker.step()
    return port, session, link


def subscribe(port: BrokerPort, session: Any, service: SpyService, address: Address) -> None:
    options = SubscriptionOptions(qos=1)
    ask(port, lambda: session.subscribe(address, options))
    service.answer(Result.ALLOW)
    session.subscribe(address, options)
    port.principal.know(None)


def test_a_session_comes_back(house: Broker, service: SpyService) -> None:
    port, session, _ = connect(house, service)
    subscribe(port, session, service, FILTER)
    subscribe(port, session, service, ("b",))
    session.disconnect()
    publish(house, "a", "x", b"1")
    publish(house, "b", None, b"2")
    house.loop.run(61)
    _, again, link = connect(house, service)
    assert link.bodies == []
    assert sorted(service.topics[2:]) == [("subscribe", "a/#"), ("subscribe", "b")]
    for question, answer in [*service.asked]:
        answer(Result.ALLOW if question.topic == "b" else Result.DENY)
    house.step()
    house.step()
    assert link.bodies == [b"2"]
    assert list(again.subscriptions) == [("b",)]


def test_a_service_that_fails_costs_a_session_nothing(house: Broker, service: SpyService) -> None:
    port, session, _ = connect(house, service)
    subscribe(port, session, service, FILTER)
    session.disconnect()
    publish(house, "a", "x", b"1")
    house.loop.run(61)
    _, again, link = connect(house, service)
    service.answer("it answers with status 500")
    house.step()
    assert link.expelled_for == RIGHTS_UNKNOWN
    again.disconnect()
    _, again, link = connect(house, service)
    service.answer(Result.ALLOW)
    house.step()
    house.step()
    assert link.bodies == [b"1"]
    assert list(again.subscriptions) == [FILTER]


def test_a_client_that_goes_before_its_session_is_known(house: Broker, service: SpyService) -> None:
    port, session, _ = connect(house, service)
    subscribe(port, session, service, FILTER)
    session.disconnect()
    house.loop.run(61)
    _, again, link = connect(house, service)
    again.disconnect()
    service.answer(Result.DENY)
    house.step()
    assert (link.expelled_for, list(again.subscriptions)) == ("", [FILTER])


def test_rules_that_change_meanwhile(house: Broker, service: SpyService) -> None:
    """What the service has allowed stays until a rule denies it; what a rule has allowed ends with
    the rule."""
    port, session, link = connect(house, service)
    subscribe(port, session, service, FILTER)
    allow(house, "ann", "subscribe", "b.#")
    session.subscribe(("b", REST), SubscriptionOptions(qos=1))
    house.loop.run(61)
    allow(house, "ann", "subscribe", "c.#")
    assert link.expelled_for == ""
    take_back(house, "ann", "subscribe", "b.#")
    assert "may no longer read" in link.expelled_for
    session.unsubscribe(("b", REST))
    link.expelled_for = ""
    allow(house, "ann", "subscribe", "d.#")
    assert link.expelled_for == ""
    deny(house, "ann", "subscribe", "a.secret")
    assert "may no longer read" in link.expelled_for


def test_a_will_has_its_right(house: Broker, service: SpyService) -> None:
    port, session, _ = connect(house, service, "w")
    will = Will(topic="a", tag="will", body=b"gone", qos=1, retain=False)
    with pytest.raises(Unanswered):
        session.set_will(will)
    ask(port, lambda: port.principal.check_publish("a", "will"))
    service.answer(Result.ALLOW)
    session.set_will(will)
    port.principal.know(None)
    house.loop.run(61)
    session.disconnect()
    house.step()
    wills = house.engine.sessions.wills
    assert (wills.published_count, wills.lost_count) == (1, 0)


# --- questions and answers -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "result"),
    [
        (b'{"result": "allow"}', Result.ALLOW),
        (b'{"result": "deny"}', Result.DENY),
        (b'{"result": "ignore"}', Result.IGNORE),
        (b'{"result": "ALLOW"}', None),
        (b'{"result": true}', None),
        (b'{"result": "allow", "ttl": 5}', None),
        (b'["allow"]', None),
        (b"allow", None),
        (b"{}", None),
        (b"", None),
        (b"\xff", None),
        (b"[" * 60_000, None),
    ],
)
def test_answers(content: bytes, result: Result | None) -> None:
    if result is None:
        with pytest.raises(BadAnswer):
            parse_permission(content)
    else:
        assert parse_permission(content) is result


def test_names_of_addresses_differ() -> None:
    addresses: list[Address] = [
        ("a", "b"), ("a/b",), ("a.b",), ("a", "b/c"), ("a", "b", "c"), ("a", ""), ("a",), ("", "a"),
        ("a", "+"), ("a", "\x00*"), ("a", "#"), ("a", REST), ("+", "a"), ("\x00*", "a"), (REST,),
        ("#",), ("a", "|2b"), ("a|2fb",),
    ]  # fmt: skip
    names = [broker_name(address) for address in addresses]
    assert len(set(names)) == len(names)
    assert names[:4] == ["a/b", "a|2fb", "a.b", "a/b.c"]
