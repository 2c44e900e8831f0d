"""Fixtures of the engine's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.broker import Broker
from tests.harness.people import add_user


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker on an empty directory, stopped at the end."""
    made = Broker(tmp_path / "data")
    yield made
    made.stop()


@pytest.fixture
def people(broker: Broker) -> Broker:
    """A broker with the users ann, who has no rights yet, and root, who may do everything."""
    add_user(broker, "ann")
    add_user(broker, "root", "admin")
    return broker
