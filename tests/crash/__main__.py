"""`make crash`: many states in several processes, and a report.

--states N          how many states to check at least (default 20,000; a night: 1,000,000)
--seed N            the first seed; without it one is drawn, and printed
--state N           only this state of the seed: how a failure is repeated
--with SUBJECT      only engines whose clients do this, among other things (as the report names it);
                    or "log", "errors", "threads": only a store, as it is, whose disk has errors,
                    with its threads, or with large messages; or "upkeep": only engines with
                    upkeep and SQLite
--for SECONDS       begin no new seed after that time
--notes FILE        a night in pieces: begin behind what is noted there, add to it, report all of it
--processes N       default: as many as there are processors
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import count
from math import inf
from pathlib import Path

from tests.crash.bit_flips import flip_many
from tests.crash.notes import Sum, read_notes, write_note
from tests.crash.seeds import SUBJECTS, explore
from tests.crash.tally import Tally

FAILURES_SHOWN = 20


def main() -> int:
    """Run, print, and say by the exit code whether a promise was broken."""
    options = parse_options()
    seed = options.seed if options.seed is not None else random.randrange(1_000_000)
    if options.state is not None:
        tally = explore(seed, options.state, options.subject)
        print(*(tally.failures or ["the state is sound"]), sep="\n")
        return bool(tally.failures)
    began = time.monotonic()
    if options.bit_flips:
        return flip_bits(options, seed)
    found = Sum(seed)
    if options.notes is not None:
        noted = read_notes(options.notes, seed)
        found = Sum(noted.first_seed + noted.seeds_count)
    tally, seeds_count = run(found.first_seed, options)
    found.add(tally, seeds_count, time.monotonic() - began)
    if options.notes is not None:
        write_note(options.notes, found)
        found = read_notes(options.notes, seed)
    report(found)
    return bool(found.tally.failures)


def parse_options() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(prog="make crash CRASH=...", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--states", type=int, default=20_000)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--state", type=int)
    parser.add_argument("--for", dest="seconds", type=float, default=inf, metavar="SECONDS")
    parser.add_argument("--notes", type=Path, metavar="FILE")
    parser.add_argument("--with", dest="subject", default="", metavar="SUBJECT")
    parser.add_argument("--bit-flips", type=int, default=0)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if options.state is not None and options.seed is None:
        parser.error("--state is a state of a seed: give --seed, too")
    if not any(options.subject in name for name in SUBJECTS):
        parser.error(f"there is no subject {options.subject!r}: use one of {', '.join(SUBJECTS)}")
    return options


def run(seed: int, options: argparse.Namespace) -> tuple[Tally, int]:
    """Seeds from `seed` on, until there are so many states, or a failure, or no time is left.
    Returns what was found, and how many seeds that were."""
    total, states, processes = Tally(), options.states, options.processes
    end = time.monotonic() + options.seconds
    done = 0
    seeds = count(seed)
    with ProcessPoolExecutor(processes) as pool:
        running: set[Future[Tally]] = set()
        while running or total.states.total() < states:
            while len(running) < 2 * processes and total.states.total() < states:
                if total.failures or time.monotonic() > end:
                    break
                running.add(pool.submit(explore, next(seeds), None, options.subject))
            if not running:
                break
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                total.add(future.result())
                done += 1
    return total, done


def flip_bits(options: argparse.Namespace, seed: int) -> int:
    """Single flipped bits, and a report."""
    began = time.monotonic()
    outcomes, failures = flip_many(seed, options.bit_flips, options.size << 20, options.processes)
    seconds = time.monotonic() - began
    print(f"{options.bit_flips} flipped bits in a store of {options.size} MiB, seed {seed}", end="")
    print(f", in {seconds:.0f} s\n")
    for (kind, outcome), number in sorted(outcomes.items()):
        print(f"  {number:>6,}  {kind}: {outcome}")
    print(f"\n{len(failures)} served wrong or gone in silence")
    print(*failures[:FAILURES_SHOWN], sep="\n")
    return bool(failures)


def report(found: Sum) -> None:
    """One page about a run."""
    tally, seconds = found.tally, found.seconds
    states = tally.states.total()
    print(f"{states:,} states of {found.seeds_count} seeds from {found.first_seed} on", end="")
    print(f", in {seconds:.0f} s ({states / seconds:.0f}/s); ", end="")
    print(f"{found.images_count:,} different disks")
    print(f"{tally.recoveries:,} recoveries; power cut again in {tally.deeper:,} of them", end="")
    print(f"; {tally.faults} workloads met a failing or a full disk")
    print("\nstates by kind:")
    for kind, number in sorted(tally.states.items()):
        print(f"  {number:>9,}  {kind}")
    print("\nstates of the engine by what they contained:")
    for feature, number in sorted(tally.contained.items()):
        print(f"  {number:>9,}  {feature}")
    print("\nwhat became of damaged bytes:")
    for outcome, number in sorted(tally.outcomes.items()):
        print(f"  {number:>9,}  {outcome}")
    print(f"\n{len(tally.failures)} violations")
    for failure in tally.failures[:FAILURES_SHOWN]:
        print(failure)


if __name__ == "__main__":
    sys.exit(main())
