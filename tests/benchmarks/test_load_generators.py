"""The load generators tell whether everything arrived: here by servers that get it wrong.

A figure of a server that loses messages is worth nothing, so a generator that does not notice
would be worse than none. The servers below speak just enough MQTT for one publisher and one
subscriber, and tamper with what they pass on.
"""

from __future__ import annotations

import json
import selectors
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.comparison import Figures
from benchmarks.errors import BenchmarkFailed
from benchmarks.generators import BUILT, EXIT_INEXACT, Load, build_generators
from benchmarks.machine import HOST, ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="there is no C compiler"
    ),
]

TAMPERED = 10
"""Which message is tampered with."""
Tamper = Callable[[int, bytes], list[bytes]]


def faithful(_index: int, packet: bytes) -> list[bytes]:
    return [packet]


def losing(index: int, packet: bytes) -> list[bytes]:
    return [] if index == TAMPERED else [packet]


def doubling(index: int, packet: bytes) -> list[bytes]:
    return [packet, packet] if index == TAMPERED else [packet]


def changing(index: int, packet: bytes) -> list[bytes]:
    """The last byte differs."""
    return [packet[:-1] + b"?"] if index == TAMPERED else [packet]


def replacing(index: int, packet: bytes) -> list[bytes]:
    """An earlier message in the place of this one: the count is right."""
    sequence_at = len(packet) - 100 + 12
    earlier = packet[:sequence_at] + bytes(4) + packet[sequence_at + 4 :]
    return [earlier] if index == TAMPERED else [packet]


class Swapping:
    """Two messages change places."""

    def __init__(self) -> None:
        self._held = b""

    def __call__(self, index: int, packet: bytes) -> list[bytes]:
        if index == TAMPERED:
            self._held = packet
            return []
        return [packet, self._held] if index == TAMPERED + 1 else [packet]


class TinyBroker(threading.Thread):
    """One loop over blocking sockets; ends when its stop socket is written to."""

    def __init__(self, tamper: Tamper, *, acknowledges: bool = True) -> None:
        super().__init__(daemon=True)
        self._tamper = tamper
        self._acknowledges = acknowledges
        self._listener = socket.create_server((HOST, 0))
        self._bell, self._rung = socket.socketpair()
        self._subscriber: socket.socket | None = None
        self._count = 0
        self.port: int = self._listener.getsockname()[1]

    def run(self) -> None:
        watched = selectors.DefaultSelector()
        watched.register(self._listener, selectors.EVENT_READ)
        watched.register(self._rung, selectors.EVENT_READ)
        buffers: dict[socket.socket, bytes] = {}
        while True:
            for key, _ in watched.select():
                if key.fileobj is self._rung:
                    for opened in (*buffers, self._listener, self._rung, self._bell):
                        opened.close()
                    watched.close()
                    return
                if key.fileobj is self._listener:
                    opened, _ = self._listener.accept()
                    buffers[opened] = b""
                    watched.register(opened, selectors.EVENT_READ)
                    continue
                assert isinstance(key.fileobj, socket.socket)
                received = key.fileobj.recv(65_536)
                if received:
                    buffers[key.fileobj] = self._take(key.fileobj, buffers[key.fileobj] + received)
                else:
                    watched.unregister(key.fileobj)
                    buffers.pop(key.fileobj)
                    key.fileobj.close()

    def stop(self) -> None:
        self._bell.send(b"x")
        self.join()

    def _take(self, source: socket.socket, data: bytes) -> bytes:
        """Handle whole packets (they are all shorter than 128 bytes and 2); returns the rest."""
        while len(data) >= 2 and len(data) >= 2 + data[1]:
            packet, data = data[: 2 + data[1]], data[2 + data[1] :]
            kind = packet[0] >> 4
            if kind == 1:
                source.sendall(b"\x20\x02\x00\x00")
            elif kind == 8:
                self._subscriber = source
                source.sendall(b"\x90\x03\x00\x01\x01")
            elif kind == 3:
                self._pass_on(source, packet)
        return data

    def _pass_on(self, source: socket.socket, packet: bytes) -> None:
        topic_end = 4 + packet[3]
        assert self._subscriber is not None
        for sent in self._tamper(self._count, packet):
            self._subscriber.sendall(sent)
        self._count += 1
        if self._acknowledges or self._count != TAMPERED:
            source.sendall(b"\x40\x02" + packet[topic_end : topic_end + 2])


