"""How the server behaves with many queues, much backlog, many subscriptions, and many of what MQTT
has.

Figures of this kind do not depend on a peer: they are bounds that the design promises. Queues,
backlog and routing are measured on the engine and its store in processes of their own
(`scale_engine.py`), MQTT on a started server with clients in another process (`scale_mqtt.py`).
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from benchmarks.errors import BenchmarkFailed
from benchmarks.machine import ROOT
from benchmarks.scale_mqtt import measure_mqtt, mqtt_lines

QUEUES: Final = 100_000
BACKLOG: Final = 1_000_000
ROUTES: Final = 100_000
ACTION_SECONDS_MAX: Final = 600


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
            "mqtt": measure_mqtt(directory / "mqtt", part),
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
    return [*lines, *mqtt_lines(figures["mqtt"])]
