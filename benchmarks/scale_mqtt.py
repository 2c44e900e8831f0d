"""What large numbers cost in MQTT: connections with and without TLS, a million retained messages,
and a subscriber that reads nothing among a thousand that do.

The clients are in a process of their own (`python -m benchmarks.scale_mqtt ACTION PORT COUNT`), so
that the server's processor time and memory are the server's alone.
"""

from __future__ import annotations

import json
import resource
import select
import shutil
import socket
import ssl
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.errors import BenchmarkFailed
from benchmarks.fairness_wire import (
    RECEIVE_BYTES,
    expect,
    mqtt_connect,
    mqtt_publish,
    mqtt_subscribe,
)
from benchmarks.machine import HOST, ROOT, pinned
from benchmarks.scenarios import Protocol
from benchmarks.servers import PolyMQ

CONNECTIONS: Final = 10_000
RETAINED: Final = 1_000_000
SUBSCRIBERS: Final = 1_000
SPARE_FILES: Final = 200
"""Descriptors that a process needs for other things than connections."""
IDLE_SECONDS: Final = 2.0
"""How long connections are held before memory is looked at: what opening them left is done."""
ACTION_SECONDS_MAX: Final = 600
CLIENT_SECONDS_MAX: Final = 120
BODY: Final = b"x" * 100
RUN: Final = 500
"""Publishes in one piece."""
PACED: Final = 200
"""Messages to all subscribers in one measurement."""
PACE_SECONDS: Final = 0.05
PINGREQ, PINGRESP = b"\xc0\x00", b"\xd0\x00"


