"""A mosquitto and our server with the converted settings: the same clients get the same from both.

Each test gives one configuration to mosquitto, converts it with the command, starts our server with
what was written, and runs the commands that the file says are left to do."""

from __future__ import annotations

import contextlib
import queue
import shlex
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest

from interop_tests.authority import Authority
from interop_tests.conftest import Server, StartServer
from interop_tests.listener_clients import SECONDS, client_tls, connect_code, connected
from interop_tests.mqtt_raw_client import RawClient
from interop_tests.mqtt_wire import connect, publish
from interop_tests.people import polymq

MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
STEP = "#   polymq "

pytestmark = [
    pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed"),
    pytest.mark.slow,
]


@dataclass
class Side:
    """One of the two brokers: its name, and where the listeners of the configuration are."""

    name: str
    at: list[int | str]

    def port(self, index: int) -> int:
        """Of a listener that is no Unix socket."""
        port = self.at[index]
        assert isinstance(port, int)
        return port


class Sides:
    """Starts both with one configuration.

    Attributes:
        mosquitto, ours: after `start`.
        server: our server.
    """

    mosquitto: Side
    ours: Side
    server: Server

    def __init__(self, start_server: StartServer, directory: Path) -> None:
        self._start_server = start_server
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, conf: str, *, listeners: int = 1) -> tuple[Side, Side]:
        """Start both.

        Args:
            conf: `{0}` stands for the port of the first listener, `{unix}` for the path of a Unix
                socket; each broker has its own.
            listeners: how many have a port.
        """
        self.mosquitto, first = self._file("mosquitto", conf, listeners)
        self.ours, second = self._file("ours", conf, listeners)
        self._start_mosquitto(first)
        settings = self._directory / "polymq.toml"
        self.report = subprocess.run(
            [sys.executable, "-m", "polymq", "config", "import", "mosquitto-conf", str(second),
             "--output", str(settings)],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert self.report.returncode in (0, 1), self.report.stderr
        self.server = self._start_server(environment={"POLYMQ_CONFIG": str(settings)})
        self._run_steps(settings.read_text(encoding="utf-8"))
        return self.mosquitto, self.ours

    def _file(self, name: str, conf: str, listeners: int) -> tuple[Side, Path]:
        with contextlib.ExitStack() as stack:
            held = [stack.enter_context(socket.socket()) for _ in range(listeners)]
            for each in held:
                each.bind(("127.0.0.1", 0))
            ports: list[int | str] = [each.getsockname()[1] for each in held]
        path = self._directory / f"{name}.sock"
        file = self._directory / f"{name}.conf"
        file.write_text("user root\n" + conf.format(*ports, unix=path), encoding="utf-8")
        return Side(name, [*ports, str(path)]), file

    def _start_mosquitto(self, file: Path) -> None:
        assert MOSQUITTO is not None
        with (self._directory / "mosquitto.log").open("wb") as log:
            self._process = subprocess.Popen(
                [MOSQUITTO, "-v", "-c", str(file)], stdout=log, stderr=log
            )
        self.wait_for(self.mosquitto.at[0])

    def wait_for(self, where: int | str) -> None:
        """Until mosquitto has opened this listener."""
        assert self._process is not None
        deadline = time.monotonic() + SECONDS
        while not _is_open(where):
            assert time.monotonic() < deadline
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.05)
            assert self._process.poll() is None, "mosquitto has ended"

    def _run_steps(self, text: str) -> None:
        """What the file says is left to do, with a name in the place of NAME."""
        for line in text.splitlines():
            if line.startswith(STEP):
                command = shlex.split(line.removeprefix(STEP))
                users = ("sensor7", "CN=sensor7,O=Plant") if "NAME" in command else ("",)
                for user in users:
                    parts = [user if part == "NAME" else part for part in command]
                    done = polymq(self.server, *parts, text="secret of a sensor\n")
                    assert done.returncode == 0, (parts, done.stdout, done.stderr)

    def close(self) -> None:
        """End mosquitto."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(SECONDS)


def _is_open(where: int | str) -> bool:
    if isinstance(where, str):
        return Path(where).exists()
    with socket.socket() as trying:
        return trying.connect_ex(("127.0.0.1", where)) == 0


@pytest.fixture
def sides(start_server: StartServer, tmp_path: Path) -> Iterator[Sides]:
    made = Sides(start_server, tmp_path)
    yield made
    made.close()


def crosses(publisher: int | str, subscriber: int | str, *topics: str, **more: Any) -> list[str]:
    """The topics of messages that a subscriber of `#` gets, when these are published."""
    reader = {"transport": "unix"} if isinstance(subscriber, str) else {}
    with (
        connected(publisher, "publisher", version=paho.MQTTv5, **more) as sending,
        connected(subscriber, "reader", **reader) as reading,
    ):
        reading.subscribe("#")
        for topic in topics:
            sending.publish(topic)
        found: list[str] = []
        with contextlib.suppress(queue.Empty):
            while len(found) < len(topics):
                found.append(reading.messages.get(timeout=1)[0])
    return found


@pytest.mark.parametrize(
    ("line", "answer"),
    [("", "Not authorized"), ("allow_anonymous false\n", "Not authorized"),
     ("allow_anonymous true\n", "Success")],
)  # fmt: skip
def test_a_client_without_a_login(sides: Sides, line: str, answer: str) -> None:
    """By default nobody comes in at a listener that is named."""
    for side in sides.start(f"{line}listener {{0}} 127.0.0.1\n"):
        assert connect_code(side.at[0]) == answer, side.name


def test_logins_of_each_listener(sides: Sides, tmp_path: Path) -> None:
    """The first listener wants a password of the file, the second lets everybody in."""
    passwords = tmp_path / "passwords"
    subprocess.run(
        ["mosquitto_passwd", "-b", "-c", str(passwords), "ann", "secret"], check=True, timeout=60
    )
    sides.start(
        "per_listener_settings true\n"
        f"listener {{0}} 127.0.0.1\npassword_file {passwords}\n"
        "listener {1} 127.0.0.1\nallow_anonymous true\n",
        listeners=2,
    )
    for side in (sides.mosquitto, sides.ours):
        answers = [
            connect_code(side.at[0], user="ann", password="secret"),
            connect_code(side.at[0], user="ann", password="wrong"),
            connect_code(side.at[0], user="bob", password="secret"),
            connect_code(side.at[0]),
            connect_code(side.at[1]),
        ]
        assert [each == "Success" for each in answers] == [True, False, False, False, True], side
        with (
            connected(side.at[0], "in", user="ann", password="secret") as sending,
            connected(side.at[1], "out") as reading,
        ):
            reading.subscribe("news/#")
            sending.publish("news/today")
            assert reading.message() == ("news/today", b"x")


def test_an_access_control_list(sides: Sides, tmp_path: Path) -> None:
    passwords, rules = tmp_path / "passwords", tmp_path / "my acl"
    subprocess.run(
        ["mosquitto_passwd", "-b", "-c", str(passwords), "ann", "secret"], check=True, timeout=60
    )
    rules.write_text("topic read #\nuser ann\ntopic write a/#\npattern write own/%c/#\n")
    conf = f"listener {{0}} 127.0.0.1\nallow_anonymous true\npassword_file {passwords}\n"
    for side in sides.start(f"{conf}acl_file {rules}\n"):
        topics = ("a/1", "b/1", "own/other/1", "own/publisher/1")
        found = crosses(side.at[0], side.at[0], *topics, user="ann", password="secret")
        assert found == ["a/1", "own/publisher/1"], side.name


def test_a_mount_point(sides: Sides) -> None:
    """Clients behind it do not see it, and others do. (Mosquitto 2.0.11 leaves it in the topics
    that it sends them, although its manual says otherwise.)"""
    conf = (
        "allow_anonymous true\nlistener {0} 127.0.0.1\nlistener {1} 127.0.0.1\nmount_point plant/\n"
    )
    for side in sides.start(conf, listeners=2):
        assert crosses(side.at[1], side.at[0], "line1/x") == ["plant/line1/x"], side.name
        (found,) = crosses(side.at[0], side.at[1], "plant/y", "z")
        assert found == "y" or (side is sides.mosquitto and found == "plant/y")


def test_limits_that_clients_are_told(sides: Sides) -> None:
    """CONNACK of MQTT 5 says the same, and a packet that is too large ends the connection."""
    expected = {
        "max_packet_size 1000": ("MaximumPacketSize", 1000),
        "max_qos 1": ("MaximumQoS", 1),
        "retain_available false": ("RetainAvailable", 0),
        "max_keepalive 30": ("ServerKeepAlive", 30),
    }
    conf = "allow_anonymous true\nlistener {0} 127.0.0.1\n" + "\n".join(expected) + "\n"
    for side in sides.start(conf):
        properties: queue.Queue[Any] = queue.Queue()
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, "c", protocol=paho.MQTTv5)  # type: ignore[attr-defined, unused-ignore]
        client.on_connect = lambda *values, into=properties: into.put(values[4])
        client.connect("127.0.0.1", side.port(0), keepalive=60)
        client.loop_start()
        answer = properties.get(timeout=SECONDS)
        client.disconnect()
        client.loop_stop()
        assert {name: getattr(answer, name) for name, _ in expected.values()} == dict(
            expected.values()
        )
        for size, is_closed in ((900, False), (1100, True)):
            with RawClient(side.port(0)) as raw:
                raw.socket.sendall(connect("c"))
                assert raw.socket.recv(4)[3] == 0
                raw.socket.sendall(publish("t", bytes(size), qos=1, packet_id=1))
                with contextlib.suppress(ConnectionError):
                    assert (raw.socket.recv(1) == b"") is is_closed, side.name


def test_the_number_of_connections(sides: Sides) -> None:
    """The second listener is the one with the limit: mosquitto does not count a connection that is
    made only to see whether it listens."""
    conf = (
        "allow_anonymous true\nlistener {0} 127.0.0.1\nlistener {1} 127.0.0.1\nmax_connections 1\n"
    )
    for side in sides.start(conf, listeners=2):
        answer = b""
        with (
            RawClient.connected(side.port(1), "first"),
            RawClient(side.port(1)) as second,
            contextlib.suppress(ConnectionError),
        ):
            second.socket.sendall(connect("second"))
            answer = second.socket.recv(4)
        assert answer[3:] != b"\0", (side.name, answer)


def test_a_unix_socket(sides: Sides) -> None:
    conf = "allow_anonymous true\nlistener 0 {unix}\nlistener {0} 127.0.0.1\n"
    for side in sides.start(conf):
        assert crosses(side.at[0], side.at[1], "a/b") == ["a/b"], side.name


def test_a_websocket(sides: Sides) -> None:
    """(Mosquitto 2.0.11 does not start if all its listeners are for WebSocket.)"""
    conf = (
        "allow_anonymous true\nlistener {0} 127.0.0.1\n"
        "listener {1} 127.0.0.1\nprotocol websockets\n"
    )
    for side in sides.start(conf, listeners=2):
        sides.wait_for(sides.mosquitto.at[1])
        with (
            connected(side.at[1], "page", transport="websockets") as page,
            connected(side.at[0], "device") as device,
        ):
            page.subscribe("a/#")
            device.publish("a/b")
            assert page.message() == ("a/b", b"x"), side.name


def is_refused(port: int, tls: ssl.SSLContext) -> bool:
    """Whether a client with this context gets no answer to its CONNECT."""
    try:
        with (
            socket.create_connection(("127.0.0.1", port), SECONDS) as raw,
            tls.wrap_socket(raw, server_hostname="localhost") as client,
        ):
            client.sendall(connect("c"))
            return client.recv(4) == b""
    except (ssl.SSLError, ConnectionError):
        return True


@pytest.mark.parametrize(
    ("option", "user"),
    [
        ("use_identity_as_username", "sensor7"),
        ("use_subject_as_username", "CN=sensor7,O=Plant"),
    ],
)
def test_users_of_certificates(sides: Sides, tmp_path: Path, option: str, user: str) -> None:
    """The certificate is the login: its user has the rules, and a client without one, or with a
    revoked one, does not come in."""
    authority = Authority(tmp_path / "ca")
    certificate, key = authority.issue("server", "/CN=localhost", "DNS:localhost")
    sensor = authority.issue("sensor", "/O=Plant/CN=sensor7")
    revoked = authority.issue("revoked", "/O=Plant/CN=sensor7")
    authority.revoke(revoked[0])
    rules = tmp_path / "acl"
    rules.write_text(f"topic read #\nuser {user}\ntopic write s/#\n")
    conf = (
        f"allow_anonymous true\nacl_file {rules}\n"
        f"listener {{0}} 127.0.0.1\ncafile {authority.certificate}\ncertfile {certificate}\n"
        f"keyfile {key}\ncrlfile {authority.crl}\nrequire_certificate true\n{option} true\n"
        "listener {1} 127.0.0.1\n"
    )
    for side in sides.start(conf, listeners=2):
        tls = client_tls(authority.certificate, sensor)
        assert crosses(side.at[0], side.at[1], "s/1", "t/1", tls=tls) == ["s/1"], side.name
        for other in (None, revoked):
            context = client_tls(authority.certificate, other)
            assert is_refused(side.port(0), context), side.name
