"""`make sabotage`: break copies of the code on purpose, and see whether the tests notice.

--only NAME         only those whose name has this in it (may be given again)
--mutations N       instead of the list: N changes of one token that a seed draws from the code
--seed N            the seed; without it one is drawn, and printed
--list              print the list and run nothing
--processes N       default: as many as there are processors
--limit SECONDS     how long one suite may take (default 300)
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue

from tests.sabotage.copies import copies
from tests.sabotage.mutations import Mutation, draw
from tests.sabotage.plan import PYTEST_OPTIONS, Sabotage, problems
from tests.sabotage.runs import RUNNING, Outcome, Verdict, kill, try_out
from tests.sabotage.sabotages import SABOTAGES

HOW_COLUMNS_MAX = 200
CONTROL_FACTOR = 5
"""How much longer all suites together may take than one."""


def main() -> int:
    """Run, print, and say by the exit code whether everything was caught."""
    options = parse_options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # copies and runs end with it
    try:
        return carry_out(options)
    except KeyboardInterrupt:
        print("\ninterrupted")
        return 130


def carry_out(options: argparse.Namespace) -> int:
    """What the command line asks for. Returns the exit code."""
    if options.mutations:
        seed = options.seed if options.seed is not None else random.randrange(1_000_000)
        drawn = [m for m in draw(options.mutations, seed) if wanted(m.sabotage().name, options)]
        print(f"{len(drawn)} mutations of seed {seed}", flush=True)
        return run_mutations(drawn, options.processes, options.limit)
    chosen = [sabotage for sabotage in SABOTAGES if wanted(sabotage.name, options)]
    if options.list:
        for sabotage in chosen:
            print(f"{sabotage.name:32} {sabotage.path:32} {sabotage.why}")
        return 0
    if found := problems(chosen) or ([] if chosen else ["there is no sabotage of that name"]):
        print(*found, sep="\n")
        return 2
    return run_sabotages(chosen, options.processes, options.limit)


def wanted(name: str, options: argparse.Namespace) -> bool:
    """Whether `--only` allows it."""
    return any(part in name for part in options.only or [""])


def parse_options() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(prog="make sabotage SABOTAGE=...", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", action="append", metavar="NAME")
    parser.add_argument("--mutations", type=int, default=0, metavar="N")
    parser.add_argument("--seed", type=int, metavar="N")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--limit", type=float, default=300.0, metavar="SECONDS")
    return parser.parse_args()


def run_sabotages(chosen: Sequence[Sabotage], processes: int, limit_seconds: float) -> int:
    """All of these. Returns the exit code: whether one was not caught."""
    began = time.monotonic()
    outcomes: dict[str, Outcome] = {}
    sound = True
    for sabotage, outcome in run_all(chosen, processes, limit_seconds):
        if sabotage is None:
            sound &= tell_control(outcome)
            continue
        outcomes[sabotage.name] = outcome
        place = f"{len(outcomes)}/{len(chosen)}"
        print(f"{place:>7} {sabotage.name}: {outcome.verdict.value}", flush=True)
    print(f"\n{'sabotage':40} {'':16} {'s':>4}  how")
    for sabotage in chosen:
        outcome = outcomes[sabotage.name]
        head = f"{sabotage.name:40} {outcome.verdict.value:16} {outcome.seconds:4.0f}"
        print(f"{head}  {outcome.how[:HOW_COLUMNS_MAX]}")
    caught = sum(outcome.verdict is Verdict.CAUGHT for outcome in outcomes.values())
    print(f"\n{caught} of {len(chosen)} caught, in {time.monotonic() - began:.0f} s")
    return int(caught < len(chosen)) if sound else 2


def run_mutations(chosen: Sequence[Mutation], processes: int, limit_seconds: float) -> int:
    """All of these. Returns the exit code: whether one survives that has no reason to."""
    began = time.monotonic()
    drawn = {mutation.sabotage(): mutation for mutation in chosen}
    survivors = []
    sound, done = True, 0
    for sabotage, outcome in run_all(list(drawn), processes, limit_seconds):
        if sabotage is None:
            sound &= tell_control(outcome)
            continue
        survives = outcome.verdict is Verdict.MISSED
        if survives:
            survivors.append(drawn[sabotage])
        done += 1
        how = "SURVIVES" if survives else outcome.how[:HOW_COLUMNS_MAX]
        print(f"{done}/{len(drawn)} {sabotage.name}\n        {how}", flush=True)
    unexplained = [mutation for mutation in survivors if not mutation.reason]
    print("\nsurvivors:")
    for mutation in survivors:
        print(f"  {mutation.sabotage().name}\n        {mutation.reason or 'A TEST IS MISSING'}")
    print(f"\n{len(drawn) - len(survivors)} of {len(drawn)} noticed, ", end="")
    print(f"{len(unexplained)} survive unexplained, in {time.monotonic() - began:.0f} s")
    return int(bool(unexplained)) if sound else 2


def tell_control(outcome: Outcome) -> bool:
    """Say whether the suites pass on code that nobody broke: else what they catch means nothing."""
    passed = outcome.verdict is Verdict.MISSED
    told = "passes" if passed else f"FAILS, repair that first: {outcome.how}"
    print(f"        the code as it is {told} ({outcome.seconds:.0f} s)", flush=True)
    return passed


def control(chosen: Sequence[Sabotage]) -> list[tuple[str, ...]]:
    """All suites of these, each once."""
    tests = dict.fromkeys(test for sabotage in chosen for test in sabotage.tests)
    commands = dict.fromkeys(
        command for s in chosen for command in s.commands() if command[0] != "pytest"
    )
    return [("pytest", *PYTEST_OPTIONS, *tests)] * bool(tests) + list(commands)


def run_all(
    chosen: Sequence[Sabotage], processes: int, limit_seconds: float
) -> Iterator[tuple[Sabotage | None, Outcome]]:
    """Each of these in a copy of the tree, so many at a time, and (None) all their suites on code
    that nobody broke."""
    free: SimpleQueue[Path] = SimpleQueue()

    def one(sabotage: Sabotage | None, commands: list[tuple[str, ...]], limit: float) -> Outcome:
        place = free.get()
        try:
            return try_out(place, sabotage, commands, limit)
        finally:
            free.put(place)

    with copies(processes) as places, ThreadPoolExecutor(processes) as pool:
        for place in places:
            free.put(place)
        running: dict[Future[Outcome], Sabotage | None] = {
            pool.submit(one, None, [command], CONTROL_FACTOR * limit_seconds): None
            for command in control(chosen)
        }
        for sabotage in chosen:
            running[pool.submit(one, sabotage, sabotage.commands(), limit_seconds)] = sabotage
        try:
            for done in as_completed(running):
                yield running[done], done.result()
        finally:  # also when somebody has seen enough
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(RUNNING):
                kill(process)


if __name__ == "__main__":
    sys.exit(main())
