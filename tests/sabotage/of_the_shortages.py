"""Sabotages of what happens where a process has no descriptors: nothing fails for good, nothing is
taken for synced, and who is one too many does not get in."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

FOUND = "tests/crash/test_found.py"
SHORTAGES = "tests/core_log/test_shortages.py"
BALLAST = "tests/core_log/test_ballast.py"
RESERVE = "tests/durability/test_disk_reserve.py"

OF_THE_SHORTAGES = (
    Sabotage(
        name="no-descriptor-taken-for-a-failed-disk",
        why="strangers who connect and say nothing make the server read-only until a restart",
        path="core_log/errors.py",
        old="self.short(what, cause) if is_short(cause) else self.fail(what, cause)\n",
        new="self.fail(what, cause)\n",
        tests=(SHORTAGES,),
    ),
    Sabotage(
        name="failed-sync-without-memory-taken-for-not-tried",
        why="the pages of a failed sync may be gone, whatever the error was",
        path="core_log/files.py",
        old="        raise SyncFailed(error.errno, error.strerror) from error\n",
        new="        raise\n",
        tests=(SHORTAGES,),
    ),
    Sabotage(
        name="flush-reported-without-its-directory",
        why="an acknowledged message is in a segment that has no name after a power cut",
        path="core_log/flusher.py",
        old="            self._short = True\n            return\n",
        new="            self._short = True\n",
        tests=(SHORTAGES,),
    ),
    Sabotage(
        name="file-closed-before-its-sync",
        why="the error of a failed write-back is told to nobody",
        path="core_log/segment_files.py",
        old="            if self._readers or self.pinned or self.handle == CLOSED:\n",
        new="            if self._readers or self.handle == CLOSED:\n",
        tests=(SHORTAGES,),
    ),
    Sabotage(
        name="file-closed-under-its-reader",
        why="a reader reads from a descriptor that is another file's by now",
        path="core_log/segment_files.py",
        old="            if self._readers or self.pinned or self.handle == CLOSED:\n",
        new="            if self.pinned or self.handle == CLOSED:\n",
        tests=(SHORTAGES,),
    ),
    Sabotage(
        name="file-that-is-written-to-closed",
        why="the log goes on in whatever file has got its descriptor",
        path="core_log/segments.py",
        old="            if segment.end <= end and segment is not self.last:\n",
        new="            if segment.end <= end:\n",
        tests=(FOUND,),
    ),
    Sabotage(
        name="unreadable-bookmark-ends-a-start",
        why="a start without state.db ends with a traceback, because of a hint",
        path="core_log/store.py",
        old="        except OSError:\n            return None\n",
        new="        except FileExistsError:\n            return None\n",
        tests=(FOUND,),
    ),
    Sabotage(
        name="failed-sync-of-a-parent-passed-over",
        why="a power cut takes the data directory with all that was acknowledged",
        path="core_log/files.py",
        old="            if error.errno not in NOT_OURS:\n                raise\n",
        new="",
        tests=(FOUND,),
    ),
    Sabotage(
        name="refused-start-keeps-a-file-open",
        why="who tries to start without descriptors has fewer each time",
        path="core_log/recovery.py",
        old="                segments.append(segment)\n"
        "                size = max(self._size(segment), self._settings.segment_bytes)\n"
        "                segment.end = start + size\n",
        new="                size = max(self._size(segment), self._settings.segment_bytes)\n"
        "                segment.end = start + size\n"
        "                segments.append(segment)\n",
        tests=(FOUND,),
    ),
    Sabotage(
        name="full-disk-told-by-a-sync-taken-for-passing",
        why="a checkpoint speaks of index entries that no disk has",
        path="core_log/errors.py",
        old="errno.EDQUOT, errno.EFBIG) and not isinstance(\n        error, SyncFailed\n    )\n",
        new="errno.EDQUOT, errno.EFBIG)\n",
        tests=(FOUND,),
    ),
    Sabotage(
        name="files-stay-open",
        why="a log of a thousand files takes a thousand descriptors",
        path="core_log/segments.py",
        old="        self._opened.trim()\n",
        new="",
        tests=(SHORTAGES,),
    ),
    Sabotage(
        name="no-descriptor-taken-for-damage",
        why="a message that is there is reported as damaged, and its queue stands still",
        path="core_log/reader.py",
        old="            if is_short(error):\n",
        new="            if False:\n",
        tests=(SHORTAGES,),
    ),
    Sabotage(
        name="read-given-up-without-a-descriptor",
        why="a queue stands still though its messages are there",
        path="broker/messages/readers.py",
        old="        if isinstance(error, StorageShort) or",
        new="        if False and",
        tests=("tests/broker/test_patient_readers.py",),
    ),
    Sabotage(
        name="connection-beyond-the-budget",
        why="all listeners together use up the descriptors that the store needs",
        path="net/budget.py",
        old="                if self._common_used >= self._common:\n",
        new="                if False:\n",
        tests=("tests/net/test_net_budget.py",),
    ),
    Sabotage(
        name="connection-counted-for-ever",
        why="a listener that was full once takes nobody any more",
        path="net/budget.py",
        old="            share.count -= 1\n",
        new="            pass\n",
        tests=("tests/net/test_net_budget.py",),
    ),
    Sabotage(
        name="failed-handshake-counted-for-ever",
        why="strangers who begin TLS and leave use up the listener",
        path="net/loop_server.py",
        old="close()\n            self._failed(protocol)\n        except ProxyError",
        new="close()\n        except ProxyError",
        tests=("tests/net/test_net_budget.py",),
    ),
    Sabotage(
        name="refused-proxy-header-counted-for-ever",
        why="connections without a right PROXY header use up the listener",
        path="net/loop_server.py",
        old="close()\n            self._failed(protocol)\n        except BaseException",
        new="close()\n        except BaseException",
        tests=("tests/net/test_net_budget.py",),
    ),
    Sabotage(
        name="timers-run-on",
        why="a stop under load ends with errors of timers whose threads have gone",
        path="polymq/workers.py",
        old="        if self._closed:\n            return\n",
        new="",
        tests=("tests/polymq/test_workers.py",),
    ),
    Sabotage(
        name="due-after-the-end",
        why="what falls due while the server stops is taken up, and interrupted",
        path="broker/pacing/timers.py",
        old="        if self._stopped or self._armed_ms != armed_ms:\n",
        new="        if self._armed_ms != armed_ms:\n",
        tests=("tests/broker/test_timers.py",),
    ),
    Sabotage(
        name="a-spare-is-left-open",
        why="each attempt to take a spare while the disk is full uses up a descriptor",
        path="core_log/next_segment.py",
        old="            except OSError:\n                self._files.close(handle)\n",
        new="            except OSError:\n",
        tests=("tests/core_log/test_next_segment.py",),
    ),
    Sabotage(
        name="ballast-never-lent",
        why="a disk without a free byte never gets empty by itself",
        path="polymq/upkeep.py",
        old="            return ballast.lend() if is_needed and ballast.held_bytes > 0 else 0\n",
        new="            return 0\n",
        tests=(RESERVE,),
    ),
    Sabotage(
        name="ballast-not-taken-back",
        why="the second time that the disk is full there is no room to save with",
        path="core_log/ballast.py",
        old="        size = min(goal, max(half, min(self._lent_bytes, free_bytes)))\n",
        new="        size = min(goal, half)\n",
        tests=(BALLAST,),
    ),
    Sabotage(
        name="ballast-of-holes",
        why="the ballast of a copied data directory gives no room up",
        path="core_log/ballast.py",
        old="            if first and held:\n",
        new="            if False:\n",
        tests=(BALLAST,),
    ),
    Sabotage(
        name="ballast-that-fails-on-a-full-disk",
        why="a data directory of an earlier version reports an error for ever",
        path="core_log/ballast.py",
        old="                raise\n            self.held_bytes = 0\n            return\n",
        new="                raise\n            raise\n",
        tests=(BALLAST,),
    ),
    Sabotage(
        name="files-of-an-index-without-entries",
        why="a start removes files that the start before it should have removed",
        path="core_log/indexes.py",
        old="                if begin < index.filed_offset:\n",
        new="                if True:\n",
        tests=("tests/core_log/test_packs.py",),
    ),
)
