"""Mistakes that cost clients what they were told, and that a crash at some moment brings to light:
one or two for each subject of the crash workloads (`tests/crash/parts`)."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage


def _states(subject: str, count: int = 1000, seed: int = 1) -> str:
    return f"--with '{subject}' --states {count} --seed {seed}"


OF_THE_CLIENTS = (
    Sabotage(
        name="delayed-message-released-early",
        why="what should come in an hour comes now",
        path="broker/delays/delay.py",
        old="        is_due = due_ms <= self._core.clock_ms()\n",
        new="        is_due = due_ms <= self._core.clock_ms() + 500\n",
        crash=_states("delayed"),
    ),
    Sabotage(
        name="delayed-messages-forgotten-at-a-start",
        why="what waited when the server went down never comes",
        path="broker/delays/timed_store.py",
        old="self.wheel.fill(entries, self._times(entries, settled), settled, offset, now)",
        new="self._times(entries, settled)",
        crash=_states("delayed"),
    ),
    Sabotage(
        name="move-settles-nothing-after-a-crash",
        why="a delayed message or a dead letter comes twice after a restart",
        path="broker/moves/moves.py",
        old="        if number:\n            record = dataclasses.replace(record, system",
        new="        if False:\n            record = dataclasses.replace(record, system",
        crash=_states("delayed"),
    ),
    Sabotage(
        name="dead-letter-in-two-places",
        why="a rejected message is a dead letter, and comes to its consumer again, too",
        path="broker/moves/moves.py",
        old='            extra += f"{SETTLES_PROPERTY}\\x01{number:x}.{offset:x}\\x02".encode()\n',
        new='            extra += f"{SETTLES_PROPERTY}\\x01{0:x}.{offset:x}\\x02".encode()\n',
        crash=_states("dead letters"),
    ),
    Sabotage(
        name="rollback-not-written",
        why="a message that its producer rolled back, and was told so, can be committed",
        path="broker/transactions/half_messages.py",
        old='        self._core.journal.write({"op": "unpublished", "o": offset, "why": why})\n',
        new='        self._core.journal.apply({"op": "unpublished", "o": offset, "why": why})\n',
        crash=_states("half messages"),
    ),
    Sabotage(
        name="half-message-committed-twice",
        why="a producer that asks again after a restart publishes its message twice",
        path="broker/transactions/half_messages.py",
        old="        elif group.cursor.is_settled(offset):\n",
        new="        elif group.cursor.floor > offset + 1:\n",
        crash=_states("half messages"),
    ),
    Sabotage(
        name="acks-outside-their-transaction",
        why="a crash after a commit brings the messages again for which others were published",
        path="broker/transactions/transactions.py",
        old='            parts.append(core.journal.record({"op": "acks", "g": acks}, now))\n',
        new="            self._queue_store.keep_acks(settled, pending)\n",
        crash=_states("transactions"),
    ),
    Sabotage(
        name="expiry-forgotten-at-a-start",
        why="after a restart messages come that had expired",
        path="broker/named_queues/features.py",
        old="        if found.queue.expiring or settings.ttl_ms is not None:",
        new="        if self._restored and (found.queue.expiring or settings.ttl_ms is not None):",
        crash=_states("dead letters", 2000),
    ),
    Sabotage(
        name="bound-forgotten-at-a-start",
        why="after a restart a queue holds more than it was declared for",
        path="broker/named_queues/rules.py",
        old="            self.lengths.start()\n            self.lengths.enforce()\n",
        new="            self.lengths.start()\n",
        crash=_states("dead letters", 2000),
    ),
    Sabotage(
        name="deliveries-not-counted-over-a-start",
        why="a message that kills its consumer, and the server, comes for ever",
        path="broker/queues/store.py",
        old='        for number, stretches in op.get("c", ()):\n',
        new='        for number, stretches in op.get("none", ()):\n',
        crash=_states("delivery limits", 2000),
    ),
    Sabotage(
        name="priority-of-another-level",
        why="after a restart the least important message comes first",
        path="broker/named_queues/features.py",
        old="levels.add_level(priority, self._queue(number))",
        new="levels.add_level(settings.priority_max + 1 - priority, self._queue(number))",
        crash=_states("priorities"),
    ),
    Sabotage(
        name="unflushed-message-read-by-offset",
        why="a reader saw an offset that another message gets after a power cut",
        path="broker/reading/queries.py",
        old="        count = min(count_max, queue.flushed - offset)\n",
        new="        count = min(count_max, queue.visible - offset)\n",
        crash=_states("page_cache"),
    ),
    Sabotage(
        name="page-cache-acked-before-it-is-written",
        why="a kill takes what the page cache was said to have",
        path="broker/kernels/path.py",
        pure=True,
        old="        try:\n            log.write()\n",
        new="        try:\n            self.commits.advance(APPENDED, log.appended)\n"
        "            log.write()\n",
        tests=("tests/broker/test_pace.py::test_what_the_page_cache_acks_would_survive_a_kill",),
    ),
    Sabotage(
        name="damaged-key-file-not-made-again",
        why="a power cut while keys are stored takes messages out of every later query",
        path="core_log/key_index.py",
        old="                self._position = state.begin\n                self.remade_count",
        new="                self.remade_count",
        tests=("tests/core_log/test_key_index.py",),
    ),
    Sabotage(
        name="keys-skipped-at-a-start",
        why="messages of the last moments before a crash are never found by their key",
        path="core_log/key_index.py",
        old="            if keyed_end is None or self._position < keyed_end:\n",
        new="            if keyed_end is not None and self._position < keyed_end:\n",
        crash=_states("key index", 2000),
    ),
    Sabotage(
        name="targets-beyond-a-record-lost",
        why="after a crash the 257th queue lacks a message that the others have",
        path="core_log/commit_log.py",
        old="continuation(spans[piece.continues].entries, continued)\n",
        new="continuation(spans[piece.continues].entries[:0], continued)\n",
        crash=_states("256", 600),
    ),
    Sabotage(
        name="rules-of-a-deleted-user-stay",
        why="a new user of an old name has the rights of the old one",
        path="broker/accounts/users.py",
        old='            touched.append(("rule", key))\n        self._changed()\n',
        new="        self._changed()\n",
        crash=_states("users", 3000),
    ),
    Sabotage(
        name="user-not-in-the-snapshot",
        why="after a restart nobody can log in",
        path="broker/accounts/users.py",
        old='        self.load_user(op["name"], op)\n        return [("user", op["name"])]\n',
        new='        self.load_user(op["name"], op)\n        return []\n',
        crash=_states("users"),
    ),
    Sabotage(
        name="segment-gone-before-its-state-is-copied",
        why="without state.db, all that was declared before is forgotten",
        path="broker/retention/retention.py",
        old="            if last.position >= position:\n                return True\n",
        new="            if last.position >= 0:\n                return True\n",
        crash=_states("queues", 3000),
    ),
    Sabotage(
        name="retained-message-left-behind",
        why="a retained message is gone with the segment that it stood in",
        path="broker/retention/retention.py",
        old="            if item is not None and position_of(item[1]) < ends[-1]:\n",
        new="            if item is not None and position_of(item[1]) < ends[0] // 2:\n",
        crash=_states("queues", 3000),
    ),
    Sabotage(
        name="log-forgets-its-epochs",
        why="two histories of the log look like one",
        path="broker/retention/retention.py",
        old="            core.store.restate_epochs()\n",
        new="            pass\n",
        crash=_states("queues", 3000),
    ),
)
