"""Packs: the files that indexes share, and the catalogue of all indexes.

Theory. Most queues have few entries, and a hundred thousand of them may get one in the same few
seconds. So a checkpoint appends what is new to one file, the *pack*, as one *frame*, and syncs
once, however many queues it concerns. A frame is a list of *blocks*; each says something of one
index, and the last word counts:

    PACKED   its entries [first, first + count) stand here; extents from `first` on are replaced
    FILED    it has files of its own up to `first`; extents before are void
    FIRST    it begins at `index first` now
    DROPPED  it is gone

The checkpoint file names the pack and how long it is; what is behind is cut by recovery. Frames
and blocks have checksums: recovery checks frames, reading checks the block.

A pack is never changed but at its end. When most of it is out of date, `compact` writes what
counts to the pack of the next generation; the next checkpoint names that one, then the old file
goes. A reader that finds its file gone asks the index again where its entries are.

    packedqueue/<generation, 20 digits>

    frame: "PMQP" 4 | bytes of its blocks 4 | blocks 4 | CRC-32 of all else 4 | blocks
    block: number 4 | kind 1 | entry size 1 | 0 2 | index first 8 | first 8 | count 4 |
           CRC-32 of all else 4 | entries

A *place* is the generation and the position of a block in one integer.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final
from zlib import crc32

from polymq.core_log.errors import StorageFailed
from polymq.core_log.files import Files, sync_file, sync_names
from polymq.core_log.index_work import COPIED_BYTES_MAX
from polymq.core_log.segments import NAME_DIGITS

PACKS_NAME: Final = "packedqueue"

FRAME: Final = struct.Struct(">4sIII")
BLOCK: Final = struct.Struct(">IBBHqqII")
MAGIC: Final = b"PMQP"
CHECKED: Final = BLOCK.size - 4
"""Bytes of a block's head that its checksum covers."""

PACKED: Final = 1
FILED: Final = 2
FIRST: Final = 3
DROPPED: Final = 4

POSITION_BITS: Final = 40
"""Bits of a place that say the position: a pack is below 1 TiB."""
FRAME_BYTES_MAX: Final = 8 << 20
"""Blocks are gathered up to this size before they are written as a frame."""


class PackDamaged(Exception):
    """The pack is not what the checkpoint says; the text says why."""


class Packs:
    """The packs of one store. Appending and compacting belong to the checkpoint's worker.

    Args:
        directory: where the packs stand.
        generation, length: the current pack; generation 0 means that there is none yet.

    Attributes:
        live_bytes: how much of the current pack counts, as far as its writer keeps the sum.
    """

    def __init__(
        self, *, directory: str, files: Files, generation: int = 0, length: int = 0
    ) -> None:
        self.directory = directory
        self.generation = generation
        self.length = length
        self.live_bytes = 0
        self._files = files

    def path(self, generation: int) -> str:
        """The file of a generation."""
        return f"{self.directory}/{generation:0{NAME_DIGITS}d}"

    # --- writing --------------------------------------------------------------------------------

    def begin(self, generation: int) -> None:
        """Go on in the pack of another generation, empty. Raises OSError."""
        handle = self._files.open(self.path(generation), create=True)
        try:
            self._files.truncate(handle, 0)
        finally:
            self._files.close(handle)
        sync_names(self._files, self.directory)
        self.generation, self.length = generation, 0

    def writer(self) -> PackWriter:
        """Begin to append. One at a time. Raises OSError."""
        if self.generation == 0:
            self.begin(1)
        return PackWriter(self, self._files)

    # --- reading --------------------------------------------------------------------------------

    def read(self, location: int, number: int, size_expected: int) -> tuple[int, bytes]:
        """The first offset and the entries of the PACKED block of an index. Any thread.

        Args:
            size_expected: bytes of its entries, as far as is known: saves a second read.

        Raises:
            FileNotFoundError: that generation is gone. StorageFailed: the block is damaged.
            OSError.
        """
        path = self.path(location >> POSITION_BITS)
        handle = self._files.open(path)
        try:
            return self.read_from(handle, location, number, size_expected)
        finally:
            self._files.close(handle)

    def read_from(
        self, handle: int, location: int, number: int, size_expected: int
    ) -> tuple[int, bytes]:
        """`read` with a handle of the place's file."""
        position = location & (1 << POSITION_BITS) - 1
        wanted = BLOCK.size + size_expected
        memory = self._files.pread(handle, wanted, position)
        if len(memory) >= BLOCK.size:
            found, kind, size, _, _, first, count, crc = BLOCK.unpack_from(memory)
            if (found, kind) == (number, PACKED):
                end = BLOCK.size + count * size
                if end > len(memory) == wanted:
                    memory += self._files.pread(handle, end - wanted, position + wanted)
                entries = memory[BLOCK.size : end]
                whole = len(entries) == count * size
                if whole and crc32(entries, crc32(memory[:CHECKED])) == crc:
                    return first, entries
        raise StorageFailed(
            f"reading {self.path(location >> POSITION_BITS)}: the entries of queue {number} at "
            f"{position} are damaged; the next start makes them again from the log"
        )

    def frames(self) -> Iterator[tuple[bytes, int, int]]:
        """The frames of the current pack, checked: the blocks of each, how many they are, and the
        place of the first.

        Raises:
            PackDamaged: it is not whole. OSError.
        """
        if self.generation == 0:
            return
        try:
            handle = self._files.open(self.path(self.generation))
        except FileNotFoundError as error:
            raise PackDamaged("its pack is missing") from error
        try:
            position = 0
            while position < self.length:
                head = self._files.pread(handle, FRAME.size, position)
                if len(head) < FRAME.size:
                    raise PackDamaged("its pack is too short")
                magic, size, count, crc = FRAME.unpack(head)
                end = position + FRAME.size + size
                sound = magic == MAGIC and end <= self.length
                body = self._files.pread(handle, size, position + FRAME.size) if sound else b""
                if not sound or crc32(body, crc32(head[:12])) != crc:
                    raise PackDamaged(f"its pack is damaged in the frame at {position}")
                yield body, count, self.generation << POSITION_BITS | position + FRAME.size
                position = end
        finally:
            self._files.close(handle)


