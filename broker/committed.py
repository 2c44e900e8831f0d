"""A run of messages that was just appended, still in memory: what live delivery hands on."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from broker.plain import plain_runs
from broker.port import RecordRun, RunMeta
from core_log.commit_log import Span
from core_log.kernels.layout import ENTRY_SIZE

_U64: Final = struct.Struct(">Q")


class Committed:
    """A run of messages that was appended in one call: one or more stretches of records."""

    __slots__ = ("count", "meta", "runs", "spans")

    def __init__(self, meta: RunMeta, spans: list[Span]) -> None:
        self.meta = meta
        self.spans = spans
        first = spans[0]
        self.count = first.count
        self.runs = [RecordRun(meta, first.memory, first.start, first.end, first.count)]
        for span in spans[1:]:
            self.count += span.count
            self.runs.append(RecordRun(meta, span.memory, span.start, span.end, span.count))

    def join(self, span: Span) -> bool:
        """Take records that stand right behind its own, before anybody has seen it.

        Returns:
            Whether they do.
        """
        last = self.runs[-1]
        if last.memory is not span.memory or last.end != span.start:
            return False
        last.end = span.end
        last.count += span.count
        self.count += span.count
        self.spans.append(span)
        return True

    def slice(self, first: int, count: int) -> Sequence[RecordRun]:
        """Messages [first, first + count) of the run, with plain bodies."""
        if first == 0 and count == self.count:
            return plain_runs(self.runs) if self.meta.compressed else self.runs
        runs: list[RecordRun] = []
        for span in self.spans:
            low, high = max(first, 0), min(first + count, span.count)
            if low < high:
                runs.append(self._part(span, low, high))
            first -= span.count
        return plain_runs(runs) if self.meta.compressed else runs

    def _part(self, span: Span, low: int, high: int) -> RecordRun:
        start = span.start + _place(span, low)
        end = span.start + _place(span, high) if high < span.count else span.end
        return RecordRun(self.meta, span.memory, start, end, high - low)


def _place(span: Span, index: int) -> int:
    """Bytes from the span's first record to its record `index`."""
    position: int = _U64.unpack_from(span.entries, index * ENTRY_SIZE)[0]
    return position - span.position
