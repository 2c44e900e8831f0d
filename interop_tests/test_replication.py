"""A handful of `make replica-kills`: a master, its slave, or both die under load."""

from __future__ import annotations

from pathlib import Path

import pytest

from interop_tests.replica_kills import KINDS, report, run_kills


@pytest.mark.slow
def test_nothing_acked_is_lost_with_a_broker(tmp_path: Path) -> None:
    kills = run_kills(tmp_path, len(KINDS), seed=7)
    report(kills, 7, 0.0)
    assert kills.counts.total() == len(KINDS)
    assert kills.published.acked
    assert not kills.faults
