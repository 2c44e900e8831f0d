"""One file of the key index, in RocketMQ's form (IndexFile).

    header 40: begin ms 8 | end ms 8 | begin position 8 | end position 8 | slots 4 | next number 4
    slots: 4 each: the number of the newest entry whose key falls into this slot, 0 for none
    entries 20 each, from number 0 on (which is never used): hash of the key 4 | position 8 |
        seconds since begin 4 | number of the entry before it in the slot 4

A key is looked for from its slot along the chain, newest first. The hash is of `topic#key`; others
may have the same, so whoever reads compares with the record.

Files are sparse: what was never written takes no room on the disk.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final
from zlib import crc32

from polymq.core_log.files import Files
from polymq.core_log.kernels import keys

HEADER: Final = struct.Struct(">qqqqII")
SLOT_SIZE: Final = 4
KEY_ENTRY: Final = struct.Struct(">IqiI")
ROW: Final = struct.Struct(">Iqq")
"""What the kernels make of a record's key: hash, position, store time in ms."""
PAGE_BYTES: Final = 4096
READ_BYTES: Final = 1 << 20


class KeyFileDamaged(Exception):
    """A key file is not what was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFileState:
    """What is known of a file beside its bytes.

    Attributes:
        name: of the file: when it was begun, as in RocketMQ.
        slot_count: how many slots it has.
        number: of its next entry; the first is 1.
        begin_ms, end_ms: store times of the first and the last record that it knows.
        begin, end: it knows all keys of the log positions [begin, end).
        entries_crc: CRC-32 of its entries from number 1 on.
        slots_crc: CRC-32 of its slots, once it is full; until then they are in memory.
    """

    name: str
    slot_count: int
    number: int = 1
    begin_ms: int = 0
    end_ms: int = 0
    begin: int = 0
    end: int = 0
    entries_crc: int = 0
    slots_crc: int | None = None

    @property
    def entries_at(self) -> int:
        """Where entry number 0 would stand."""
        return HEADER.size + SLOT_SIZE * self.slot_count

    def header(self) -> bytes:
        """The file's header."""
        return HEADER.pack(
            *(self.begin_ms, self.end_ms, self.begin, self.end, self.slot_count, self.number)
        )


