"""One thread that syncs the log, so that the loop never waits for a disk.

Theory of operation (group commit). At the end of a loop iteration the loop writes and calls
`request`. The thread syncs up to what was written then. What is requested while it is busy is
covered by its next turn, all of it at once. When a turn ends, the eventfd of `fileno` becomes
readable, and the loop calls `collect`, the only place where the flushed position moves. After a
turn that served many the thread waits a moment for all of them to come back (`group_commit.py`).

Rules:

* The thread touches nothing of the log but the list of segments and their handles. It is told a
  position and reports a position: two ints that are each written by one thread only.
* No request is lost while the thread waits for a group: it closes the group before it looks for the
  last time whether something was asked for, and the loop asks before it looks whether there is one.
* A turn syncs the files in order, then the names of new segments, then reports. If anything
  fails, it reports nothing, ever again: after a failed sync the kernel may have dropped the pages,
  and a second sync that succeeds would say nothing about them.
* A turn that could not begin to sync a directory, for want of a descriptor, is no failure: it is
  made again after a pause, and reports nothing until then.
* Behind each turn another thread is told how far the log is: it makes the next segment ready
  (`ahead.py`), with syncs of its own.
* A simulation has no threads: a `stepped` flusher has none, and does a turn when `step` is called.
  Which operations reach the disk, and in what order, is then up to the caller alone.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Final

from polymq.core_log.ahead import Ahead
from polymq.core_log.commit_log import CommitLog
from polymq.core_log.durations import Durations
from polymq.core_log.errors import FailureLatch, NotBegun
from polymq.core_log.group_commit import WAIT_SECONDS_MAX, GroupCommit
from polymq.core_log.segments import Segments

RETRY_SECONDS: Final = 0.1
"""Between two attempts at a turn for which there was no descriptor."""
LAST_ATTEMPTS_MAX: Final = 50
"""How often the last turn is tried. After that the log counts as failed: the next start
recovers it."""


class Flusher:
    """Syncs one log. Started by the constructor, ended by `stop`.

    Args:
        stepped: no thread and no descriptor; the turns are those of `step`.
        clock: seconds, for `durations`.

    Attributes:
        durations: how long each sync took that succeeded. Written by the flusher's thread.
    """

    def __init__(
        self,
        *,
        log: CommitLog,
        segments: Segments,
        failure: FailureLatch,
        stepped: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.durations = Durations()
        self._clock = clock
        self._log = log
        self._segments = segments
        self._failure = failure
        self._requested = log.flushed  # written by the loop's thread
        self._done = log.flushed  # written by the flusher's thread
        self._stopping = False  # written by the loop's thread, once
        self._closed = False  # the descriptors are given back
        self._ending = threading.Event()
        self._short = False  # the last turn could not be made; the flusher's thread
        self._requested_runs = log.runs  # the same two, in runs
        self._done_runs = log.runs
        self._group_commit = GroupCommit()
        self._wake = threading.Lock()  # free: there is something to do
        self._wake.acquire()
        self._report = -1
        self._thread: threading.Thread | None = None
        if not stepped:
            self._report = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._ahead = Ahead(
            segments=segments,
            position=log.flushed,
            failed=lambda: signal(self._report),
            stepped=stepped,
        )
        if not stepped:
            self._thread = threading.Thread(target=self._run, name="flusher", daemon=True)
            self._thread.start()

    # --- the loop's side ------------------------------------------------------------------------

    def request(self) -> None:
        """Ask for a sync of everything written so far. Returns at once."""
        written = self._log.written
        if written > self._requested and not self._stopping:
            self._requested_runs = self._log.runs
            self._requested = written
            if self._thread is not None and not self._group_commit.waits(self._requested_runs):
                self._awaken()

    def _awaken(self) -> None:
        """Let the thread make a turn, after that which it is at. The loop's thread alone frees."""
        if self._wake.locked():
            self._wake.release()

    def fileno(self) -> int:
        """Readable when a turn has ended, well or not: call `collect`. Until `stop`."""
        return self._report

    def collect(self) -> int:
        """Move `log.flushed` to what the thread has synced, and return it.

        Raises:
            StorageFailed: a sync failed. Raised by every call from then on.
        """
        if self._thread is not None and not self._closed:
            try:
                os.eventfd_read(self._report)
            except BlockingIOError:
                pass  # nothing new; the caller only wants to know where it stands
        self._failure.check()
        if self._done > self._log.flushed:
            self._log.flushed = self._done
            self._group_commit.reported(self._log.runs)
        return self._log.flushed

    def stop(self) -> None:
        """Sync once more what is written, end the thread and collect.

        Raises:
            StorageFailed: the last sync failed, or an earlier one.
        """
        if self._stopping:
            return
        self._requested = self._log.written
        self._stopping = True
        self._ending.set()
        if self._thread is None:
            self._turn()
        else:
            self._awaken()
            self._thread.join()
            self._ahead.stop()
            os.close(self._report)
        self._closed = True
        self.collect()

    def step(self) -> None:
        """Do what was asked for, in the caller's thread. For a stepped flusher only."""
        assert self._thread is None
        self._turn()

    # --- the thread's side ----------------------------------------------------------------------

    def _run(self) -> None:
        stopping = False
        while not stopping:
            self._wait()
            stopping = self._turn()

    def _wait(self) -> None:
        """Until the loop asks for a turn, or a group that has begun waited long enough."""
        gathering = self._group_commit
        if self._short:
            self._ending.wait(RETRY_SECONDS)
            return
        if gathering.open:
            if self._wake.acquire(timeout=WAIT_SECONDS_MAX):
                gathering.complete_in_time()
                return
            gathering.given_up()
            if self._requested > self._done or self._stopping:
                return
        self._wake.acquire()  # takes all requests that came together

    def _turn(self) -> bool:
        """One turn. Returns whether it was the last."""
        stopping = self._stopping
        runs = self._requested_runs
        target = self._requested
        if self._failure.failed:
            signal(self._report)
            return stopping
        if target > self._done:
            self._sync(target, runs)
            if self._short and stopping:
                self._sync_at_last(target, runs)
            if not self._short:
                signal(self._report)
        if not stopping and not self._failure.failed:
            self._ahead.request(target)
        return stopping

    def _sync(self, target: int, runs: int) -> None:
        began = self._clock()
        try:
            self._segments.sync(self._done, target)
            self._short = False
        except NotBegun as error:
            self._failure.short("syncing the log", error)
            self._short = True
            return
        except OSError as error:
            self._failure.fail("syncing the log", error)
            self._short = False
            return
        self.durations.observe(self._clock() - began)
        self._group_commit.flushed(runs - self._done_runs)  # before anybody can know of the flush
        self._done_runs = runs
        self._done = target
        if self._group_commit.open:
            self._wake.acquire(blocking=False)  # what was asked for meanwhile joins the group

    def _sync_at_last(self, target: int, runs: int) -> None:
        """The last turn is tried for some seconds."""
        for _ in range(LAST_ATTEMPTS_MAX):
            if self._thread is not None:
                self._wake.acquire(timeout=RETRY_SECONDS)  # which nobody frees any more
            self._sync(target, runs)
            if not self._short:
                return
        self._short = False
        self._failure.fail("syncing the log", OSError(self._failure.short_text))


def signal(descriptor: int) -> None:
    """Make an eventfd readable; -1 is none."""
    if descriptor >= 0:
        os.eventfd_write(descriptor, 1)
