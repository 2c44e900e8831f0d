"""`make sabotage`: break copies of the code on purpose, and see whether the tests notice.

--only NAME         only sabotages whose name has this in it (may be given again)
--list              print the list and run nothing
--processes N       default: as many as there are processors
--limit SECONDS     how long one suite may take (default 300)
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue

from tests.sabotage.copies import copies
from tests.sabotage.plan import PYTEST_OPTIONS, Sabotage, problems
from tests.sabotage.runs import Outcome, Verdict, try_out
from tests.sabotage.sabotages import SABOTAGES

HOW_COLUMNS_MAX = 160


def main() -> int:
    """Run, print, and say by the exit code whether everything was caught."""
    options = parse_options()
    chosen = [s for s in SABOTAGES if any(part in s.name for part in options.only or [""])]
    if options.list:
        for sabotage in chosen:
            print(f"{sabotage.name:32} {sabotage.path:32} {sabotage.why}")
        return 0
    if found := problems(chosen) or ([] if chosen else ["there is no sabotage of that name"]):
        print(*found, sep="\n")
        return 2
    return run_sabotages(chosen, options.processes, options.limit)


def parse_options() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(prog="make sabotage SABOTAGE=...", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", action="append", metavar="NAME")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--limit", type=float, default=300.0, metavar="SECONDS")
    return parser.parse_args()


def run_sabotages(chosen: Sequence[Sabotage], processes: int, limit_seconds: float) -> int:
    """All of these, after the same suites on code that nobody broke. Returns the exit code."""
    began = time.monotonic()
    with copies(processes) as places:
        print("the same suites on the code as it is ...", flush=True)
        outcome = try_out(places[0], None, control(chosen), 4 * limit_seconds)
        if outcome.verdict is not Verdict.MISSED:
            print(f"  they do not pass: {outcome.how}\nRepair that first.")
            return 2
        print(f"  they pass, in {outcome.seconds:.0f} s")
        outcomes: dict[str, Outcome] = {}
        for sabotage, outcome in run_all(places, chosen, limit_seconds):
            outcomes[sabotage.name] = outcome
            place = f"{len(outcomes)}/{len(chosen)}"
            print(f"{place:>7} {sabotage.name}: {outcome.verdict.value}", flush=True)
    print(f"\n{'sabotage':32} {'':16} {'s':>4}  how")
    for sabotage in chosen:
        outcome = outcomes[sabotage.name]
        head = f"{sabotage.name:32} {outcome.verdict.value:16} {outcome.seconds:4.0f}"
        print(f"{head}  {outcome.how[:HOW_COLUMNS_MAX]}")
    caught = sum(outcome.verdict is Verdict.CAUGHT for outcome in outcomes.values())
    print(f"\n{caught} of {len(chosen)} caught, in {time.monotonic() - began:.0f} s")
    return int(caught < len(chosen))


def control(chosen: Sequence[Sabotage]) -> list[tuple[str, ...]]:
    """All suites of these, each once."""
    tests = dict.fromkeys(test for sabotage in chosen for test in sabotage.tests)
    commands = dict.fromkeys(
        command for s in chosen for command in s.commands() if command[0] != "pytest"
    )
    return [("pytest", *PYTEST_OPTIONS, *tests)] * bool(tests) + list(commands)


def run_all(
    places: Sequence[Path], chosen: Sequence[Sabotage], limit_seconds: float
) -> Iterator[tuple[Sabotage, Outcome]]:
    """Each of these in one of the copies, as many at a time as there are copies."""
    free: SimpleQueue[Path] = SimpleQueue()
    for place in places:
        free.put(place)

    def one(sabotage: Sabotage) -> Outcome:
        place = free.get()
        try:
            return try_out(place, sabotage, sabotage.commands(), limit_seconds)
        finally:
            free.put(place)

    with ThreadPoolExecutor(len(places)) as pool:
        running = {pool.submit(one, sabotage): sabotage for sabotage in chosen}
        for done in as_completed(running):
            yield running[done], done.result()


if __name__ == "__main__":
    sys.exit(main())
