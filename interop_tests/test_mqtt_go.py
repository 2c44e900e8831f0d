"""MQTT 5 with Eclipse's paho.golang: its client, and the one that comes back by itself (autopaho).

`mqtt_go/` plays the scenarios; each test looks at one of them. Where there is no Go, or the module
proxy does not answer, they are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from interop_tests.go_programs import need_program
from interop_tests.scenarios import Results, played

pytestmark = pytest.mark.slow(seconds=15)

PROJECT = Path(__file__).parent / "mqtt_go"
SCENARIOS = (
    *("qos", "retained", "will", "session", "manual", "large", "properties", "expiry"),
    *("aliases", "receive_maximum", "options", "request", "kill"),
)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Results]:
    with played(tmp_path_factory.mktemp("go"), [need_program(PROJECT)]) as found:
        yield found


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_paho_for_go(results: Results, scenario: str) -> None:
    results.check(scenario)
