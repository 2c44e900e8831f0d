"""Sabotages of `broker`: order, commit points, state, settlements, and who may do what."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

QUEUES = "tests/broker/test_engine_queues.py"
IN_SYNC = "tests/broker/test_in_sync.py"
COPIED = "tests/durability/test_in_sync.py"
SESSIONS = "tests/broker/test_engine_sessions.py"
CURSOR = "tests/broker/test_cursor.py"
COMMITS = "tests/broker/test_commits.py"
MOVES = "tests/broker/test_moves.py"

COMMIT_POINTS = (
    Sabotage(
        name="ack-before-flush",
        why="a power cut takes what was acked",
        path="broker/core.py",
        old="        self.commits.advance(APPENDED, written)\n",
        new="        self.commits.advance(FLUSHED, written)\n",
        tests=("tests/durability/test_acks_wait_for_the_disk.py",),
    ),
    Sabotage(
        name="committed-in-any-class",
        why="an answer that waits for the disk leaves when the page cache has it",
        path="broker/kernels/path.py",
        pure=True,
        old="        return position <= self.points[durability]\n",
        new="        return position <= max(self.points)\n",
        tests=(COMMITS,),
    ),
    Sabotage(
        name="callbacks-in-the-wrong-order",
        why="acks and deliveries overtake each other",
        path="broker/kernels/path.py",
        pure=True,
        old="            entry = waiting.popleft()\n",
        new="            entry = waiting.pop()\n",
        tests=(COMMITS,),
    ),
    Sabotage(
        name="callbacks-before-their-position",
        why="an answer leaves one flush early",
        path="broker/kernels/path.py",
        pure=True,
        old="        while waiting and waiting[0][0] <= position:\n",
        new="        while waiting:\n",
        tests=(COMMITS,),
    ),
    Sabotage(
        name="let-go-after-a-failure",
        why="what was never written is acked after the disk has failed",
        path="broker/kernels/path.py",
        pure=True,
        old="            waiting.clear()\n",
        new="            pass\n",
        tests=(COMMITS,),
    ),
    Sabotage(
        name="visible-before-the-commit-point",
        why="a consumer sees what a power cut then takes back",
        path="broker/kernels/path.py",
        pure=True,
        old="        self._waiting[run.durability].append((run.position, run, None))\n",
        new="        self._waiting[APPENDED].append((run.position, run, None))\n",
        tests=("tests/durability/test_nothing_is_seen_before_the_disk_has_it.py",),
    ),
    Sabotage(
        name="transient-overtakes",
        why="order within a queue is a promise",
        path="broker/kernels/path.py",
        pure=True,
        old="                if queue.blocked_until > flushed:\n",
        new="                if queue.blocked_until < 0:\n",
        tests=(QUEUES,),
    ),
    Sabotage(
        name="read-by-offset-above-the-flushed",
        why="a sink keeps an offset that is given to another message after a crash",
        path="broker/queries.py",
        old="        count = min(count_max, queue.flushed - offset)\n",
        new="        count = min(count_max, queue.visible - offset)\n",
        tests=(QUEUES,),
    ),
    Sabotage(
        name="retained-before-its-commit",
        why="a new subscriber gets what a power cut takes back",
        path="broker/sessions.py",
        old="                    if position < core.commits.points[FLUSHED]:\n"
        "                        core.commits.when(\n"
        "                            position + 1,\n",
        new="                    if True:\n"
        "                        core.commits.when(\n"
        "                            0,\n",
        tests=("tests/durability/test_nothing_is_seen_before_the_disk_has_it.py",),
    ),
    Sabotage(
        name="packet-id-before-its-commit",
        why="after a crash the client knows packet ids that the broker gives again",
        path="broker/session.py",
        old="            self.core.state_durability,\n            self._send_assigned,\n",
        new="            type(self.core.state_durability)(0),\n            self._send_assigned,\n",
        tests=("tests/durability/test_acks_wait_for_the_disk.py",),
    ),
    Sabotage(
        name="in-sync-without-the-own-disk",
        why="a message counts as on two disks that is on one",
        path="broker/replicas.py",
        old="min(position, copies[others - 1])",
        new="copies[others - 1]",
        tests=(IN_SYNC, COPIED),
    ),
    Sabotage(
        name="one-replica-counts-for-all",
        why="a topic that asks for three disks has two",
        path="broker/replicas.py",
        old="copies[others - 1]",
        new="copies[0]",
        tests=(IN_SYNC,),
    ),
    Sabotage(
        name="overtakes-what-waits-for-a-replica",
        why="order within a queue is a promise",
        path="broker/topics.py",
        old="            if queue.held(points) and queue.held_by > durability:\n",
        new="            if False:\n",
        tests=(IN_SYNC,),
    ),
    Sabotage(
        name="a-restart-shows-what-no-replica-has",
        why="a reader keeps an offset that is given to another message after a failover",
        path="broker/fold.py",
        old="        hold_recovered(engine.core, engine.topics_)\n",
        new="",
        tests=(IN_SYNC,),
    ),
    Sabotage(
        name="retained-before-replicas-have-it",
        why="a new subscriber gets what a failover takes back",
        path="broker/sessions.py",
        old="max(FLUSHED, found.settings.commit_point)",
        new="FLUSHED",
        tests=(COPIED,),
    ),
)

CURSORS = (
    Sabotage(
        name="requeue-loses-the-flag",
        why="a consumer can not tell that it may have seen a message before",
        path="broker/queues/cursor.py",
        old="            return self.floor + at, count, True\n",
        new="            return self.floor + at, count, False\n",
        tests=(CURSOR,),
    ),
    Sabotage(
        name="restart-keeps-what-was-out",
        why="what a connection held when the broker stopped is never delivered again",
        path="broker/queues/cursor.py",
        old="        states = bytearray(self._states.translate(_OUTSTANDING_TO_REQUEUED))\n",
        new="        states = bytearray(self._states)\n",
        tests=(CURSOR,),
    ),
    Sabotage(
        name="floor-past-an-outstanding-message",
        why="a message that nobody has acked is never delivered again",
        path="broker/queues/cursor.py",
        old="        end = states.find(OUTSTANDING)\n",
        new="        end = -1\n",
        tests=(CURSOR,),
    ),
    Sabotage(
        name="floor-past-a-requeued-message",
        why="a message that was given back is never delivered again",
        path="broker/queues/cursor.py",
        old="            if 0 <= requeued < end:\n",
        new="            if 0 > requeued > end:\n",
        tests=(CURSOR,),
    ),
    Sabotage(
        name="purge-takes-what-is-out",
        why="a message that a consumer holds can not be given back any more",
        path="broker/queues/cursor.py",
        old="            self.settle(self.next, end - self.next)\n",
        new="            self.settle(self.floor, end - self.floor)\n",
        tests=(CURSOR,),
    ),
    Sabotage(
        name="more-than-its-credit",
        why="a consumer with a prefetch of one gets two",
        path="broker/queues/queue.py",
        old="                return holds[at], min(credit, share)\n",
        new="                return holds[at], share\n",
        tests=(QUEUES,),
    ),
)

FOLDS = (
    Sabotage(
        name="acks-not-folded",
        why="everything that was acked is delivered again after a restart",
        path="broker/core.py",
        old="                group.cursor.settle(first, count)\n            group.cursor.forget",
        new="                pass\n            group.cursor.forget",
        tests=(QUEUES,),
    ),
    Sabotage(
        name="in-flight-not-matched-with-acks",
        why="an MQTT client gets again what it acknowledged before the restart",
        path="broker/fold.py",
        old="        engine.sessions.state.reopen()\n",
        new="",
        tests=(SESSIONS,),
    ),
    Sabotage(
        name="settlement-not-folded",
        why="a dead letter and its message are both there after a crash",
        path="broker/fold.py",
        old="            engine.core.groups[group_number].cursor.settle(settled, 1)\n",
        new="",
        tests=(MOVES,),
    ),
    Sabotage(
        name="dead-letter-without-settlement",
        why="a dead letter and its message are both there after a crash",
        path="broker/moves.py",
        old="        if number:\n            extra += f",
        new="        if not number:\n            extra += f",
        tests=("tests/broker/test_dead_letters.py",),
    ),
    Sabotage(
        name="settled-before-it-is-moved",
        why="a dead letter that the log refuses is lost",
        path="broker/moves.py",
        old="            except Refused:\n                while",
        new="            except Refused:\n                self._group.settle(offset, run.count)\n"
        "                while",
        tests=("tests/broker/test_dead_letters.py", MOVES),
    ),
    Sabotage(
        name="state-beyond-its-position",
        why="changes behind the position are applied twice after a restart",
        path="broker/state_saving.py",
        old="        self.position = self._core.log.appended\n",
        new="        self.position = self._core.log.flushed\n",
        tests=(SESSIONS,),
    ),
    Sabotage(
        name="changed-while-it-was-saved",
        why="a change between two slices of a snapshot is lost with the next restart",
        path="broker/state_saving.py",
        old="        self._take_dirty()\n        if len(",
        new="        if len(",
        tests=("tests/broker/test_state_saving.py",),
    ),
    Sabotage(
        name="state-of-another-history",
        why="a state.db of a log that was restored from a copy is believed",
        path="core_log/epochs.py",
        old="            return start <= position <= following\n",
        new="            return True\n",
        tests=("tests/core_log/test_small_files.py",),
    ),
    Sabotage(
        name="damaged-state-believed",
        why="a flipped bit in state.db becomes a wrong permission or a lost queue",
        path="broker/state_db.py",
        old="                    if crc != _checksum(kind, key, value):\n",
        new="                    if crc is None:\n",
        tests=("tests/broker/test_state_db.py",),
    ),
    Sabotage(
        name="number-reused",
        why="a new queue has the number of an old one, whose records name it",
        path="broker/core.py",
        old="        self.next_number = max(self.next_number, number + 1)\n",
        new="",
        tests=(QUEUES,),
    ),
    Sabotage(
        name="transaction-without-its-acks",
        why="a committed transaction is delivered again after a crash",
        path="broker/transactions.py",
        old='            parts.append(core.journal.record({"op": "acks", "g": acks}, now))\n',
        new="",
        tests=("tests/broker/test_transactions.py",),
    ),
    Sabotage(
        name="qos-2-id-freed-early",
        why="a message that is sent again after a crash is stored twice",
        path="broker/fold.py",
        old="            engine.sessions.state.took_inbound(int(number, 16), int(packet, 16))\n",
        new="            pass\n",
        tests=(SESSIONS,),
    ),
    Sabotage(
        name="qos-2-id-freed-before-pubcomp",
        why="a packet id is given to a second message while the first one's PUBREL is out",
        path="broker/kernels/delivery.py",
        pure=True,
        old="            oldest = min(oldest, next(iter(self.releasing)))\n",
        new="            pass\n",
        tests=(SESSIONS,),
    ),
)

RULES = (
    Sabotage(
        name="exclusive-owner-not-checked",
        why="another connection reads a private queue",
        path="broker/entities.py",
        old="    if found.terms.exclusive and found.owner is not owner:\n",
        new="    if found.terms.exclusive and found.owner is None:\n",
        tests=(QUEUES,),
    ),
    Sabotage(
        name="segment-deleted-though-held",
        why="an unread message of a durable queue is gone",
        path="broker/retention.py",
        old="        limit = ends[-1] if self.hold is None else self.hold.position\n",
        new="        limit = ends[-1]\n",
        tests=("tests/broker/test_retention.py",),
    ),
    Sabotage(
        name="segment-deleted-without-a-snapshot",
        why="state that only the deleted segment had is gone",
        path="broker/retention.py",
        old="            if freed is not None and (yield from self._see_to_snapshot(freed)):\n",
        new="            if freed is not None:\n",
        tests=("tests/broker/test_retention.py",),
    ),
    Sabotage(
        name="delayed-message-early",
        why="a reminder comes before its time",
        path="broker/later/wheel.py",
        old="        while heap and heap[0] <= now_ms and len(offsets) < count_max:\n",
        new="        while heap and heap[0] <= now_ms + 50 and len(offsets) < count_max:\n",
        tests=("tests/broker/test_wheel.py",),
    ),
    Sabotage(
        name="delayed-message-twice",
        why="a release that a crash cut off is done again",
        path="broker/later/kept.py",
        old="            settled = cursor.settled_flags(offset, len(entries) // ENTRY_SIZE)\n",
        new="            settled = bytes(len(entries) // ENTRY_SIZE)\n",
        tests=("tests/broker/test_delay.py",),
    ),
    Sabotage(
        name="expired-message-delivered",
        why="a consumer acts on what is not true any more",
        path="broker/queues/expiry.py",
        old="            if not gone:\n",
        new="            if True:\n",
        tests=("tests/broker/test_expiry.py",),
    ),
)

OF_THE_ENGINE = (*COMMIT_POINTS, *CURSORS, *FOLDS, *RULES)
