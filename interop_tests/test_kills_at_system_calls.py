"""A handful of `make kills`: the server dies at the n-th write, sync, rename, ..., under load."""

from __future__ import annotations

from pathlib import Path

import pytest

from interop_tests.kills import is_possible, report, run_kills

KILLS = 5


@pytest.mark.disk
@pytest.mark.slow(seconds=30)
@pytest.mark.skipif(not is_possible(), reason="strace is not installed")
def test_nothing_acked_is_lost_when_the_server_dies_at_a_system_call(tmp_path: Path) -> None:
    kills = run_kills(tmp_path, KILLS, seed=7)
    report(kills, 7, 0.0)
    assert kills.counts.total() == KILLS
    assert kills.published.acked
    assert not kills.faults
