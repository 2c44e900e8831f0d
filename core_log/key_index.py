"""Finding messages by a key: RocketMQ's index files over the log, made behind its back.

Theory. The index is a cache of the log. Nothing of it is on the way of a publish: `catch_up` walks
over what was flushed since the last time and adds the keys that it finds, in the worker that saves,
and once more before a search. So a search sees every message that was flushed when it began.

    index/<when the file was begun, 17 digits>     `core_log.key_file`
    index/known                                    which files there are, up to where they know
                                                   the log, and their checksums

`known` is replaced as a whole after what it speaks of was synced. After a crash the file that was
being filled has its slots made again from those entries that `known` covers; keys behind them are
found in the log again. A full file is compared with its checksums before it is first used; a
damaged one is made again from the log. Every message that is found is compared with the key,
because hashes collide.

Rules:

* All of it may run in any thread but the loop's; a lock lets one at a time in.
* An error of the disk here is no failure of the log: what was begun is forgotten and tried again.
"""

from __future__ import annotations

import json
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Final
from zlib import crc32

from polymq.core_log.checkpoint import read_whole_file, write_whole_file
from polymq.core_log.files import Files
from polymq.core_log.kernels import keys
from polymq.core_log.kernels.record_keys import keys_of
from polymq.core_log.key_file import ROW, KeyFileDamaged, KeyFileReader, KeyFileState, KeyFileWriter
from polymq.core_log.reader import LogReader
from polymq.core_log.record import Record
from polymq.core_log.settings import StoreSettings

KEY_INDEX_NAME: Final = "index"
KNOWN_NAME: Final = "known"
KNOWN_BYTES_MAX: Final = 16 << 20
NAME_DIGITS: Final = 17
SAVE_BYTES: Final = 64 << 20
"""How far the log may grow without keys before `known` is replaced all the same: what a crash lets
walk over again."""
EXAMINED_MAX: Final = 100_000
"""Records that one search looks at: a key that a million messages share is no way to find one."""


