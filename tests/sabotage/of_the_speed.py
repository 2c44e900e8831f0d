"""Mistakes in what was made to be fast or to be in two places: segments used again, the short way
of a read with one message and of its run through the engine, the in-sync commit point."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

_NEXT = ("tests/core_log/test_next_segment.py",)
_IN_SYNC = ("tests/durability/test_in_sync.py",)

OF_THE_SPEED = (
    Sabotage(
        name="segment-used-again-with-its-old-bytes",
        why="behind the log's end stand records of long ago, and what clients made look like them",
        path="core_log/next_segment.py",
        old="                    if self._synced < self._segment_bytes:\n",
        new="                    if self._synced < 0:\n",
        tests=_NEXT,
    ),
    Sabotage(
        name="zeros-that-the-disk-does-not-have",
        why="a power cut brings the old bytes of a used segment back, behind the log's end",
        path="core_log/next_segment.py",
        old="        sync_file(self._files, handle)\n        with self._lock:\n",
        new="        with self._lock:\n",
        tests=_NEXT,
    ),
    Sabotage(
        name="spare-under-two-names",
        why="after a power cut a segment of the log shows the zeros of the next one",
        path="core_log/next_segment.py",
        old="sync_names(self._files, self._directory)  # its old name must not come back",
        new="pass",
        tests=_NEXT,
        crash="--states 4000 --seed 1",
    ),
    Sabotage(
        name="zeros-however-large-the-syncs",
        why="50 publishers at full speed pay for twice the bytes and get nothing for it",
        path="core_log/next_segment.py",
        old="        self._zeroing = sync_bytes <= self._zeroed_sync_bytes_max\n",
        new="        self._zeroing = self._zeroed_sync_bytes_max >= 0\n",
        tests=_NEXT,
    ),
    Sabotage(
        name="spare-begun-where-no-zeros-follow",
        why="it is never ready, and every segment is made by the loop when the log needs it",
        path="core_log/next_segment.py",
        old="if not (zeroing and self._take_spare()):",
        new="if not self._take_spare():",
        tests=_NEXT,
    ),
    Sabotage(
        name="acked-before-the-replica-has-it",
        why="the master's disk dies, and with it what `min_in_sync` was to keep",
        path="broker/replicas.py",
        old="disks: min(position, copies[disks - IN_SYNC])",
        new="disks: position",
        tests=_IN_SYNC,
    ),
    Sabotage(
        name="acked-when-only-the-replica-has-it",
        why="two disks were asked for, and one has it",
        path="broker/replicas.py",
        old="disks: min(position, copies[disks - IN_SYNC])",
        new="disks: copies[disks - IN_SYNC]",
        tests=_IN_SYNC,
    ),
    Sabotage(
        name="commit-answered-before-the-replica-has-it",
        why="a transaction was committed, and its message is gone with the master",
        path="broker/transactions/half_messages.py",
        old="        if durability > FLUSHED and not isinstance(answer, Refused):\n",
        new="        if False:\n",
        tests=_IN_SYNC,
    ),
    Sabotage(
        name="mqtt-right-checked-once",
        why="a client goes on to publish where it was forbidden meanwhile",
        path="gateways/mqtt/kernels/fast_path.py",
        old="        if template is None or not template.valid:\n",
        new="        if template is None:\n",
        tests=("tests/gateways/mqtt", "interop_tests/test_users_at_the_listeners.py"),
        pure=True,
    ),
    Sabotage(
        name="amqp-right-checked-once",
        why="the same in AMQP",
        path="gateways/amqp/templates.py",
        old="        if template is not None and template.valid:\n",
        new="        if template is not None:\n",
        tests=("tests/gateways/amqp", "interop_tests/test_users_at_the_listeners.py"),
        pure=True,
    ),
    Sabotage(
        name="live-window-opens-unnoticed",
        why="a subscriber that acknowledges one message after the other gets nothing any more",
        path="broker/kernels/delivery.py",
        old="            if self._starved and not more:\n                self.resume_if_starved()\n"
        "            return\n",
        new="            return\n",
        tests=("tests/broker/test_engine_sessions.py",),
        pure=True,
    ),
    Sabotage(
        name="time-of-the-first-iteration",
        why="messages are stored with the time of long ago, and expire at once",
        path="broker/kernels/path.py",
        old="            if not core.end_scheduled:\n                core.iteration_ms",
        new="            if not core.iteration_ms:\n                core.iteration_ms",
        tests=("tests/broker/test_pace.py",),
        pure=True,
    ),
    Sabotage(
        name="quick-way-past-what-waits-for-a-replica",
        why="QoS 0 overtakes an earlier message of its topic that only one disk has",
        path="broker/kernels/path.py",
        old="            and not self.commits.holding\n",
        new="",
        tests=("tests/broker/test_in_sync.py",),
        pure=True,
    ),
)
