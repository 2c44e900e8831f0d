"""What every state of the disk has to show when it is opened.

    (a) every message whose flush was reported is there, byte for byte
    (b) the messages are a beginning of those that were attempted, in order, their offsets dense;
        an atomic batch is whole or gone
    (c) every index says exactly where the kept messages stand; that of a dropped queue, too, or it
        is gone: but only if the log kept what says so
    (d) recovery is idempotent: a second one changes no byte of any file. (Opening adds more: an
        abort file and the record of a new epoch. So the two recoveries are those of
        `recover_only`, which opens nothing.)
    (e) what recovery kept is durable before it is served, and appending goes on
    (f) recovery reads of the log at most what stands behind the checkpoint, twice, and a segment;
        the whole log, and all indexes anew, only where there is no checkpoint yet

Messages that were given up (retention) may be gone from the front; what is cut off at the end (as a
follower does whose new master never had it) may come back only while it is being cut.

After damage to bytes that had been synced, (a) is weaker: a promised message is there byte for
byte, or reading it is an error, or recovery reported what it cut, which is never what a checkpoint
covers; and the store may refuse to open with a sentence, as often as it is tried. Never may
anything be wrong or gone in silence.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from polymq.core_log.acknowledged import AcknowledgedFile
from polymq.core_log.checkpoint import read_checkpoint
from polymq.core_log.errors import CorruptRecord, StorageFailed, StoreRefused
from polymq.core_log.index_recovery import CHECKPOINT_DAMAGED
from polymq.core_log.queue_index import Index, widen
from polymq.core_log.recovery import RecoveryReport
from polymq.core_log.settings import StoreSettings
from polymq.core_log.store import Store
from tests.crash.actor import NOW_MS, Actor, open_store
from tests.crash.attempted import Attempted
from tests.crash.disk import Disk
from tests.crash.losses import NOTHING
from tests.harness.stores import DIRECTORY, OWN, PRIVATE, read_messages, recover_only

ENDINGS: Final = 3
"""How a check may end: power is cut at once, after another flush, or the store is closed."""


class Violation(AssertionError):
    """A promise of the store is broken."""


def demand(is_covered: bool, text: str) -> None:
    """Raise Violation unless it holds."""
    if not is_covered:
        raise Violation(text)


def check(disk: Disk, settings: StoreSettings, attempted: Attempted, ending: int) -> int:
    """(a) to (f) on one state, which is used up. Returns how many recoveries it took.

    Raises:
        Violation, StoreError: something is not as promised.
    """
    if attempted.acknowledged:
        noted = AcknowledgedFile(disk, DIRECTORY).value.position
        demand(noted >= attempted.acknowledged, f"(e) only {noted} is noted as acknowledged")
    checkpoint = read_checkpoint(disk, DIRECTORY)
    report = recover_only(disk, settings)
    _check_reads(disk, report, 0 if checkpoint is None else checkpoint.position, settings)
    once = disk.image()
    recover_only(disk, settings)
    demand(once == disk.image(), "(d) a second recovery changed something")
    actor = Actor(disk, settings, attempted)
    remaining = check_contents(actor.store, attempted)
    if ending == 0:
        _check_found(disk.crash(NOTHING), settings, attempted, remaining)
        return 4
    attempted = attempted.copy()
    attempted.forget_after(remaining)
    actor.attempted = attempted
    actor.publish(2, 20)
    actor.publish_atomic(2, 20)
    if ending == 1:
        actor.flush()
        _check_found(disk.crash(NOTHING), settings, attempted, attempted.count)
    else:
        actor.close()
        store = _check_found(disk.crash(NOTHING), settings, attempted, attempted.count)
        demand(store.recovery.clean, "(e) the store was closed, and is not clean")
    return 4


def _check_found(
    disk: Disk, settings: StoreSettings, attempted: Attempted, remaining: int
) -> Store:
    """(e): on a disk whose power was cut, exactly `remaining` messages are there."""
    store = open_store(disk, settings)
    demand(check_contents(store, attempted) == remaining, "(e) what was served or flushed is gone")
    return store


def _check_reads(
    disk: Disk, report: RecoveryReport, position: int, settings: StoreSettings
) -> None:
    """(f)"""
    segment = settings.segment_bytes
    behind = report.end - max(position, report.start)
    passes = 2 * (behind + segment) + segment
    if position == 0:
        passes += 2 * (report.end - report.start)
    else:
        demand(not report.rebuilt_all, f"(f) all indexes were made again: {report.rebuilt_all}")
    records = 20 * 2000  # the last entries of indexes are held against their records
    demand(disk.log_bytes_read <= passes + records, f"(f) recovery read {disk.log_bytes_read}")


def check_contents(store: Store, attempted: Attempted) -> int:
    """(a), (b), (c): all messages of all queues, read and compared. Returns how many there are."""
    dropped = [
        number
        for number, gone in attempted.dropped.items()
        if store.find_index(number) is not None
        or (store.recovery.end < gone.position and gone.positions)
    ]
    for number, first in attempted.begin_queues(store, dropped):
        gone_count = attempted.gone_from(number)
        demand(first <= gone_count, f"(c) queue {number} begins at {first}, not {gone_count}")
    own = store.index(OWN, 20)
    remaining = own.end_offset
    demand(
        remaining >= attempted.promised,
        f"(a) {remaining} of {attempted.promised} promised are there",
    )
    demand(
        remaining <= attempted.count, f"(b) {remaining} are there, {attempted.count} were attempted"
    )
    for first, end in attempted.batches:
        demand(remaining <= first or remaining >= end, "(b) a part of an atomic batch is there")
    _check_queue(store, OWN, range(remaining), attempted)
    for number in PRIVATE:
        _check_queue(store, number, range(remaining), attempted)
    queues = attempted.wide | {number: attempted.dropped[number].positions for number in dropped}
    for number, positions in queues.items():
        _check_queue(
            store, number, [at_byte for at_byte in positions if at_byte < remaining], attempted
        )
    found = set(store.index_numbers()) - attempted.dropped.keys()
    demand(found <= {OWN, *PRIVATE, *attempted.wide}, f"(c) there is an index too much: {found}")
    return remaining


def _check_queue(store: Store, number: int, positions: Sequence[int], attempted: Attempted) -> None:
    """One queue has exactly these of the attempted messages, but for those that were given up."""
    index = store.index(number, 20 if number == OWN else 32)
    where = f"queue {number}"
    first = min(attempted.gone_from(number), len(positions))
    demand(index.first_offset == first, f"(c) {where} begins at {index.first_offset}")
    demand(index.end_offset == len(positions), f"(c) {where} ends at {index.end_offset}")
    expected = b"".join([attempted.entries[at_byte] for at_byte in positions[first:]])
    found = entries_of(index)
    demand(
        found == (expected if number == OWN else widen(expected, NOW_MS)), f"(c) {where} differs"
    )
    if number != OWN:
        return
    records = b""
    count = first
    while count < len(positions):
        part, taken = read_messages(store, index, count, len(positions) - count)
        demand(taken > 0, f"(a) message {count} of {where} cannot be read")
        records += part
        count += taken
    wanted = b"".join([attempted.records[at_byte] for at_byte in positions[first:]])
    demand(records == wanted, f"(a) messages of {where} differ")


def entries_of(index: Index) -> bytes:
    """All entries of an index, from memory and from its files."""
    found = b""
    offset = index.first_offset
    while offset < index.end_offset:
        part = index.read_hot(offset, 1 << 16) or index.read_cold(offset, 1 << 16)
        demand(bool(part), f"(c) an index has nothing at {offset}")
        found += part
        offset += len(part) // index.entry_size
    return found


# --- after damage --------------------------------------------------------------------------------


def sure_after_damage(disk: Disk, attempted: Attempted) -> int:
    """How many messages a checkpoint covers, if it can be read: none of them may be cut off."""
    checkpoint = read_checkpoint(disk, DIRECTORY)
    return 0 if checkpoint is None else bisect_right(attempted.ends, checkpoint.position)


def was_cut(report: RecoveryReport) -> bool:
    """Whether a start has told that something may be gone from the log's end."""
    cut = report.cut_bytes > 0 or bool(report.removed) or report.behind_cut is not None
    return cut or report.rebuilt_all == CHECKPOINT_DAMAGED