def measure_mqtt(directory: Path, part: int) -> dict[str, Any]:
    """All of it, with the numbers divided by `part`. Raises BenchmarkFailed."""
    directory.mkdir(parents=True, exist_ok=True)
    tls = make_certificate(directory)
    return {
        "plain": measure(directory / "plain", "connections", CONNECTIONS // part),
        "tls": tls
        and measure(directory / "tls", "connections-tls", CONNECTIONS // part, tls, "mqtts"),
        "retained": measure(directory / "retained", "retained", RETAINED // part),
        "stopped": measure(directory / "stopped", "stopped", SUBSCRIBERS // part),
    }


def measure(
    directory: Path,
    action: str,
    count: int,
    settings: Mapping[str, str] | None = None,
    listener: Protocol = "mqtt",
) -> dict[str, Any]:
    """One action against a server of its own. The clients hold their connections until the
    server's memory has been read."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY:
        count = min(count, hard - SPARE_FILES) if action != "retained" else count
    server = PolyMQ(directory, settings=settings)
    server.start()
    try:
        memory, cpu = server.memory_bytes(), server.cpu_seconds()
        command = [sys.executable, "-m", "benchmarks.scale_mqtt", action]
        clients = subprocess.Popen(
            [*pinned("generator"), *command, str(server.ports[listener]), str(count)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert clients.stdout is not None
            said = clients.stdout.readline()
            if not said:
                raise BenchmarkFailed(f"the clients of {action} could not do their work")
            cpu = server.cpu_seconds() - cpu
            time.sleep(IDLE_SECONDS)
            memory = server.memory_bytes() - memory
        finally:
            clients.terminate()
            clients.wait()
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)
    return {"count": count, "bytes_each": memory / count, "cpu_seconds": cpu, **json.loads(said)}


def make_certificate(directory: Path) -> Mapping[str, str] | None:
    """The settings for TLS with a certificate (ECDSA, P-256); None where there is no openssl."""
    if shutil.which("openssl") is None:
        return None
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=localhost"),
            *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    ports = {f"{name}.tls_port": "0" for name in ("mqtt", "amqp", "http", "rocketmq")}
    return {**ports, "tls.certificate": str(certificate), "tls.key": str(key)}


# --- the clients ----------------------------------------------------------------------------


def open_client(port: int, name: str, tls: ssl.SSLContext | None = None) -> socket.socket:
    """A client that is connected."""
    opened = socket.create_connection((HOST, port), timeout=CLIENT_SECONDS_MAX)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if tls is not None:
        opened = tls.wrap_socket(opened)
    mqtt_connect(opened, name)
    return opened


def connections(port: int, count: int, *, encrypted: bool) -> tuple[dict[str, Any], object]:
    """Idle ones, one after the other. With TLS each has a handshake of its own."""
    tls = None
    if encrypted:
        tls = ssl.create_default_context()
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    start = time.perf_counter()
    clients = [open_client(port, f"idle-{number}", tls) for number in range(count)]
    return {"seconds": time.perf_counter() - start}, clients


def retained(port: int, count: int) -> tuple[dict[str, Any], object]:
    """So many retained messages, and one subscription to all of them, beside a client that only
    asks whether the server is there."""
    publisher = open_client(port, "publisher")
    start = time.perf_counter()
    for first in range(0, count, RUN):
        numbers = range(first, min(first + RUN, count))
        publisher.sendall(
            b"".join(
                mqtt_publish(
                    f"r/{number // 1000}/{number}", BODY, packet_id=number % 60_000 + 1, retain=True
                )
                for number in numbers
            )
        )
        expect(publisher, 4 * len(numbers))
    filled = time.perf_counter() - start
    subscriber, other = open_client(port, "subscriber"), open_client(port, "other")
    size = sum(len(mqtt_publish(f"r/{n // 1000}/{n}", BODY)) for n in range(count))
    start = time.perf_counter()
    subscriber.sendall(mqtt_subscribe(["#"]))
    expect(subscriber, 5)
    got, first_at, waits = 0, 0.0, [0.0]
    asked = time.perf_counter()
    other.sendall(PINGREQ)
    while got < size:
        ready, _, _ = select.select([subscriber, other], [], [], CLIENT_SECONDS_MAX)
        if not ready:
            raise SystemExit("nothing came any more")
        if other in ready:
            expect(other, 2)
            waits.append(time.perf_counter() - asked)
            asked = time.perf_counter()
            other.sendall(PINGREQ)
        if subscriber in ready:
            got += len(subscriber.recv(RECEIVE_BYTES))
            first_at = first_at or time.perf_counter() - start
    return {
        "fill_seconds": filled,
        "first_seconds": first_at,
        "seconds": time.perf_counter() - start,
        "ping_p99_ms": 1000 * sorted(waits)[int(0.99 * len(waits))],
        "ping_max_ms": 1000 * max(waits),
    }, (publisher, subscriber, other)


def stopped(port: int, count: int) -> tuple[dict[str, Any], object]:
    """How late messages are at subscribers of one topic, with all of them reading, and then with
    one that reads nothing: twice each, behind a first time that does not count."""
    publisher = open_client(port, "publisher")
    clients = []
    for number in range(count):
        client = open_client(port, f"subscriber-{number}")
        client.sendall(mqtt_subscribe(["all"], 1))
        expect(client, 5)
        clients.append(client)
    found: dict[str, list[float]] = {"reading": [], "stopped": []}
    _latencies(publisher, clients, clients)
    for how in ("reading", "reading", "stopped", "stopped"):
        found[how] += _latencies(publisher, clients[1:] if how == "stopped" else clients, clients)
    return {
        how: {
            "p50_ms": 1000 * statistics.median(waits),
            "p99_ms": 1000 * sorted(waits)[int(0.99 * len(waits))],
            "max_ms": 1000 * max(waits),
        }
        for how, waits in found.items()
    }, (publisher, clients)


def _latencies(
    publisher: socket.socket, reading: Sequence[socket.socket], all_of_them: Sequence[socket.socket]
) -> list[float]:
    """Of paced messages at those who read and acknowledge them. A message is large enough that a
    socket that nobody reads is soon full."""
    body = bytes(16 * 1024)
    size = len(mqtt_publish("all", body, packet_id=1))
    poll = select.epoll()
    by_descriptor = {client.fileno(): client for client in reading}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.EPOLLIN)
    waits = []
    for number in range(PACED):
        start = time.perf_counter()
        publisher.sendall(mqtt_publish("all", body, packet_id=number % 60_000 + 1))
        left = dict.fromkeys(by_descriptor, size)
        unfinished = len(left)
        while unfinished:
            for descriptor, _ in poll.poll(CLIENT_SECONDS_MAX):
                client = by_descriptor[descriptor]
                data = client.recv(left[descriptor])
                if not data:
                    raise SystemExit("a subscriber was closed")
                if left[descriptor] == size:
                    at = data.index(b"\x00\x03all") + 5
                    client.sendall(b"\x40\x02" + data[at : at + 2])
                left[descriptor] -= len(data)
                if not left[descriptor]:
                    unfinished -= 1
                    waits.append(time.perf_counter() - start)
        expect(publisher, 4)
        time.sleep(max(0.0, start + PACE_SECONDS - time.perf_counter()))
    poll.close()
    return waits


ACTIONS: Final[Mapping[str, Callable[[int, int], tuple[dict[str, Any], object]]]] = {
    "connections": lambda port, count: connections(port, count, encrypted=False),
    "connections-tls": lambda port, count: connections(port, count, encrypted=True),
    "retained": retained,
    "stopped": stopped,
}


def mqtt_lines(figures: Mapping[str, Any]) -> list[str]:
    """The figures for a reader."""
    lines = []
    for name, title in (("plain", "idle MQTT connections"), ("tls", "the same with TLS")):
        one = figures[name]
        if one is not None:
            each = one["cpu_seconds"] / one["count"]
            lines += [
                "",
                f"{one['count']:,} {title}",
                f"  memory             {one['bytes_each']:10,.0f} bytes each",
                f"  connected          {one['count'] / one['seconds']:10,.0f} per second",
                f"  processor time     {1e6 * each:10,.0f} us each",
            ]
    one, late = figures["retained"], figures["stopped"]
    lines += [
        "",
        f"{one['count']:,} retained messages",
        f"  memory             {one['bytes_each']:10,.0f} bytes each",
        f"  published          {one['count'] / one['fill_seconds']:10,.0f} per second",
        f"  to a subscriber    {one['count'] / one['seconds']:10,.0f} per second",
        f"    the first after  {1000 * one['first_seconds']:10.1f} ms",
        f"  PINGREQ beside it  {one['ping_p99_ms']:10.1f} ms p99, {one['ping_max_ms']:.1f} worst",
        "",
        f"a message of 16 KiB to {late['count']:,} subscribers",
    ]
    for how, title in (("reading", "all of them read"), ("stopped", "one of them reads nothing")):
        lines.append(
            f"  {title:26} p50 {late[how]['p50_ms']:.1f} ms, p99 {late[how]['p99_ms']:.1f} ms,"
            f" worst {late[how]['max_ms']:.1f} ms"
        )
    return lines


def main(action: str, port: int, count: int) -> None:
    """Do it, say what was measured, and hold the connections until we are ended."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    figures, held = ACTIONS[action](port, count)
    print(json.dumps(figures), flush=True)
    sys.stdin.read()
    del held


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
