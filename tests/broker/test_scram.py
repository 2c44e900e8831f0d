"""SCRAM-SHA-256: the exchange by the example of its RFC, and logins by it: who gets keys when, how
guesses are slowed, and what cannot be told from outside."""

from __future__ import annotations

import base64
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interop_tests.scram import ScramClient
from polymq.broker.accounts import passwords, scram
from polymq.broker.accounts.bans import USER
from polymq.broker.accounts.scram import BadExchange, Exchange, Keys, State
from polymq.broker.port import LoginExchange, Reason, Refused
from tests.harness.broker import Broker
from tests.harness.people import PASSWORD, add_user, hash_of, login

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
NONCE = b"%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
WHOLE_NONCE = b"rOprNGfwEbeRWgbNEkqO" + NONCE
FINAL = b"c=biws,r=" + WHOLE_NONCE + b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
PENCIL = scram.derive(b"pencil", SALT, 4096)


def exchange(first: bytes = FIRST, keys: Keys = PENCIL) -> Exchange:
    return Exchange(first, keys_of=lambda _user: keys, nonce=NONCE)


# --- the exchange -----------------------------------------------------------------------------


def test_the_example_of_rfc_7677() -> None:
    found = exchange()
    assert (found.user, found.state) == ("user", State.WAIT_FINAL)
    assert found.challenge == b"r=" + WHOLE_NONCE + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    assert found.finish(FINAL) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert found.state is State.PROVEN
    with pytest.raises(BadExchange):
        found.finish(FINAL)


@pytest.mark.parametrize(
    "final",
    [
        FINAL.replace(b"p=d", b"p=e"),  # the proof
        FINAL.replace(b"c=biws", b"c=eSws"),  # y,, in the place of n,,
        FINAL.replace(b"k0,", b"k1,"),  # the nonce
        FINAL.replace(b"r=" + WHOLE_NONCE, b"r=rOprNGfwEbeRWgbNEkqO"),  # the client's part of it
        FINAL.replace(b",p=", b",x=1,p="),  # an extension, which is signed
        FINAL[:-4],
        b"",
        b"p=",
        b"c=biws,p=AAAA",
    ],
)
def test_a_last_message_that_proves_nothing(final: bytes) -> None:
    found = exchange()
    try:
        assert found.finish(final) is None
    except BadExchange:
        pass
    assert found.state is State.FAILED
    with pytest.raises(BadExchange):
        found.finish(FINAL)


def test_a_header_that_was_changed_on_the_way_is_noticed() -> None:
    """The proof is right: it does not cover the header of the first message."""
    client = ScramClient("user", "pencil", header="y,,")
    found = exchange(client.first().replace(b"y,,", b"n,,"))
    with pytest.raises(BadExchange, match="header"):
        found.finish(client.final(found.challenge))


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (b"p=tls-unique,,n=user,r=x", "channel binding"),
        (b"n,a=other,n=user,r=x", "another user"),
        (b"n,,m=1,n=user,r=x", "extension"),
        (b"n,,n=user", "n=USER,r=NONCE"),
        (b"n,,n=a=b,r=x", "equals"),
        (b"n,,n=,r=x", "empty"),
        (b"n,,n=\xff,r=x", "UTF-8"),
        (b"n,,n=user,r=", "nonce"),
        (b"n,,n=user,r=\x01", "nonce"),
        (b"n,,n=user,r=" + b"x" * 257, "nonce"),
        (b"n,,n=" + b"u" * 2000 + b",r=x", "bytes"),
        (b"q,,n=user,r=x", "begin"),
        (b"n,", "begin"),
    ],
)
def test_a_first_message_that_is_none(first: bytes, said: str) -> None:
    with pytest.raises(BadExchange, match=said):
        exchange(first)


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_any_bytes_give_an_exchange_or_an_error(one: bytes, other: bytes) -> None:
    for first in (one, b"n,," + one, FIRST):
        try:
            found = exchange(first)
            assert found.finish(other) is None
        except BadExchange:
            pass


@pytest.mark.parametrize("user", ["a,b", "a=b", "=2C", "ü"])
def test_names_may_have_any_character(user: str) -> None:
    assert exchange(ScramClient(user, "x").first()).user == user


def test_passwords_are_prepared() -> None:
    """RFC 4013 part 3; what it prohibits, and what is no text, is taken as it is."""
    assert scram.prepared("I\u00adX".encode()) == b"IX"
    assert scram.prepared("\u00aa".encode()) == b"a"
    assert scram.prepared("a\u00a0b".encode()) == b"a b"
    for raw in (b"\xff\xfe", "\u0627\u0031".encode(), "\ue000".encode(), "\u00ad".encode()):
        assert scram.prepared(raw) == raw


def test_keys_survive_as_text() -> None:
    assert scram.keys_from(str(PENCIL)) == PENCIL
    for bad in ("", "x$1:a$b:c", str(PENCIL)[:-8], str(PENCIL).replace("4096", "x")):
        assert scram.keys_from(bad) is None


# --- logins -----------------------------------------------------------------------------------


def begin(broker: Broker, client: ScramClient) -> LoginExchange:
    return broker.port.admission.begin_exchange("SCRAM-SHA-256", client.first(), "10.0.0.1")


def scram_login(
    broker: Broker, user: str, password: bytes = PASSWORD
) -> tuple[list[str | Refused], bool]:
    """The answer, and whether the client trusts the server."""
    client = ScramClient(user, password.decode())
    found = begin(broker, client)
    answers: list[str | Refused] = []
    found.finish(client.final(found.challenge), "10.0.0.1", answers.append)
    found.end()
    return answers, client.trusts(found.last_message)


