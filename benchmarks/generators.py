"""The load generators: built from `generators/*.c` when they are needed, run as processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.errors import BenchmarkFailed
from benchmarks.machine import ROOT, pinned

SOURCES: Final = Path(__file__).resolve().parent / "generators"
BUILT: Final = ROOT / "build" / "benchmarks"
NAMES: Final = ("mqttgen", "amqpgen", "echogen")
FLAGS: Final = ("-O2", "-Wall", "-Wextra")
EXIT_INEXACT: Final = 4
"""The generator ran, and something was lost, doubled, reordered or changed on the way."""
RUN_SECONDS_MAX: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one run of a generator measured.

    Attributes:
        sent, delivered: messages; a message that reaches n subscribers is delivered n times.
        exact: everything arrived once, in order and intact, and was acknowledged.
        seconds: from the first message until the last has arrived and was acknowledged.
        cpu_seconds: processor time of the server in that time, all its threads and processes.
        generator_cpu_seconds: that of the generator: near `seconds` it is the bottleneck.
    """

    sent: int
    delivered: int
    exact: bool
    seconds: float
    cpu_seconds: float
    generator_cpu_seconds: float
    p50_us: float
    p99_us: float
    report: dict[str, Any]

    @property
    def cpu_us_per_message(self) -> float:
        """Processor time of the server for each message delivered, in microseconds."""
        return self.cpu_seconds * 1e6 / max(self.delivered, 1)

    @property
    def messages_per_second(self) -> float:
        """Messages delivered per second."""
        return self.delivered / self.seconds if self.seconds else 0.0


def build_generators() -> None:
    """Compile what is older than its source. Raises BenchmarkFailed."""
    compiler = os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), None)
    BUILT.mkdir(parents=True, exist_ok=True)
    headers = [path.stat().st_mtime for path in SOURCES.glob("*.h")]
    for name in NAMES:
        source, program = SOURCES / f"{name}.c", BUILT / name
        newest = max(source.stat().st_mtime, *headers)
        if program.exists() and program.stat().st_mtime > newest:
            continue
        if compiler is None:
            raise BenchmarkFailed(
                "the load generators are written in C and there is no compiler: "
                "install gcc (Debian: apt install gcc libc6-dev)"
            )
        command = [compiler, *FLAGS, "-o", str(program), str(source)]
        try:
            made = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise BenchmarkFailed(f"the compiler {compiler} cannot be run: {error}") from error
        if made.returncode:
            raise BenchmarkFailed(f"{' '.join(command)} failed:\n{made.stderr.strip()}")


def run_generator(
    name: str, options: Sequence[str], *, port: int, seconds: float, process_ids: Sequence[int]
) -> Load:
    """Run a generator against a server. Raises BenchmarkFailed if it could not do its work."""
    command = [
        *pinned("generator"),
        str(BUILT / name),
        *("-p", str(port), "-s", str(seconds), "-c", ",".join(map(str, process_ids))),
        *options,
    ]
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=RUN_SECONDS_MAX + seconds
        )
    except subprocess.TimeoutExpired as error:
        raise BenchmarkFailed(f"{name} did not end in {error.timeout:.0f} seconds") from error
    if ended.returncode not in (0, EXIT_INEXACT):
        raise BenchmarkFailed(f"{name}: {ended.stderr.strip() or ended.returncode}")
    report = json.loads(ended.stdout)
    return Load(
        sent=report["sent"],
        delivered=report["delivered"],
        exact=report["exact"],
        seconds=report["seconds"],
        cpu_seconds=report["server_cpu_seconds"],
        generator_cpu_seconds=report["generator_cpu_seconds"],
        p50_us=report["p50_us"],
        p99_us=report["p99_us"],
        report=report,
    )
