# cython: boundscheck=False, annotation_typing=False, initializedcheck=False
"""A run of records: what is published together, delivered together and encoded once.

One source in two forms: plain Python, and a C extension, for which `record_run.pxd` says of what
types it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polymq.broker.messages.runs import RunMeta


class RecordRun:
    """Consecutive commit-log records of one kind, in memory.

    Attributes:
        memory: the buffer; records stand one after the other in [start, end).
        count: how many records.
        encoded: frames that do not depend on the receiver, shared by all of them; each gateway
            uses keys of its own.
    """

    __slots__ = ("count", "encoded", "end", "memory", "meta", "start")

    def __init__(
        self,
        meta: RunMeta,
        memory: bytes | bytearray | memoryview,
        start: int,
        end: int,
        count: int,
    ) -> None:
        self.meta = meta
        self.memory = memory
        self.start = start
        self.end = end
        self.count = count
        self.encoded: dict[str, bytes] = {}
