"""The machine that is measured on: its cores, its processes, and what to know of it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

ROOT: Final = Path(__file__).resolve().parent.parent
HOST: Final = "127.0.0.1"


def pinned(role: Literal["server", "generator"]) -> Sequence[str]:
    """The start of a command line that keeps a process on its core.

    Servers get one core and generators another, so that nobody is measured while the scheduler
    moves them about. On a machine with one core, or without `taskset`, nothing is pinned.
    """
    cores = sorted(os.sched_getaffinity(0))
    taskset = shutil.which("taskset")
    if len(cores) < 2 or taskset is None:
        return ()
    return (taskset, "--cpu-list", str(cores[0] if role == "server" else cores[1]))


class Theft:
    """How much of the processors the machine had to leave to others: what a host that runs several
    machines calls steal time. Nobody is measured well in it.

    It counts from the making of the object. On a system that does not tell, there is none.
    """

    def __init__(self) -> None:
        self._began = _processor_ticks()

    def share(self) -> float:
        """Of the time since then, on the core where it was most: 0 to 1."""
        return max(
            (
                (stolen - self._began[core][0]) / max(1, total - self._began[core][1])
                for core, (stolen, total) in _processor_ticks().items()
                if core in self._began
            ),
            default=0.0,
        )


def _processor_ticks() -> dict[str, tuple[int, int]]:
    """Of each core: the time that was stolen from it, and all of its time."""
    try:
        lines = Path("/proc/stat").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    found = {}
    for line in lines:
        name, *ticks = line.split()
        # User, nice, system, idle, waiting, interrupts of two kinds, stolen; the rest is in these.
        if name.startswith("cpu") and name != "cpu" and len(ticks) >= 8:
            found[name] = (int(ticks[7]), sum(map(int, ticks[:8])))
    return found


def free_port() -> int:
    """A port of loopback that nobody listens on now, for servers that cannot pick one."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def process_tree(process_id: int) -> list[int]:
    """The process and all that descend from it and still run."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue  # it ended meanwhile
        # The name in parentheses may hold anything; the parent is the second field behind it.
        parent = int(stat.rpartition(")")[2].split()[1])
        children.setdefault(parent, []).append(int(entry.name))
    found = [process_id]
    for known in found:
        found += children.get(known, ())
    return found


def describe_machine() -> dict[str, Any]:
    """What figures from this machine have to be read with."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "uvloop": _version("uvloop"),
        "load_average": round(os.getloadavg()[0], 2),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"
