"""Mistakes that only a power cut, a failing disk or a flipped bit brings to light."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

_FOUND = ("tests/crash/test_found.py",)
_STATE_DB = ("tests/broker/test_state_db.py",)
_STATES = "--states 1500 --seed 1"
_DROPS = "--states 600 --seed 4"
"""Queues are dropped while a checkpoint is on its way."""
_CUTS = "--states 300 --seed 5"
_OFFSETS = "--with offsets --states 300 --seed 0"
_ONCE = "--with 'QoS 2' --states 300 --seed 0"

OF_CRASHES = (
    Sabotage(
        name="rename-not-synced",
        why="the checkpoint of before comes back, which names files that are gone",
        path="core_log/checkpoint.py",
        old='/{name}")\n    files.sync_directory(directory)\n',
        new='/{name}")\n',
        crash="--states 6000 --seed 2",
    ),
    Sabotage(
        name="pack-not-synced",
        why="the checkpoint speaks of index entries that a power cut takes",
        path="core_log/packs.py",
        old="            self._files.fdatasync(self._handle)\n            self._packs.length",
        new="            self._packs.length",
        crash=_STATES,
    ),
    Sabotage(
        name="index-file-not-synced",
        why="the same for the files of large indexes",
        path="core_log/index_files.py",
        old="                files.fdatasync(handle)\n            finally",
        new="                pass\n            finally",
        crash=_STATES,
    ),
    Sabotage(
        name="name-of-an-unfinished-index-file-forgotten",
        why="an index file that met a full disk once loses its name",
        path="core_log/index_files.py",
        old="                    self._new_files.add(number)\n",
        new="                    pass\n",
        crash=_STATES,
    ),
    Sabotage(
        name="found-segments-taken-for-durable",
        why="a process that died in its first start costs everything acked later",
        path="core_log/segments.py",
        old="        self._named = -1\n",
        new="        self._named = segments[-1].start if segments else -1\n",
        tests=_FOUND,
    ),
    Sabotage(
        name="found-directories-taken-for-durable",
        why="the same for the data directory itself",
        path="core_log/files.py",
        old="    while path != parent:  # ends at the root\n",
        new="    while False:\n",
        tests=_FOUND,
    ),
    Sabotage(
        name="flushed-before-it-is-synced",
        why="acks leave before the disk has the message",
        path="core_log/flusher.py",
        old="        if target > self._done:\n            self._sync(target, runs)\n",
        new="        if target > self._done:\n            self._done = target\n",
        crash=_STATES,
    ),
    Sabotage(
        name="indexes-made-from-a-part-of-the-log",
        why="one damaged record takes all messages behind it out of their queues",
        path="core_log/index_recovery.py",
        old="            passes.check_log(start, end, str(mismatch))\n",
        new="            pass\n",
        tests=_FOUND,
    ),
    Sabotage(
        name="dropped-queue-left-out-of-a-checkpoint",
        why="all indexes are made again, because one queue was deleted at the wrong moment",
        path="core_log/indexes.py",
        old="                task.store(index, first, views, count, index_first)\n",
        new="                if index.number in self._by_number:\n"
        "                    task.store(index, first, views, count, index_first)\n",
        crash=_DROPS,
    ),
    Sabotage(
        name="dropped-before-the-log-says-so",
        why="a queue whose deletion a power cut took comes back without its messages",
        path="core_log/indexes.py",
        old="            if dropped_at <= position:\n",
        new="            if True:\n",
        crash=_DROPS,
    ),
    Sabotage(
        name="dropped-queue-lost-by-a-compaction",
        why="the same, where the pack was written anew meanwhile",
        path="core_log/indexes.py",
        old="        for number, (index, _) in list(self._dropping.items()):\n",
        new="        for number, (index, _) in ():\n",
        tests=_FOUND,
    ),
    Sabotage(
        name="pack-frames-unchecked",
        why="a flipped bit in a pack moves an index",
        path="core_log/packs.py",
        old="                if not sound or crc32(body, crc32(head[:12])) != crc:\n",
        new="                if not sound:\n",
        crash="--bit-flips 300 --size 2 --seed 1",
    ),
    Sabotage(
        name="rows-of-state-unchecked",
        why="a flipped bit in state.db is state",
        path="broker/state_db.py",
        old="                    if crc != _checksum(kind, key, value):\n",
        new="                    if crc is None:\n",
        tests=_STATE_DB,
    ),
    Sabotage(
        name="lost-rows-of-state-unnoticed",
        why="a queue that a damaged page no longer shows is forgotten",
        path="broker/state_db.py",
        old="        if total & _TOTAL_MASK:\n",
        new="        if False:\n",
        tests=_STATE_DB,
    ),
    Sabotage(
        name="state-of-another-past",
        why="state.db of a log that was cut is taken for this one's",
        path="core_log/store.py",
        old="        if not epoch_holds(self.epochs, epoch, position, self.log.flushed):\n",
        new="        if False:\n",
        crash=_STATES,
        tests=("tests/core_log/test_recovery_places.py",),
    ),
    Sabotage(
        name="segment-gone-with-one-that-is-wanted",
        why="retention takes messages that nobody gave up",
        path="core_log/segments.py",
        old="        count = sum(1 for segment in segments[:-1] if segment.end <= position)\n",
        new="        count = sum(1 for segment in segments[:-1] if segment.start <= position)\n",
        crash="--states 600 --seed 3",
    ),
    Sabotage(
        name="forged-record-in-a-file-used-again",
        why="a client's bytes become messages of others, made up to the last field",
        path="core_log/next_segment.py",
        old="                    if self._synced < self._segment_bytes:\n",
        new="                    if self._synced < 0:\n",
        crash="--states 600 --seed 3",
    ),
    Sabotage(
        name="cut-log-not-synced",
        why="a follower has again what it had cut off, because its master never had it",
        path="core_log/cutting.py",
        old="        files.fdatasync(handle)\n",
        new="        pass\n",
        crash=_CUTS,
    ),
    Sabotage(
        name="cut-below-the-checkpoint",
        why="a follower whose power is cut while it cuts its log does not start any more",
        path="core_log/cutting.py",
        old="    if checkpoint is None or checkpoint.position > position:\n",
        new="    if checkpoint is None:\n",
        crash=_CUTS,
    ),
    Sabotage(
        name="committed-offsets-not-in-the-snapshot",
        why="after a restart a consumer group reads messages of hours again",
        path="broker/groups.py",
        old='                touched.append(("consumers", name))\n',
        new="                pass\n",
        crash=_OFFSETS,
    ),
    Sabotage(
        name="offset-of-another-incarnation",
        why="a topic that was made again is read from where the old one ended",
        path="broker/groups.py",
        old="entry is not None and entry[0] == found.incarnation else",
        new="entry is not None else",
        crash=_OFFSETS,
    ),
    Sabotage(
        name="committed-offsets-never-written",
        why="a kill takes all offsets since the last saving",
        path="broker/groups.py",
        old="        self._schedule(self._core.limits.ack_delay_seconds)\n",
        new="",
        crash=_OFFSETS,
    ),
    Sabotage(
        name="packet-ids-not-in-the-snapshot",
        why="a QoS 2 message that is sent again after a restart is there twice",
        path="broker/session_state.py",
        old='"in": sorted(session.inbound)',
        new='"in": []',
        crash=_ONCE,
    ),
    Sabotage(
        name="released-packet-id-kept",
        why="the next QoS 2 message with that packet id is taken for the old one, and lost",
        path="broker/session_state.py",
        old='        session.inbound.discard(op["p"])\n',
        new="",
        crash=_ONCE,
    ),
    Sabotage(
        name="packet-id-not-read-from-the-log",
        why="a QoS 2 message that is sent again after a crash is there twice",
        path="broker/fold.py",
        old="            engine.sessions.state.took_inbound(int(number, 16), int(packet, 16))\n",
        new="            pass\n",
        crash=_ONCE,
    ),
)
