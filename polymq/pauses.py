"""What stops the loop: pauses of the garbage collector, kept short, and gaps, measured.

Theory. Reference counts free nearly everything. The collector is needed for cycles only, and a
full collection looks at every object of the process: 1.5 s with a hundred thousand queues, in which
no client is served. So there is none while the server runs. What is new is looked at in small
portions, and what survives in numbers is set aside (`gc.freeze`) and never looked at again:

* Nothing is collected while a store is loaded (`loading`): what it makes stays, and the collector
  would look at it again and again. That took a third of a start with a hundred thousand queues.
* Young collections run as Python starts them, over a thousand new objects each.
* After some of them, one *settling* collection looks at what they left. If much survives, it is set
  aside. So what is looked at has a bound (`SETTLE_OBJECTS_MAX`), and what is only in use for the
  moment, of a request say, is not set aside just because it is there.

A cycle that dies after it was set aside stays. So what comes and goes in numbers (connections,
requests, queues, sessions, subscriptions) leaves no cycles when it ends, and `Departed` counts the
connections that are still there although they ended: with what hangs at them they are most of what
could ever stay. If they become many, one full collection is worth its pause. What it leaves is in
use, and looking again would free nothing. The next one therefore waits until twice as many are
there.

Gaps are how late a timer of the loop is: what a client waits for that sends something just then.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final
from weakref import WeakSet

from polymq.core_log.durations import Durations
from polymq.logs import logger
from polymq.metrics.registry import Probe, counter, gauge, histogram

YOUNG_OBJECTS: Final = 1_000
"""New objects, less those that were freed, before a young collection: 0.1 ms."""
SETTLE_ROUNDS: Final = 5
"""Young collections before a settling one."""
SETTLED_MAX: Final = 5_000
"""Objects that survive a settling collection without being set aside."""
SETTLE_OBJECTS_MAX: Final = YOUNG_OBJECTS * SETTLE_ROUNDS + SETTLED_MAX
"""Objects that a settling collection looks at: 10,000, some 3 ms, or 15 where what they belong to
has not been used for long and is in no cache of the processor."""
NEVER: Final = 2**31 - 1
DEPARTED_MAX: Final = 2_000
"""What may have ended and still be there before a full collection: some 20 MB."""
TICK_SECONDS: Final = 0.02
"""How often the loop's lateness is measured; 0.1 % of a core."""
BOUNDS_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)


@contextmanager
def loading() -> Iterator[None]:
    """Collect nothing meanwhile, and set aside what is there at the end: what a start makes is
    needed as long as the server runs."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def collect_role() -> None:
    """Free what an ended role has left. A full collection, while no client is served."""
    gc.unfreeze()
    gc.collect()


class Departed:
    """What has ended, by kind, as long as it is in memory."""

    def __init__(self) -> None:
        self._gone: WeakSet[object] = WeakSet()

    def note(self, ended: object) -> None:
        """Nobody needs it any more."""
        self._gone.add(ended)

    def __len__(self) -> int:
        return len(self._gone)


class Pauses:
    """The collector's policy, and the two histograms.

    Args:
        departed: what ended and should be free.
        later: runs a callback in the loop's next iteration.
    """

    def __init__(
        self,
        departed: Departed,
        later: Callable[[Callable[[], object]], object],
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.collections = Durations(BOUNDS_SECONDS)
        self.gaps = Durations(BOUNDS_SECONDS)
        self.full_count = 0
        """Full collections since the start."""
        self._departed = departed
        self._later = later
        self._clock = clock
        self._began = 0.0
        self._rounds = 0
        self._in_use = 0  # what ended and the last full collection left, less what went since
        self._thresholds = gc.get_threshold()
        self._tick: asyncio.TimerHandle | None = None
        self.on_tick: Callable[[], object] | None = None
        """Called whenever the loop's lateness is measured, fifty times a second."""

    def start(self) -> None:
        """Take charge of the collector; what `loading` has made is set aside already."""
        gc.set_threshold(YOUNG_OBJECTS, NEVER, NEVER)
        gc.callbacks.append(self._collecting)

    def stop(self) -> None:
        """Leave the collector as it was."""
        if self._tick is not None:
            self._tick.cancel()
        if self._collecting not in gc.callbacks:
            return  # it was not started
        gc.callbacks.remove(self._collecting)
        gc.set_threshold(*self._thresholds)
        gc.unfreeze()

    def _collecting(self, phase: str, info: Mapping[str, int]) -> None:
        """See `gc.callbacks`."""
        if phase == "start":
            self._began = self._clock()
            return
        self.collections.observe(self._clock() - self._began)
        if info["generation"] == 0:
            self._rounds += 1
            if self._rounds == SETTLE_ROUNDS:  # the collector itself may not be called here
                self._later(self.settle)

    def settle(self) -> None:
        """Collect what is not set aside, and set aside what survives, if it is much."""
        self._rounds = 0
        self._in_use = min(self._in_use, len(self._departed))
        if len(self._departed) > max(DEPARTED_MAX, 2 * self._in_use):
            self._collect_fully()
        gc.collect()
        if len(gc.get_objects(generation=2)) > SETTLED_MAX:
            gc.freeze()

    def _collect_fully(self) -> None:
        count = len(self._departed)
        gc.unfreeze()
        gc.collect()
        self.full_count += 1
        self._in_use = len(self._departed)
        log = logger("polymq")
        log.warning("collected all garbage", ended=count, still_in_use=self._in_use)

    # --- gaps ---------------------------------------------------------------------------------

    def measure(self, loop: asyncio.AbstractEventLoop) -> None:
        """Measure the loop's lateness until `stop`."""
        due = loop.time() + TICK_SECONDS

        def tick() -> None:
            nonlocal due
            now = loop.time()
            self.gaps.observe(max(0.0, now - due))
            if self.on_tick is not None:
                self.on_tick()
            due = now + TICK_SECONDS
            self._tick = loop.call_at(due, tick)

        self._tick = loop.call_at(due, tick)

    def probes(self) -> list[Probe]:
        """For `/metrics`."""
        return [
            histogram(
                "polymq_gc_pause_seconds",
                "Pauses of Python's garbage collector.",
                self.collections,
            ),
            histogram(
                "polymq_loop_gap_seconds",
                "Delay of a timer that the server runs fifty times a second.",
                self.gaps,
            ),
            counter(
                "polymq_gc_full_collections",
                "Full garbage collections, which examine every object of the process.",
                lambda: self.full_count,
            ),
            gauge(
                "polymq_ended_in_memory",
                "Connections that have ended and are still in memory.",
                lambda: len(self._departed),
            ),
        ]
