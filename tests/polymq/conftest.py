"""What all tests of the program share."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    """A program that a test runs in this process configures the logs. Later tests get them as they
    were: else they would be written to a stream that is closed by then."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()
