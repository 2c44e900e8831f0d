"""Connections that come and go quickly leave nothing in memory, in a whole server."""

from __future__ import annotations

import gc
import socket
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polymq.settings import Settings, load_settings
from tests.polymq.test_serve import serve_until

COUNT = 200
MQTT_CONNECT = b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01c"
AMQP_HEADER = b"AMQP\x00\x00\x09\x01"
FRAME_START = b"\x00\x00\x00\x40"
"""A RocketMQ request of 64 bytes begins."""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    flags: dict[str, dict[str, Any]] = {
        listener: {"port": 0} for listener in ("mqtt", "amqp", "http", "rocketmq", "admin")
    }
    flags["server"] = {"data_directory": tmp_path / "data", "drain_seconds": 0.2}
    flags["names"] = {"enabled": False}
    flags["storage"] = {"segment_bytes": 1024 * 1024}
    return load_settings(flags=flags)


@pytest.fixture
def _with_collector_after() -> Iterator[None]:
    yield
    gc.enable()


def metrics(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    pairs = [line.rpartition(" ") for line in lines if not line.startswith("#")]
    return {name: float(value) for name, _, value in pairs}


@pytest.mark.usefixtures("_with_collector_after")
@pytest.mark.parametrize(
    ("protocol", "text", "answered"),
    [
        ("mqtt", b"", False),
        ("mqtt", MQTT_CONNECT, True),  # each takes the session of the one before
        ("amqp", b"", False),
        ("amqp", AMQP_HEADER, True),
        ("rocketmq", b"", False),
        ("rocketmq", FRAME_START, False),
        ("http", b"", False),
    ],
)
def test_connections_that_end_are_free_at_once(
    settings: Settings, tmp_path: Path, protocol: str, text: bytes, answered: bool
) -> None:
    """Without the garbage collector, and long before their first deadline."""

    def come_and_go(ready: dict[str, Any]) -> None:
        gc.disable()
        before: socket.socket | None = None
        for _ in range(COUNT):
            client = socket.create_connection(("127.0.0.1", ready[protocol]), timeout=20)
            client.sendall(text)
            if answered:
                assert client.recv(4)
            if before is not None:
                before.close()  # it was there when the next one came
            before = client
        assert before is not None
        before.close()
        pause = threading.Event()
        name = f'polymq_connections{{protocol="{protocol}"}}'
        for _ in range(500):
            found = metrics(ready["admin"])
            if not found[name]:
                break
            pause.wait(0.01)
        assert found[name] == 0
        assert metrics(ready["admin"])["polymq_ended_in_memory"] == 0

    assert serve_until(settings, tmp_path, come_and_go) == 0