@pytest.fixture(scope="module", autouse=True)
def _generators() -> None:
    build_generators()


@pytest.fixture
def run_against() -> Iterator[Callable[..., tuple[int, dict[str, Any]]]]:
    """Run mqttgen against a broker for a moment: exit code and report."""
    brokers: list[TinyBroker] = []

    def run(tamper: Tamper, *, acknowledges: bool = True) -> tuple[int, dict[str, Any]]:
        broker = TinyBroker(tamper, acknowledges=acknowledges)
        brokers.append(broker)
        broker.start()
        options = f"-p {broker.port} -q 1 -w 20 -W 50 -s 0.1 -x 1".split()
        ended = subprocess.run(
            [str(BUILT / "mqttgen"), *options], capture_output=True, text=True, check=False
        )
        return ended.returncode, json.loads(ended.stdout)

    yield run
    for broker in brokers:
        broker.stop()


def test_what_arrives_whole_is_exact(run_against: Any) -> None:
    """A server that passes everything on: exit code 0, as many out as in."""
    code, report = run_against(faithful)
    assert (code, report["exact"]) == (0, True)
    assert report["sent"] == report["delivered"] == report["acknowledged"] > TAMPERED


@pytest.mark.parametrize(
    ("tamper", "sign"),
    [
        (losing, lambda report: report["delivered"] == report["sent"] - 1),
        (doubling, lambda report: report["out_of_order"] == 1),
        (changing, lambda report: report["corrupt"] == 1),
        (replacing, lambda report: report["out_of_order"] == 1),
        (Swapping(), lambda report: report["out_of_order"] == 1),
    ],
    ids=["lost", "doubled", "changed", "replaced", "swapped"],
)
def test_what_arrives_wrong_is_found(
    run_against: Any, tamper: Tamper, sign: Callable[[dict[str, Any]], bool]
) -> None:
    """One message of many is tampered with: the run does not count, and says why."""
    code, report = run_against(tamper)
    assert (code, report["exact"]) == (EXIT_INEXACT, False)
    assert sign(report), report


def test_an_ack_that_never_comes_is_found(run_against: Any) -> None:
    """Everything is delivered, one PUBACK is missing."""
    code, report = run_against(faithful, acknowledges=False)
    assert (code, report["exact"]) == (EXIT_INEXACT, False)
    assert report["acknowledged"] == report["sent"] - 1


def test_without_a_compiler_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An empty PATH and nothing built yet."""
    monkeypatch.setattr("benchmarks.generators.BUILT", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(BenchmarkFailed, match="no compiler: install gcc"):
        build_generators()


def test_a_log_with_another_number_of_records_does_not_count() -> None:
    """Everything arrived, but the log grew by one record less than was sent."""
    load = Load(
        sent=5,
        delivered=5,
        exact=True,
        seconds=1.0,
        cpu_seconds=1.0,
        generator_cpu_seconds=1.0,
        p50_us=1.0,
        p99_us=1.0,
        report={},
    )
    assert Figures(loads=[load], records=[5]).problem == ""
    assert "4 records for 5 messages" in Figures(loads=[load], records=[4]).problem


def test_a_quick_run_of_our_server_holds_all_checks(tmp_path: Path) -> None:
    """The whole program: one MQTT and one AMQP scenario without peers, figures into a file."""
    figures = tmp_path / "figures.json"
    command = [sys.executable, "benchmarks/run.py", "--quick", "--peers", "none"]
    command += ["--only", "mqtt-qos1,amqp-persistent", "--subscriptions", "30"]
    command += ["--directory", str(tmp_path), "--json", str(figures)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(figures.read_text(encoding="utf-8"))
    names = [scenario["name"] for scenario in found["scenarios"]]
    assert names == ["mqtt-qos1", "amqp-persistent"]
    for scenario in found["scenarios"]:
        ours = scenario["servers"]["PolyMQ"]
        assert ours["problem"] == ""
        assert ours["log_records"] == [run["sent"] for run in ours["runs"]]
        assert ours["median"]["cpu_us_per_message"] > 0
    assert not list(tmp_path.glob("servers-*")), "data was left behind"
