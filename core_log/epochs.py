"""Epochs: every opening of a log for writing, and where it began.

Two logs that agree on an epoch's start hold the same bytes up to its end. So a place in a log is
named by (position, epoch), and whoever kept such a name (`state.db`, a follower) can ask whether
this log still has that place.

An epoch begins with a system record in the log (`PMQ_E`), which is the truth. The file
`epochFileCheckpoint` lists all of them, so that opening need not read the whole log; if it is
missing or damaged, recovery reads the log for them. Before the segment with such a record goes, it
is restated: a record with the same property and the list of all epochs as its body.

    <CRC-32 of the rest, 8 hex digits>\\n
    <epoch>-<start position>-<mark, 8 hex digits>\\n ...

An epoch's number says its *term*, too: `TERM_EPOCHS` numbers are one term, and a promotion begins
the next. Of two brokers that both lead, the one with the higher term is the one that was promoted
later; a master that is only started again stays in its term.

An epoch's *mark* is the CRC-32 of the record that begins it. It tells apart two epochs of one
number at one place in two logs, also when the record itself has left one of them. A line without a
mark is of an epoch whose record was gone before marks were kept.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Final

from polymq.core_log.checkpoint import read_whole_file, write_whole_file
from polymq.core_log.files import Files
from polymq.core_log.kernels.layout import PROPERTY_EPOCH
from polymq.core_log.record import SYSTEM_TOPIC, Record, RecordTemplate

EPOCHS_NAME: Final = "epochFileCheckpoint"
EPOCHS_BYTES_MAX: Final = 64 * 1024 * 1024
"""More than a million openings: a file that is larger is not ours."""
TERM_EPOCHS: Final = 1_000_000_000
"""Openings in a term: more than anybody makes. In decimal, a term can be read off an epoch."""
NO_MARKS: Final[Mapping[int, int]] = {}


def term_of(epoch: int) -> int:
    """How many promotions led to this epoch, as far as was known when it began."""
    return epoch // TERM_EPOCHS


def epoch_template(epoch: int) -> RecordTemplate:
    """The template of the record (with an empty body) that begins an epoch."""
    return RecordTemplate(SYSTEM_TOPIC, 0, b"%b\x01%016x\x02" % (PROPERTY_EPOCH, epoch))


def epoch_of(record: Record) -> int:
    """The epoch that a record found by `PROPERTY_EPOCH` begins."""
    return int(record.properties[PROPERTY_EPOCH.decode()], 16)


def epochs_of(record: Record, position: int) -> list[tuple[int, int]]:
    """What a record found by `PROPERTY_EPOCH` at `position` says: the epoch that it begins, or, if
    it is a restatement, all epochs that had begun before it. A restatement that is damaged (which
    its record's checksum rules out) says nothing."""
    if record.body:
        return decode_epochs(record.body) or []
    return [(epoch_of(record), position)]


def mark_of(record: Record) -> int:
    """The mark of the epoch that this record begins."""
    return zlib.crc32(record.raw)


def marks_of(record: Record) -> dict[int, int]:
    """What a record found by `PROPERTY_EPOCH` says of marks, by epoch."""
    return decode_marks(record.body) if record.body else {epoch_of(record): mark_of(record)}


def encode_epochs(epochs: Sequence[tuple[int, int]], marks: Mapping[int, int] = NO_MARKS) -> bytes:
    """(epoch, start position) pairs, and the marks that are known, as the file's bytes."""
    lines = "".join(
        f"{epoch}-{start}-{marks[epoch]:08x}\n" if epoch in marks else f"{epoch}-{start}\n"
        for epoch, start in epochs
    ).encode()
    return b"%08x\n%b" % (zlib.crc32(lines), lines)


def decode_epochs(data: bytes) -> list[tuple[int, int]] | None:
    """What the bytes say, or None if they are not a whole list that ascends."""
    digits, _, lines = data.partition(b"\n")
    if digits != b"%08x" % zlib.crc32(lines):
        return None
    epochs = []
    for line in lines.decode("ascii").splitlines():
        epoch, start, *_ = line.split("-")
        epochs.append((int(epoch), int(start)))
    return epochs


def decode_marks(data: bytes) -> dict[int, int]:
    """The marks in what `decode_epochs` takes; none if that takes nothing."""
    if decode_epochs(data) is None:
        return {}
    rows = [line.split("-") for line in data.partition(b"\n")[2].decode("ascii").splitlines()]
    return {int(row[0]): int(row[2], 16) for row in rows if len(row) > 2}


def read_epochs(files: Files, directory: str) -> list[tuple[int, int]] | None:
    """The directory's list; None if it is missing or not sound. Raises OSError."""
    data = read_whole_file(files, f"{directory}/{EPOCHS_NAME}", EPOCHS_BYTES_MAX)
    return None if data is None else decode_epochs(data)


def read_marks(files: Files, directory: str) -> dict[int, int]:
    """The marks in the directory's list. Raises OSError."""
    data = read_whole_file(files, f"{directory}/{EPOCHS_NAME}", EPOCHS_BYTES_MAX)
    return {} if data is None else decode_marks(data)


def write_epochs(
    files: Files, directory: str, epochs: Sequence[tuple[int, int]], marks: Mapping[int, int]
) -> None:
    """Replace the directory's list. Raises OSError."""
    write_whole_file(files, directory, EPOCHS_NAME, encode_epochs(epochs, marks))


def epoch_covers(epochs: Sequence[tuple[int, int]], epoch: int, position: int, end: int) -> bool:
    """Whether `position` lies within `epoch` (its end included) in a log that ends at `end`."""
    for index, (known, start) in enumerate(epochs):
        if known == epoch:
            following = epochs[index + 1][1] if index + 1 < len(epochs) else end
            return start <= position <= following
    return False
