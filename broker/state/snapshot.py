"""The folded state as records of the log, so that the log has all state without its oldest part.

Theory. State is a fold of the log. Before a segment of the log goes, what was folded from it has to
stand further on. `state.db` holds the whole state as of one log position P, consistently, so a
worker reads it from there and the loop appends it, piece by piece, without a stall; what changed
since P is in the log behind P anyway. A start without `state.db` finds the newest snapshot that is
complete (a bookmark says where it begins), takes its rows, and folds the log from P on.

A snapshot is a stream of lines (kind, key and value in JSON, with tabs between), cut into records
of the state topic with the tag `snapshot`. Each body begins with a line of JSON: `s`, the position
P, and `n`, the number of the piece; behind the last piece stands a record with `end`, how many
there were, and `crc`, the CRC-32 of the stream.

Rules:

* Pieces of one snapshot are numbered from 0 without a hole; other records may stand between them.
* A snapshot without its end, or with another checksum, does not count: the one before it does.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from polymq.broker.state.database import Folded
from polymq.broker.state.journal import STATE_TOPIC
from polymq.core_log.errors import CorruptRecord, StoreCorrupt
from polymq.core_log.record import Record, RecordTemplate, encode_properties
from polymq.core_log.store import Store

SNAPSHOT_TAG: Final = "snapshot"
PIECE_BYTES_MAX: Final = 64 * 1024
"""One record: far below what any store takes, and quick to append."""
HEAD_BYTES_MAX: Final = 128
"""A body's first line."""
TEMPLATE: Final = RecordTemplate(
    topic=STATE_TOPIC.encode(),
    queue_id=0,
    properties=encode_properties({"TAGS": SNAPSHOT_TAG}),
)


def encode_snapshot(folded: Folded, piece_bytes_max: int) -> list[bytes]:
    """The bodies of a snapshot's records, in their order. Any thread.

    Args:
        folded: the state as of `folded.position`.
        piece_bytes_max: how large a body may be, beyond its first line.
    """
    stream = b"".join(
        _line(kind, key, value) for kind, rows in folded.rows.items() for key, value in rows
    )
    position = folded.position
    bodies: list[bytes] = []
    for at in range(0, len(stream), piece_bytes_max):
        bodies.append(_head(s=position, n=len(bodies)) + stream[at : at + piece_bytes_max])
    bodies.append(_head(s=position, end=len(bodies), crc=crc32(stream)))
    return bodies


def _line(kind: str, key: str, value: str) -> bytes:
    # The value is JSON already. JSON's own writer puts no tab and no line feed into it.
    return f"{json.dumps(kind)}\t{json.dumps(key)}\t{value}\n".encode("utf-8", "surrogatepass")


def _head(**fields: int) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A complete snapshot: the state as of `position`, and its stream."""

    position: int
    stream: bytes

    def folded(self) -> Folded:
        """The rows, as `state.db` would have given them."""
        rows: dict[str, list[tuple[str, str]]] = {}
        for line in self.stream.decode("utf-8", "surrogatepass").split("\n")[:-1]:
            kind, key, value = line.split("\t", 2)
            rows.setdefault(json.loads(kind), []).append((json.loads(key), value))
        return Folded(position=self.position, epoch=0, rows=rows)


class SnapshotFinder:
    """Finds the newest complete snapshot among records that come in the log's order.

    Attributes:
        newest: what was found so far.
    """

    def __init__(self) -> None:
        self.newest: Snapshot | None = None
        self._position = -1  # of the snapshot that is being read
        self._parts: list[bytes] = []

    def take(self, record: Record) -> None:
        """A record with the tag `snapshot`."""
        line, _, content = record.body.partition(b"\n")
        head = json.loads(line)
        if head["s"] != self._position or head.get("n") == 0:
            self._position, self._parts = head["s"], []
        if "end" not in head:
            if head["n"] == len(self._parts):
                self._parts.append(content)
            return
        stream = b"".join(self._parts)
        if head["end"] == len(self._parts) and head["crc"] == crc32(stream):
            self.newest = Snapshot(head["s"], stream)
        self._position, self._parts = -1, []


def need_snapshot(store: Store) -> Snapshot:
    """The newest complete snapshot in a log that does not begin at its beginning any more. Where
    one was written last is bookmarked; the whole log is read only if that leads to none.

    Raises:
        StoreCorrupt: there is none, so the state is lost. CorruptRecord: a record of the log is
            damaged, and what was bookmarked is of no use.
    """
    newest = None
    bookmark = store.bookmark()
    if bookmark is not None:
        try:
            newest = _newest_from(store, bookmark)
        except CorruptRecord:
            newest = None  # the bookmark is old, or the damage is behind it
    if newest is None:
        newest = _newest_from(store, 0)
    if newest is None:
        raise StoreCorrupt(
            f"the log begins at {store.log.start}, state.db does not fit it, and the log has no"
            " snapshot of the state: restore state.db, or the log's first files"
        )
    return newest


def _newest_from(store: Store, position: int) -> Snapshot | None:
    """The newest complete snapshot that begins at or behind a place. Raises CorruptRecord."""
    finder = SnapshotFinder()
    state_topic = STATE_TOPIC.encode()
    for record in store.replay(position, 0):
        if record.topic == state_topic and record.properties.get("TAGS") == SNAPSHOT_TAG:
            finder.take(record)
    return finder.newest
