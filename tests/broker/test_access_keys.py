"""Access keys: whose signature it is, who may not sign any more, and what a restart remembers."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from polymq.broker.port import Reason, Refused
from tests.harness.broker import Broker
from tests.harness.people import add_user, hash_of

KEY, OTHER_KEY = "0A1B2C3D4E", "AAAABBBBCC"
SECRET, OTHER_SECRET = "f" * 64, "e" * 64
ADDRESS = "10.0.0.7"


@pytest.fixture
def people(broker: Broker) -> Broker:
    """A broker with the users ann and bob; ann has an access key."""
    add_user(broker, "ann")
    add_user(broker, "bob")
    broker.engine.users.add_access_key("ann", KEY, SECRET)
    return broker


def digest(secret: str, content: bytes) -> bytes:
    return hmac.digest(secret.encode(), content, "sha1")


def signer(broker: Broker, key: str = KEY, secret: str = SECRET, content: bytes = b"x") -> str:
    return broker.port.admission.check_signature(key, content, digest(secret, content), ADDRESS)


def refused(operation: Callable[[], object], reason: Reason) -> str:
    with pytest.raises(Refused) as caught:
        operation()
    assert caught.value.reason is reason, caught.value.text
    return caught.value.text


def test_a_signature_names_the_user_of_its_key(people: Broker) -> None:
    people.engine.users.add_access_key("bob", OTHER_KEY, OTHER_SECRET)
    assert signer(people) == "ann"
    assert signer(people, OTHER_KEY, OTHER_SECRET) == "bob"


@pytest.mark.parametrize(
    ("key", "signed", "content"),
    [
        (KEY, digest(OTHER_SECRET, b"x"), b"x"),  # another secret
        (KEY, digest(SECRET, b"x"), b"y"),  # another request
        (KEY, digest(SECRET, b"x")[:-1], b"x"),
        (KEY, digest(SECRET, b"x") + b"\0", b"x"),
        (KEY, b"", b"x"),
        (KEY, b"", b""),
        (KEY.lower(), digest(SECRET, b"x"), b"x"),
        ("ann", digest(SECRET, b"x"), b"x"),  # a user is no key
        ("", digest("", b"x"), b"x"),
        (OTHER_KEY, digest("0" * 64, b"x"), b"x"),  # what an unknown key is compared with
    ],
)
def test_every_other_signature_is_refused_in_the_same_words(
    people: Broker, key: str, signed: bytes, content: bytes
) -> None:
    text = refused(
        lambda: people.port.admission.check_signature(key, content, signed, ADDRESS),
        Reason.NOT_AUTHENTICATED,
    )
    assert "polymq user access-key add" in text


def test_failures_are_counted_and_logged_without_secrets(
    people: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """At a bounded rate for each address, as wrong passwords are."""
    with caplog.at_level(logging.INFO, "polymq.audit"):
        for _ in range(100):
            refused(lambda: signer(people, secret=OTHER_SECRET), Reason.NOT_AUTHENTICATED)
    assert people.engine.logins.failed_count == 100
    lines = [vars(record) for record in caplog.records]
    assert 0 < len(lines) <= 20
    assert (lines[0]["access_key"], lines[0]["address"]) == (KEY, ADDRESS)
    assert SECRET not in repr(lines)
    assert SECRET not in repr(people.engine.users.users)


def test_a_disabled_user_signs_nothing_until_it_is_enabled(people: Broker) -> None:
    people.engine.users.set_disabled("ann", True)
    refused(lambda: signer(people), Reason.NOT_AUTHENTICATED)
    people.engine.users.set_disabled("ann", False)
    assert signer(people) == "ann"


def test_a_removed_key_is_worth_nothing_and_ends_only_what_came_with_it(people: Broker) -> None:
    """A user's other programs, and those that came by password, go on."""
    users = people.engine.users
    users.add_access_key("ann", OTHER_KEY, OTHER_SECRET)
    reported: list[str] = []
    others: list[str] = []
    port = people.port.admission.for_principal("ann")
    port.principal.enter(reported.append, access_key=KEY, address=ADDRESS)
    port.principal.enter(others.append, access_key=OTHER_KEY, address=ADDRESS)
    port.principal.enter(others.append)
    users.remove_access_key("ann", KEY)
    assert reported == ["its access key was removed"]
    assert others == []
    refused(lambda: signer(people), Reason.NOT_AUTHENTICATED)
    assert signer(people, OTHER_KEY, OTHER_SECRET) == "ann"
    users.set_password("ann", hash_of(b"new"))
    assert len(others) == 2
    assert signer(people, OTHER_KEY, OTHER_SECRET) == "ann"  # the password is not what signs


