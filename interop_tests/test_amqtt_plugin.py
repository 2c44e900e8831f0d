"""Logins and permissions that plugins of amqtt decide, in the thread of a started server."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from interop_tests.conftest import Server, StartServer
from interop_tests.people import (
    BAD_CREDENTIALS,
    PASSWORD,
    REFUSED_FILTER,
    SECONDS,
    Admin,
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


def client_of(server: Server, user: str) -> MqttClient:
    client = MqttClient(server, user)
    assert client.code == 0
    return client


def test_taboo_topics(start_server: StartServer) -> None:
    """amqtt's own topic plugin, which has no configuration."""
    plugin = "amqtt.plugins.topic_checking.TopicTabooPlugin"
    server = start_server(**{"permission_service.amqtt_plugin": plugin})
    for name in ("mia", "admin"):
        Admin(server).add(name)
    mia, admin = client_of(server, "mia"), client_of(server, "admin")
    assert mia.subscribe("prohibited") == REFUSED_FILTER
    assert admin.subscribe("prohibited") == 1
    assert mia.publish("a/x", b"1")
    assert admin.publish("prohibited", b"2")
    assert admin.next() == ("prohibited", b"2")
    assert not mia.publish("data/classified", b"3")
    for client in (mia, admin):
        client.close()


def test_lists_of_topics(start_server: StartServer, tmp_path: Path) -> None:
    """amqtt's own topic plugin with lists, beside a rule that is stored here."""
    config = tmp_path / "topics.toml"
    config.write_text(
        '[publish_acl]\nmia = ["a/+/x", "b/#"]\n[acl]\nmia = ["a/#"]\nanonymous = ["news"]\n'
    )
    server = start_server(
        **{
            "permission_service.amqtt_plugin": (
                "amqtt.plugins.topic_checking.TopicAccessControlListPlugin"
            ),
            "permission_service.amqtt_config_file": config,
        }
    )
    admin = Admin(server)
    for name in ("mia", "max"):
        admin.add(name)
    admin.allow("max", "publish,create", "mine.#")
    admin.deny("mia", "publish", "b.secret")
    mia, other = client_of(server, "mia"), client_of(server, "max")
    assert mia.subscribe("a/#") == 1
    assert mia.subscribe("b/#") == REFUSED_FILTER
    assert mia.publish("a/1/x", b"1")
    assert mia.next() == ("a/1/x", b"1")
    assert mia.publish("b/1", b"2")
    assert other.subscribe("a/#") == REFUSED_FILTER
    assert other.publish("mine/1", b"3")
    assert not mia.publish("b/secret", b"4")
    assert not other.publish("a/1/x", b"5")
    for client in (mia, other):
        client.close()


def test_a_topic_plugin_that_is_none_is_said_in_a_line(start_server: StartServer) -> None:
    plugin = "amqtt.plugins.authentication.FileAuthPlugin"
    server = start_server(ready=False, **{"permission_service.amqtt_plugin": plugin})
    assert server.process.wait(SECONDS) == 2
    (line,) = server.log_lines()
    assert "[permission_service]" in line
    assert "is no amqtt.plugins.base.BaseTopicPlugin" in line
