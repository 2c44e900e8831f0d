"""Tokens whose keys an issuer publishes over HTTP, and whose claims say what their bearer may do:
keys come, change and fail to come; the bearer need not be a user of the server."""

from __future__ import annotations

import base64
import json
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from interop_tests.conftest import Server
from interop_tests.login_services import Reply, Service, as_json, running
from interop_tests.people import (
    BAD_CREDENTIALS,
    NOT_AUTHORIZED,
    REFUSED_FILTER,
    Admin,
    MqttClient,
    amqp,
    basic,
    http_ask,
    http_publish,
)

jwt = pytest.importorskip("jwt", reason="polymq[jwt] is not installed")
pytest.importorskip("cryptography", reason="polymq[jwt] is not installed")
from cryptography.hazmat.primitives import serialization  # noqa: E402
from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: E402

FETCH_SECONDS = 40.0
"""The keys are not fetched again within ten seconds because somebody names one that is unknown."""
UNAVAILABLE = 136
"""CONNACK 3 of MQTT 3.1.1, as MQTT 5 numbers it."""
ACL = {"pub": ["a/#"], "sub": ["a/#", "b/${username}"]}
KEYS = {name: ed25519.Ed25519PrivateKey.generate() for name in ("one", "two", "three")}


def key_set(*names: str) -> Reply:
    raw = serialization.Encoding.Raw, serialization.PublicFormat.Raw
    keys: list[dict[str, Any]] = [{"kty": "oct", "k": "AAAA", "kid": "secret"}]  # is left out
    for name in names:
        x = base64.urlsafe_b64encode(KEYS[name].public_key().public_bytes(*raw))
        text = x.rstrip(b"=").decode()
        keys.append({"kty": "OKP", "crv": "Ed25519", "kid": name, "use": "sig", "x": text})
    return as_json({"keys": keys})


def token(kid: str = "one", user: str = "ann", seconds: float = 60, **claims: Any) -> str:
    wanted = {"iss": "me", "aud": "mq", "sub": user, "exp": time.time() + seconds, **claims}
    return str(jwt.encode(wanted, KEYS[kid], algorithm="EdDSA", headers={"kid": kid}))


@pytest.fixture
def issuer() -> Iterator[Service]:
    with running() as service:
        service.reply = lambda _value: key_set("one", "two")
        yield service


@pytest.fixture
def server(tmp_path: Path, issuer: Service) -> Iterator[Server]:
    """A server without users, whose tokens have permissions."""
    options = {
        "jwt.jwks_url": issuer.url,
        "jwt.issuer": "me",
        "jwt.audience": "mq",
        "jwt.permissions_claim": "acl",
        "jwt.leeway_seconds": 0,
        "jwt.jwks_refresh_seconds": 10,
    }
    made = Server(tmp_path, options, {}, (sys.executable, "-m", "polymq"))
    made.start()
    yield made
    made.close(sys.stdout)


def metric(server: Server, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.admin_port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line.rpartition(" ")[2] for line in lines if line.startswith(name)))


def fetched(server: Server, result: str, least: float) -> None:
    """Wait until so many fetches ended so."""
    until, pause = time.monotonic() + FETCH_SECONDS, threading.Event()
    while metric(server, f'polymq_jwks_fetches_total{{result="{result}"}}') < least:
        assert time.monotonic() < until
        pause.wait(0.02)


def code_of(server: Server, user: str | None, password: str) -> int:
    client = MqttClient(server, user, password)
    client.close()
    return client.code


def is_wrong(server: Server, password: str) -> None:
    """The token is answered as wrong, once its key is not being fetched any more."""
    until, pause = time.monotonic() + FETCH_SECONDS, threading.Event()
    while (code := code_of(server, "ann", password)) == UNAVAILABLE:
        assert time.monotonic() < until
        pause.wait(0.1)
    assert code == BAD_CREDENTIALS


