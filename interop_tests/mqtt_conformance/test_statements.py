"""No statement of the standards that concerns a server is left out, and the page says so."""

from __future__ import annotations

import pytest

from interop_tests.mqtt_conformance import statements_311
from interop_tests.mqtt_conformance.matrix import (
    PAGE,
    VERSIONS,
    Version,
    gaps,
    page,
    read_tests,
    without_results,
)

by_version = pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)


@pytest.mark.parametrize(("version", "count"), [*zip(VERSIONS, (251, 141), strict=True)])
def test_all_statements_are_in_the_table(version: Version, count: int) -> None:
    assert len(version.statements) == count


@by_version
def test_every_statement_for_servers_has_a_test_or_a_reason(version: Version) -> None:
    assert gaps(version) == []


@by_version
def test_tests_are_found(version: Version) -> None:
    """By reading the files: as many as there are, or the check above says nothing."""
    assert len(list(read_tests(version))) > 70


def test_an_unknown_statement_is_refused() -> None:
    with pytest.raises(ValueError, match=r"MQTT-9\.9\.9-1"):
        statements_311.shows("MQTT-9.9.9-1")


def test_the_page_has_all_statements_and_tests() -> None:
    """Its results are those of the run that wrote it."""
    assert without_results(PAGE.read_text(encoding="utf-8")) == without_results(page({}))
