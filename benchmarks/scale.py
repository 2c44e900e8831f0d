"""How the server behaves with many queues, much backlog, many connections, many subscriptions.

Figures of this kind do not depend on a peer: they are bounds that the design promises. Queues,
backlog and routing are measured on the engine and its store in processes of their own
(`scale_engine.py`), connections on a started server with clients in another process.
"""

from __future__ import annotations

import json
import resource
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.errors import BenchmarkFailed
from benchmarks.machine import HOST, ROOT, process_tree
from benchmarks.servers import PolyMQ

QUEUES: Final = 100_000
BACKLOG: Final = 1_000_000
CONNECTIONS: Final = 10_000
ROUTES: Final = 100_000
ACTION_SECONDS_MAX: Final = 600
SPARE_FILES: Final = 200
"""Descriptors that a process needs for other things than connections."""
IDLE_SECONDS: Final = 2.0
"""How long connections are held before memory is looked at: what opening them left is done."""


def measure_scale(directory: Path, *, quick: bool) -> dict[str, Any]:
    """All of it; with `quick`, a tenth of everything. Raises BenchmarkFailed."""
    part = 10 if quick else 1
    directory = directory / "scale"
    shutil.rmtree(directory, ignore_errors=True)
    try:
        figures = {
            "queues": measure_queues(directory / "queues", QUEUES // part),
            "backlog": run_action("backlog", directory / "backlog", BACKLOG // part),
            "route_ns": run_action("route", directory / "route", ROUTES // part),
            "connections": measure_connections(directory / "connections", CONNECTIONS // part),
        }
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return figures


def measure_queues(directory: Path, count: int) -> dict[str, Any]:
    """Declare, be killed, open, be closed, open; and once more with a topic for each queue."""
    return {
        "count": count,
        "declare": run_action("declare", directory, count),
        "open_killed": run_action("open", directory, count),
        "open_closed": run_action("open", directory, count),
        "filled": run_action("fill", directory, count),
        "open_topics": run_action("open", directory, count),
    }


def run_action(action: str, directory: Path, count: int) -> dict[str, Any]:
    """One action of `scale_engine` in a process of its own; its figures."""
    directory.mkdir(parents=True, exist_ok=True)
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.scale_engine", action, str(directory), str(count)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=ACTION_SECONDS_MAX,
    )
    if ended.returncode:
        raise BenchmarkFailed(f"{action}: {ended.stderr.strip()}")
    figures: dict[str, Any] = json.loads(ended.stdout)
    return figures


def measure_connections(directory: Path, count: int) -> dict[str, Any]:
    """Idle MQTT connections, held by another process: memory of the server for each."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    count = min(count, hard - SPARE_FILES) if hard != resource.RLIM_INFINITY else count
    server = PolyMQ(directory)
    server.start()
    try:
        before = server_memory(server)
        clients = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.scale", str(server.ports["mqtt"]), str(count)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert clients.stdout is not None
            seconds = clients.stdout.readline()
            if not seconds:
                raise BenchmarkFailed("the clients could not connect")
            time.sleep(IDLE_SECONDS)
            after = server_memory(server)
        finally:
            clients.terminate()
            clients.wait()
    finally:
        server.stop()
    return {
        "count": count,
        "bytes_each": (after - before) / count,
        "connects_per_second": count / float(seconds),
    }


def server_memory(server: PolyMQ) -> int:
    """Resident bytes of the server's processes."""
    total = 0
    for process_id in server.process_ids:
        for child in process_tree(process_id)[:1]:
            status = Path(f"/proc/{child}/status").read_text(encoding="utf-8")
            (line,) = [line for line in status.splitlines() if line.startswith("VmRSS:")]
            total += int(line.split()[1]) * 1024
    return total


def keep_connections(port: int, count: int) -> None:
    """Connect MQTT clients, say how long it took, and hold them until we are ended."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    opened = []
    start = time.perf_counter()
    for number in range(count):
        client = socket.create_connection((HOST, port), timeout=30)
        name = b"idle-%06d" % number
        content = b"\x00\x04MQTT\x04\x02\x00\x00" + len(name).to_bytes(2, "big") + name
        client.sendall(b"\x10" + bytes((len(content),)) + content)
        opened.append(client)
        if len(opened) % 100 == 0 or number == count - 1:
            for waiting in opened[-100:]:
                if waiting.recv(4)[:1] not in (b"\x20", b""):
                    raise SystemExit("a client was refused")
    print(time.perf_counter() - start, flush=True)
    sys.stdin.read()


def scale_lines(figures: dict[str, Any]) -> list[str]:
    """The figures for a reader."""
    queues, backlog = figures["queues"], figures["backlog"]
    declare, save = queues["declare"], queues["declare"]["save_touched"]
    lines = [
        f"{queues['count']:,} durable queues",
        f"  declared           {declare['declared_per_second']:10,.0f} per second",
        f"  memory, declared   {declare['bytes_each']:10,.0f} bytes each, the log's tail included",
        f"  memory, opened     {queues['open_closed']['bytes_each']:10,.0f} bytes each",
        (
            f"  opened after kill  {queues['open_killed']['seconds']:10.2f} s"
            f" ({queues['open_killed']['cpu_seconds']:.2f} s of processor time)"
        ),
        (
            f"  opened after stop  {queues['open_closed']['seconds']:10.2f} s"
            f" ({queues['open_closed']['cpu_seconds']:.2f} s of processor time)"
        ),
        (
            f"  opened as topics   {queues['open_topics']['seconds']:10.2f} s"
            f" ({queues['open_topics']['cpu_seconds']:.2f} s of processor time),"
            f" with {queues['filled']['topics']:,} topics"
        ),
        f"  saved after a message each to {declare['touched']:,} queues",
        (
            f"    state            {save['state_loop_ms']:10.1f} ms on the loop, in slices of at"
            f" most {save['state_slice_ms']:.1f} ms; {save['state_worker_ms']:.0f} ms in the worker"
        ),
        (
            f"    indexes          {save['checkpoint_loop_ms']:10.1f} ms on the loop, in slices of"
            f" at most {save['checkpoint_slice_ms']:.1f} ms;"
            f" {save['checkpoint_worker_ms']:.0f} ms in the worker"
        ),
        f"  a message of 100 bytes to 10 queues: {declare['fanout_bytes']} bytes of log",
        "",
        f"{backlog['count']:,} messages of 100 bytes in one queue",
        f"  filled in          {backlog['fill_seconds']:10.2f} s",
        f"  longest slice of a checkpoint on the loop {backlog['slice_ms']:.2f} ms",
        (
            f"  memory             {backlog['memory_bytes'] / 1e6:10.1f} MB,"
            f" of that {backlog['tail_bytes'] / 1e6:.1f} MB the log's tail"
        ),
        f"  drained in         {backlog['drain_seconds']:10.2f} s",
        "",
        "a publish to one queue, by exact subscriptions elsewhere",
    ]
    lines += [f"  {int(n):>8,}  {ns / 1000:8.2f} us" for n, ns in figures["route_ns"].items()]
    connections = figures["connections"]
    lines += [
        "",
        f"{connections['count']:,} idle MQTT connections",
        f"  memory             {connections['bytes_each']:10,.0f} bytes each",
        f"  connected          {connections['connects_per_second']:10,.0f} per second",
    ]
    return lines


if __name__ == "__main__":
    keep_connections(int(sys.argv[1]), int(sys.argv[2]))
