"""Mistakes in what leaves the log, and in how the disk's room is watched."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

OF_THE_RETENTION = (
    Sabotage(
        name="segment-gone-before-its-snapshot",
        why="all state that was folded from the segment is lost with state.db",
        path="broker/retention.py",
        old="            if last.position >= position:\n                return True\n",
        new="            if last.position >= 0:\n                return True\n",
        tests=("tests/broker/test_retention.py",),
    ),
    Sabotage(
        name="half-a-snapshot-counts",
        why="a crash while it is written leaves a broker that has forgotten half of what it knew",
        path="broker/state_snapshot.py",
        old='        if head["end"] == len(self._parts) and head["crc"] == crc32(stream):\n',
        new='        if head["end"] >= 0:\n',
        tests=("tests/broker/test_state_snapshot.py",),
    ),
    Sabotage(
        name="held-message-deleted",
        why="a message that nobody has acknowledged is gone with its segment",
        path="broker/retention.py",
        old="                    floor = max(group.cursor.floor, index.first_offset)\n",
        new="                    floor = max(group.cursor.next, index.first_offset)\n",
        tests=("tests/broker/test_retention.py",),
    ),
    Sabotage(
        name="witness-believed-for-ever",
        why="what held the log has let go, and the log grows all the same",
        path="broker/retention.py",
        old="        return max(owner.cursor.floor, index.first_offset) == place.offset\n",
        new="        return True\n",
        tests=("tests/broker/test_retention.py",),
    ),
    Sabotage(
        name="copy-replaces-a-newer-retained-message",
        why="new subscribers get what was overwritten long ago",
        path="broker/retention.py",
        old="        if entry is None or position_of(entry) != position:\n",
        new="        if entry is None:\n",
        tests=("tests/broker/test_retention.py",),
    ),
    Sabotage(
        name="offsets-begin-anew",
        why="an offset that was read is given to another message",
        path="broker/topics.py",
        old="                queue.index.begin_at(first)\n",
        new="                queue.index.trim_before(first)\n",
        tests=("tests/broker/test_retention.py",),
    ),
    Sabotage(
        name="epochs-not-restated",
        why="after a damaged epoch file a number is given twice, and two histories look like one",
        path="core_log/recovery.py",
        old="            epochs.update(epochs_of(record, position + at))\n",
        new="            epochs[epochs_of(record, position + at)[-1][0]] = position + at\n",
        tests=("tests/core_log/test_log_deletion.py",),
    ),
    Sabotage(
        name="deleted-segment-used-again-under-its-reader",
        why="a reader finds zeros, or later messages, where its message stood",
        path="core_log/segment_files.py",
        old="            return self._readers == 0\n",
        new="            return True\n",
        tests=("tests/core_log/test_next_segment.py",),
    ),
    Sabotage(
        name="newest-name-removed-first",
        why="a power cut between two deletions leaves a hole, and the store does not open",
        path="core_log/segments.py",
        old="            segment = self._leaving[0]\n",
        new="            segment = self._leaving[-1]\n",
        tests=("tests/core_log/test_log_deletion.py",),
    ),
    Sabotage(
        name="acks-refused-below-the-reserve",
        why="a full disk never gets empty again",
        path="broker/core.py",
        old="        if self.disk.log_full if frees else self.full:\n",
        new="        if self.full:\n",
        tests=("tests/broker/test_disk.py",),
    ),
    Sabotage(
        name="publishers-taken-below-the-reserve",
        why="acks find no room when the disk is full",
        path="broker/disk.py",
        old="        full = self.log_full or self._short\n",
        new="        full = self.log_full\n",
        tests=("tests/broker/test_disk.py",),
    ),
    Sabotage(
        name="kept-for-ever-deleted-early",
        why="a topic that should keep everything loses it when the disk is nearly full",
        path="broker/topic_trims.py",
        old="        if not keep_ms and not settings.retention_bytes:\n",
        new="        if not keep_ms and not settings.retention_bytes and not before:\n",
        tests=("tests/broker/test_disk.py",),
    ),
)
