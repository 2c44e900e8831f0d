"""A read for which the process had no descriptor is made again, and nobody hears of it."""

from __future__ import annotations

import errno
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from polymq.broker.messages.readers import PatientReaders
from polymq.core_log.errors import CorruptRecord, StorageShort

SHORT: list[Exception] = [StorageShort("no descriptor"), OSError(errno.EMFILE, "too many files")]


class Threads:
    """Reads at once, in the caller's thread."""

    def submit(
        self, read: Callable[[], Any], done: Callable[[Any, Exception | None], None]
    ) -> None:
        try:
            result = read()
        except Exception as error:  # noqa: BLE001  (as the threads do)
            done(None, error)
        else:
            done(result, None)


@pytest.mark.parametrize("short", SHORT)
def test_a_read_is_made_again_until_there_is_a_descriptor(short: Exception) -> None:
    later: list[Callable[[], None]] = []
    outcomes: list[Any] = [short, short, b"message"]
    readers = PatientReaders(Threads(), lambda _seconds, callback: later.append(callback))
    reported: list[tuple[Any, Exception | None]] = []

    def read() -> bytes:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return bytes(outcome)

    readers.submit(read, lambda *answer: reported.append(answer))
    assert not reported
    later.pop()()
    assert not reported
    later.pop()()
    assert reported == [(b"message", None)]
    assert readers.repeated_count == 2


def test_every_other_error_is_told() -> None:
    readers = PatientReaders(Threads(), lambda *_: pytest.fail("tried again"))
    reported: list[Exception | None] = []

    def read() -> bytes:
        raise CorruptRecord(7, "damaged")

    readers.submit(read, lambda _, error: reported.append(error))
    assert [str(error) for error in reported] == ["record at 7: damaged"]


def test_what_was_read_is_free_at_once() -> None:
    """Without the garbage collector, which may have set aside what a read has in its hands."""

    class Group:
        """Whoever asked."""

        def take(self, records: bytes, error: Exception | None) -> None:
            """Get the answer."""

    readers = PatientReaders(Threads(), lambda *_: pytest.fail("tried again"))
    gc.disable()
    try:
        group = Group()
        gone = weakref.ref(group)
        readers.submit(lambda: b"message", group.take)
        del group
        assert gone() is None
    finally:
        gc.enable()
