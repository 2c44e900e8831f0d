"""What each test of MQTT 5.0 gets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from interop_tests.mqtt_conformance.client import Case
from interop_tests.mqtt_conformance.conftest import Peer


@pytest.fixture
def case(peer: Peer) -> Iterator[Case]:
    """Names and connections of one test."""
    with Case(peer.port) as found:
        yield found
