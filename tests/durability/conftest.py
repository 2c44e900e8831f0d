"""Fixtures of the durability tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.durability.clients import Sink
from tests.durability.publishers import Publisher
from tests.durability.running import Running, running


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    """A running server with an empty directory, whose disk works."""
    with running(tmp_path / "data") as made:
        yield made


@pytest.fixture
def sink() -> Iterator[Sink]:
    """A webhook's receiver."""
    made = Sink()
    yield made
    made.close()


@pytest.fixture
def publisher(server: Running) -> Iterator[Publisher]:
    """Connections of every kind to publish on."""
    with contextlib.ExitStack() as stack:
        yield Publisher(server, stack)
