"""The server under test: PolyMQ, or with `MQTT_PEER=mosquitto` another one, by which the tests
themselves are checked.

It is one server for all tests of a process. So each test has client identifiers and topics of its
own (`client.Names`), and whatever it retains is on those topics.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from interop_tests.conftest import Server
from interop_tests.mqtt_conformance.client import PEER

MOSQUITTO: Final = "/usr/sbin/mosquitto"
START_SECONDS_MAX: Final = 20.0
LOOK_SECONDS: Final = 0.02


@dataclass(frozen=True, slots=True)
class Peer:
    """A running server.

    Attributes:
        port: its listener for MQTT over TCP.
        websocket_port: the one for WebSocket, where it has one.
    """

    port: int
    websocket_port: int | None = None


MODEST: Final = {
    "mqtt.qos_max": 1,
    "mqtt.retain_available": False,
    "mqtt.wildcards_available": False,
    "mqtt.subscription_identifiers_available": False,
    "mqtt.keep_alive_seconds_max": 1,
    "mqtt.check_payload_format": True,
    "mqtt.response_information": "answers/{client_id}/",
}
"""Settings that switch off what the standard lets a server switch off, and on what it need not
have."""


@contextlib.contextmanager
def polymq(directory: Path, settings: Mapping[str, object] | None = None) -> Iterator[Peer]:
    options = {"mqtt.websocket": True, "mqtt.websocket_port": 0, **(settings or {})}
    server = Server(directory, options, {}, (sys.executable, "-m", "polymq"))
    try:
        server.start()
        listeners = json.loads((server.data_directory / "server.json").read_text(encoding="utf-8"))
        yield Peer(server.mqtt_port, listeners.get("mqtt_ws"))
    finally:
        server.close(sys.stdout)


@contextlib.contextmanager
def mosquitto(directory: Path) -> Iterator[Peer]:
    program = shutil.which("mosquitto") or MOSQUITTO
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        port: int = asked.getsockname()[1]
    settings = directory / "mosquitto.conf"
    settings.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\n", encoding="ascii"
    )
    with (directory / "mosquitto.log").open("wb") as log:
        process = subprocess.Popen([program, "-c", str(settings)], stdout=log, stderr=log)
    try:
        _wait_for(port, process)
        yield Peer(port)
    finally:
        process.terminate()
        process.wait(START_SECONDS_MAX)


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            raise AssertionError(f"mosquitto ended with {process.wait(LOOK_SECONDS)}")
        assert time.monotonic() < deadline, "mosquitto is not ready in time"


PEERS: Final[dict[str, Callable[[Path], contextlib.AbstractContextManager[Peer]]]] = {
    "polymq": polymq,
    "mosquitto": mosquitto,
}


@pytest.fixture(scope="session")
def modest_peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """A server that is configured as `MODEST` says."""
    if PEER != "polymq":
        pytest.skip("these settings are PolyMQ's")
    with polymq(tmp_path_factory.mktemp("modest"), MODEST) as found:
        yield found


@pytest.fixture(scope="session")
def narrow_peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """A server that takes few publishes of a client at once."""
    if PEER != "polymq":
        with PEERS[PEER](tmp_path_factory.mktemp(PEER)) as found:
            yield found
        return
    with polymq(tmp_path_factory.mktemp("narrow"), {"mqtt.receive_max": 5}) as found:
        yield found


@pytest.fixture(scope="session")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """The server that all tests of this process use."""
    with PEERS[PEER](tmp_path_factory.mktemp(PEER)) as found:
        yield found
