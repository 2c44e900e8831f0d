"""Fixtures of the AMQP gateway's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateways.amqp.amqp_harness import Bench
from tests.harness.broker import Broker


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """AMQP clients over an engine on an empty directory."""
    broker = Broker(tmp_path / "data")
    yield Bench(broker)
    broker.stop()
