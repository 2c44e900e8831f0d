"""What tests of bridges share: a mosquitto, settings of bridges, and their metrics."""

from __future__ import annotations

import getpass
import json
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from interop_tests.conftest import Server, StartServer
from interop_tests.mqtt_raw_client import RawClient
from interop_tests.mqtt_wire import puback, pubcomp, publish, pubrec, pubrel

MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
SECONDS = 20.0
COUNT = 1_500
"""Messages of the tests with kills: several windows."""

need_mosquitto = pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        threading.Event().wait(0.02)


class Mosquitto:
    """A mosquitto on a port that stays the same. It keeps sessions over an orderly restart."""

    def __init__(self, directory: Path, more: str = "") -> None:
        directory.mkdir()
        self.port = free_port()
        self._log = directory / "mosquitto.log"
        self._config = directory / "mosquitto.conf"
        anonymous = "" if "allow_anonymous" in more else "allow_anonymous true\n"
        self._config.write_text(
            f"listener {self.port} 127.0.0.1\n{anonymous}max_queued_messages 0\n"
            f"user {getpass.getuser()}\n"
            f"persistence true\npersistence_location {directory}/\n{more}"
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert MOSQUITTO is not None
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [MOSQUITTO, "-v", "-c", str(self._config)], stdout=log, stderr=log
            )
        wait_for(self._is_open, "mosquitto")

    def _is_open(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()[-2000:]
        with socket.socket() as trying:
            return trying.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self, *, kill: bool = False) -> None:
        if self._process is not None:
            if kill:
                self._process.kill()
            else:
                self._process.terminate()
            self._process.wait(SECONDS)
            self._process = None


def bridge(port: int, *topics: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A bridge in the settings."""
    fields = {"name": "up", "host": "127.0.0.1", "port": port, "retry_seconds_max": 1, **more}
    return {**fields, "topics": topics or [{"pattern": "x/#"}]}


def bridged(start_server: StartServer, *bridges: dict[str, Any], **more: Any) -> Server:
    """A server with these bridges."""
    return start_server(**{"mqtt.bridges": json.dumps(bridges)}, **more)


def metric(server: Server, name: str, *labels: str, of: str = "bridge") -> float:
    """A value of /metrics; 0 if there is none."""
    url = f"http://127.0.0.1:{server.admin_port}/metrics"
    with urllib.request.urlopen(url, timeout=SECONDS) as answer:
        text = answer.read().decode()
    wanted = "".join(f".*{re.escape(label)}" for label in labels)
    values = f"{{{wanted}.*}}" if labels else ""
    line = rf"^polymq_mqtt_{of}_{name}(?:_total)?{values} (\S+)$"
    found = re.search(line, text, re.MULTILINE)
    return 0.0 if found is None else float(found[1])


def is_up(server: Server, name: str = "up") -> bool:
    return metric(server, "connected", f'"{name}"') == 1


def publish_all(client: RawClient, topic: str, bodies: list[bytes], qos: int) -> None:
    """Publish and wait until every message is acknowledged. Mosquitto takes 20 of QoS 2 at once."""
    for first in range(0, len(bodies), 20):
        some = bodies[first : first + 20]
        ids = range(first + 1, first + 1 + len(some))
        pairs = zip(ids, some, strict=True)
        client.send(*(publish(topic, body, qos=qos, packet_id=k) for k, body in pairs))
        if qos == 1:
            client.expect(*map(puback, ids))
        if qos == 2:
            client.expect(*map(pubrec, ids))
            client.send(*map(pubrel, ids))
            client.expect(*map(pubcomp, ids))


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % k for k in range(first, last)]


def expect_one(client: RawClient, topic: str, body: bytes, qos: int, *, retain: bool) -> None:
    (found,) = client.acknowledge(1)
    assert (found.topic, found.body, found.qos, found.retain) == (topic, body, qos, retain)


def secret(directory: Path, text: str) -> str:
    path = directory / "password"
    path.write_text(text + "\n")
    path.chmod(0o600)
    return str(path)
