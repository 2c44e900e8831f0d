"""Sockets that systemd hands over: which are taken, and what is wrong with others."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from polymq import inherited_sockets
from polymq.errors import ExitCode, Failure
from polymq.held_ports import socket_hosts, wanted_name_ports
from polymq.inherited_sockets import InheritedSockets, inherit_sockets
from polymq.settings import Settings

HOSTS = {"mqtt": "127.0.0.1", "amqp": "127.0.0.1", "mqtt-local": ""}


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def listening(opened: ExitStack, host: str = "127.0.0.1") -> socket.socket:
    return opened.enter_context(socket.create_server((host, 0)))


def handed_over(monkeypatch: pytest.MonkeyPatch, one: socket.socket, **more: str) -> dict[str, str]:
    """The variables of a process that inherits a socket, which here is not number 3."""
    descriptor = os.dup(one.fileno())
    monkeypatch.setattr(inherited_sockets, "FIRST_DESCRIPTOR", descriptor)
    values = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "mqtt"}
    return {**values, **more}


def test_a_socket_is_for_the_listener_of_its_name(
    opened: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time one is asked for, so that another role of the process has it as well."""
    one = listening(opened)
    environment = handed_over(monkeypatch, one) | {"PATH": "/bin"}
    inherited = inherit_sockets(environment)
    assert environment == {"PATH": "/bin"}
    inherited.check(HOSTS)
    assert inherited.labels == {"mqtt"}
    assert inherited.take("amqp") == []
    for _ in range(2):
        (taken,) = inherited.take("mqtt")
        assert taken.getsockname() == one.getsockname()
        assert not taken.getblocking()
        assert not os.get_inheritable(taken.fileno())
        taken.close()
    inherited.close()


@pytest.mark.parametrize("environment", [{}, {"LISTEN_PID": "1", "LISTEN_FDS": "1"}])
def test_what_is_for_another_process_is_left_alone(environment: dict[str, str]) -> None:
    assert inherit_sockets(environment).labels == frozenset()


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"LISTEN_FDS": "many"}, "LISTEN_FDS is 'many'"),
        ({"LISTEN_FDS": "100000"}, "LISTEN_FDS is '100000'"),
        ({"LISTEN_FDNAMES": ""}, "has 0 names for 1 sockets: .*FileDescriptorName="),
        ({"LISTEN_FDNAMES": "mqtt:amqp"}, "has 2 names for 1 sockets"),
    ],
)
def test_wrong_variables_are_said_in_a_sentence(
    opened: ExitStack, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], text: str
) -> None:
    environment = handed_over(monkeypatch, listening(opened), **variables)
    with pytest.raises(Failure, match=text) as caught:
        inherit_sockets(environment)
    assert caught.value.code is ExitCode.USAGE
    os.close(inherited_sockets.FIRST_DESCRIPTOR)


def test_what_does_not_listen_is_refused(
    opened: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A datagram socket, and a connection of inetd."""
    for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
        one = opened.enter_context(socket.socket(socket.AF_INET, kind))
        with pytest.raises(Failure, match=r"does not listen for connections: .*Accept=no"):
            inherit_sockets(handed_over(monkeypatch, one))


def test_a_descriptor_that_is_no_socket_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "file").open("w") as file:
        monkeypatch.setattr(inherited_sockets, "FIRST_DESCRIPTOR", file.fileno())
        values = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "mqtt"}
        with pytest.raises(Failure, match=r"\(mqtt\) is no socket"):
            inherit_sockets(values)


def test_a_socket_that_nobody_accepts_from_is_refused(opened: ExitStack) -> None:
    """Its clients would wait for ever. The names that there are stand in the line."""
    inherited = InheritedSockets({"mqttt": [listening(opened)]})
    with pytest.raises(Failure, match=r"no listener 'mqttt' .* one of mqtt, amqp, mqtt-local"):
        inherited.check(HOSTS)


def test_a_socket_reaches_nobody_whom_the_settings_exclude(opened: ExitStack) -> None:
    """Without users, a server that is only for this machine lets everybody do everything."""
    inherited = InheritedSockets({"mqtt": [listening(opened, "0.0.0.0")]})
    with pytest.raises(Failure, match=r"mqtt listens on 0\.0\.0\.0:.*change server\.host"):
        inherited.check(HOSTS)
    inherited.check({"mqtt": "0.0.0.0"})


def test_unix_sockets_are_for_listeners_of_that_type(opened: ExitStack, tmp_path: Path) -> None:
    unix = opened.enter_context(socket.socket(socket.AF_UNIX))
    unix.bind(str(tmp_path / "s"))
    unix.listen()
    InheritedSockets({"mqtt-local": [unix]}).check(HOSTS)
    with pytest.raises(Failure, match="mqtt has to be a TCP socket"):
        InheritedSockets({"mqtt": [unix]}).check(HOSTS)
    with pytest.raises(Failure, match="mqtt-local has to be a Unix socket"):
        InheritedSockets({"mqtt-local": [listening(opened)]}).check(HOSTS)


def test_the_listeners_that_there_may_be_sockets_for() -> None:
    """Those that the settings open, by the names of the ready file."""
    found = socket_hosts(
        Settings.model_validate(
            {
                "server": {"host": "::"},
                "tls": {"certificate": "c", "key": "k"},
                "mqtt": {
                    "websocket": True,
                    "listeners": [
                        {"name": "plant", "host": "10.0.0.1"},
                        {"name": "local", "type": "unix", "path": "/run/x"},
                    ],
                },
                "amqp": {"enabled": False},
                "http": {"plain": False},
            }
        )
    )
    assert found == {
        **dict.fromkeys(("mqtt", "mqtts", "https", "rocketmq", "rocketmqs"), "::"),
        **dict.fromkeys(("mqtt_ws", "mqtt_wss", "names", "names_tls"), "::"),
        "mqtt-plant": "10.0.0.1",
        "mqtt-local": "",
        "admin": "127.0.0.1",
    }
    off = Settings.model_validate({"names": {"enabled": False}})
    assert list(wanted_name_ports(off)) == []
    assert [wanted.label for wanted in wanted_name_ports(off, alone=True)] == ["names"]
