"""What all tests of the HTTP listener watch for."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def no_mistakes(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No delivery may end in a mistake of ours, whatever a test does to it."""
    yield
    errors = [record for record in caplog.get_records("call") if record.levelno >= logging.ERROR]
    assert errors == []
