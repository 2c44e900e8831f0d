"""A store on the operating system's files, in a process into which `faults.c` is preloaded.

    python -m tests.harness.shim.workload DIRECTORY CALL ACTION

Carries out the same work again and again, each time in a new directory. The first time counts the
calls of the kind; then each of them, in turn, gets the action (an errno, or `short`). After each
time the directory is copied, as a killed process leaves it, and opened without faults: all that was
promised has to be there. Prints a line of JSON with what was found.
"""

from __future__ import annotations

import ctypes
import errno
import json
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Final

from polymq.core_log.errors import StorageFailed, StoreError
from polymq.core_log.files import RealFiles
from tests.harness.stores import Bench, numbered

SHORT: Final = 100_000
ROUNDS: Final = 4
PASSING: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EINTR)
"""After these the same store has to go on by itself, but for a sync that failed."""
_ARM = ctypes.CDLL(None).shim_arm
_COUNT = ctypes.CDLL(None).shim_count


def work(bench: Bench) -> list[str]:
    """Publish over several segments, flush, and save. Returns what was refused."""
    refused = []
    for _ in range(ROUNDS):
        for step in (publish, Bench.flush, Bench.checkpoint, publish_one, Bench.flush):
            try:
                step(bench)
            except StoreError as error:
                refused.append(f"{step.__name__}: {type(error).__name__}")
                if isinstance(error, StorageFailed):
                    return refused
    return refused


def publish(bench: Bench) -> None:
    """More than a segment has room for. A message that was refused is sent again."""
    bench.publish(numbered(len(bench.sent), 12))


def publish_one(bench: Bench) -> None:
    """A message that goes to the log's end alone: another way to the disk than many at once."""
    bench.publish(numbered(len(bench.sent), 1))


def once(directory: Path, call: str, ordinal: int, action: int) -> tuple[Bench, list[str], int]:
    """The work with the fault at this call. Returns the calls of the kind, too."""
    bench = Bench(RealFiles(), directory=str(directory))
    assert _ARM(call.encode(), ordinal, action) == 0
    refused = work(bench)
    count = _COUNT(call.encode())
    assert _ARM(call.encode(), 0, 0) == 0
    return bench, refused, count


def judge(bench: Bench, directory: Path, copy: Path) -> str:
    """What is wrong with the directory, as a killed process leaves it; empty if nothing is."""
    shutil.copytree(directory, copy)
    found = Bench(RealFiles(), directory=str(copy))
    bodies = found.bodies()
    found.store.close()
    shutil.rmtree(copy)
    if len(bodies) < bench.promised:
        return f"{bench.promised} were promised and {len(bodies)} are there"
    return "" if bodies == numbered(0, len(bodies)) else "not what was sent"


def main(base: Path, call: str, named: str) -> None:
    """All calls of one kind."""
    action = SHORT if named == "short" else getattr(errno, named)
    count = 1
    ordinal = 0
    faults: list[str] = []
    outcomes: Counter[str] = Counter()
    while ordinal <= count:
        directory = base / f"store{ordinal}"
        bench, refused, calls = once(directory, call, ordinal, action)
        if ordinal == 0:
            count = calls
            assert not refused, refused
        wrong = judge(bench, directory, base / "copy")
        if wrong:
            faults.append(f"{call} {ordinal}: {wrong}")
        outcomes[refused[0] if refused else "none"] += bool(ordinal)
        harmless = action in (SHORT, errno.EINTR) and call in ("write", "read")
        if refused and harmless:
            faults.append(f"{call} {ordinal}: {refused}")
        bench.abandon()
        shutil.rmtree(directory, ignore_errors=True)
        ordinal += 1
    print(json.dumps({"count": count, "faults": faults, "outcomes": outcomes}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
