"""Deliveries of large bodies: cut into frames as the socket takes them.

Theory. A body of 100 MiB that is copied into frames at once takes a tenth of a second, in which
nobody else is served, and its memory once more for each consumer. So what is kept of such a
delivery is where its body stands in the log's memory. Body frames are made of it a megabyte at a
time. Whatever else leaves meanwhile waits behind it, because the frames of a content must not have
others of their channel between them (AMQP 4.2.6).
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from typing import Final

from polymq.broker.port import RecordRun, size_in_front
from polymq.core_log.kernels.batch import RECORD_BODY_AT, RECORD_BODY_SIZE_AT, RECORD_SIZE_AT
from polymq.gateways.amqp.limits import FRAME_OVERHEAD
from polymq.gateways.amqp.methods import FRAME_BODY, FRAME_END, FRAME_HEAD

LARGE_BYTES: Final = 1024 * 1024
"""From this size on a record is delivered so."""
OUTBOX_BYTES: Final = 256 * 1024
"""Body bytes that are copied into frames at a time, before the socket is asked again."""
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_BODY_SIZE_AT: Final = FRAME_HEAD.size + 4  # of a header frame: behind class and weight


class LargeBody:
    """A body that has not left yet.

    Args:
        memory: what has it from `start` on; nobody changes it.
    """

    __slots__ = ("_at", "_channel", "_end", "_memory", "_size_max")

    def __init__(
        self,
        memory: bytes | bytearray | memoryview,
        start: int,
        size: int,
        *,
        channel: int,
        frame_max: int,
    ) -> None:
        self._memory = memory
        self._at = start
        self._end = start + size
        self._channel = channel
        self._size_max = frame_max - FRAME_OVERHEAD

    def __bool__(self) -> bool:
        """Whether there is more."""
        return self._at < self._end

    def take(self, bytes_max: int) -> bytes:
        """The next frames, at least one, with up to `bytes_max` bytes of the body."""
        parts: list[bytes | memoryview] = []
        stop = min(self._end, self._at + max(bytes_max, 1))
        with memoryview(self._memory) as whole:
            while self._at < stop:
                end = min(self._at + self._size_max, stop)
                parts += (
                    FRAME_HEAD.pack(FRAME_BODY, self._channel, end - self._at),
                    whole[self._at : end],
                    bytes((FRAME_END,)),
                )
                self._at = end
            frames = b"".join(parts)
            parts.clear()
        return frames


class Outbox:
    """What a connection has to send behind the beginning of a large content, in its order."""

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: deque[bytes | LargeBody] = deque()

    def __bool__(self) -> bool:
        return bool(self._items)

    def add(self, item: bytes | LargeBody) -> None:
        """This leaves behind all else."""
        self._items.append(item)

    def take(self, bytes_max: int) -> bytes:
        """What leaves next: one part, of about `bytes_max` bytes at most if it is of a body."""
        item = self._items[0]
        if isinstance(item, LargeBody):
            frames = item.take(bytes_max)
            if not item:
                self._items.popleft()
            return frames
        self._items.popleft()
        return item

    def drop_bodies(self) -> None:
        """The connection is closed: its client passes over contents."""
        self._items = deque(item for item in self._items if isinstance(item, bytes))


def split_run(run: RecordRun) -> Iterator[tuple[RecordRun, bool]]:
    """The run in parts, in order, and whether each is one large record."""
    if run.end - run.start < LARGE_BYTES:
        yield run, False
        return
    start = at = run.start
    count = 0
    while at < run.end:
        size = _U32.unpack_from(run.memory, at + RECORD_SIZE_AT)[0]
        if size >= LARGE_BYTES:
            if count:
                yield RecordRun(run.meta, run.memory, start, at, count), False
            yield RecordRun(run.meta, run.memory, at, at + size, 1), True
            start, count = at + size, 0
        else:
            count += 1
        at += size
    if count:
        yield RecordRun(run.meta, run.memory, start, at, count), False


def without_body(run: RecordRun) -> tuple[RecordRun, int, int]:
    """A run of one large record: the same record without its message's body; where that is, and its
    size."""
    memory, at = run.memory, run.start
    size = _U32.unpack_from(memory, at + RECORD_SIZE_AT)[0]
    body_size = _U32.unpack_from(memory, at + RECORD_BODY_SIZE_AT)[0]
    body = at + RECORD_BODY_AT
    front = size_in_front(memory, body) if run.meta.long else 0
    body += front
    body_size -= front
    record = bytearray(memory[at:body]) + bytes(memory[body + body_size : at + size])
    _U32.pack_into(record, RECORD_SIZE_AT, len(record))
    _U32.pack_into(record, RECORD_BODY_SIZE_AT, front)
    return RecordRun(run.meta, bytes(record), 0, len(record), 1), body, body_size


def announce(frames: bytes, body_size: int) -> bytes:
    """The frames of a message without a body (method and header), as those of one with a body."""
    _, _, method_size = FRAME_HEAD.unpack_from(frames, 0)
    header = FRAME_HEAD.size + method_size + 1
    announced = bytearray(frames)
    _U64.pack_into(announced, header + _BODY_SIZE_AT, body_size)
    return bytes(announced)
