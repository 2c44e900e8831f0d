"""Messages that are due and whose topic takes none at the moment, in the order of their times.

A topic that asks for replicas refuses while they are behind; others go on. So what is due for such
a topic is held here, by topic, and offered again from the front. It stays unsettled in the log, as
anything that is not released does: after a restart the wheel has it again.

Pure. A message costs its index entry and its offset: 28 bytes.
"""

from __future__ import annotations

from array import array

from polymq.broker.delays.wheel import Taken
from polymq.core_log.kernels.layout import ENTRY_SIZE
from polymq.core_log.kernels.writing import fit


class _Line:
    """The messages of one topic."""

    __slots__ = ("entries", "offsets")

    def __init__(self) -> None:
        self.entries = bytearray()
        self.offsets = array("q")


class Held:
    """See the head of this file.

    Attributes:
        count: how many messages are held.
    """

    def __init__(self) -> None:
        self._lines: dict[bytes, _Line] = {}
        self.count = 0

    def __contains__(self, where: bytes) -> bool:
        return where in self._lines

    def add(self, where: bytes, taken: Taken) -> None:
        """Messages for the topic, later than those that are held for it."""
        line = self._lines.setdefault(where, _Line())
        line.entries += taken.entries
        line.offsets.extend(taken.offsets)
        self.count += len(taken.offsets)

    def put_back(self, where: bytes, taken: Taken) -> None:
        """What `take` gave was refused again. Other topics have their turn first."""
        line = self._lines.pop(where, None) or _Line()
        line.entries[:0] = taken.entries
        line.offsets[:0] = array("q", taken.offsets)
        self._lines[where] = line
        self.count += len(taken.offsets)

    def take(self, *, count_max: int, bytes_max: int) -> tuple[bytes, Taken] | None:
        """The first messages of the topic whose turn it is; None if none are held.

        The topic stays known until `done`, so that nothing overtakes what was taken.
        """
        for where, line in self._lines.items():
            entries = bytes(line.entries[: count_max * ENTRY_SIZE])
            count = fit(entries, ENTRY_SIZE, len(entries) // ENTRY_SIZE, bytes_max)
            taken = Taken(entries[: count * ENTRY_SIZE], line.offsets[:count].tolist())
            del line.entries[: count * ENTRY_SIZE]
            del line.offsets[:count]
            self.count -= count
            return where, taken
        return None

    def done(self, where: bytes) -> None:
        """What was taken has gone: forget the topic if nothing more is held for it."""
        line = self._lines.get(where)
        if line is not None and not line.offsets:
            del self._lines[where]
