"""A night in pieces: what each run of `make crash` found, one line of JSON a run.

A run begins where the last one of the same file ended, and the report adds all of them up. Two
files with first seeds far apart can be written at the same time.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.crash.tally import Tally


@dataclass(slots=True)
class Sum:
    """What some runs found.

    Attributes:
        first_seed, seeds_count: the seeds they went through, all in a row.
        seconds: how long that took.
        images_count: different disks; those that two runs have in common count twice.
        tally: the rest.
    """

    first_seed: int
    seeds_count: int = 0
    seconds: float = 0.0
    images_count: int = 0
    tally: Tally = field(default_factory=Tally)

    def add(self, tally: Tally, seeds_count: int, seconds: float) -> None:
        """Take in one more run."""
        self.seeds_count += seeds_count
        self.seconds += seconds
        self.images_count += len(tally.images)
        self.tally.add(tally)
        self.tally.images.clear()


def write_note(path: Path, found: Sum) -> None:
    """Add one run to the file."""
    tally = found.tally
    line = {
        "first_seed": found.first_seed,
        "seeds_count": found.seeds_count,
        "seconds": round(found.seconds, 1),
        "images_count": found.images_count,
        "states": tally.states,
        "contained": tally.contained,
        "outcomes": tally.outcomes,
        "recoveries": tally.recoveries,
        "deeper": tally.deeper,
        "faults": tally.faults,
        "failures": tally.failures,
    }
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{json.dumps(line)}\n")


def read_notes(path: Path, first_seed: int) -> Sum:
    """All runs of the file; of none, they would begin with `first_seed`."""
    total = Sum(first_seed)
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for line in lines:
        value = json.loads(line)
        if not total.seeds_count:
            total.first_seed = value["first_seed"]
        tally = Tally(
            states=Counter(value["states"]),
            contained=Counter(value["contained"]),
            outcomes=Counter(value["outcomes"]),
            recoveries=value["recoveries"],
            deeper=value["deeper"],
            faults=value["faults"],
            failures=value["failures"],
        )
        total.add(tally, value["seeds_count"], value["seconds"])
        total.images_count += value["images_count"]
    return total
