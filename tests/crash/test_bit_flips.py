"""A small part of `make crash CRASH="--bit-flips 1000"`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from polymq.core_log.kernels import walking
from tests.crash import bit_flips
from tests.crash.bit_flips import KINDS, make_sound, run_trials

if TYPE_CHECKING:
    from polymq.core_log.kernels.writing import Memory


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials are made on a store of 2 MiB."""

    class Directory:
        name = str(tmp_path)

    monkeypatch.setattr(bit_flips, "_made", [(make_sound(2 << 20, tmp_path), Directory())])


@pytest.mark.usefixtures("small")
def test_no_flipped_bit_is_served() -> None:
    """In every kind of file, one bit at a time."""
    outcomes, failures = run_trials(1, 0, 80)
    assert failures == []
    assert {kind for kind, _ in outcomes} == set(KINDS)
    assert ("log", "no difference") not in outcomes
    assert ("packs", "no difference") not in outcomes


@pytest.mark.usefixtures("small")
def test_a_checksum_that_is_not_checked_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken on purpose: reading compares nothing."""
    gather = walking.gather

    def unchecked(
        entries: Memory, stride: int, first: int, memory: Memory, position: int, used: int, _: bool
    ) -> tuple[bytes, int, int]:
        return gather(entries, stride, first, memory, position, used, False)

    monkeypatch.setattr(walking, "gather", unchecked)
    _, failures = run_trials(1, 0, 40)
    assert any("is wrong" in text for text in failures)