def test_keys_go_with_their_user_and_do_not_come_back_with_its_name(people: Broker) -> None:
    people.engine.users.delete("ann")
    refused(lambda: signer(people), Reason.NOT_AUTHENTICATED)
    add_user(people, "ann")
    refused(lambda: signer(people), Reason.NOT_AUTHENTICATED)
    people.engine.users.add_access_key("bob", KEY, SECRET)
    assert signer(people) == "bob"


def test_what_cannot_be_a_key(people: Broker) -> None:
    users = people.engine.users
    for name in ("", "short", "with space", "x" * 65, "a-b-c-d-e"):
        refused(partial(users.add_access_key, "ann", name, SECRET), Reason.BAD_NAME)
    refused(lambda: users.add_access_key("bob", KEY, OTHER_SECRET), Reason.DIFFERENT)
    refused(lambda: users.add_access_key("nobody", OTHER_KEY, SECRET), Reason.NOT_FOUND)
    refused(lambda: users.remove_access_key("bob", KEY), Reason.NOT_FOUND)
    assert signer(people) == "ann"


def test_a_user_has_a_bounded_number_of_keys(people: Broker) -> None:
    users = people.engine.users
    most = people.engine.core.limits.access_keys_per_user_max
    for number in range(most - 1):
        users.add_access_key("ann", f"KEYNUMBER{number}", SECRET)
    text = refused(lambda: users.add_access_key("ann", OTHER_KEY, SECRET), Reason.LIMIT)
    assert "remove one" in text
    users.remove_access_key("ann", KEY)
    users.add_access_key("ann", OTHER_KEY, OTHER_SECRET)
    assert signer(people, OTHER_KEY, OTHER_SECRET) == "ann"


@pytest.mark.parametrize("with_state_db", [True, False])
@pytest.mark.parametrize("end", ["restart", "kill"])
def test_keys_and_their_absence_outlive_a_restart(
    tmp_path: Path, with_state_db: bool, end: str
) -> None:
    broker = Broker(tmp_path / "data", with_state_db=with_state_db)
    add_user(broker, "ann")
    add_user(broker, "bob")
    users = broker.engine.users
    users.add_access_key("ann", KEY, SECRET)
    broker.save()
    users.add_access_key("bob", OTHER_KEY, OTHER_SECRET)
    users.remove_access_key("ann", KEY)
    (made,) = users.need("bob").access_keys
    broker.step()
    getattr(broker, end)()
    if end == "kill":
        broker.open()
    assert signer(broker, OTHER_KEY, OTHER_SECRET) == "bob"
    refused(lambda: signer(broker), Reason.NOT_AUTHENTICATED)
    assert broker.engine.users.need("bob").access_keys == (made,)
    broker.stop()


def test_without_users_a_signature_is_not_looked_at(broker: Broker) -> None:
    """Some libraries sign whatever they are told; a server on its own machine takes them."""
    assert broker.port.admission.check_signature("any", b"x", b"", ADDRESS) == "anonymous"
    broker.engine.admission._strangers = False
    text = refused(lambda: signer(broker), Reason.NOT_AUTHENTICATED)
    assert "polymq user add" in text
