"""Many runs: so many at a time, and a long list of them in pieces.

What was found is noted in a file, if there is one, as soon as it is known; the next piece goes on
with the rest. A note holds for exactly this mistake and these suites (`Sabotage.digest`), not for
the rest of the code: whoever changes that begins with another file.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from tests.sabotage.copies import copies
from tests.sabotage.plan import PYTEST_OPTIONS, Sabotage
from tests.sabotage.runs import RUNNING, Outcome, Verdict, kill, try_out

CONTROL_FACTOR: Final = 5
"""How much longer the suites of a folder together may take than one."""

Job = tuple[Sabotage | None, tuple[tuple[str, ...], ...], float]
"""What is broken (None: nothing), the suites, and how long they may take."""


class Notes:
    """Outcomes by the digest of what was run.

    Args:
        path: their file, one JSON list a line; None to keep nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._found: dict[str, Outcome] = {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                digest, verdict, how, seconds = json.loads(line)
                self._found[digest] = Outcome(Verdict(verdict), how, seconds)

    def get(self, digest: str) -> Outcome | None:
        """What was found, if it was run."""
        return self._found.get(digest)

    def add(self, digest: str, outcome: Outcome) -> None:
        """Keep what was found."""
        self._found[digest] = outcome
        if self._path is not None:
            line = json.dumps([digest, outcome.verdict.value, outcome.how, outcome.seconds])
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """How the runs are cut.

    Attributes:
        processes: so many at a time.
        limit_seconds: how long one suite may take.
        notes: what was found, by earlier pieces too.
        end: nothing new begins after this time of the monotonic clock.
    """

    processes: int
    limit_seconds: float
    notes: Notes
    end: float

    def run(self, chosen: Sequence[Sabotage]) -> Iterator[tuple[Sabotage | None, Outcome]]:
        """Each of these in a copy of the tree, and (None) all their suites on code that nobody
        broke. What was noted comes first; what there was no time for does not come at all."""
        jobs: list[Job] = [
            *(
                (None, (command,), CONTROL_FACTOR * self.limit_seconds)
                for command in control(chosen)
            ),
            *((sabotage, tuple(sabotage.commands()), self.limit_seconds) for sabotage in chosen),
        ]
        left = []
        for job in jobs:
            outcome = self.notes.get(digest_of(job))
            if outcome is None:
                left.append(job)
            else:
                yield job[0], outcome
        if left:
            yield from self._run(left)

    def _run(self, jobs: list[Job]) -> Iterator[tuple[Sabotage | None, Outcome]]:
        """Run these, as they end."""
        free: SimpleQueue[Path] = SimpleQueue()

        def one(job: Job) -> Outcome:
            directory = free.get()
            try:
                sabotage, commands, limit_seconds = job
                return try_out(directory, sabotage, list(commands), limit_seconds)
            finally:
                free.put(directory)

        with copies(self.processes) as directories, ThreadPoolExecutor(self.processes) as pool:
            for directory in directories:
                free.put(directory)
            running: dict[Future[Outcome], Job] = {}
            waiting = iter(jobs)
            try:
                while True:
                    while len(running) < self.processes and time.monotonic() < self.end:
                        job = next(waiting, None)
                        if job is None:
                            break
                        running[pool.submit(one, job)] = job
                    if not running:
                        break
                    for done in wait(running, return_when=FIRST_COMPLETED).done:
                        job = running.pop(done)
                        self.notes.add(digest_of(job), done.result())
                        yield job[0], done.result()
            finally:  # also when somebody has seen enough
                pool.shutdown(wait=False, cancel_futures=True)
                for process in list(RUNNING):
                    kill(process)


def digest_of(job: Job) -> str:
    """What the outcome of a job is noted under."""
    sabotage, commands, _ = job
    return repr(commands) if sabotage is None else sabotage.digest()


def control(chosen: Sequence[Sabotage]) -> list[tuple[str, ...]]:
    """All suites of these, each once: those of a folder in one run."""
    folders: dict[str, list[str]] = {}
    options: dict[str, None] = {}
    for test in dict.fromkeys(test for sabotage in chosen for test in sabotage.tests):
        if test.startswith("-"):
            options[test] = None
        else:
            folders.setdefault("/".join(test.split("/")[:2]), []).append(test)
    commands = dict.fromkeys(
        command for s in chosen for command in s.commands() if command[0] != "pytest"
    )
    runs = [("pytest", *PYTEST_OPTIONS, *options, *tests) for tests in folders.values()]
    return runs + list(commands)