def test_the_claim_says_what_its_bearer_may_do(server: Server) -> None:
    """In every protocol, without a user on the server; and nobody else may do anything."""
    fetched(server, "fetched", 1)
    client = MqttClient(server, "ann", token(acl=ACL))
    assert client.code == 0
    assert client.subscribe("a/#") == 1
    assert client.subscribe("b/ann") == 1
    assert client.subscribe("b/bob") == REFUSED_FILTER
    assert client.publish("a/x", b"1")
    assert client.next() == ("a/x", b"1")
    assert not client.publish("c/x", b"2")
    client.close()
    connection = amqp(server, password=token(acl=ACL))
    channel = connection.channel()
    channel.basic_publish("a", "x", b"3")
    channel.confirm_delivery()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="403"):
        channel.basic_publish("c", "x", b"4", mandatory=True)
    connection.close()
    assert http_publish(server, "a", "x", b"5", basic("ann", token(acl=ACL))) < 300
    assert http_publish(server, "c", "x", b"6", basic("ann", token(acl=ACL))) == 403
    assert code_of(server, None, "") == NOT_AUTHORIZED
    assert code_of(server, "ann", token()) == BAD_CREDENTIALS  # it grants nothing
    assert code_of(server, "ann", token(acl=["a/#"])) == BAD_CREDENTIALS
    assert "its claim 'acl' is no list of permissions" in server.log_path.read_text()
    assert code_of(server, "ann", "password") == BAD_CREDENTIALS
    status, _ = Admin(server).ask("GET", "/api/v1/users")  # by the operator's token
    assert status == 200
    admin = Admin(server)
    admin.authorization = "Basic none"
    assert admin.ask("GET", "/api/v1/users")[0] == 401


def test_a_stored_user_denies_and_adds(server: Server) -> None:
    """What is stored for a user of the name counts beside the claim."""
    fetched(server, "fetched", 1)
    client = MqttClient(server, "ann", token(acl=ACL))
    assert client.subscribe("a/#") == 1
    admin = Admin(server)
    admin.add("ann")
    admin.allow("ann", "publish,create", "c.#")
    assert client.publish("c/x", b"1")
    admin.deny("ann", "subscribe", "a.secret")
    assert client.is_asked_to_go()
    client.close()
    admin.change("ann", disabled=True)
    assert code_of(server, "ann", token(acl=ACL)) == BAD_CREDENTIALS


def test_what_outlives_the_client_needs_a_stored_user(server: Server) -> None:
    """Dead letters and webhooks go on without the client, and so without its token."""
    fetched(server, "fetched", 1)
    everything = token(acl={"all": ["#"]})
    connection = amqp(server, password=everything)
    channel = connection.channel()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="stored here"):
        channel.queue_declare("q", arguments={"x-dead-letter-exchange": "amq.topic"})
    connection.close()
    hook = {"topic": "a", "sink": "https://example.com/x"}
    for name, body, wanted in (("hook", hook, 403), ("pull", {"topic": "a"}, 201)):
        status, _, problem = http_ask(
            server,
            "PUT",
            f"/subscriptions/{name}",
            json.dumps(body).encode(),
            basic("ann", everything),
        )
        assert status == wanted, problem


@pytest.mark.slow
def test_keys_change(server: Server, issuer: Service) -> None:
    """A new key is fetched when a token names it, and one that was withdrawn counts no more. What
    cannot be fetched changes nothing."""
    fetched(server, "fetched", 1)
    is_wrong(server, token("three", acl=ACL))
    issuer.reply = lambda _value: Reply(status=500)
    fetched(server, "failed", 1)
    assert code_of(server, "ann", token("one", acl=ACL)) == 0
    issuer.reply = lambda _value: key_set("three")
    fetched(server, "fetched", 2)
    assert code_of(server, "ann", token("three", acl=ACL)) == 0
    is_wrong(server, token("one", acl=ACL))
    assert metric(server, "polymq_jwks_keys") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "reply",
    [
        Reply(status=500),
        Reply(b"{"),
        Reply(b'{"keys": []}'),
        Reply(b" " * 300_000),
        Reply(b"[" * 100_000),
        Reply(status=302, headers={"Location": "/elsewhere"}),
        Reply(hangs=True),
    ],
    ids=["500", "malformed", "empty", "huge", "nested", "redirect", "hanging"],
)
def test_without_the_set_tokens_are_refused_for_now(
    tmp_path: Path, issuer: Service, reply: Reply
) -> None:
    """Not as wrong: the same token is good once the keys are there. Passwords work meanwhile."""
    issuer.reply = lambda _value: reply
    options = {"jwt.jwks_url": issuer.url, "jwt.issuer": "me", "jwt.audience": "mq"}
    server = Server(tmp_path, options, {}, (sys.executable, "-m", "polymq"))
    server.start()
    Admin(server).add("ann")
    if not reply.hangs:
        fetched(server, "failed", 1)
    assert code_of(server, "ann", token()) == UNAVAILABLE
    with pytest.raises(pika.exceptions.ProbableAuthenticationError, match="have not been fetched"):
        amqp(server, password=token())
    assert code_of(server, "ann", "pass-4-ann-9351") == 0
    assert len(issuer.asked) <= 2  # however many tokens came
    server.close(sys.stdout)
