"""Sabotages of how a server starts: on a full disk, with a port that is taken, and beside a name
server that does not come up."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

FULL = "tests/core_log/test_full_disk_start.py"
ORDER = "tests/polymq/test_start_order.py"
LOADING = "tests/broker/test_loading.py"

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
        name="binding-by-name-not-in-its-row",
        why="after a start nothing reaches a queue by its name",
        path="broker/named_queues.py",
        old='            row["by_name"] = True\n',
        new="            pass\n",
        tests=(LOADING,),
    ),
    Sabotage(
        name="binding-by-name-not-loaded",
        why="the same, though its row says it",
        path="broker/named_queues.py",
        old='        if value.get("by_name", False):\n',
        new="        if False:\n",
        tests=(LOADING,),
    ),
    Sabotage(
        name="rows-of-an-earlier-version-thrown-away",
        why="the first start of a new version folds the whole log",
        path="broker/state_db.py",
        old="VERSIONS_READ: Final = (2, SCHEMA_VERSION)\n",
        new="VERSIONS_READ: Final = (SCHEMA_VERSION,)\n",
        tests=(LOADING,),
    ),
    Sabotage(
        name="rows-of-a-later-version-read",
        why="rows are misread that mean something else",
        path="broker/state_db.py",
        old="    if found is None or found[2] not in VERSIONS_READ:\n",
        new="    if found is None:\n",
        tests=(LOADING,),
    ),
    Sabotage(
        name="trimmed-topic-begins-anew",
        why="after a start, readers by offset get what retention has taken",
        path="broker/topics.py",
        old="                topic.first_offsets = offsets\n",
        new="                pass\n",
        tests=(LOADING,),
    ),
    Sabotage(
        name="catalogue-keeps-packed-entries-of-filed-indexes",
        why="entries are looked for in a pack that does not have them any more",
        path="core_log/index_recovery.py",
        old="                    index.extents = ()\n",
        new="                    pass\n",
        tests=("tests/core_log/test_packs.py", "tests/core_log/test_recovery_indexes.py"),
    ),
    Sabotage(
        name="catalogue-index-begins-behind-its-end",
        why="a start refuses the indexes of a queue whose messages are all gone",
        path="core_log/index_recovery.py",
        old="                index.first_offset = min(index_first, index.end_offset)\n",
        new="                pass\n",
        tests=("tests/core_log/test_packs.py", "tests/core_log/test_recovery_indexes.py"),
    ),
    Sabotage(
        name="files-of-another-size",
        why="after the free room has changed, a start takes a gigabyte more",
        path="polymq/segment_size.py",
        old="    if found:\n        return found\n",
        new="",
        tests=(ORDER,),
    ),
    Sabotage(
        name="hangup-ends-a-start",
        why="a SIGHUP in the first moments ends the server without a line",
        path="polymq/cli.py",
        old="    signal.signal(signal.SIGHUP, signal.SIG_IGN)\n",
        new="    pass\n",
        tests=("tests/polymq/test_first_moments.py",),
    ),
    Sabotage(
        name="few-descriptors-are-a-bug",
        why="a limit of the system looks like a bug of ours",
        path="polymq/__main__.py",
        old="        if error.errno in (errno.EMFILE, errno.ENFILE):\n",
        new="        if False:\n",
        tests=("tests/polymq/test_first_moments.py",),
    ),
)
