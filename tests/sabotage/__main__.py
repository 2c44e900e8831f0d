"""`make sabotage`: break copies of the code on purpose, and see whether the tests notice.

--only NAME         only those whose name has this in it (may be given again)
--mutations N       instead of the list: N changes of one token that a seed draws from the code
--seed N            the seed; without it one is drawn, and printed
--list              print the list and run nothing
--processes N       default: as many as there are processors
--limit SECONDS     how long one suite may take (default 300)
--notes FILE        keep what was found in this file, and do not run again what is noted there: a
                    long run in pieces. Remove it when other code than the broken lines has changed
--for SECONDS       begin nothing new after that time
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from math import inf
from pathlib import Path

from tests.sabotage.mutations import Mutation, draw
from tests.sabotage.pieces import Notes, Pieces, control
from tests.sabotage.plan import Sabotage, problems
from tests.sabotage.runs import Outcome, Verdict
from tests.sabotage.sabotages import SABOTAGES

HOW_COLUMNS_MAX = 200
BROKEN_BEFORE = 2
"""Exit code: the suites fail on code that nobody broke."""
PIECE = 3
"""Exit code: there was no time for all of it."""


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
    pieces = Pieces(
        processes=options.processes,
        limit_seconds=options.limit,
        notes=Notes(options.notes),
        end=time.monotonic() + options.seconds,
    )
    if options.mutations:
        seed = options.seed if options.seed is not None else random.randrange(1_000_000)
        drawn = [m for m in draw(options.mutations, seed) if wanted(m.sabotage().name, options)]
        print(f"{len(drawn)} mutations of seed {seed}", flush=True)
        return run_mutations(drawn, pieces)
    chosen = [sabotage for sabotage in SABOTAGES if wanted(sabotage.name, options)]
    if options.list:
        for sabotage in chosen:
            print(f"{sabotage.name:32} {sabotage.path:32} {sabotage.why}")
        return 0
    if found := problems(chosen) or ([] if chosen else ["there is no sabotage of that name"]):
        print(*found, sep="\n")
        return 2
    return run_sabotages(chosen, pieces)


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
    parser.add_argument("--notes", type=Path, metavar="FILE")
    parser.add_argument("--for", dest="seconds", type=float, default=inf, metavar="SECONDS")
    return parser.parse_args()


def run_sabotages(chosen: Sequence[Sabotage], pieces: Pieces) -> int:
    """All of these. Returns the exit code: whether one was not caught."""
    began = time.monotonic()
    outcomes: dict[str, Outcome] = {}
    sound, controls_left = True, len(control(chosen))
    for sabotage, outcome in pieces.run(chosen):
        if sabotage is None:
            controls_left -= 1
            sound &= tell_control(outcome)
            continue
        outcomes[sabotage.name] = outcome
        label = f"{len(outcomes)}/{len(chosen)}"
        print(f"{label:>7} {sabotage.name}: {outcome.verdict.value}", flush=True)
    print(f"\n{'sabotage':40} {'':16} {'s':>4}  how")
    for sabotage in chosen:
        if sabotage.name not in outcomes:
            continue
        outcome = outcomes[sabotage.name]
        head = f"{sabotage.name:40} {outcome.verdict.value:16} {outcome.seconds:4.0f}"
        print(f"{head}  {outcome.how[:HOW_COLUMNS_MAX]}")
    caught = sum(outcome.verdict is Verdict.CAUGHT for outcome in outcomes.values())
    skipped = sum(outcome.verdict is Verdict.SKIPPED for outcome in outcomes.values())
    reported = f", {skipped} skipped" if skipped else ""
    print(f"\n{caught} of {len(chosen)} caught{reported}, in {time.monotonic() - began:.0f} s")
    if not sound:
        return BROKEN_BEFORE
    return left(len(chosen) - len(outcomes) + controls_left) or int(caught + skipped < len(chosen))


def run_mutations(chosen: Sequence[Mutation], pieces: Pieces) -> int:
    """All of these. Returns the exit code: whether one survives that has no reason to."""
    began = time.monotonic()
    drawn = {mutation.sabotage(): mutation for mutation in chosen}
    survivors = []
    sound, done, controls_left = True, 0, len(control(list(drawn)))
    for sabotage, outcome in pieces.run(list(drawn)):
        if sabotage is None:
            controls_left -= 1
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
    print(f"\n{done - len(survivors)} of {done} noticed, ", end="")
    print(f"{len(unexplained)} survive unexplained, in {time.monotonic() - began:.0f} s")
    if not sound:
        return BROKEN_BEFORE
    return left(len(drawn) - done + controls_left) or int(bool(unexplained))


def left(count: int) -> int:
    """Say how many were not run. Returns the exit code for it."""
    if count:
        print(f"{count} not run yet: the same command goes on with them")
    return PIECE * (count > 0)


def tell_control(outcome: Outcome) -> bool:
    """Say whether the suites pass on code that nobody broke: else what they catch means nothing."""
    passed = outcome.verdict is Verdict.MISSED
    reported = "passes" if passed else f"FAILS, repair that first: {outcome.how}"
    print(f"        the code as it is {reported} ({outcome.seconds:.0f} s)", flush=True)
    return passed


if __name__ == "__main__":
    sys.exit(main())
