"""The timing wheel against the plain definition: a list sorted by due time and order of adding."""

from __future__ import annotations

import random
import struct

import pytest

from polymq.broker.delays.delayed import dues_of_tags, tag_of_due
from polymq.broker.delays.wheel import WIDTHS_MS, Wheel

NOW = 1_700_000_000_000
YEAR_MS = 366 * 86_400_000


def entry(offset: int, size: int = 100) -> bytes:
    return struct.pack(">QIq", offset * 1000, size, 0)


def drain(wheel: Wheel, now: int, *, floor: int = 0, count_max: int = 7) -> list[int]:
    """Everything that is due at `now`."""
    offsets: list[int] = []
    while True:
        before = wheel.next_ms()
        taken = wheel.take(now, floor=floor, count_max=count_max, bytes_max=1 << 40, refine_max=100)
        assert len(taken.entries) == 20 * len(taken.offsets)
        for at, offset in enumerate(taken.offsets):
            assert taken.entries[20 * at : 20 * at + 12] == entry(offset)[:12]
        offsets += taken.offsets
        if not taken.offsets and (before is None or before > now or wheel.next_ms() == before):
            if before is None or before > now:
                return offsets


@pytest.mark.parametrize("seed", range(6))
def test_messages_come_out_in_the_order_of_their_times(seed: int) -> None:
    """Messages are added while time goes on, for times from long ago to a year ahead: each comes
    out at the first look at or after its time, never before, ordered by time, then by adding."""
    random_ = random.Random(seed)
    wheel = Wheel()
    waiting: list[tuple[int, int]] = []
    now = NOW
    offset = 0
    spans = [0, 1, 60, 3_000, 100_000, 3_000_000, 100_000_000, YEAR_MS]
    for _ in range(300):
        for _ in range(random_.randrange(4)):
            due = now + random_.randint(-100, random_.choice(spans))
            if random_.random() < 0.3 and waiting:
                due = random_.choice(waiting)[0]  # several in one millisecond
            if random_.random() < 0.1:
                due -= random_.choice(spans)
            count = random_.randint(1, 3)
            if count == 1:
                wheel.add(due, entry(offset), offset, now)
            else:
                run = b"".join(entry(offset + k) for k in range(count))
                wheel.add_run(due, run, offset, now)
            waiting += [(due, offset + k) for k in range(count)]
            offset += count
        assert (wheel.count, wheel.bytes) == (len(waiting), 100 * len(waiting))
        now += random_.randint(0, random_.choice(spans))
        due_now = sorted(item for item in waiting if item[0] <= now)
        assert drain(wheel, now) == [number for _, number in due_now]
        waiting = [item for item in waiting if item[0] > now]
    assert sum(count for _, count in wheel.slots()) == wheel.count


def test_equal_times_keep_their_order_over_levels() -> None:
    """The first is added a year ahead, others for the same millisecond when it is near: although
    they would go into narrower slots, none overtakes."""
    wheel = Wheel()
    due = NOW + YEAR_MS
    for offset, now in enumerate((NOW, due - 7 * 3_600_000, due - 300_000, due - 500, due)):
        assert drain(wheel, now - 1) == []
        wheel.add(due, entry(offset), offset, now)
    assert drain(wheel, due - 1) == []
    assert drain(wheel, due) == [0, 1, 2, 3, 4]


def test_a_wide_slot_is_refined_in_pieces() -> None:
    """What has to be refined first bounds the work of a call, and adds meanwhile keep the order."""
    wheel = Wheel()
    due = NOW - NOW % WIDTHS_MS[2] + 10 * WIDTHS_MS[2]
    run = b"".join(entry(offset) for offset in range(1000))
    wheel.add_run(due, run, 0, NOW)
    found: list[int] = []
    for added in range(1000, 1200):
        wheel.add(due, entry(added), added, due)
        taken = wheel.take(due, floor=0, count_max=50, bytes_max=1 << 30, refine_max=100)
        assert len(taken.offsets) <= 50
        found += taken.offsets
    found += drain(wheel, due)
    assert found == list(range(1200))


def test_a_slice_is_bounded_in_bytes() -> None:
    """Large records: as many as fit, at least one."""
    wheel = Wheel()
    for offset in range(4):
        wheel.add(NOW, entry(offset, 400), offset, NOW)
    sizes = []
    while wheel.count:
        taken = wheel.take(NOW, floor=0, count_max=100, bytes_max=900, refine_max=100)
        sizes.append(len(taken.offsets))
    assert sizes == [2, 2]
    wheel.add(NOW, entry(9, 400), 9, NOW)
    assert wheel.take(NOW, floor=0, count_max=9, bytes_max=1, refine_max=9).offsets == [9]


def test_offsets_beyond_what_an_item_holds() -> None:
    """Only the lower bits are kept: with the floor they are the whole offset again."""
    wheel = Wheel()
    floor = (1 << 40) - 3
    for offset in range(floor, floor + 6):
        wheel.add(NOW + 5, entry(1), offset, NOW)
    taken = wheel.take(NOW + 5, floor=floor, count_max=10, bytes_max=1 << 30, refine_max=100)
    assert taken.offsets == list(range(floor, floor + 6))


@pytest.mark.parametrize("due", [1_790_000_000_123, 1 << 40, (1 << 42) - 1, 1_700_000_000_000])
def test_a_due_time_with_any_bits_wrong_is_not_believed(due: int) -> None:
    """All single and double flips of a tag hash."""
    tag = tag_of_due(due)
    assert 0 < tag < 1 << 63
    assert dues_of_tags((tag,)) == [due]
    assert dues_of_tags((due,)) == [None]  # as earlier versions wrote it
    flips = [1 << first | 1 << second for first in range(63) for second in range(first + 1)]
    assert dues_of_tags(tag ^ flip for flip in flips) == [None] * len(flips)
    real = (0, 5, -5, (1 << 31) - 1, -(1 << 31), tag_of_due(1 << 50))
    assert dues_of_tags(real) == [None] * len(real)
