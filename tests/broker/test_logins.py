"""Who is let in: passwords, the cache, the price of guessing, and who nobody is."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from polymq.broker.accounts import passwords
from polymq.broker.accounts.logins import Logins
from polymq.broker.accounts.users import Users
from polymq.broker.port import Reason, Refused
from polymq.net.newcomers import network_of
from tests.harness.broker import Broker
from tests.harness.people import PASSWORD, add_user, allow, hash_of, login

WRONG = "user or password is wrong"
Gone = Callable[[], None]


def refusal(answers: list[str | Refused]) -> Refused:
    assert len(answers) == 1, answers
    assert isinstance(answers[0], Refused)
    return answers[0]


# --- passwords ------------------------------------------------------------------------------


def test_a_hash_keeps_its_parameters_and_its_salt() -> None:
    one, other = (passwords.make_hash(b"secret", bytes([salt]) * 16) for salt in (1, 2))
    assert one.startswith("scrypt$16384$8$1$")
    assert one != other
    assert passwords.is_right(b"secret", one)
    assert not passwords.is_right(b"Secret", one)
    assert not passwords.is_right(b"", one)
    assert b"secret" not in one.encode()


@pytest.mark.parametrize("password", [b"secret\x00", b"secret\x00\x00", b"secret" * 1000])
def test_what_only_hmac_takes_for_the_same_is_wrong(password: bytes) -> None:
    """HMAC pads its key with NULs, so scrypt alone cannot tell `secret` from `secret\\0`."""
    assert not passwords.is_right(password, hash_of(b"secret"))
    assert not passwords.is_right(password, hash_of((b"secret" * 1000)[:1024]))


@pytest.mark.parametrize(
    "stored", ["", "x", "scrypt$a$8$1$AA==$AA==", "md5$1$1$1$AA==$AA==", "scrypt$16384$8$1$!$!"]
)
def test_a_hash_that_cannot_be_read_is_wrong_for_everybody(stored: str) -> None:
    assert not passwords.is_right(b"", stored)
    assert not passwords.is_right(b"secret", stored)


def test_a_hash_that_asks_for_much_memory_is_not_followed() -> None:
    assert not passwords.is_right(b"x", hash_of(b"x").replace("$16384$", "$1073741824$"))


@pytest.mark.parametrize("password", [b"", b"a\x00b", b"x" * 1025])
def test_what_cannot_be_a_password(broker: Broker, password: bytes) -> None:
    answers: list[str | Refused] = []
    broker.engine.logins.hash_new(password, bytes(16), answers.append)
    assert refusal(answers).reason is Reason.BAD_ARGUMENT


# --- who nobody is ----------------------------------------------------------------------------


def test_without_users_everybody_is_who_they_say(broker: Broker) -> None:
    assert login(broker, "ann", b"whatever") == ["ann"]
    assert login(broker, None, None) == ["anonymous"]
    assert broker.port.admission.for_principal("ann") is broker.port


def test_the_first_user_closes_the_listener(broker: Broker) -> None:
    """And tells those that came in before it."""
    reported: list[str] = []
    broker.port.principal.enter(reported.append)
    add_user(broker, "ann")
    assert reported == ["this server has users from now on: log in"]
    assert refusal(login(broker, None, None)).reason is Reason.NOT_AUTHENTICATED
    assert refusal(login(broker, "bob", b"x")).text == WRONG
    assert login(broker, "ann") == ["ann"]
    assert broker.port.admission.for_principal("ann") is not broker.port


def test_a_rule_for_anonymous_lets_nobodies_in(broker: Broker) -> None:
    add_user(broker, "ann")
    allow(broker, "role:anonymous", "subscribe", "news.#")
    assert login(broker, None, None) == ["anonymous"]
    port = broker.port.admission.for_principal("anonymous")
    port.principal.check_read(("news", "x"))
    with pytest.raises(Refused):
        port.principal.check_read(("orders",))
    # Who names a user has to be it, whatever nobodies may.
    assert refusal(login(broker, "ann", b"wrong")).text == WRONG
    assert refusal(login(broker, "anonymous", b"")).text == WRONG


def test_a_listener_to_the_outside_lets_nobody_in_before_there_are_users(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data")
    broker.engine.admission._strangers = False
    refused = refusal(login(broker, None, None))
    assert refused.reason is Reason.NOT_AUTHENTICATED
    assert "polymq user add" in refused.text
    assert refusal(login(broker, "ann", b"x")).reason is Reason.NOT_AUTHENTICATED
    with pytest.raises(Refused):
        broker.port.admission.for_principal("anonymous").principal.check_read(("a",))
    add_user(broker, "ann")
    assert login(broker, "ann") == ["ann"]
    broker.stop()


# --- right and wrong --------------------------------------------------------------------------


@pytest.mark.parametrize("user", ["ann", "nobody", "", "ann\x00", "ANN", "\udcff", "anonymous"])
@pytest.mark.parametrize(
    "password", [None, b"", b"\x00", b"wrong", PASSWORD + b"\x00", PASSWORD[:-1], b"x" * 70_000]
)
def test_everything_but_the_right_password_is_refused(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, user: str, password: bytes | None
) -> None:
    """The same answer whatever is wrong, and each costs a hash: of the right parameters for who is
    known, of the same ones for who is not."""
    hashed: list[str] = []

    def is_right(_: bytes, stored: str) -> bool:
        hashed.append(stored)
        return False

    monkeypatch.setattr(passwords, "is_right", is_right)
    add_user(broker, "ann")
    assert refusal(login(broker, user, password)).text == WRONG
    assert hashed == [hash_of() if user == "ann" else passwords.UNKNOWN]


def test_the_unknown_users_hash_costs_the_same() -> None:
    assert passwords.UNKNOWN.split("$")[:4] == hash_of().split("$")[:4]
    assert not passwords.is_right(b"", passwords.UNKNOWN)


def test_a_disabled_user_is_as_good_as_unknown(broker: Broker) -> None:
    add_user(broker, "ann")
    assert login(broker, "ann") == ["ann"]
    broker.engine.users.set_disabled("ann", True)
    assert refusal(login(broker, "ann")).text == WRONG  # also from the cache
    broker.engine.users.set_disabled("ann", False)
    assert login(broker, "ann") == ["ann"]


# --- the cache ----------------------------------------------------------------------------


def test_a_login_is_remembered_for_a_minute_and_dropped_on_change(broker: Broker) -> None:
    logins = broker.engine.logins
    add_user(broker, "ann")
    for _ in range(10):
        assert login(broker, "ann") == ["ann"]
    assert logins.hashed_count == 1
    broker.step(61)
    login(broker, "ann")
    assert logins.hashed_count == 2
    broker.engine.users.set_password("ann", hash_of(b"another"))
    assert refusal(login(broker, "ann")).text == WRONG
    assert login(broker, "ann", b"another") == ["ann"]
    assert not any(PASSWORD in key for key in logins._known)


def test_a_name_and_a_password_are_not_run_together(broker: Broker) -> None:
    """`ann` with `bpw` is not `annb` with `pw`."""
    add_user(broker, "ann", password=b"bpw")
    add_user(broker, "annb", password=b"other")
    assert login(broker, "ann", b"bpw") == ["ann"]
    assert refusal(login(broker, "annb", b"pw")).text == WRONG


T = TypeVar("T")


class SlowHashers:
    """Threads that work when the test says so."""

    def __init__(self) -> None:
        self.work: list[Callable[[], None]] = []

    def submit(
        self, read: Callable[[], T], done: Callable[[T | None, Exception | None], None]
    ) -> None:
        self.work.append(lambda: done(read(), None))

    def run(self, count: int = 1_000_000) -> None:
        """Do so much, and what is asked for meanwhile."""
        while self.work and count:
            count -= 1
            self.work.pop(0)()


def slow(broker: Broker) -> SlowHashers:
    hashers = SlowHashers()
    broker.engine.logins._hashers = hashers
    return hashers


def test_a_fleet_that_comes_back_is_hashed_once(broker: Broker) -> None:
    add_user(broker, "ann")
    hashers = slow(broker)
    waiting = [login(broker, "ann") for _ in range(100)]
    assert len(hashers.work) == 1
    hashers.run()
    assert waiting == [["ann"]] * 100


def test_more_logins_than_can_be_hashed_are_told_to_come_again(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data", logins_pending_max=3)
    add_user(broker, "ann")
    hashers = slow(broker)
    waiting = [login(broker, f"user{n}", b"x") for n in range(6)]
    assert [len(answers) for answers in waiting] == [0, 0, 0, 0, 0, 1]  # two are being hashed
    assert refusal(waiting[5]).reason is Reason.LIMIT
    assert broker.engine.logins.refused_count == 1
    hashers.run()
    assert login(broker, "ann") == []
    hashers.run()
    broker.stop()


def test_a_user_that_changes_while_it_is_hashed_is_not_let_in(broker: Broker) -> None:
    add_user(broker, "ann")
    hashers = slow(broker)
    waiting = login(broker, "ann")
    broker.engine.users.set_password("ann", hash_of(b"another"))
    hashers.run()
    assert refusal(waiting).text == WRONG


# --- guessing -----------------------------------------------------------------------------


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes in no time: only how often is of interest."""
    monkeypatch.setattr(passwords, "is_right", lambda password, _: password == PASSWORD)


