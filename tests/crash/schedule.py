"""Threads that take turns as a seed says, so that a race is found twice.

A `Schedule` lets one thread run at a time. At calls of the disk, and wherever it would wait, a
thread hands on to one that is drawn among those that can go on. Some calls take long: others have
many turns before that thread has its next.

The store runs its own threads, unchanged. Only what they wait for (locks, events, eventfds, each
other) is made here: `installed` puts it in the place of the modules that the store would use.
Nothing waits for a clock. A wait with a time limit may end whenever it is drawn.

Threads that all wait for each other are an error as well: a wake-up was lost.

What this does not find: a switch between two lines without a call of the disk or a wait, and what
a processor reorders.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any, Final

from polymq.core_log import ahead, flusher, indexes, key_index, next_segment, segment_files

WITH_LOCKS: Final = (ahead, flusher, indexes, key_index, next_segment, segment_files)
WITH_EVENTS: Final = (ahead, flusher)
LONG_CHANCE: Final = 0.3
LONG_POINTS: Final = 100
"""One call of so many that hand on takes up to so long: in calls of others."""
HANDLES_FROM: Final = 1 << 20
"""Eventfds have numbers that no file has."""


class Ended(BaseException):
    """The process was killed: raised in its threads wherever they wait. Nobody handles it."""


def always() -> bool:
    """Whether a thread that waits for nothing may go on."""
    return True


class Task:
    """A thread that has its turns. Made by `Schedule.spawn`.

    Attributes:
        done: whether it has ended.
        error: what it ended with.
        ready: whether it may go on.
        until: it is in a call that takes long: others go on until there were so many points.
        ended: it has to end.
        turn: given when it is its turn.
    """

    def __init__(self, schedule: Schedule, target: Callable[[], Any], name: str) -> None:
        self.done = False
        self.error: Exception | None = None
        self.ready: Callable[[], bool] = always
        self.ended = False
        self.until = 0
        self.turn = threading.Semaphore(0)
        self._schedule = schedule
        self._target = target
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def begin(self) -> None:
        """Start the thread, which waits for its first turn."""
        self._thread.start()

    def _run(self) -> None:
        self.turn.acquire()
        try:
            if not self.ended:
                self._target()
        except Ended:
            pass
        except Exception as error:  # noqa: BLE001  (handed on to the first thread)
            self.error = error
        self.done = True
        self._schedule.left(self)


class Schedule:
    """The turns of one process's threads. The thread that makes it is the first of them.

    Args:
        switching: how likely it is that a thread hands on where it could go on.
    """

    def __init__(self, random: Random, switching: float) -> None:
        self._random = random
        self._switching = switching
        self._first = Task(self, always, "first")
        self._current = self._first
        self._tasks = [self._first]
        self._points_count = 0
        self.events = Eventfds(self)

    # --- turns ----------------------------------------------------------------------------------

    def spawn(self, target: Callable[[], Any], name: str) -> Task:
        """A new thread, which has its turn sometime."""
        task = Task(self, target, name)
        self._tasks.append(task)
        task.begin()
        return task

    def point(self) -> None:
        """Perhaps somebody else has a turn, or many: a call may take long."""
        self._check()
        self._points_count += 1
        if len(self._tasks) > 1 and self._random.random() < self._switching:
            if self._random.random() < LONG_CHANCE:
                self._current.until = self._points_count + self._random.randint(1, LONG_POINTS)
            self._hand_on()

    def wait(self, ready: Callable[[], bool]) -> None:
        """Go on when this holds. It is asked in other threads."""
        self._check()
        if not ready():
            self._current.ready = ready
            self._hand_on()

    def pause(self) -> None:
        """Others may have turns, however long it takes."""
        self._check()
        self._hand_on()

    def _check(self) -> None:
        if self._current.ended:
            raise Ended

    def _hand_on(self) -> None:
        me = self._current
        following = self._draw()
        if following is not me:
            self._current = following
            following.turn.release()
            me.turn.acquire()
        me.ready = always
        self._check()
        self._raise_errors(me)

    def _draw(self) -> Task:
        ready = [task for task in self._tasks if task.ready()]
        ready = [task for task in ready if task.until <= self._points_count] or ready
        if not ready:
            error = AssertionError("all threads wait, each for another")
            self._first.error = self._first.error or error
            return self._first
        return self._random.choice(ready)

    def _raise_errors(self, me: Task) -> None:
        """The first thread is told what others ended with."""
        if me is self._first:
            for task in [me, *self._tasks]:
                if task.error is not None:
                    error, task.error = task.error, None
                    raise error

    def left(self, task: Task) -> None:
        """A thread has ended: another one goes on."""
        self._tasks.remove(task)
        if task.error is not None:
            self._first.error = self._first.error or task.error
        following = self._first if task.ended or self._first.error else self._draw()
        self._current = following
        following.turn.release()

    def end_others(self) -> None:
        """The process is killed: all threads but the first end where they are."""
        for task in self._tasks[1:]:
            task.ended = True
            self._current = task
            task.turn.release()
            self._first.turn.acquire()
        self._first.error = None
        assert self._tasks == [self._first]

    # --- what threads wait for ------------------------------------------------------------------

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Threads, locks and events of the store are those of this schedule."""
        threads = SimpleNamespace(
            Lock=lambda: Lock(self), Event=lambda: Event(self), Thread=self._thread
        )
        saved: list[tuple[ModuleType, str]] = []
        try:
            for module in WITH_LOCKS:
                if hasattr(module, "threading"):
                    saved.append((module, "threading"))
                    vars(module)["threading"] = threads
            for module in WITH_EVENTS:
                saved.append((module, "os"))
                vars(module)["os"] = self.events
            yield
        finally:
            for module, name in saved:
                setattr(module, name, {"threading": threading, "os": os}[name])

    def _thread(self, *, target: Callable[[], Any], name: str, daemon: bool) -> Thread:
        assert daemon
        return Thread(self, target, name)


