"""Clients that log in by a JSON Web Token, over MQTT, AMQP and HTTP: they come in while it holds,
and are closed when it has expired."""

from __future__ import annotations

import queue
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as mqtt
import pika
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from interop_tests.conftest import Server
from interop_tests.people import SECONDS, Admin, amqp, basic, http_publish

jwt = pytest.importorskip("jwt", reason="polymq[jwt] is not installed")

SECRET = b"0123456789abcdef" * 2
MAXIMUM_CONNECT_TIME, BAD_CREDENTIALS = 0xA0, 0x86


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the user ann, and tokens."""
    directory: Path = tmp_path_factory.mktemp("tokens")
    secret = directory / "secret"
    secret.write_bytes(SECRET)
    secret.chmod(0o600)
    options = {
        "jwt.secret_file": secret,
        "jwt.issuer": "me",
        "jwt.audience": "mq",
        "jwt.leeway_seconds": 0,
    }
    server = Server(directory, options, {}, (sys.executable, "-m", "polymq"))
    server.start()
    admin = Admin(server)
    admin.add("ann")
    admin.allow("ann", "publish,create,subscribe", "a.#")
    yield server
    server.close(sys.stdout)


def token(seconds: float, user: str = "ann", key: bytes = SECRET) -> str:
    claims = {"iss": "me", "aud": "mq", "sub": user, "exp": time.time() + seconds}
    return str(jwt.encode(claims, key, algorithm="HS256"))


class Client:
    """A paho client of MQTT 5: the code of CONNACK, and that of the DISCONNECT which ends it."""

    def __init__(self, server: Server, password: str, user: str | None = "ann") -> None:
        self.codes: queue.Queue[int] = queue.Queue()
        self.client = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            protocol=MQTTProtocolVersion.MQTTv5,
            reconnect_on_failure=False,
        )
        self.client.on_connect = lambda _c, _u, _f, code, _p: self.codes.put(code.value)
        self.client.on_disconnect = lambda _c, _u, _f, code, _p: self.codes.put(code.value)
        self.client.username_pw_set(user, password)
        self.client.connect(server.host, server.mqtt_port)
        self.client.loop_start()

    def next_code(self) -> int:
        return self.codes.get(timeout=SECONDS)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@pytest.mark.parametrize("user", ["ann", ""])
def test_mqtt_until_the_token_expires(locked: Server, user: str) -> None:
    client = Client(locked, token(1.5), user)
    assert client.next_code() == 0
    assert client.client.publish("a/b", b"x", qos=1).rc == 0
    assert client.next_code() == MAXIMUM_CONNECT_TIME
    client.close()


@pytest.mark.parametrize(
    "password", [token(60, "bob"), token(60, key=b"x" * 32), token(-1), "eyJ.eyJ.x"]
)
def test_tokens_that_are_no_good(locked: Server, password: str) -> None:
    client = Client(locked, password)
    assert client.next_code() == BAD_CREDENTIALS
    client.close()


def test_amqp_until_the_token_expires(locked: Server) -> None:
    connection = amqp(locked, password=token(1.5))
    with pytest.raises((pika.exceptions.ConnectionClosed, pika.exceptions.StreamLostError)):
        connection.sleep(SECONDS)


def test_http_while_the_token_holds(locked: Server) -> None:
    assert http_publish(locked, "a", "b", b"x", basic("ann", token(60))) < 300
    assert http_publish(locked, "a", "b", b"x", basic("ann", token(-1))) == 401
