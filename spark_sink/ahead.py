"""Reading ahead: a thread fetches what comes next while its caller works on what came before.

Rules:

* What waits is bounded in bytes: the thread fetches the next item only while less than that waits.
* The order stays, and an error comes where it happened, behind the items before it.
* When the caller ends early, the thread ends with the item that it is fetching. It is waited for a
  moment only: it may be asking a broker that is away.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from threading import Condition, Thread
from typing import Final, Generic, TypeVar

END_SECONDS_MAX: Final = 1.0
"""How long the end of the thread is waited for."""

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
    ahead = _Ahead(items, bytes_max, size)
    thread = Thread(target=ahead.fetch, name="read-ahead", daemon=True)
    thread.start()
    try:
        yield from ahead.items()
    finally:
        ahead.stop()
        thread.join(END_SECONDS_MAX)


class _Ahead(Generic[Item]):
    """What the thread and its caller share."""

    def __init__(self, items: Iterator[Item], bytes_max: int, size: Callable[[Item], int]) -> None:
        self._items = items
        self._bytes_max = bytes_max
        self._size = size
        self._changed = Condition()  # guards all of the following
        self._waiting: deque[Item] = deque()
        self._waiting_bytes = 0
        self._stopped = False  # by the caller
        self._ended = False  # the thread fetches nothing more
        self._failure: BaseException | None = None  # why

    def fetch(self) -> None:
        """What the thread does."""
        failure: BaseException | None = None
        try:
            for item in self._items:
                if not self._add(item):
                    break
        except BaseException as error:  # noqa: BLE001  (raised again where the items are wanted)
            failure = error
        with self._changed:
            self._ended, self._failure = True, failure
            self._changed.notify_all()

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
        """The items in their order. Raises what fetching them raised."""
        while True:
            with self._changed:
                while not self._waiting and not self._ended:
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
