"""The list of sabotages is true to the code, and the command tells caught from not caught."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.sabotage.plan import Sabotage, problems
from tests.sabotage.runs import Verdict, judge_crash, judge_tests
from tests.sabotage.sabotages import SABOTAGES


def test_every_sabotage_still_fits_the_code() -> None:
    """Whoever changes such a line says in the list how it is broken now."""
    assert problems(SABOTAGES) == []


def sabotage(**changes: object) -> Sabotage:
    fields = {"name": "x", "why": "", "path": "x.py", "old": "a < b", "new": "a <= b"}
    return Sabotage(**{**fields, "tests": ("test_x.py::test_a",), **changes})  # type: ignore[arg-type]


def test_what_does_not_fit_is_told(tmp_path: Path) -> None:
    """Old lines that are gone or stand twice, tests that are not there, names that stand twice."""
    (tmp_path / "x.py").write_text("a < b\nc < d\nc < d\n")
    (tmp_path / "test_x.py").write_text("def test_a() -> None: ...\n")
    assert problems([sabotage()], tmp_path) == []
    wrong = [
        sabotage(old="b < a"),
        sabotage(old="c < d"),
        sabotage(path="y.py"),
        sabotage(new="a < b"),
        sabotage(tests=()),
        sabotage(tests=("test_y.py",)),
        sabotage(tests=("test_x.py::test_b[1]",)),
    ]
    assert [len(problems([one], tmp_path)) for one in wrong] == [1] * len(wrong)
    assert problems([sabotage(), sabotage()], tmp_path) == ["x: there are two of this name"]


@pytest.mark.parametrize(
    ("code", "when", "kinds", "verdict"),
    [
        (1, "call", ["AssertionError"], Verdict.CAUGHT),
        (1, "call", ["Failed"], Verdict.CAUGHT),
        (1, "call", ["StoreCorrupt", "StoreError"], Verdict.CAUGHT),
        (1, "call", ["UnboundLocalError", "NameError"], Verdict.BROKEN),
        (1, "collect", ["NoneType"], Verdict.BROKEN),
        (2, "call", ["AssertionError"], Verdict.BROKEN),
        (1, "", [], Verdict.BROKEN),
    ],
)
def test_only_a_complaint_of_a_test_counts(
    tmp_path: Path, code: int, when: str, kinds: list[str], verdict: Verdict
) -> None:
    witness = tmp_path / "witness.json"
    if when:
        found = {"node": "t", "when": when, "error": kinds[0], "kinds": kinds, "place": "t.py:7"}
        witness.write_text(json.dumps(found))
    assert judge_tests(code, witness, "")[0] is verdict


@pytest.mark.parametrize(
    ("output", "verdict"),
    [
        ("1 violations\nseed 7, state 3 (kill): AssertionError: lost", Verdict.CAUGHT),
        ("1 violations\nseed 7, state 3 (kill): NameError: x", Verdict.BROKEN),
        ("Traceback ...\nNameError: x", Verdict.BROKEN),
    ],
)
def test_only_a_violation_counts(output: str, verdict: Verdict) -> None:
    assert judge_crash(output)[0] is verdict
