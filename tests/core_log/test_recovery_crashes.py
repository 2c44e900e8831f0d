"""Power cuts at every operation, with every kind of debris: what was promised is there.

One *state* is: a workload, the operation during which power was cut, and one choice of what the
disk kept of the unsynced changes. After each, perhaps after another power cut during recovery:

    (a) every message whose flush was reported is there, byte for byte, in order
    (b) the messages are a beginning of those that were sent; an atomic batch is whole or gone
    (c) all queue indexes agree with the log
    (d) a second recovery changes nothing
    (e) appending goes on, with the next offsets
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import pytest

from core_log.errors import StoreError
from core_log.settings import StoreSettings
from tests.harness.files import EVERYTHING, NOTHING, Chooser, MemoryFiles
from tests.harness.stores import MIXED, PACKED, PRIVATE, TINY, Bench, numbered, recover_only

Step = Callable[[Bench], object]


@dataclass
class Past:
    """What is known of a store whose machine lost power.

    Attributes:
        files: the disk, with what was unsynced.
        sent: the messages in order, promised or not.
        promised: how many of them are promised.
        batches: (first, end) of each atomic batch among them.
        settings: of the store: how its indexes are kept.
    """

    settings: StoreSettings
    files: MemoryFiles
    sent: list[bytes]
    promised: int
    batches: list[tuple[int, int]]


def draw_steps(random: Random, count: int) -> list[tuple[str, int]]:
    """A workload: publishing in several ways, flushing, checkpoints, closing and opening."""
    kinds = ("run", "run", "large", "atomic", "wide", "flush", "flush", "checkpoint", "reopen")
    return [(random.choice(kinds), random.randint(1, 7)) for _ in range(count)]


def run_steps(files: MemoryFiles, steps: list[tuple[str, int]], past: Past) -> None:
    """Carry the steps out until the disk fails, keeping `past` true at every moment."""
    bench = Bench(files, sent=past.sent, settings=past.settings)
    try:
        for kind, count in steps:
            first = len(bench.sent)
            if kind == "run":
                bench.publish(numbered(first, count))
            elif kind == "large":
                bench.publish([body.ljust(600, b"+") for body in numbered(first, count)])
            elif kind == "wide":
                bench.publish(numbered(first, 1), wide=5 * count)
            elif kind == "atomic":
                bench.publish_atomic(numbered(first, count + 1))
                past.batches.append((first, len(bench.sent)))
            past.sent[:] = bench.sent
            if kind == "flush":
                bench.flush()
                past.promised = bench.promised
            elif kind == "checkpoint":
                bench.checkpoint()
            elif kind == "reopen":
                bench.store.close()
                past.promised = len(past.sent)
                bench = Bench(files, sent=past.sent, settings=past.settings)
            else:
                bench.store.log.write()
    finally:
        bench.abandon()


def shape_of(seed: int) -> StoreSettings:
    """How a workload's store keeps its indexes: in files, in packs, or both."""
    return (TINY, PACKED, MIXED)[seed % 3]


def cut_during(seed: int, count: int, cut: int) -> Past:
    """Run a workload on an empty disk and cut power during its `cut`-th change."""
    past = Past(shape_of(seed), MemoryFiles(), [], 0, [])
    past.files.cut_power_after(cut)
    try:
        run_steps(past.files, draw_steps(Random(seed), count), past)
    except StoreError:
        pass  # the machine is off: that is how these workloads end
    return past