class PackWriter:
    """Appends frames to the current pack. `finish` or `close` ends it."""

    def __init__(self, packs: Packs, files: Files) -> None:
        self._packs = packs
        self._files = files
        self._handle = files.open(packs.path(packs.generation))
        self._end = packs.length  # of the frames that were written
        self._parts: list[bytes | memoryview] = []
        self._size = 0  # bytes of the blocks in `_parts`
        self._count = 0

    def read(self, location: int, number: int, size_expected: int) -> tuple[int, bytes]:
        """`Packs.read` of a block that was there before this writer, with one handle for all."""
        return self._packs.read_from(self._handle, location, number, size_expected)

    def add(
        self,
        number: int,
        kind: int,
        entry_size: int,
        index_first: int,
        first: int,
        count: int = 0,
        pieces: Sequence[bytes | memoryview] = (),
    ) -> int:
        """Add a block; returns its place. Raises OSError."""
        head = BLOCK.pack(number, kind, entry_size, 0, index_first, first, count, 0)[:CHECKED]
        crc = crc32(head)
        position = self._end + FRAME.size + self._size
        self._parts.append(head)
        self._parts.append(b"")
        sum_at = len(self._parts) - 1
        for piece in pieces:
            crc = crc32(piece, crc)
            self._parts.append(bytes(piece) if len(piece) <= COPIED_BYTES_MAX else piece)
        self._parts[sum_at] = crc.to_bytes(4, "big")
        self._size += BLOCK.size + count * entry_size * (kind == PACKED)
        self._count += 1
        if self._size >= FRAME_BYTES_MAX:
            self._write_frame()
        return self._packs.generation << POSITION_BITS | position

    def _write_frame(self) -> None:
        if not self._count:
            return
        body = b"".join(self._parts)
        assert len(body) == self._size
        head = FRAME.pack(MAGIC, self._size, self._count, 0)[:12]
        crc = crc32(body, crc32(head)).to_bytes(4, "big")
        self._files.pwritev(self._handle, (head, crc, body), self._end)
        self._end += FRAME.size + self._size
        self._parts, self._size, self._count = [], 0, 0

    def finish(self) -> None:
        """Write what is left and sync; from now on the pack is that long. Raises OSError."""
        self._write_frame()
        if self._end > self._packs.length:
            sync_file(self._files, self._handle)
            self._packs.length = self._end

    def close(self) -> None:
        """Give the file back; what was not finished does not count."""
        self._files.close(self._handle)