@pytest.mark.usefixtures("fast")
def test_the_sixth_guess_of_a_minute_waits_and_each_one_longer(broker: Broker) -> None:
    add_user(broker, "ann")
    for number in range(5):
        assert refusal(login(broker, "ann", b"%d" % number)).text == WRONG
    for seconds in (1, 2, 4, 8, 16, 32, 60, 60):
        waiting = login(broker, "ann", b"again")
        assert waiting == []
        # Meanwhile others of this address are refused unseen: also with the right password.
        slowed = refusal(login(broker, "ann"))
        assert slowed.reason is Reason.LIMIT
        assert "was not checked" in slowed.text
        broker.step(seconds - 0.5)
        assert waiting == []
        broker.step(0.5)
        assert refusal(waiting).text == WRONG
    waiting = login(broker, "ann")  # the right one waits as well, and is let in
    broker.step(60)
    assert waiting == ["ann"]


@pytest.mark.usefixtures("fast")
def test_guessing_harms_no_other_address_and_no_other_user(broker: Broker) -> None:
    add_user(broker, "ann")
    add_user(broker, "bob")
    for number in range(5):
        login(broker, "ann", b"%d" % number)
    assert login(broker, "ann", address="10.0.0.2") == ["ann"]
    assert login(broker, "bob") == ["bob"]


