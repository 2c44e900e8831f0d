"""Records as columns, in plain Python. The twin is `columns.pyx`.

The columns are given out as the memory that Arrow has them in: bits that say which values are
there, ends of texts, and bytes, each in the order of the machine, which is little-endian. What a
message's properties say is asked of `interpret`, message by message. The twin asks only about
messages that are not plain: `row.pxd` reads all others.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from polymq.remoting.errors import RemoteProtocolError
from polymq.remoting.records import Record, take_record
from polymq.spark_sink.kernels.codes import FIRST_MS, LAST_MS, Given, Interpret


class Columns:
    """The columns of messages that lie one after the other in the answers of a broker.

    Args:
        interpret: what properties and body of a message say, of which it may be asked about any.
        rows_max, bytes_max: the columns are full when they have as many rows, or bytes of bodies
            and properties, with `row_bytes` for each row.
    """

    def __init__(
        self, interpret: Interpret, *, rows_max: int, bytes_max: int, row_bytes: int
    ) -> None:
        self._interpret = interpret
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._row_bytes = row_bytes
        self._begin()

    def _begin(self) -> None:
        self.row_count = 0
        self.byte_count = 0
        self._queue_ids = array("i")
        self._offsets = array("q")
        self._born: list[int | None] = []
        self._stored = array("q")
        self._header_ends = array("i", [0])
        self._texts: tuple[list[bytes | None], ...] = ([], [], [], [], [], [], [], [])

    @property
    def is_full(self) -> bool:
        """Whether `take` takes nothing more before `give`."""
        return self.row_count >= self._rows_max or self.byte_count >= self._bytes_max

    def take(self, records: bytes, at: int, queue_id: int, offset: int, end: int) -> int:
        """Take the messages at `records[at:]`, which have to be those of the queue from `offset`
        on, until the columns are full, or up to the offset `end`.

        Returns:
            Where it stopped. If that is before the end of the records, and none of the two was the
            reason, no record is there, or not the one that was to come, or a damaged one.
        """
        while at < len(records) and offset < end and not self.is_full:
            try:
                record, following = take_record(records, at)
            except RemoteProtocolError:
                return at
            if record.queue_id != queue_id or record.queue_offset != offset:
                return at
            self._put(record)
            at = following
            offset += 1
        return at

    def _put(self, record: Record) -> None:
        tag, unique_key, keys, content_type, protocol, headers, body = self._interpret(
            record.properties, record.body, record.system_flag
        )
        self._queue_ids.append(record.queue_id)
        self._offsets.append(record.queue_offset)
        self._born.append(record.born_ms * 1000 if FIRST_MS <= record.born_ms <= LAST_MS else None)
        self._stored.append(min(max(record.store_ms, 0), LAST_MS) * 1000)
        tags, ids, all_keys, types, protocols, names, values, bodies = self._texts
        tags.append(tag)
        ids.append(unique_key or record.offset_message_id.encode())
        all_keys.append(keys)
        types.append(content_type)
        protocols.append(protocol)
        for name, value in headers:
            names.append(name)
            values.append(value)
        self._header_ends.append(len(names))
        bodies.append(body)
        self.row_count += 1
        self.byte_count += len(body) + len(record.properties) + self._row_bytes

    def give(self) -> list[Given]:
        """The columns, which then begin anew: bits (None: all values are there), ends, and bytes of
        those that have them; numbers and the ends of headers have one part beside the bits."""
        given: list[Given] = [
            (None, self._queue_ids.tobytes()),
            (None, self._offsets.tobytes()),
            (_bits(self._born), array("q", [born or 0 for born in self._born]).tobytes()),
            (None, self._stored.tobytes()),
            (None, self._header_ends.tobytes()),
            *map(_text_parts, self._texts),
        ]
        self._begin()
        return given


def _text_parts(values: Sequence[bytes | None]) -> Given:
    ends = array("i", [0])
    for value in values:
        ends.append(ends[-1] + len(value or b""))
    return _bits(values), ends.tobytes(), b"".join([value or b"" for value in values])


def _bits(values: Sequence[object]) -> bytes | None:
    """A bit for each value: whether it is there."""
    if all(value is not None for value in values):
        return None
    bits = bytearray((len(values) + 7) // 8)
    for index, value in enumerate(values):
        bits[index // 8] |= (value is not None) << index % 8
    return bytes(bits)
