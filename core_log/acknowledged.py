"""Up to where the records of a log may have been acknowledged: a small file beside the log.

A broker that has to give up records, because its new master does not have them, must know which of
them somebody may have been promised. The log alone does not say: what waited for a second disk was
promised only if that disk had it. So this file has a position. It is on the disk before an
acknowledgement leaves that depends on it.

Two slots are written in turn, each with a sequence number and a checksum. A write that is torn
damages one of them, and the other one is only a write older: nothing had been promised by the one
that was torn.

    slot   "PQACK" 5 | version 1 | disks 2 | sequence 8 | position 8 | CRC-32 of all before 4

Rules:

* A file that is missing or damaged says that everything may have been acknowledged.
* Of the records behind the position nothing is said that waited for `disks` disks or more; all
  others may have been acknowledged (`broker/following/divergence.py`).
* `write` waits for the disk: not for the loop's thread while there are clients. One thread at a
  time.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Final

from polymq.core_log.files import Files

ACKNOWLEDGED_NAME: Final = "acknowledged"
EVERYTHING: Final = (1 << 63) - 1
"""The position of a log all of which may have been acknowledged, whatever comes."""

_FIELDS: Final = struct.Struct(">5sBHqq")
_CRC: Final = struct.Struct(">I")
_MAGIC: Final = b"PQACK"
_VERSION: Final = 1
_SLOT_BYTES: Final = 4096
"""Apart, so that no device damages both with one torn write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """What the file says.

    Attributes:
        position: every record before it may have been acknowledged.
        disks: how many disks the broker's answers waited for behind it, at the least, where a
            topic has no number of its own.
    """

    position: int = EVERYTHING
    disks: int = 1


class AcknowledgedFile:
    """The open file of one log.

    Args:
        directory: of the store.

    Attributes:
        value: what stands there.
        is_new: whether there was no such file.

    Raises:
        OSError: from the constructor and from `write`.
    """

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self.is_new = ACKNOWLEDGED_NAME not in files.list(directory)
        self._handle = files.open(f"{directory}/{ACKNOWLEDGED_NAME}", create=True)
        self._sequence = 0
        self.value = Acknowledged()
        try:
            if self.is_new:
                files.preallocate(self._handle, 2 * _SLOT_BYTES)
                files.fdatasync(self._handle)
                files.sync_directory(directory)
            data = files.pread(self._handle, 2 * _SLOT_BYTES, 0)
        except OSError:
            files.close(self._handle)
            raise
        for start in (0, _SLOT_BYTES):
            found = _decode(data[start : start + _FIELDS.size + _CRC.size])
            if found is not None and found[0] > self._sequence:
                self._sequence, self.value = found

    def write(self, value: Acknowledged) -> None:
        """Return when this is on the disk."""
        sequence = self._sequence + 1
        fields = _FIELDS.pack(_MAGIC, _VERSION, value.disks, sequence, value.position)
        slot = fields + _CRC.pack(zlib.crc32(fields))
        self._files.pwritev(self._handle, [slot], _SLOT_BYTES * (sequence % 2))
        self._files.fdatasync(self._handle)
        self._sequence, self.value = sequence, value

    def close(self) -> None:
        """Give the descriptor back."""
        self._files.close(self._handle)


def _decode(slot: bytes) -> tuple[int, Acknowledged] | None:
    if len(slot) != _FIELDS.size + _CRC.size:
        return None
    fields = slot[: _FIELDS.size]
    if _CRC.unpack_from(slot, _FIELDS.size)[0] != zlib.crc32(fields):
        return None
    magic, version, disks, sequence, position = _FIELDS.unpack(fields)
    if (magic, version) != (_MAGIC, _VERSION):
        return None
    return sequence, Acknowledged(position=position, disks=disks)