class Thread:
    """In the place of `threading.Thread`."""

    def __init__(self, schedule: Schedule, target: Callable[[], Any], name: str) -> None:
        self._schedule = schedule
        self._target = target
        self._name = name
        self._task: Task | None = None

    def start(self) -> None:
        self._task = self._schedule.spawn(self._target, self._name)

    def join(self) -> None:
        task = self._task
        assert task is not None
        self._schedule.wait(lambda: task.done)


class Lock:
    """In the place of `threading.Lock`."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._taken = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._taken and blocking:
            if timeout < 0:
                self._schedule.wait(lambda: not self._taken)
            else:
                self._schedule.pause()
        if self._taken:
            return False
        self._taken = True
        return True

    def release(self) -> None:
        assert self._taken
        self._taken = False

    def locked(self) -> bool:
        return self._taken

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


class Event:
    """In the place of `threading.Event`."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._set = False

    def set(self) -> None:
        self._set = True

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float) -> bool:
        if not self._set:
            self._schedule.pause()
        return self._set


class Eventfds:
    """In the place of `os`, as far as eventfds go."""

    EFD_CLOEXEC = os.EFD_CLOEXEC
    EFD_NONBLOCK = os.EFD_NONBLOCK

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._counts: list[int] = []
        self._waits: list[bool] = []

    def eventfd(self, count: int, flags: int) -> int:
        self._counts.append(count)
        self._waits.append(not flags & os.EFD_NONBLOCK)
        return HANDLES_FROM + len(self._counts) - 1

    def eventfd_write(self, handle: int, count: int) -> None:
        self._counts[handle - HANDLES_FROM] += count

    def eventfd_read(self, handle: int) -> int:
        number = handle - HANDLES_FROM
        if self._waits[number]:
            self._schedule.wait(lambda: self._counts[number] > 0)
        elif not self._counts[number]:
            raise BlockingIOError
        count, self._counts[number] = self._counts[number], 0
        return count

    def is_readable(self, handle: int) -> bool:
        """Whether a read would not wait."""
        return self._counts[handle - HANDLES_FROM] > 0

    def close(self, handle: int) -> None:
        self._counts[handle - HANDLES_FROM] = 0
