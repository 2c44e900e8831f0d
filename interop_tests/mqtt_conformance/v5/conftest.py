"""What each test of MQTT 5.0 gets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from interop_tests.mqtt5_wire import P
from interop_tests.mqtt_conformance.client import Case
from interop_tests.mqtt_conformance.conftest import Peer


@pytest.fixture
def case(peer: Peer) -> Iterator[Case]:
    """Names and connections of one test."""
    with Case(peer.port) as found:
        yield found


@pytest.fixture
def shared_subscriptions(case: Case) -> None:
    """A server need not have them, if its CONNACK says so (5.0 part 3.2.2.3.13)."""
    if not case.connect("asks").connack.number(P.SHARED, 1):
        pytest.skip("the server says in CONNACK that it has no shared subscriptions")
