"""Mutations that no test can notice, each with the reason: the code does the same with them.

A line here is (file, function, old text, new text): reason. It holds wherever in the function the
text stands. A mutation that merely has no test does not belong here: write the test.
"""

from __future__ import annotations

from typing import Final

EQUIVALENT: Final[dict[tuple[str, str, str, str], str]] = {
    (
        "core_log/commit_log.py",
        "CommitLog.read_hot",
        "entries, stride, index, chunk.memory, chunk.position, chunk.used, False",
        "entries, stride, index, chunk.memory, chunk.position, chunk.used, True",
    ): "checksums of what this process wrote itself are checked, too: the same bytes, later",
    (
        "core_log/flusher.py",
        "Flusher.__init__",
        "self._report = -1",
        "self._report = -2",
    ): "no descriptor, and nobody asks which: a flusher that is stepped has none",
    (
        "core_log/flusher.py",
        "Flusher.request",
        "if written > self._requested and not self._stopping:",
        "if (written >= self._requested) and not self._stopping:",
    ): "the thread is woken once more, finds nothing to sync and says nothing",
    (
        "broker/queues/cursor.py",
        "Cursor._advance",
        "if end < 0:",
        "if end < 1:",
    ): "who calls it has seen that the first state is settled: what is found stands behind that",
    (
        "core_log/index_recovery.py",
        "_Passes.rebuild",
        "if held > SPILL_BYTES_MAX:",
        "if (held >= SPILL_BYTES_MAX):",
    ): "a stretch that ends right at the bound is spilled before the next one: the same entries",
    (
        "broker/queues/store.py",
        "QueueStore.write_acks",
        "if group.rules is not None and group.rules.delivery_counts is not None:",
        "if (group.rules is not None or group.rules.delivery_counts is not None):",
    ): "counts that the log did not take come from groups that have both (`_take_counts`)",
    (
        "broker/queues/store.py",
        "QueueStore.drop_group",
        "self._moved.pop(group, None)",
        "pass",
    ): "`write_acks` passes over groups that are gone; this lets go of the memory 20 ms earlier",
}
