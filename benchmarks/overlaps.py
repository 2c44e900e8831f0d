"""What a message costs for a session whose filters overlap, against one whose do not.

The whole path without sockets and disk (`benchmarks.path`), with one session for each case, each
with an engine of its own. The cases take turns within each round, so what else the machine does
falls on all of them. A figure is the processor time of a message, the median of the rounds, its
publication and its acknowledgement included.

    python -m benchmarks.overlaps [--samples N] [--json FILE]
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.machine import describe_machine
from benchmarks.path import TOPIC, Loop, ServerParts, publish

FILTERS: Final = {
    "one filter": (b"bench/#",),
    "two, one matches": (b"bench/#", b"other/#"),
    "two that overlap": (b"bench/#", b"bench/+"),
    "four that overlap": (b"bench/#", b"bench/+", b"+/0", TOPIC),
}
"""What sessions subscribe to. The first is what the others are compared with."""
LOADS: Final = ((10, 1), (2, 50))
"""(publishers, messages in each of their reads); a round is one read of each."""
SAMPLES: Final = 15
SAMPLE_MESSAGES: Final = 4_000
WARM_UP_ROUNDS: Final = 20


class TimedLoop(Loop):
    """A loop whose timers all fire when it is told to: acknowledgements are stored by one."""

    def __init__(self) -> None:
        super().__init__()
        self._later: list[Callable[[], object]] = []

    def call_later(self, _delay: float, callback: Callable[[], object]) -> None:
        """At the next `time_passes`."""
        self._later.append(callback)

    def time_passes(self) -> None:
        """What was to be done later is done."""
        due, self._later = self._later, []
        for callback in due:
            callback()


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What a message costs in one case.

    Attributes:
        ratio: to the first case.
    """

    session: str
    filters: str
    messages_per_read: int
    nanoseconds: float
    ratio: float


class Case:
    """One session, its engine and its publishers."""

    def __init__(
        self, directory: Path, filters: Sequence[bytes], *, clean: bool, load: tuple[int, int]
    ) -> None:
        directory.mkdir()
        publishers_count, self._count = load
        self._loop = TimedLoop()
        self._parts = ServerParts(
            directory, publishers_count, filters=filters, clean=clean, loop=self._loop
        )
        self._read = b"".join(publish(TOPIC, number + 1) for number in range(self._count))
        self._round_messages = publishers_count * self._count
        self.samples: list[float] = []

    def run(self, rounds: int) -> int:
        """Send and acknowledge; returns nanoseconds of processor time."""
        used = 0
        for _ in range(rounds):
            used += self._parts.round(self._read, self._count)
            self._loop.time_passes()
            self._parts.commit()
        return used

    def sample(self) -> None:
        """One turn of this case."""
        rounds = max(1, SAMPLE_MESSAGES // self._round_messages)
        self.samples.append(self.run(rounds) / (rounds * self._round_messages))

    def close(self) -> None:
        """The log is deleted with its directory."""
        self._parts.store.close()


def measure(samples: int) -> list[Figure]:
    """All figures."""
    figures = []
    for clean in (True, False):
        for load in LOADS:
            with tempfile.TemporaryDirectory(prefix="polymq-overlaps-") as directory:
                cases = {
                    name: Case(Path(directory) / str(number), filters, clean=clean, load=load)
                    for number, (name, filters) in enumerate(FILTERS.items())
                }
                for case in cases.values():
                    case.run(WARM_UP_ROUNDS)
                gc.collect()
                gc.freeze()
                for _ in range(samples):
                    for case in cases.values():
                        case.sample()
                medians = {name: statistics.median(case.samples) for name, case in cases.items()}
                for case in cases.values():
                    case.close()
            first = next(iter(medians.values()))
            figures += [
                Figure(
                    session="clean" if clean else "persistent",
                    filters=name,
                    messages_per_read=load[1],
                    nanoseconds=nanoseconds,
                    ratio=nanoseconds / first,
                )
                for name, nanoseconds in medians.items()
            ]
    return figures


def main() -> None:
    """See the head of this file."""
    parser = argparse.ArgumentParser(prog="benchmarks.overlaps", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--samples", type=int, default=SAMPLES, help="turns of each case")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    options = parser.parse_args()
    before = os.getloadavg()[0]
    figures = measure(max(1, options.samples))
    busy = f"{before:.1f} before, {os.getloadavg()[0]:.1f} after"
    print(f"{os.cpu_count()} cores, load {busy}; medians of {options.samples}\n")
    print("| session | filters | messages in a read | us CPU | ratio |\n|---|---|---|---|---|")
    for one in figures:
        row: list[Any] = [one.session, one.filters, one.messages_per_read]
        row += [f"{one.nanoseconds / 1000:.2f}", f"{one.ratio:.2f}"]
        print("|", " | ".join(map(str, row)), "|")
    if options.json is not None:
        values = [
            {name: getattr(one, name) for name in Figure.__dataclass_fields__} for one in figures
        ]
        found = {"machine": describe_machine(), "load": busy, "figures": values}
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
