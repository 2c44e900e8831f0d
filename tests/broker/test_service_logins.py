"""Logins that a service decides: what is asked and remembered, and that nobody comes in without an
answer."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from polymq.broker.accounts import service_calls
from polymq.broker.accounts.granting import GrantedPrincipal, parse_permissions
from polymq.broker.accounts.login_answers import Question, Verdict
from polymq.broker.accounts.service_answers import Result
from polymq.broker.accounts.service_calls import ServiceLimits
from polymq.broker.accounts.service_logins import ServiceLogins
from polymq.broker.port import LOGIN_EXPIRED, Origin, Reason, Refused
from tests.harness.broker import START_MS, Broker, SpyLink, at_qos
from tests.harness.people import PASSWORD, add_user, deny, forbidden, port_of, template_of

NOW = START_MS / 1000
DENIED = Verdict(result=Result.DENY)
IGNORED = Verdict(result=Result.IGNORE)
LIMITS = ServiceLimits(
    calls_max=2, waiting_max=4, wait_seconds_max=5, cache_max=3, denied_cache_seconds=5
)


def allowed(user: str = "ann", seconds: float | None = None) -> Verdict:
    rules = parse_permissions({"all": ["a/#"]}, user)
    return Verdict(result=Result.ALLOW, rules=rules, seconds=seconds)


class SpyService:
    """Remembers what it is asked. A test answers."""

    def __init__(self) -> None:
        self.asked: list[tuple[Question, Callable[[Verdict | str], None]]] = []
        self.count = 0
        self.step: Callable[[], None]

    def ask(self, question: Question, answer: Callable[[Verdict | str], None]) -> None:
        self.asked.append((question, answer))
        self.count += 1

    def answer(self, verdict: Verdict | str) -> None:
        self.asked.pop(0)[1](verdict)
        self.step()


@pytest.fixture
def service() -> SpyService:
    return SpyService()


@pytest.fixture
def house(broker: Broker, service: SpyService) -> Broker:
    """A broker without users, and with a service."""
    engine = broker.engine
    service.step = broker.step
    engine.users.outsiders = True
    engine.service_logins = engine.admission._service_logins = ServiceLogins(
        service=service,
        limits=LIMITS,
        logins=engine.logins,
        scheduler=broker.loop,
        now=lambda: broker.loop.clock_ms() / 1000,
        secret=b"s" * 32,
    )
    return broker


def ask(
    broker: Broker,
    user: str = "ann",
    password: bytes = b"pw",
    address: str = "10.0.0.1",
    client: str = "",
) -> tuple[list[str | Refused], Callable[[], None]]:
    """The answers that come, and what says that the client has gone."""
    answers: list[str | Refused] = []
    origin = Origin(protocol="mqtt", client_id=client)
    return answers, broker.port.admission.authenticate(
        user, password, address, answers.append, origin
    )


def login(broker: Broker, user: str = "ann", password: bytes = b"pw") -> list[str | Refused]:
    return ask(broker, user, password)[0]


def reason_of(answers: list[str | Refused]) -> Reason:
    assert len(answers) == 1
    assert isinstance(answers[0], Refused)
    return answers[0].reason


def logins_of(broker: Broker) -> ServiceLogins:
    found = broker.engine.service_logins
    assert found is not None
    return found


def test_who_is_allowed_has_what_was_granted(house: Broker, service: SpyService) -> None:
    answers = login(house)
    assert answers == []
    service.answer(allowed())
    assert answers == ["ann"]
    (principal,) = answers
    assert isinstance(principal, GrantedPrincipal)
    port = port_of(house, principal)
    assert port is port_of(house, principal)
    template_of(port, "a", "x")
    forbidden(lambda: template_of(port, "b", "x"))
    forbidden(lambda: template_of(port_of(house, "ann"), "a", "x"))


def test_who_is_denied_or_not_answered_stays_out(house: Broker, service: SpyService) -> None:
    denied, failed = login(house), login(house, "bob")
    service.answer(DENIED)
    service.answer("it answers with status 500")
    assert reason_of(denied) is Reason.NOT_AUTHENTICATED
    assert reason_of(failed) is Reason.LIMIT
    logins = house.engine.logins
    assert (logins.failed_count, logins.refused_count) == (1, 1)
    again = login(house, "bob")  # a failure is not remembered
    service.answer(allowed("bob"))
    assert again == ["bob"]
    assert logins_of(house).counts == {
        "allow": 1, "deny": 1, "ignore": 0, "failed": 1, "not_asked": 0,
    }  # fmt: skip


def test_the_stored_users_decide_what_is_ignored(house: Broker, service: SpyService) -> None:
    add_user(house, "ann")
    for password, right in ((PASSWORD, True), (b"wrong", False)):
        answers = login(house, "ann", password)
        service.answer(IGNORED)
        house.step()
        if right:
            assert answers == ["ann"]
            assert not isinstance(answers[0], GrantedPrincipal)
        else:
            assert reason_of(answers) is Reason.NOT_AUTHENTICATED


def test_a_stored_user_counts_beside_the_answer(house: Broker, service: SpyService) -> None:
    add_user(house, "ann")
    answers = login(house)
    service.answer(allowed())
    (principal,) = answers
    assert isinstance(principal, str)
    port = port_of(house, principal)
    template_of(port, "a", "x")
    deny(house, "ann", "publish", "a.x")
    forbidden(lambda: template_of(port, "a", "x"))
    house.engine.users.set_disabled("ann", True)
    assert reason_of(login(house)) is Reason.NOT_AUTHENTICATED  # from memory


def test_answers_are_remembered_for_their_time(house: Broker, service: SpyService) -> None:
    """Each for all that was asked; what is denied for a shorter time; and no longer than the
    answer says."""
    for verdict, seconds in (
        (allowed(), 60),
        (allowed(seconds=10), 10),
        (DENIED, 5),
        (IGNORED, 60),
    ):
        first = login(house)
        service.answer(verdict)
        house.step(seconds - 1)
        count = service.count
        assert len(login(house)) == len(first) == 1
        assert service.count == count
        house.step(2)
        login(house)
        assert service.count == count + 1
        service.answer("")
        house.step(3600)
    for user, password, address, client in (
        ("ann", b"pw", "10.0.0.1", ""),
        ("ann", b"p", "10.0.0.1", ""),
        ("an", b"npw", "10.0.0.1", ""),
        ("ann", b"pw", "10.0.0.2", ""),
        ("ann", b"pw", "10.0.0.1", "c"),
    ):
        count = service.count
        ask(house, user, password, address, client)
        assert service.count == count + 1
        service.answer(allowed(user))


def test_memory_is_bounded_and_knows_no_password(
    house: Broker, service: SpyService, monkeypatch: pytest.MonkeyPatch
) -> None:
    logins = logins_of(house)
    for number in range(10):
        login(house, f"user{number}", b"secret")
        service.answer(allowed(f"user{number}"))
    assert len(logins._known) == LIMITS.cache_max
    assert logins._weight == 9
    assert logins._pending == {}
    assert b"secret" not in repr(logins._known).encode()
    monkeypatch.setattr(ServiceLogins, "weight_max", 7)
    login(house, "last")
    service.answer(allowed("last"))
    assert logins._weight == 3 * len(logins._known) == 6
    assert login(house, "last") == ["last"]


def test_the_same_login_by_many_is_asked_once(house: Broker, service: SpyService) -> None:
    many = [ask(house) for _ in range(4)]
    assert service.count == 1
    many[0][1]()
    service.answer(allowed())
    assert [answers for answers, _ in many] == [[], ["ann"], ["ann"], ["ann"]]


def test_many_are_answered_in_steps(house: Broker, service: SpyService) -> None:
    """Those of one question, and those of many that are given up together. No more in one iteration
    of the loop, whatever becomes of them meanwhile."""
    many = [ask(house) for _ in range(100)]
    service.asked.pop()[1](allowed())
    known = [answers for answers, _ in many if answers]
    assert len(known) == service_calls.ANSWERED_AT_ONCE
    unknown = [(answers, gone) for answers, gone in many if not answers]
    unknown[0][1]()
    house.step()
    assert unknown[0][0] == []
    assert [answers for answers, _ in unknown[1:]] == [["ann"]] * (99 - len(known))
    wrong = [ask(house, "bob") for _ in range(20)]
    service.answer(DENIED)
    assert {reason_of(answers) for answers, _ in wrong} == {Reason.NOT_AUTHENTICATED}
    bob = ask(house, "bob", b"another")[0]  # they were one guess
    service.answer(allowed("bob"))
    assert bob == ["bob"]


def test_many_that_waited_too_long_are_answered_in_steps(
    house: Broker, service: SpyService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_calls, "ANSWERED_AT_ONCE", 2)
    waiting = [ask(house, f"user{number}")[0] for number in range(6)]
    house.step(6)
    service.asked.pop(0)[1]("it hangs")
    counts = [sum(map(len, waiting))]
    while house.loop.step():
        counts.append(sum(map(len, waiting)))
    assert counts[0] == 1
    assert counts[-1] == 5
    assert all(after - before <= 2 for before, after in pairwise(counts))
    service.answer("it hangs")
    assert [reason_of(answers) for answers in waiting] == [Reason.LIMIT] * 6


def test_so_many_are_asked_and_so_many_wait(house: Broker, service: SpyService) -> None:
    """What waits too long, or has no room, is refused and may come again. Whoever has gone is not
    asked about."""
    logins = logins_of(house)
    waiting = [ask(house, f"user{number}", address=f"10.0.0.{number}") for number in range(7)]
    assert (service.count, logins.calling, logins.waiting_count) == (2, 2, 4)
    assert reason_of(waiting[6][0]) is Reason.LIMIT
    waiting[2][1]()
    assert logins.waiting_count == 3
    service.answer(allowed("user0"))
    assert service.asked[-1][0].user == "user3"
    house.step(6)
    service.answer(allowed("user1"))
    assert [reason_of(waiting[number][0]) for number in (4, 5)] == [Reason.LIMIT] * 2
    service.answer(allowed("user3"))
    assert (logins.calling, logins.waiting_count, logins._pending) == (0, 0, {})
    assert waiting[2][0] == []
    assert waiting[3][0] == ["user3"]
    assert logins.counts["not_asked"] == 3
    assert house.engine.logins._trying == {}


def test_guesses_are_slowed(house: Broker, service: SpyService) -> None:
    """As those of passwords; also those whose clients do not wait for the answer."""
    for number in range(5):
        _, gone = ask(house, "ann", b"%d" % number)
        gone()
        service.answer(DENIED)
    held, refused = login(house, "ann", b"5"), login(house, "ann", b"6")
    assert service.asked == []
    assert reason_of(refused) is Reason.LIMIT
    house.step(1)
    service.answer(allowed())
    assert held == ["ann"]


@pytest.mark.parametrize(
    ("user", "password"),
    [("a b", b"pw"), ("anonymous", b"pw"), ("ann", b"\xff"), ("ann", b"x" * 9_000)],
)
def test_what_cannot_be_asked_is_wrong(
    house: Broker, service: SpyService, user: str, password: bytes
) -> None:
    assert reason_of(login(house, user, password)) is Reason.NOT_AUTHENTICATED
    assert service.count == 0


def test_a_login_ends_when_the_answer_says(house: Broker, service: SpyService) -> None:
    answers = login(house)
    service.answer(allowed(seconds=10))
    (principal,) = answers
    assert isinstance(principal, str)
    ends: list[str] = []
    port_of(house, principal).principal.enter(ends.append)
    house.step(9)
    assert ends == []
    house.step(2)
    assert ends == [LOGIN_EXPIRED]


def test_what_was_granted_is_not_kept_when_its_client_has_gone(
    house: Broker, service: SpyService
) -> None:
    """A session of a device that is away has the name, and not hundreds of rules."""

    def remaining() -> list[str]:
        sessions, admission = house.engine.sessions, house.engine.admission
        names = [*sessions.counts, *sessions.subscription_counts, *admission._counts]
        return names + [session.principal for session in sessions.by_client.values()]

    answers = login(house)
    service.answer(allowed())
    (principal,) = answers
    assert isinstance(principal, GrantedPrincipal)
    port = port_of(house, principal)
    for present in (False, True):
        leave = port.principal.enter(lambda _: None)
        session = port.sessions.connect(
            "c", clean=False, expiry_seconds=None, link=SpyLink(), principal=principal
        )
        assert session.present == present
        session.subscribe(("a",), at_qos(1))
        assert [type(name) for name in remaining()] == [str, str, str, GrantedPrincipal]
        session.disconnect()
        leave()
        assert [type(name) for name in remaining()] == [str, str, str]


def test_nobody_comes_in_by_the_service_who_names_nobody(house: Broker) -> None:
    answers: list[str | Refused] = []
    house.port.admission.authenticate(None, None, "10.0.0.1", answers.append)
    assert reason_of(answers) is Reason.NOT_AUTHENTICATED