class KeyIndex:
    """The key index of one store.

    Args:
        directory: the store's directory.
        clock_ms: names files.

    Attributes:
        remade_count: files that were damaged and made again.
    """

    def __init__(
        self,
        *,
        directory: str,
        files: Files,
        reader: LogReader,
        settings: StoreSettings,
        clock_ms: Callable[[], int],
    ) -> None:
        self._parent = directory
        self._directory = f"{directory}/{KEY_INDEX_NAME}"
        self._files = files
        self._reader = reader
        self._slot_count = settings.key_slots
        self._numbers_max = settings.key_file_entries
        self._clock_ms = clock_ms
        self._lock = threading.Lock()
        self._loaded = False
        self._full: list[KeyFileState] = []  # oldest first
        self._writer: KeyFileWriter | None = None  # the file behind them, while it is not full
        self._position = 0  # all keys before it are known
        self._saved_position = 0  # what `known` says of that
        self._changed = False  # whether `known` lacks something
        self._checked: set[str] = set()  # full files that were compared with their sums
        self.remade_count = 0

    # --- adding ---------------------------------------------------------------------------------

    def catch_up(self, end: int, keyed_end: int | None = None) -> None:
        """Add the keys of what was flushed up to `end`. Raises OSError: try again later.

        Args:
            keyed_end: no record from here on has a key (`CommitLog.keyed_end`).
        """
        with self._lock:
            self._catch_up(end, keyed_end)

    def _catch_up(self, end: int, keyed_end: int | None = None) -> None:
        try:
            self._load(end)
            self._forget(self._reader.start)
            if keyed_end is None or self._position < keyed_end:
                for rows in self._rows(self._position, end):
                    self._add(rows)
            self._position = max(self._position, end)
            self._save()
        except BaseException:
            self._loaded = False  # what is on the disk is what counts
            raise

    def _rows(self, start: int, end: int) -> Iterator[memoryview]:
        """The rows of all keys in the log positions [start, end)."""
        while start < end:
            walk = self._reader.walk(start)
            for memory, size, position in walk.stretches():
                rows = memoryview(keys.find_keys(memory, 0, size))
                if position + size > end:
                    rows = rows_before(rows, end)
                if rows:
                    yield rows
                if position + size >= end:
                    return
            # Damage in the log: what is behind it in this segment cannot be told apart.
            start = max(self._reader.segment_end(walk.position), walk.position + 1)

    def _add(self, rows: memoryview) -> None:
        while rows:
            if self._writer is None:
                self._writer = self._begin(position_in(rows, 0))
            writer = self._writer
            size = fitting(rows, self._numbers_max - writer.state.number, writer.state.number == 1)
            if size:
                writer.add(rows[:size])
            rows = rows[size:]
            if rows:
                self._full.append(seal(writer))
                self._checked.add(writer.state.name)
                self._writer = None
                self._changed = True

    def _begin(self, position: int) -> KeyFileWriter:
        """A new file for keys from `position` on."""
        taken = {state.name for state in self._full}
        now = self._clock_ms()
        while (name := file_name(now)) in taken:
            now += 1
        self._make_directory()
        self._files.unlink(f"{self._directory}/{name}")  # one that was begun before a crash
        return self._writer_of(
            KeyFileState(name=name, slot_count=self._slot_count, begin=position, end=position)
        )

    def _writer_of(self, state: KeyFileState) -> KeyFileWriter:
        return KeyFileWriter(self._files, f"{self._directory}/{state.name}", state)

    def _make_directory(self) -> None:
        if self._files.make_directory(self._directory):
            self._files.sync_directory(self._parent)

    # --- what is known --------------------------------------------------------------------------

    def _save(self) -> None:
        """Sync what was added, and say so."""
        if self._writer is not None and self._writer.has_new:
            self._writer.write()
            self._changed = True
        if not self._changed and self._position - self._saved_position < SAVE_BYTES:
            return
        self._make_directory()
        states = [*self._full, *([] if self._writer is None else [self._writer.state])]
        known = {
            "position": self._position,
            "full": len(self._full),
            "files": [asdict(state) for state in states],
        }
        text = json.dumps(known, separators=(",", ":")).encode()
        data = text + b"\n%08x\n" % crc32(text)
        write_whole_file(self._files, self._directory, KNOWN_NAME, data)
        self._saved_position = self._position
        self._changed = False

    def _load(self, end: int) -> None:
        """Take up what the last process left."""
        if self._loaded:
            return
        known = decode_known(
            read_whole_file(self._files, f"{self._directory}/{KNOWN_NAME}", KNOWN_BYTES_MAX)
        )
        if known is None or known[0] > end:
            known = (self._reader.start, 0, [])
        self._position, full_count, states = known
        self._saved_position = self._position
        self._full, self._writer = states[:full_count], None
        self._checked.clear()
        names = {state.name for state in states}
        for name in self._files.list(self._directory):
            if len(name) == NAME_DIGITS and name.isdigit() and name not in names:
                self._files.unlink(f"{self._directory}/{name}")
        for state in states[full_count:]:
            writer = self._writer_of(state)
            try:
                writer.load()
                self._writer = writer
            except KeyFileDamaged:
                self._position = state.begin
                self.remade_count += 1
        self._changed = False
        self._loaded = True

    def _forget(self, start: int) -> None:
        """Remove files that only know what the log does not have any more."""
        while self._full and self._full[0].end <= start:
            self._files.unlink(f"{self._directory}/{self._full[0].name}")
            del self._full[0]
            self._changed = True
        self._position = max(self._position, start)

    # --- finding --------------------------------------------------------------------------------

    def find(
        self,
        topic: bytes,
        key: bytes,
        *,
        count_max: int,
        bytes_max: int,
        begin_ms: int,
        end_ms: int,
        end: int,
        accept: Callable[[Record], bool],
    ) -> list[Record]:
        """Messages of a topic with this key, newest first.

        Args:
            count_max, bytes_max: no more than so many, and no more bytes than fit behind the first.
            begin_ms, end_ms: store times, both included.
            end: the flushed position: what is behind it is not looked for.
            accept: whether a record that has the key is wanted.

        Raises:
            OSError, CorruptRecord: the disk cannot be read.
        """
        with self._lock:
            self._catch_up(end)
            hashed = keys.key_hash(topic, key)
            while True:  # every turn but the last makes a damaged file again
                search = _Search(
                    self._reader, topic, key, count_max, bytes_max, begin_ms, end_ms, end, accept
                )
                damaged = self._search_all(search, hashed)
                if damaged is None:
                    return search.found
                self._make_again(damaged, end)

    def _search_all(self, search: _Search, hashed: int) -> KeyFileState | None:
        """Offer what the files have of a hash, newest first. Returns a file that is damaged."""
        files = list(self._full)
        if self._writer is not None:
            files.append(self._writer.state)
        for state in reversed(files):
            if state.end_ms < search.begin_ms or state.begin_ms > search.end_ms:
                continue
            try:
                if self._search_one(state, search, hashed):
                    break
            except KeyFileDamaged:
                return state
        return None

    def _search_one(self, state: KeyFileState, search: _Search, hashed: int) -> bool:
        """The same in one file. Returns whether it is enough."""
        slots = None
        if self._writer is not None and self._writer.state is state:
            slots = self._writer.slots
        path = f"{self._directory}/{state.name}"
        with closing(KeyFileReader(self._files, path, state, slots)) as reader:
            if slots is None and state.name not in self._checked:
                reader.check()
                self._checked.add(state.name)
            for position, seconds in reader.chain(hashed):
                store_ms = state.begin_ms + 1000 * seconds  # rounded down; 0 if before the begin
                if seconds and store_ms + 999 < search.begin_ms:
                    continue
                if store_ms <= search.end_ms and search.look_at(position):
                    return True
        return False

    def _make_again(self, state: KeyFileState, end: int) -> None:
        """Fill a file that was damaged from the log."""
        self.remade_count += 1
        self._changed = True
        if state in self._full:
            writer = self._writer_of(
                KeyFileState(
                    name=state.name,
                    slot_count=state.slot_count,
                    begin=state.begin,
                    end=state.end,
                )
            )
            for rows in self._rows(max(state.begin, self._reader.start), state.end):
                writer.add(rows)
            self._full[self._full.index(state)] = seal(writer)
            self._checked.add(state.name)
            self._save()
        else:
            self._writer = None
            self._position = max(state.begin, self._reader.start)
            self._catch_up(end)