def check_state(past: Past, found: MemoryFiles) -> None:
    """(a) to (e) on one state of the disk."""
    copy = found.after_crash(EVERYTHING)
    for _ in range(2):
        before = copy.image()
        recover_only(copy, past.settings)
    assert copy.image() == before, "(d) a second recovery changed something"
    bench = Bench(found, settings=past.settings)
    kept = bench.bodies()
    assert kept[: past.promised] == past.sent[: past.promised], "(a) a promise is broken"
    assert kept == past.sent[: len(kept)], "(b) not a beginning of what was sent"
    for first, end in past.batches:
        assert len(kept) <= first or len(kept) >= end, "(b) a part of an atomic batch"
    for number in PRIVATE:
        assert bench.bodies(number) == kept, "(c) an index differs from the log"
    check_wide(bench)
    bench.sent = list(kept)
    bench.publish(numbered(len(kept), 2))
    bench.flush()
    bench.store.close()
    again = Bench(found, settings=past.settings)
    assert again.bodies() == kept + numbered(len(kept), 2), "(e) appending does not go on"
    assert again.store.recovery.clean
    again.store.close()


def check_wide(bench: Bench) -> None:
    """(c) for the queues that only some messages went to: each is dense, and its records name it
    (`history` checks that), as often as the log's records do."""
    named: dict[int, int] = {}
    for record in bench.store.replay(0):
        for number, offset in record.targets:
            assert named.get(number, 0) == offset
            named[number] = offset + 1
    assert set(bench.store.index_numbers()) >= set(named)
    for number, count in named.items():
        assert len(bench.history(number)) == count


def choosers(seed: int) -> list[Chooser]:
    """Nothing, everything, likely and unlikely parts, and sectors of garbage."""
    return [
        NOTHING,
        EVERYTHING,
        Chooser(Random(seed), likely=0.5),
        Chooser(Random(seed + 1), likely=0.9),
        Chooser(Random(seed + 2), likely=0.5, trash=0.3),
    ]


def check_cut(seed: int, steps: int, cut: int, *, again: bool) -> int:
    """All states of one power cut; with `again`, power is cut during recovery too."""
    past = cut_during(seed, steps, cut)
    states = 0
    for place, chooser in enumerate(choosers(seed * 1000 + cut)):
        disk = past.files.after_crash(chooser)
        if again:
            random = Random(seed * 31 + cut * 7 + place)
            disk.cut_power_after(random.randint(0, 30))
            try:
                Bench(disk, settings=past.settings).abandon()
            except StoreError:
                pass  # power was cut again
            disk = disk.after_crash(choosers(cut)[random.randint(0, 4)])
        check_state(past, disk)
        states += 1
    return states


def changes_of(seed: int, steps: int) -> int:
    """How many operations of a whole workload change the disk."""
    past = cut_during(seed, steps, 1 << 30)
    assert past.sent
    return past.files.changes_count


@pytest.mark.parametrize("seed", [21, 52, 56])
def test_power_is_cut_at_every_operation_of_a_short_workload(seed: int) -> None:
    """From the first directory on, through several segments, checkpoints and openings; once for
    each way to keep indexes."""
    steps = 14
    kinds = {kind for kind, _ in draw_steps(Random(seed), steps)}
    assert {"run", "atomic", "wide", "flush", "checkpoint", "reopen"} <= kinds
    count = changes_of(seed, steps)
    assert count > 100
    for cut in range(count + 1):
        past = cut_during(seed, steps, cut)
        check_state(past, past.files.after_crash(choosers(cut)[cut % 5]))


@pytest.mark.parametrize("seed", range(8))
def test_power_is_cut_somewhere_and_again_during_recovery(seed: int) -> None:
    steps = 20
    count = changes_of(seed, steps)
    random = Random(seed)
    for _ in range(4):
        check_cut(seed, steps, random.randint(0, count), again=True)


@pytest.mark.slow
def test_many_states() -> None:
    """Workloads of many seeds, cut at every fourth operation, half of them cut again.

    `POLYMQ_CRASH_STATES=1000000` for a night.
    """
    wanted = int(os.environ.get("POLYMQ_CRASH_STATES", "800"))
    states = 0
    seed = 100
    while states < wanted:
        seed += 1
        count = changes_of(seed, 25)
        for cut in range(seed % 4, count, 4):
            states += check_cut(seed, 25, cut, again=bool(cut // 4 % 2))
            if states >= wanted:
                break
