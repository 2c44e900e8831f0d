"""The list. Prefer lines that will stay, and the narrowest suite that has to notice."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage
from tests.sabotage.users import USERS

STORE = (
    Sabotage(
        name="forgotten-fdatasync",
        why="every ack after the first power cut is a lie",
        path="core_log/segments.py",
        old="                self._files.fdatasync(segment.handle)\n",
        new="                pass\n",
        tests=("tests/core_log/test_flusher.py",),
    ),
    Sabotage(
        name="forgotten-directory-sync",
        why="after a power cut a segment whose bytes are synced has no name",
        path="core_log/segments.py",
        old="            if last > self._named:\n",
        new="            if last < self._named:\n",
        tests=("tests/core_log/test_flusher.py",),
    ),
    Sabotage(
        name="failed-sync-ignored",
        why="a sync that fails once may have dropped the pages: the next success says nothing",
        path="core_log/flusher.py",
        old='            self._failure.fail("syncing the log", error)\n            return\n',
        new="            pass\n",
        tests=("tests/core_log/test_flusher.py",),
    ),
    Sabotage(
        name="atomic-batch-cut-in-the-middle",
        why="half of a transaction is there after a crash",
        path="core_log/recovery.py",
        old="        end = walk.position if walk.batch == NO_BATCH else walk.batch[0]\n",
        new="        end = walk.position\n",
        tests=("tests/core_log/test_recovery_log.py",),
    ),
)

ENGINE = (
    Sabotage(
        name="visible-before-the-commit-point",
        why="a consumer sees what a power cut then takes back",
        path="broker/commits.py",
        old="        return position <= self.points[durability]\n",
        new="        return position <= max(self.points)\n",
        tests=("tests/broker/test_commits.py",),
    ),
)

SABOTAGES = (*STORE, *ENGINE, *USERS)