@dataclass(slots=True)
class _Search:
    """What one search looks for, and what it has found."""

    reader: LogReader
    topic: bytes
    key: bytes
    count_max: int
    bytes_left: int
    begin_ms: int
    end_ms: int
    end: int
    accept: Callable[[Record], bool]
    found: list[Record] = field(default_factory=list)
    looked_at: set[int] = field(default_factory=set)

    def look_at(self, position: int) -> bool:
        """Keep the record at `position` if it is wanted. Returns whether the search is over."""
        if position in self.looked_at or not self.reader.start <= position < self.end:
            return False
        self.looked_at.add(position)
        record = self.reader.record_at(position)
        if (
            record is not None
            and record.topic == self.topic
            and self.begin_ms <= record.store_ms <= self.end_ms
            and self.key in keys_of(record.raw_properties)
            and self.accept(record)
        ):
            self.bytes_left -= record.size
            if self.found and self.bytes_left < 0:
                return True
            self.found.append(record)
        return len(self.found) >= self.count_max or len(self.looked_at) >= EXAMINED_MAX


def rows_before(rows: memoryview, end: int) -> memoryview:
    """The first rows, as far as their records stand before `end`."""
    count = bisect_left(range(len(rows) // ROW.size), end, key=lambda row: position_in(rows, row))
    return rows[: count * ROW.size]


def position_in(rows: memoryview, row: int) -> int:
    """Where the record of a row stands in the log."""
    return int(ROW.unpack_from(rows, row * ROW.size)[1])


def fitting(rows: memoryview, room: int, empty: bool) -> int:
    """Bytes of the first rows that go into a file with room for so many: whole records, unless the
    file is empty and the first record alone has more keys than it holds."""
    count = len(rows) // ROW.size
    if count <= room:
        return len(rows)
    cut = room
    while cut and position_in(rows, cut - 1) == position_in(rows, cut):
        cut -= 1
    return (cut or (room if empty else 0)) * ROW.size


def seal(writer: KeyFileWriter) -> KeyFileState:
    """Finish a file that takes no more. Raises OSError."""
    writer.write(seal=True)
    return writer.state


def file_name(now_ms: int) -> str:
    """The name of a file that is begun now: yyyyMMddHHmmssSSS."""
    second = datetime.fromtimestamp(now_ms // 1000, UTC)
    return f"{second:%Y%m%d%H%M%S}{now_ms % 1000:03d}"


def decode_known(data: bytes | None) -> tuple[int, int, list[KeyFileState]] | None:
    """(position, how many files are full, all files), or None if it is not whole."""
    if data is None:
        return None
    text, _, crc = data.rstrip(b"\n").rpartition(b"\n")
    if crc != b"%08x" % crc32(text):
        return None
    known = json.loads(text)
    states = [KeyFileState(**state) for state in known["files"]]
    return known["position"], known["full"], states