@pytest.mark.usefixtures("fast")
def test_a_quiet_minute_is_forgiven(broker: Broker) -> None:
    add_user(broker, "ann")
    for number in range(5):
        login(broker, "ann", b"%d" % number)
    broker.step(61)
    assert login(broker, "ann") == ["ann"]


@pytest.mark.usefixtures("fast")
def test_a_cached_login_does_not_tell_which_guess_is_right(broker: Broker) -> None:
    add_user(broker, "ann")
    assert login(broker, "ann") == ["ann"]
    for number in range(5):
        login(broker, "ann", b"%d" % number)
    assert login(broker, "ann") == []  # it is remembered, and waits all the same


@pytest.mark.usefixtures("fast")
def test_guesses_at_the_same_time_are_counted_too(broker: Broker) -> None:
    add_user(broker, "ann")
    hashers = slow(broker)
    waiting = [login(broker, "ann", b"%d" % number) for number in range(20)]
    assert len(hashers.work) + broker.engine.logins.waiting_count == 5
    assert sum(len(answers) for answers in waiting) == 14  # one waits for its turn
    hashers.run()
    broker.step(1)
    hashers.run()
    reasons = [refusal(answers).reason for answers in waiting]
    assert reasons.count(Reason.NOT_AUTHENTICATED) == 6
    assert reasons.count(Reason.LIMIT) == 14