class KeyFileWriter:
    """The file that is being filled: its slots are in memory.

    Args:
        path: of the file.
        state: as it was saved.
    """

    def __init__(self, files: Files, path: str, state: KeyFileState) -> None:
        self.state = state
        self._files = files
        self._path = path
        self._slots = bytearray(SLOT_SIZE * state.slot_count)
        self._pending: list[bytes] = []  # entries that are not written yet
        self._pending_from = state.number
        self._changed: set[int] | None = set()  # pages of slots to write; None for all

    @property
    def slots(self) -> bytearray:
        """The slots. Not to be changed by others."""
        return self._slots

    @property
    def has_new(self) -> bool:
        """Whether something was added since the last `write`."""
        return bool(self._pending)

    def load(self) -> None:
        """Make the slots from the entries in the file. Raises KeyFileDamaged, OSError."""
        state = self.state
        try:
            handle = self._files.open(self._path)
        except FileNotFoundError as error:
            raise KeyFileDamaged from error
        try:
            number, crc = 1, 0
            while number < state.number:
                count = min(state.number - number, READ_BYTES // KEY_ENTRY.size)
                at = state.entries_at + number * KEY_ENTRY.size
                entries = self._files.pread(handle, count * KEY_ENTRY.size, at)
                if len(entries) < count * KEY_ENTRY.size:
                    raise KeyFileDamaged
                crc = crc32(entries, crc)
                keys.fill_slots(entries, self._slots, number)
                number += count
        finally:
            self._files.close(handle)
        if crc != state.entries_crc:
            raise KeyFileDamaged
        self._changed = None

    def add(self, rows: bytes | memoryview) -> None:
        """Add the entries of these rows."""
        first = ROW.unpack_from(rows)
        last = ROW.unpack_from(rows, len(rows) - ROW.size)
        state = self.state
        if state.number == 1:
            state = replace(state, begin_ms=first[2])
        entries = keys.link_keys(rows, self._slots, state.number, state.begin_ms)
        self._note_pages(rows)
        self._pending.append(entries)
        self.state = replace(
            state,
            number=state.number + len(rows) // ROW.size,
            end_ms=max(last[2], state.end_ms),
            end=max(last[1] + 1, state.end),
            entries_crc=crc32(entries, state.entries_crc),
        )

    def _note_pages(self, rows: bytes | memoryview) -> None:
        """Remember which slots have to be written."""
        if self._changed is None or len(rows) // ROW.size > len(self._slots) // PAGE_BYTES:
            self._changed = None
            return
        for hashed, _, _ in ROW.iter_unpack(rows):
            self._changed.add(hashed % self.state.slot_count * SLOT_SIZE // PAGE_BYTES)

    def write(self, *, seal: bool = False) -> None:
        """Write what was added, and sync. Raises OSError.

        Args:
            seal: the file is full: take the sum over its slots.
        """
        state = self.state
        if seal:
            state = self.state = replace(state, slots_crc=crc32(self._slots))
        handle = self._files.open(self._path, create=True)
        try:
            if self._pending:
                at = state.entries_at + self._pending_from * KEY_ENTRY.size
                self._files.pwritev(handle, (b"".join(self._pending),), at)
            if self._changed is None:
                self._files.pwritev(handle, (bytes(self._slots),), HEADER.size)
            else:
                for page in sorted(self._changed):
                    start = page * PAGE_BYTES
                    some = bytes(self._slots[start : start + PAGE_BYTES])
                    self._files.pwritev(handle, (some,), HEADER.size + start)
            self._files.pwritev(handle, (state.header(),), 0)
            self._files.fdatasync(handle)
        finally:
            self._files.close(handle)
        self._pending, self._pending_from = [], state.number
        self._changed = set()


class KeyFileReader:
    """Looks for keys in one file. Use it as a context.

    Args:
        slots: of the file that is being filled; None where they are to be read.

    Raises:
        KeyFileDamaged, OSError: from all of it.
    """

    def __init__(
        self, files: Files, path: str, state: KeyFileState, slots: bytearray | None
    ) -> None:
        self._files = files
        self._state = state
        self._slots = slots
        try:
            self._handle = files.open(path)
        except FileNotFoundError as error:
            raise KeyFileDamaged from error

    def close(self) -> None:
        """Give the file back."""
        self._files.close(self._handle)

    def check(self) -> None:
        """Compare slots and entries of a full file with their sums: reads all of it."""
        state = self._state
        slots_size = SLOT_SIZE * state.slot_count
        start = state.entries_at + KEY_ENTRY.size
        size = (state.number - 1) * KEY_ENTRY.size
        if (
            self._sum(HEADER.size, slots_size) != state.slots_crc
            or self._sum(start, size) != state.entries_crc
        ):
            raise KeyFileDamaged

    def _sum(self, start: int, size: int) -> int:
        crc = 0
        while size:
            part = self._files.pread(self._handle, min(size, READ_BYTES), start)
            if not part:
                raise KeyFileDamaged
            crc = crc32(part, crc)
            start += len(part)
            size -= len(part)
        return crc

    def chain(self, hashed: int) -> Iterator[tuple[int, int]]:
        """(position, seconds since the file's begin) of the entries with this hash, newest
        first."""
        state = self._state
        number = self._newest(hashed % state.slot_count)
        before = state.number
        while number:
            if number >= before:  # chains go back in time, always
                raise KeyFileDamaged
            at = state.entries_at + number * KEY_ENTRY.size
            memory = self._files.pread(self._handle, KEY_ENTRY.size, at)
            if len(memory) < KEY_ENTRY.size:
                raise KeyFileDamaged
            found, position, seconds, previous = KEY_ENTRY.unpack(memory)
            if found == hashed:
                yield position, seconds
            before, number = number, previous

    def _newest(self, slot: int) -> int:
        at = slot * SLOT_SIZE
        if self._slots is not None:
            return int.from_bytes(self._slots[at : at + SLOT_SIZE], "big")
        memory = self._files.pread(self._handle, SLOT_SIZE, HEADER.size + at)
        if len(memory) < SLOT_SIZE:
            raise KeyFileDamaged
        return int.from_bytes(memory, "big")
