"""What all tests of the store share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from polymq.core_log.errors import StorageFailed
from polymq.core_log.flusher import Flusher


@pytest.fixture(autouse=True)
def end_all_flushers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Threads of abandoned stores end with the test."""
    made: list[Flusher] = []
    start = Flusher.__init__

    def remember(self: Flusher, **parts: Any) -> None:
        start(self, **parts)
        made.append(self)

    monkeypatch.setattr(Flusher, "__init__", remember)
    yield
    for flusher in made:
        try:
            flusher.stop()
        except StorageFailed:
            continue