def check_damaged(
    disk: Disk, settings: StoreSettings, attempted: Attempted, *, sure: int, cut: bool
) -> str:
    """What was promised is there, or is known to be damaged. Returns how it was met.

    Args:
        sure: see `sure_after_damage`.
        cut: an earlier start told that it cut the log.

    Raises:
        Violation: something is wrong or gone in silence.
    """
    try:
        store = open_store(disk, settings)
    except StoreRefused as refused:
        try:
            open_store(disk, settings)
        except StoreRefused as again:
            demand(str(again) == str(refused), f"refused, and then differently: {again}")
            return "refused"
        raise Violation(f"it opens after it was refused: {refused}") from refused
    report = store.recovery
    cut = cut or was_cut(report)
    remaining = store.index(OWN, 20).end_offset
    demand(
        remaining >= sure,
        f"only {remaining} of {sure} messages that a checkpoint covered are there",
    )
    errors = 0
    for number, first in attempted.begin_queues(store):
        demand(first <= attempted.gone_from(number), f"queue {number} begins at {first}")
    for number in (OWN, *PRIVATE):
        errors += _check_damaged_queue(store, number, attempted, cut)
    if errors:
        return "read error"
    if cut and remaining < attempted.promised:
        return "cut and reported"
    return "rebuilt" if report.rebuilt_all else "harmless"


def _check_damaged_queue(store: Store, number: int, attempted: Attempted, cut: bool) -> int:
    """Every promised message of a queue, read on its own. Returns how many cannot be read."""
    index = store.index(number, 20 if number == OWN else 32)
    errors = 0
    for offset in range(attempted.given_up, attempted.promised):
        if offset >= index.end_offset:
            demand(cut, f"message {offset} of queue {number} is gone, and nobody said so")
            break
        try:
            record, count = read_messages(store, index, offset, 1)
        except (CorruptRecord, StorageFailed):
            errors += 1
            continue
        demand(count == 1, f"message {offset} of queue {number} is gone")
        demand(record == attempted.records[offset], f"message {offset} of {number} is wrong")
    return errors
