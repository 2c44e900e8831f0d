"""Logins that an authentication plugin of amqtt decides, in the thread of a started server."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pika
import pytest

from interop_tests.conftest import Server, StartServer
from interop_tests.people import (
    BAD_CREDENTIALS,
    PASSWORD,
    REFUSED_FILTER,
    SECONDS,
    MqttClient,
    amqp,
    basic,
    http_publish,
)

pytest.importorskip("amqtt", reason="polymq[amqtt] is not installed")
hashers: Any = pytest.importorskip("pwdlib.hashers.argon2")

FILE_PLUGIN = "amqtt.plugins.authentication.FileAuthPlugin"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server without users, with amqtt's plugin for files of passwords."""
    directory = tmp_path_factory.mktemp("amqtt")
    passwords = directory / "passwords"
    passwords.write_text(f"mia:{hashers.Argon2Hasher().hash(PASSWORD)}\n")
    config = directory / "plugin.toml"
    config.write_text(f'password_file = "{passwords}"\n')
    options = {
        "login_service.amqtt_plugin": FILE_PLUGIN,
        "login_service.amqtt_config_file": config,
        "login_service.amqtt_publish": '["a/#"]',
        "login_service.amqtt_subscribe": '["a/${username}"]',
    }
    made = Server(directory, options, {}, (sys.executable, "-m", "polymq"))
    made.start()
    yield made
    made.close(sys.stdout)


def test_mqtt(server: Server) -> None:
    client = MqttClient(server, "mia")
    assert client.code == 0
    assert client.subscribe("a/mia") == 1
    assert client.subscribe("a/max") == REFUSED_FILTER
    assert client.publish("a/mia", b"1")
    assert client.next() == ("a/mia", b"1")
    assert not client.publish("b/x", b"2")
    client.close()
    for user, password in (("mia", "wrong"), ("max", PASSWORD)):
        client = MqttClient(server, user, password)
        assert client.code == BAD_CREDENTIALS
        client.close()


def test_other_protocols(server: Server) -> None:
    amqp(server, "mia").close()
    with pytest.raises(pika.exceptions.ProbableAuthenticationError, match="403"):
        amqp(server, "mia", "wrong")
    assert http_publish(server, "a", "x", b"1", basic("mia")) < 300
    assert http_publish(server, "b", "x", b"1", basic("mia")) == 403
    assert http_publish(server, "a", "x", b"1", basic("mia", "wrong")) == 401


@pytest.mark.slow
def test_a_plugin_that_is_none_is_said_in_a_line(start_server: StartServer) -> None:
    for plugin, text in (
        ("amqtt.nothing.Plugin", "cannot be imported"),
        ("amqtt.plugins.base.BaseTopicPlugin", "is no amqtt.plugins.base.BaseAuthPlugin"),
    ):
        server = start_server(ready=False, **{"login_service.amqtt_plugin": plugin})
        assert server.process.wait(SECONDS) == 2
        (line,) = server.log_lines()
        assert text in line