@pytest.mark.usefixtures("fast")
def test_failures_are_kept_for_so_many_only(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data", login_failures_cached_max=10)
    add_user(broker, "ann")
    for number in range(100):
        login(broker, f"user{number}", b"x")
    assert len(broker.engine.logins._failures) == 10
    broker.stop()


# --- clients that go --------------------------------------------------------------------------


def ask(broker: Broker, user: str, password: bytes = PASSWORD) -> tuple[list[str | Refused], Gone]:
    """A login: its answers, and what says that its client has gone."""
    answers: list[str | Refused] = []
    return answers, broker.port.admission.authenticate(user, password, "10.0.0.1", answers.append)


@pytest.mark.usefixtures("fast")
def test_a_login_whose_client_has_gone_is_not_checked(broker: Broker) -> None:
    """Only what was being hashed is, and counts. The address is not slowed for the others."""
    add_user(broker, "ann")
    logins = broker.engine.logins
    hashers = slow(broker)
    flood = [ask(broker, f"user{number}", b"x") for number in range(200)]
    assert logins.waiting_count == 198
    for _, gone in flood:
        gone()
    assert logins.waiting_count == 0
    assert logins._pending.keys() == {digest_of(logins, "user0"), digest_of(logins, "user1")}
    honest, _ = ask(broker, "ann")
    hashers.run()
    assert honest == ["ann"]
    assert all(answers == [] for answers, _ in flood)
    assert (logins.hashed_count, logins.failed_count, logins.refused_count) == (3, 2, 0)
    assert logins._trying == {}


def digest_of(logins: Logins, user: str) -> bytes:
    return next(digest for digest, found in logins._pending.items() if found.user == user)


@pytest.mark.usefixtures("fast")
def test_one_of_many_that_ask_the_same_goes(broker: Broker) -> None:
    add_user(broker, "ann")
    hashers = slow(broker)
    for number in range(2):
        ask(broker, f"user{number}", b"x")
    (first, gone), (second, _) = ask(broker, "ann"), ask(broker, "ann")
    gone()
    hashers.run()
    assert (first, second) == ([], ["ann"])
    gone()  # once more, and after the answer: nothing happens
    assert broker.engine.logins.waiting_count == 0


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize(("failed_users", "seconds"), [(0, 1.0), (103, 8.0)])
def test_whoever_goes_while_it_is_held_back_leaves_its_place_to_the_next(
    broker: Broker, failed_users: int, seconds: float
) -> None:
    """The pause of a user, or of an address, is not begun again and not cut short."""
    add_user(broker, "ann")
    for _ in range(failed_users):
        logins = broker.engine.logins
        logins._spraying.failed("10.0.0.1", logins._now())
    for number in range(0 if failed_users else 5):
        login(broker, "ann", b"%d" % number)
    held, gone = ask(broker, "ann", b"x")
    assert refusal(ask(broker, "ann")[0]).reason is Reason.LIMIT
    broker.step(0.5)
    gone()
    timers = len(broker.loop._later)
    honest, _ = ask(broker, "ann")
    assert len(broker.loop._later) == timers
    broker.step(seconds - 0.6)
    assert honest == []
    broker.step(0.1)
    assert (held, honest) == ([], ["ann"])


@pytest.mark.usefixtures("fast")
def test_a_pause_that_nobody_waits_for_ends(broker: Broker) -> None:
    add_user(broker, "ann")
    for number in range(5):
        login(broker, "ann", b"%d" % number)
    for number in range(3):
        login(broker, f"user{number}", b"x", "10.0.0.9")
    ask(broker, "ann")[1]()
    broker.step(2)
    failed = broker.engine.logins.failed_count
    held, _ = ask(broker, "ann")
    assert held == []
    broker.step(1)
    assert held == ["ann"]
    assert broker.engine.logins.failed_count == failed


def test_a_password_that_could_not_be_hashed_is_not_wrong(broker: Broker) -> None:
    """There was no memory for it: the client may come again."""
    add_user(broker, "ann")

    class NoMemory:
        def submit(self, read: object, done: Callable[..., None]) -> None:
            done(None, MemoryError("no memory"))

    broker.engine.logins._hashers = NoMemory()
    refused = refusal(login(broker, "ann"))
    assert refused.reason is Reason.LIMIT
    assert "no memory" in refused.text
    assert broker.engine.logins.failed_count == 0


# --- floods -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("fast")
def test_a_flood_from_one_address_delays_others_by_a_turn(broker: Broker) -> None:
    """It has all the room there is; a right login from elsewhere takes the place of its last, and
    is hashed after what is being hashed and one more. The flood is refused at once from then on."""
    add_user(broker, "ann")
    hashers = slow(broker)
    flood = [login(broker, f"user{number}", b"x") for number in range(400)]
    assert broker.engine.logins.waiting_count == 256
    assert sum(len(answers) for answers in flood) == 400 - 258
    assert refusal(flood[-1]).reason is Reason.LIMIT
    honest = login(broker, "ann", address="10.0.0.2")
    assert honest == []
    assert refusal(flood[257]).reason is Reason.LIMIT
    assert broker.engine.logins.waiting_count == 256
    hashers.run(4)
    assert honest == ["ann"]
    hashers.run()


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize(
    "address", ["2001:db8::{}", "2001:db8:0:0:{}::1", "::ffff:10.0.0.1", "10.0.0.1"]
)
def test_a_network_of_ipv6_is_one_address(broker: Broker, address: str) -> None:
    """A host has 64 bits for itself, and could come from another address each time."""
    add_user(broker, "ann")
    hashers = slow(broker)
    for number in range(1, 400):
        login(broker, f"user{number}", b"x", address.format(f"{number:x}"))
    honest = login(broker, "ann", address="2001:db8:0:1::1")
    hashers.run(4)
    assert honest == ["ann"]
    assert network_of("::ffff:10.0.0.1") == network_of("10.0.0.1")
    assert network_of("a name: not an address") == "a name: not an address"
    hashers.run()


@pytest.mark.usefixtures("fast")
def test_who_has_logged_in_before_comes_in_through_a_flood_of_many_addresses(
    broker: Broker,
) -> None:
    """Four hundred addresses have a login each. ann's address is known, so there is room for it;
    its turn comes soon. Those in line have theirs, too."""
    add_user(broker, "ann")
    add_user(broker, "bob")
    login(broker, "ann", address="10.1.0.1")
    broker.step(3600)
    hashers = slow(broker)
    for number in range(400):
        login(broker, f"user{number}", b"x", f"10.0.{number // 250}.{number % 250}")
    known = login(broker, "ann", address="10.1.0.1")
    others = login(broker, "ann", b"wrong", address="10.1.0.2")  # another address is not known
    newcomer = login(broker, "bob", address="10.1.0.1")
    assert refusal(others).reason is Reason.LIMIT
    assert refusal(newcomer).reason is Reason.LIMIT
    hashers.run(4)
    assert known == ["ann"]
    hashers.run()


@pytest.mark.usefixtures("fast")
def test_logins_of_the_known_do_not_keep_others_out(broker: Broker) -> None:
    """A fleet that comes back is served three times as often, not alone."""
    for number in range(100):
        add_user(broker, f"device{number}")
        login(broker, f"device{number}")
    add_user(broker, "ann")
    broker.step(3600)
    hashers = slow(broker)
    fleet = [login(broker, f"device{number}") for number in range(100)]
    newcomer = login(broker, "ann", address="10.0.0.2")
    hashers.run(8)
    assert newcomer == ["ann"]
    hashers.run()
    assert fleet == [[f"device{number}"] for number in range(100)]


@pytest.mark.usefixtures("fast")
def test_an_address_that_tries_many_users_is_slowed(broker: Broker) -> None:
    """After a hundred failures its logins wait, longer each time, and one at a time is looked at;
    but not those of users that have logged in from there, nor those from elsewhere."""
    add_user(broker, "ann")
    add_user(broker, "bob")
    add_user(broker, "eve")
    login(broker, "ann")
    for number in range(100):
        assert refusal(login(broker, f"user{number}", b"x")).text == WRONG
    pauses = []
    for number in range(5):
        waiting = login(broker, f"more{number}", b"x")
        slowed = refusal(login(broker, "bob"))
        assert slowed.reason is Reason.LIMIT
        assert "was not checked" in slowed.text
        pauses.append(0.0)
        while not waiting:
            broker.step(0.1)
            pauses[-1] += 0.1
        assert refusal(waiting).text == WRONG
    assert 0.9 < pauses[0] < 1.2
    assert all(second > first for first, second in itertools.pairwise(pauses))
    assert pauses[-1] > 3  # they grow until as much is forgotten meanwhile as is added
    assert login(broker, "ann") == ["ann"]
    assert login(broker, "eve", address="10.0.0.2") == ["eve"]
    broker.step(3600)
    assert login(broker, "bob") == ["bob"]


def test_the_tables_of_addresses_are_bounded(tmp_path: Path) -> None:
    """However many addresses fail, or log in."""
    broker = Broker(tmp_path / "data", login_failures_cached_max=10, login_proven_max=10)
    add_user(broker, "ann")
    login(broker, "ann", address="10.1.0.0")
    logins = broker.engine.logins
    for number in range(30):
        login(broker, "ann", address=f"10.1.0.{number}")  # remembered, so not hashed
        logins._spraying.failed(f"10.0.0.{number}", 0.0)
    assert len(logins._proven) == len(logins._spraying) == 10
    broker.stop()


# --- the audit log ------------------------------------------------------------------------


def test_failures_are_logged_without_secrets_and_without_lines_of_their_own(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    add_user(broker, "ann")
    with caplog.at_level(logging.INFO):
        login(broker, "ann\nlevel=info event=login", b"s3cret")
        login(broker, "x" * 10_000, b"s3cret")
        login(broker, "ann")
    records = [vars(record) for record in caplog.records if record.name == "polymq.audit"]
    assert [record["msg"] for record in records] == ["login failed", "login failed", "login"]
    assert records[0]["user"] == "ann\\nlevel=info event=login"
    assert records[0]["address"] == "10.0.0.1"
    assert len(records[1]["user"]) < 300
    assert "s3cret" not in repr(records)
    assert PASSWORD.decode() not in repr(records)
    assert hash_of() not in repr(records)


@pytest.mark.usefixtures("fast")
def test_a_flood_of_failures_fills_no_disk(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    add_user(broker, "ann")
    for minute in (1, 2):
        caplog.clear()
        for number in range(1000):
            login(broker, None, None)
            login(broker, f"user{number}", b"x")
        assert len(caplog.records) == 20, minute
        assert vars(caplog.records[-1])["more"]
        login(broker, None, None, address="10.0.0.2")
        assert len(caplog.records) == 21
        broker.step(61)
    logins = broker.engine.logins
    assert logins.failed_count + logins.refused_count == 2000
    assert logins.failed_count < 250  # those that were checked


# --- users in the log ---------------------------------------------------------------------


def state_of(users: Users) -> object:
    return users.users, dict(users.rule_table())


@pytest.mark.parametrize("with_state_db", [True, False])
@pytest.mark.parametrize("end", ["restart", "kill"])
def test_users_and_rules_are_there_after_a_restart(
    tmp_path: Path, with_state_db: bool, end: str
) -> None:
    broker = Broker(tmp_path / "data", with_state_db=with_state_db)
    users = broker.engine.users
    add_user(broker, "ann", "admin", "ops")
    add_user(broker, "bob")
    add_user(broker, "eve")
    users.set_disabled("bob", True)
    allow(broker, "ann", "publish,create", "fleet.{user}.#")
    allow(broker, "role:ops", "subscribe", "ops/v1.2/+")
    allow(broker, "eve", "admin", "#")
    users.delete("eve")
    broker.step(1)
    before = state_of(users)
    assert len(users.rule_table()) == 3
    if end == "restart":
        broker.restart()
    else:
        broker.kill()
        broker.open()
    assert state_of(broker.engine.users) == before
    assert login(broker, "ann") == ["ann"]
    assert refusal(login(broker, "bob")).text == WRONG
    broker.port.admission.for_principal("ann").principal.check_publish("fleet", "ann.x")
    broker.stop()


def test_who_gets_a_deleted_users_name_inherits_nothing(broker: Broker) -> None:
    add_user(broker, "ann", "ops")
    allow(broker, "ann", "publish", "#")
    broker.engine.users.delete("ann")
    add_user(broker, "ann")
    with pytest.raises(Refused):
        broker.port.admission.for_principal("ann").principal.check_publish("a", None)
    assert broker.engine.users.rule_table() == {}


@pytest.mark.parametrize(
    "name", ["", "anonymous", "a b", "a:b", "é", "x" * 65, ".a", "a\n", "role:x"]
)
def test_names_that_users_cannot_have(broker: Broker, name: str) -> None:
    with pytest.raises(Refused) as caught:
        add_user(broker, name)
    assert caught.value.reason is Reason.BAD_NAME


def test_rules_are_for_those_that_there_are(broker: Broker) -> None:
    """A misspelt name in a rule that denies would otherwise deny nothing."""
    add_user(broker, "ann")
    for subject in ("an", "anonymous", "role:", "role:admin", "role:a b"):
        with pytest.raises(Refused):
            allow(broker, subject, "publish", "#")


def test_there_is_a_bound_on_everything(tmp_path: Path) -> None:
    broker = Broker(
        tmp_path / "data", users_max=2, rules_max=3, rules_per_subject_max=2, roles_per_user_max=1
    )
    add_user(broker, "a")
    add_user(broker, "b")
    for refused in (
        lambda: add_user(broker, "c"),
        lambda: broker.engine.users.set_roles("a", ["x", "y"]),
    ):
        with pytest.raises(Refused) as caught:
            refused()
        assert caught.value.reason is Reason.LIMIT
    allow(broker, "a", "publish,subscribe", "x")
    for subject in ("a", "b"):
        with pytest.raises(Refused) as caught:
            allow(broker, subject, "publish,subscribe", "y")
        assert caught.value.reason is Reason.LIMIT
    broker.stop()
