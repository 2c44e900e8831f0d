"""Fixtures of the replication tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.broker import Broker

FOLLOWS = "this broker follows the one at master:10912: publish there"


@pytest.fixture
def master(tmp_path: Path) -> Iterator[Broker]:
    """A broker on an empty directory, stopped at the end."""
    made = Broker(tmp_path / "master")
    yield made
    made.stop()


@pytest.fixture
def slave(tmp_path: Path) -> Iterator[Broker]:
    """A broker that follows, on an empty directory, stopped at the end."""
    made = Broker(tmp_path / "slave", follows=FOLLOWS)
    yield made
    made.stop()
