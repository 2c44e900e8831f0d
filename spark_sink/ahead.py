"""Reading ahead: threads fetch what comes next while their caller works on what came before.

Rules:

* What waits is bounded in bytes: a thread fetches its next item only while less than that waits.
* The items of one source come in their order. An error comes behind the items before it, and is the
  end of all sources.
* When the caller ends early, each thread ends with the item that it is fetching. They are waited
  for a moment only: they may be asking a broker that is away.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from threading import Condition, Thread
from typing import Final, Generic, TypeVar

END_SECONDS_MAX: Final = 1.0
"""How long the end of the threads is waited for."""

Item = TypeVar("Item")


def read_ahead(
    items: Iterator[Item], *, bytes_max: int, size: Callable[[Item], int]
) -> Generator[Item, None, None]:
    """The same items. Close it at an early end.

    Args:
        bytes_max: of items that wait; 0: each is fetched when it is asked for, without a thread.
        size: of an item in bytes.
    """
    if not bytes_max:
        yield from items
        return
    yield from gather([items], at_once=1, bytes_max=bytes_max, size=size)


def gather(
    sources: Iterable[Iterator[Item]],
    *,
    at_once: int,
    bytes_max: int,
    size: Callable[[Item], int],
) -> Generator[Item, None, None]:
    """The items of all sources. Close it at an early end.

    Args:
        at_once: how many sources are read at the same time, each in a thread.
        bytes_max: of items that wait.
        size: of an item in bytes.
    """
    ahead = _Ahead(sources, at_once, bytes_max, size)
    threads = [
        Thread(target=ahead.fetch, name=f"read-ahead-{number}", daemon=True)
        for number in range(at_once)
    ]
    for thread in threads:
        thread.start()
    try:
        yield from ahead.items()
    finally:
        ahead.stop()
        deadline = time.monotonic() + END_SECONDS_MAX
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))


class _Ahead(Generic[Item]):
    """What the threads and their caller share."""

    def __init__(
        self,
        sources: Iterable[Iterator[Item]],
        at_once: int,
        bytes_max: int,
        size: Callable[[Item], int],
    ) -> None:
        self._bytes_max = bytes_max
        self._size = size
        self._changed = Condition()  # guards all of the following
        self._sources = iter(sources)
        self._waiting: deque[Item] = deque()
        self._waiting_bytes = 0
        self._stopped = False  # by the caller
        self._running_count = at_once  # threads that fetch
        self._failure: BaseException | None = None  # the first one

    def fetch(self) -> None:
        """What each thread does."""
        failure: BaseException | None = None
        try:
            while (source := self._next_source()) is not None:
                for item in source:
                    if not self._add(item):
                        return
        except BaseException as error:  # noqa: BLE001  (raised again where the items are wanted)
            failure = error
        finally:
            with self._changed:
                self._running_count -= 1
                self._failure = self._failure or failure
                self._changed.notify_all()

    def _next_source(self) -> Iterator[Item] | None:
        with self._changed:
            return None if self._stopped else next(self._sources, None)

    def _add(self, item: Item) -> bool:
        """Let an item wait, until the next one may be fetched. False: none is wanted."""
        with self._changed:
            self._waiting.append(item)
            self._waiting_bytes += self._size(item)
            self._changed.notify_all()
            while self._waiting_bytes >= self._bytes_max and not self._stopped:
                self._changed.wait()
            return not self._stopped

    def items(self) -> Iterator[Item]:
        """The items. Raises what fetching them raised."""
        while True:
            with self._changed:
                while not self._waiting and self._running_count and self._failure is None:
                    self._changed.wait()
                if not self._waiting:
                    break
                item = self._waiting.popleft()
                self._waiting_bytes -= self._size(item)
                self._changed.notify_all()
            yield item
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """No further item is wanted."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
