"""The inputs that a search has found worth keeping, replayed."""

from __future__ import annotations

import pytest

from tests.fuzz.cases import CASES_MAX, read_cases, seeds
from tests.fuzz.parsers import TARGETS, check, check_costs

CASES = sorted({*read_cases(), *seeds()})


@pytest.mark.parametrize("target", range(len(TARGETS) + 1))
def test_each_way_to_read_an_input_yields_the_same(target: int) -> None:
    """Whole, byte by byte and cut, in both forms; packets or a protocol error."""
    cases = [case for case in CASES if case[0] % (len(TARGETS) + 1) == target]
    assert cases
    for case in cases:
        check(case)


@pytest.mark.parametrize("target", range(len(TARGETS) + 1))
def test_steps_and_memory_are_bounded_by_the_size_of_an_input(target: int) -> None:
    """Also of inputs that repeat themselves until they are as long as they may be."""
    cases = [case for case in CASES if case[0] % (len(TARGETS) + 1) == target]
    for case in cases[::8]:
        check_costs(case)
        check_costs(case[:1] + case[1:] * 100)


def test_not_too_many_are_kept() -> None:
    assert len(read_cases()) <= CASES_MAX