def refusal(answers: list[str | Refused]) -> Reason:
    assert len(answers) == 1
    assert isinstance(answers[0], Refused)
    return answers[0].reason


def test_who_knows_the_password_comes_in_and_trusts_the_server(broker: Broker) -> None:
    add_user(broker, "ann")
    assert scram_login(broker, "ann") == (["ann"], True)
    answers, trusts = scram_login(broker, "ann", b"wrong")
    assert (refusal(answers), trusts) == (Reason.NOT_AUTHENTICATED, False)
    broker.engine.users.set_password("ann", hash_of(b"another"))
    assert refusal(scram_login(broker, "ann")[0]) is Reason.NOT_AUTHENTICATED
    assert scram_login(broker, "ann", b"another") == (["ann"], True)


def test_keys_are_in_the_log(broker: Broker) -> None:
    """With the secret of the decoys: after a restart nobody's salt has changed."""
    add_user(broker, "ann")
    before = [begin(broker, ScramClient(user, "x")).challenge for user in ("ann", "nobody")]
    broker.restart()
    after = [begin(broker, ScramClient(user, "x")).challenge for user in ("ann", "nobody")]
    for one, other in zip(before, after, strict=True):
        assert one.partition(b",s=")[2] == other.partition(b",s=")[2]
    assert scram_login(broker, "ann") == (["ann"], True)


def test_who_was_there_before_gets_keys_at_the_next_login_by_password(broker: Broker) -> None:
    old = passwords.split(hash_of())[0]
    broker.engine.users.add("ann", old)
    assert refusal(scram_login(broker, "ann")[0]) is Reason.NOT_AUTHENTICATED
    assert refusal(login(broker, "ann", b"wrong")) is Reason.NOT_AUTHENTICATED
    assert broker.engine.users.users["ann"].password_hash == old
    expelled: list[str] = []
    leave = broker.port.admission.for_principal("ann").principal.enter(expelled.append)
    assert login(broker, "ann") == ["ann"]
    assert scram_login(broker, "ann") == (["ann"], True)
    assert expelled == []
    leave()
    hashed = broker.engine.logins.hashed_count
    assert login(broker, "ann") == ["ann"]
    assert broker.engine.logins.hashed_count == hashed  # the cache knows the new form


def test_a_user_who_is_disabled_or_changed_meanwhile_is_not_let_in(broker: Broker) -> None:
    add_user(broker, "ann")
    add_user(broker, "keeper")  # there are always users
    client = ScramClient("ann", PASSWORD.decode())
    users = broker.engine.users
    changes: list[Callable[[], object]] = [
        lambda: users.set_password("ann", hash_of(b"another")),
        lambda: users.set_disabled("ann", True),
        lambda: users.delete("ann"),
    ]
    for change in changes:
        found = begin(broker, client)
        change()
        answers: list[str | Refused] = []
        found.finish(client.final(found.challenge), "10.0.0.1", answers.append)
        assert refusal(answers) is Reason.NOT_AUTHENTICATED
        if "ann" in broker.engine.users.users:
            broker.engine.users.set_password("ann", hash_of())


def test_a_user_who_is_banned_meanwhile_is_not_let_in(broker: Broker) -> None:
    """The proof is right, and so is the answer once the ban is lifted."""
    add_user(broker, "ann")
    client = ScramClient("ann", PASSWORD.decode())
    found = begin(broker, client)
    broker.engine.bans.add(USER, "ann", reason="why", until_ms=None, by="root")
    answers: list[str | Refused] = []
    found.finish(client.final(found.challenge), "10.0.0.1", answers.append)
    found.end()
    assert isinstance(answers[0], Refused)
    assert len(answers) == 1
    broker.engine.bans.remove(USER, "ann")
    assert scram_login(broker, "ann") == (["ann"], True)


def test_guesses_are_slowed_like_those_of_passwords(broker: Broker) -> None:
    """Even a right proof waits then; and it is one count for both ways to log in."""
    add_user(broker, "ann")
    for _ in range(5):
        scram_login(broker, "ann", b"wrong")
    client = ScramClient("ann", PASSWORD.decode())
    found = begin(broker, client)
    answers: list[str | Refused] = []
    found.finish(client.final(found.challenge), "10.0.0.1", answers.append)
    assert answers == []
    assert refusal(login(broker, "ann")) is Reason.LIMIT
    broker.step(1.1)
    assert answers == ["ann"]


def test_exchanges_under_way_are_counted_and_bounded(broker: Broker) -> None:
    add_user(broker, "ann")
    logins = broker.engine.scram_logins
    logins._pending_max = 2
    first, _ = (begin(broker, ScramClient("ann", "x")) for _ in range(2))
    with pytest.raises(Refused) as caught:
        begin(broker, ScramClient("ann", "x"))
    assert caught.value.reason is Reason.LIMIT
    first.end()
    first.end()
    assert logins.pending_count == 1
    begin(broker, ScramClient("ann", "x"))


def test_a_broker_without_users_has_nobody_who_could_prove_it(broker: Broker) -> None:
    with pytest.raises(Refused, match="no users yet"):
        begin(broker, ScramClient("ann", "x"))


def test_no_keys_where_it_is_turned_off() -> None:
    stored = passwords.make_hash(b"x", b"salt" * 4, scram_iterations=0)
    assert passwords.scram_keys(stored) is None
    assert not passwords.is_outdated(stored, 0)
    assert passwords.is_outdated(stored, 4096)
