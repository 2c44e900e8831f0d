"""Reading by offset with a filter on tags: of the messages that do not match, only index entries
are looked at.

An entry of a topic's own queue has the hash of the tag (Java's, as RocketMQ stores it). Entries
with other hashes are passed over where they stand, without reading a record; what is left is read,
and compared by the tag itself, because two tags may have one hash.

Rules:

* One call looks at no more than `tag_scan_count_max` entries; whoever asks goes on at the offset
  that it is told. So a rare tag costs its reader some calls, and nobody else a stall.
* A message without a tag matches nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from polymq.broker.core import Core
from polymq.broker.queues.queue import Queue
from polymq.core_log.kernels.layout import ENTRY_SIZE
from polymq.core_log.kernels.writing import java_hash

_HASH_AT = 12  # in an entry
_SIZE_AT = slice(8, 12)

Callback = Callable[[bytes, int], None]


def pull_tagged(
    core: Core,
    queue: Queue,
    offset: int,
    *,
    tags: frozenset[str],
    end: int,
    count_max: int,
    bytes_max: int,
    callback: Callback,
) -> None:
    """`QueryPort.pull` with tags, of a queue that has `offset`.

    Args:
        end: one past the last offset that may be seen.
    """
    count = min(core.limits.tag_scan_count_max, end - offset)
    if count <= 0:
        callback(b"", offset)
        return

    def scan(_first: int, entries: bytes | None) -> None:
        if not entries:  # a failed read, which was told
            callback(b"", offset)
            return
        matching, scanned = choose(entries, tags, count_max=count_max, bytes_max=bytes_max)
        if not matching:
            callback(b"", offset + scanned)
            return
        core.reading.read_entries(matching, lambda records, _: finish(records, scanned))

    def finish(records: bytes | None, scanned: int) -> None:
        if records is None:
            callback(b"", offset)
        else:
            callback(_with_tags(core, records, tags), offset + scanned)

    entries = queue.index.read_hot(offset, count)
    if entries is None:
        core.reading.entries(queue.index, offset, count, scan)
    else:
        scan(offset, entries)


def choose(
    entries: bytes, tags: Iterable[str], *, count_max: int, bytes_max: int
) -> tuple[bytes, int]:
    """Of 20-byte entries those whose hash is that of a tag: at least one if there is any, then as
    many as fit; and how many entries were looked at until then."""
    found: list[int] = []
    for tag in {java_hash(tag) for tag in tags}:
        # One more than fits says where the next reader has to go on.
        found += _with_hash(entries, tag.to_bytes(8, "big", signed=True), count_max + 1)
    found.sort()
    taken: list[bytes] = []
    total = 0
    for number in found:
        entry = entries[number * ENTRY_SIZE : (number + 1) * ENTRY_SIZE]
        total += int.from_bytes(entry[_SIZE_AT], "big")
        if len(taken) == count_max or (taken and total > bytes_max):
            return b"".join(taken), number
        taken.append(entry)
    return b"".join(taken), len(entries) // ENTRY_SIZE


def _with_hash(entries: bytes, wanted: bytes, count_max: int) -> list[int]:
    """The numbers of the first `count_max` entries with a hash."""
    found: list[int] = []
    at = entries.find(wanted)
    while at >= 0 and len(found) < count_max:
        number, byte = divmod(at, ENTRY_SIZE)
        if byte == _HASH_AT:
            found.append(number)
        at = entries.find(wanted, at + 1)
    return found


def _with_tags(core: Core, records: bytes, tags: frozenset[str]) -> bytes:
    """Those of the records that really have one of the tags."""
    runs = core.metas.runs(records, 0, len(records))
    if all(run.meta.tag in tags for run in runs):
        return records
    return b"".join([records[run.start : run.end] for run in runs if run.meta.tag in tags])
