"""Sabotages of how a server starts: on a full disk, with a port that is taken, and beside a name
server that does not come up."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

FULL = "tests/core_log/test_full_disk_start.py"
ORDER = "tests/polymq/test_start_order.py"

OF_THE_STARTS = (
    Sabotage(
        name="no-start-without-room-for-a-checkpoint",
        why="a server does not start on a full disk, so nobody can make room",
        path="core_log/index_recovery.py",
        old="        with suppress(StorageFull):  #",
        new="        with suppress():  #",
        tests=(FULL,),
    ),
    Sabotage(
        name="checkpoint-said-that-was-not-written",
        why="retention deletes files that the checkpoint on the disk needs",
        path="core_log/index_recovery.py",
        old="checkpointed = 0 if checkpoint is None else checkpoint.position\n",
        new="checkpointed = end\n",
        tests=(FULL,),
    ),
    Sabotage(
        name="no-start-without-room-for-the-epochs",
        why="a server does not start on a full disk, so nobody can make room",
        path="core_log/store.py",
        old="            if not is_full(error) and not is_short(error):\n                raise\n",
        new="            raise\n",
        tests=(FULL,),
    ),
    Sabotage(
        name="checkpoint-before-the-epochs",
        why="recovery looks for epochs behind the checkpoint only, and misses one",
        path="core_log/indexes.py",
        old="        self.before_checkpoint()\n",
        new="",
        tests=(FULL,),
    ),
    Sabotage(
        name="abort-file-made-anew",
        why="a server that was stopped does not start on a full disk",
        path="core_log/checkpoint.py",
        old="    if ABORT_NAME not in names and CLOSED_NAME in names:\n",
        new="    if False:\n",
        tests=(FULL,),
    ),
    Sabotage(
        name="store-before-the-ports",
        why="a start with a taken port leaves a gigabyte, or a recovered log of somebody else",
        path="polymq/held_ports.py",
        old="                _hold(held, host, port)\n",
        new="                pass\n",
        tests=(ORDER,),
    ),
    Sabotage(
        name="name-server-that-dies-in-silence",
        why="the start waits for ever for a thread that is gone",
        path="polymq/name_server.py",
        old="            self._ended(Failure(ExitCode.FAILED, text))\n        finally:\n",
        new="            raise\n        except ZeroDivisionError:\n",
        tests=(ORDER,),
    ),
    Sabotage(
        name="start-deaf-to-signals",
        why="only kill -9 ends a server that does not come up",
        path="polymq/serve.py",
        old="        starting.cancel()\n",
        new="        pass\n",
        tests=(ORDER,),
    ),
    Sabotage(
        name="files-of-another-size",
        why="after the free room has changed, a start takes a gigabyte more",
        path="polymq/segment_size.py",
        old="    if found:\n        return found\n",
        new="",
        tests=(ORDER,),
    ),
)
