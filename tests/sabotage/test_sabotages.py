"""The list of sabotages is true to the code, and the command tells caught from not caught."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path

import pytest

from tests.sabotage import runs
from tests.sabotage.__main__ import PIECE, run_sabotages
from tests.sabotage.builds import CannotBuild, can_build, rebuilt
from tests.sabotage.mutations import TARGETS, Target, draw, mutations, read
from tests.sabotage.pieces import Notes, Pieces
from tests.sabotage.plan import ROOT, Sabotage, problems
from tests.sabotage.runs import Outcome, Verdict, judge_crash, judge_tests
from tests.sabotage.sabotages import SABOTAGES
from tests.sabotage.survivors import EQUIVALENT


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
        found: dict[str, object] = {"node": "t", "when": when, "at": "t.py:7", "text": ""}
        found |= {"error": kinds[0], "kinds": kinds}
        witness.write_text(json.dumps(found))
    assert judge_tests(code, witness, "")[0] is verdict


@pytest.mark.parametrize(
    ("output", "verdict"),
    [
        ("1 violations\nseed 7, state 3 (kill): AssertionError: lost", Verdict.CAUGHT),
        ("1 violations\nseed 7, flip 3 (packs): Violation: message 0", Verdict.CAUGHT),
        ("1 violations\nseed 7, state 3 (kill): NameError: x", Verdict.BROKEN),
        ("Traceback ...\nNameError: x", Verdict.BROKEN),
    ],
)
def test_only_a_violation_counts(output: str, verdict: Verdict) -> None:
    assert judge_crash(output)[0] is verdict


# --- mutations --------------------------------------------------------------------------------

SAMPLE = '''
LIMIT = 5

def f(self, a: int = 3) -> bool:
    """Prose."""
    assert a > 0
    self.files.fdatasync(a)
    if not a or a - 1 < min(a, 2):
        raise ValueError(f"{a + 1}")
    return True
'''


def test_every_token_that_counts_is_changed() -> None:
    """All kinds of change, and none where no test is wanted: limits, assertions, texts, types."""
    found = list(mutations(Target("x.py", ()), SAMPLE))
    assert [(m.line, m.new_line) for m in found] == [
        (7, "pass"),
        (8, "if (not a and a - 1 < min(a, 2)):"),
        (8, "if a or a - 1 < min(a, 2):"),
        (8, "if not a or (a - 1 <= min(a, 2)):"),
        (8, "if not a or (a + 1) < min(a, 2):"),
        (8, "if not a or a - 2 < min(a, 2):"),
        (8, "if not a or a - 1 < max(a, 2):"),
        (8, "if not a or a - 1 < min(a, 3):"),
        (10, "return False"),
    ]
    assert all(ast.dump(ast.parse(m.new)) != ast.dump(ast.parse(SAMPLE)) for m in found)


def test_a_seed_draws_the_same_mutations() -> None:
    """Else nobody could repeat a run; and each is one change that still is Python."""
    first, second = draw(9, 7), draw(9, 7)
    assert first == second
    assert len({m.new for m in first}) == 9
    for mutation in first:
        ast.parse(mutation.new)
        assert mutation.sabotage().apply(mutation.old) == mutation.new


def test_what_survives_for_a_reason_still_fits_the_code() -> None:
    """A reason for a line that is gone is a reason for nothing."""
    there = {
        (target.path, m.function, m.old_line, m.new_line)
        for target in TARGETS
        if target.path in {path for path, *_ in EQUIVALENT}
        for m in mutations(target, read(ROOT / target.path))
    }
    assert set(EQUIVALENT) - there == set()


# --- pieces -----------------------------------------------------------------------------------


def test_a_long_run_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A piece that has no time left runs nothing; the next one runs what is not noted, and tells
    all of it."""
    tried: list[str] = []

    def try_out(
        directory: Path, wanted: Sabotage | None, commands: object, limit: float
    ) -> Outcome:
        tried.append("as it is" if wanted is None else wanted.name)
        return Outcome(Verdict.MISSED if wanted is None else Verdict.CAUGHT, "how", 1.0)

    @contextmanager
    def copies(count: int) -> Iterator[list[Path]]:
        yield [tmp_path] * count

    monkeypatch.setattr("tests.sabotage.pieces.try_out", try_out)
    monkeypatch.setattr("tests.sabotage.pieces.copies", copies)
    chosen = [sabotage(name=name) for name in ("a", "b")]

    def piece(end: float, *wanted: Sabotage) -> list[str]:
        notes = Notes(tmp_path / "notes")
        pieces = Pieces(processes=1, limit_seconds=9.0, notes=notes, end=end)
        return ["as it is" if one is None else one.name for one, _ in pieces.run(wanted)]

    assert piece(-inf, *chosen) == []
    assert piece(inf, chosen[0]) == ["as it is", "a"]
    assert piece(-inf, *chosen) == ["as it is", "a"]
    assert piece(inf, *chosen) == ["as it is", "a", "b"]
    assert piece(inf, sabotage(name="a", new="b < a")) == ["as it is", "a"]
    assert tried == ["as it is", "a", "b", "a"]


def test_a_run_is_whole_when_the_code_as_it_is_was_tried_too() -> None:
    """That everything was caught means nothing before: the suites might complain in any case."""

    class Found(Pieces):
        def run(self, chosen: Sequence[Sabotage]) -> Iterator[tuple[Sabotage | None, Outcome]]:
            yield from ((one, Outcome(Verdict.CAUGHT, "how", 1.0)) for one in chosen)
            if self.processes > 1:
                yield None, Outcome(Verdict.MISSED, "how", 1.0)

    def code(processes: int) -> int:
        pieces = Found(processes=processes, limit_seconds=9.0, notes=Notes(None), end=inf)
        return run_sabotages([sabotage()], pieces)

    assert (code(1), code(2)) == (PIECE, 0)


# --- compiled kernels -----------------------------------------------------------------------------


def test_a_kernel_is_skipped_where_nothing_compiles(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is said, and it is no failure: the same list is caught where there is a compiler."""
    monkeypatch.setattr(runs, "can_build", lambda: False)
    outcome = runs.try_out(tmp_path, sabotage(path="x.pyx"), [("pytest",)], 9.0)
    assert outcome.verdict is Verdict.SKIPPED
    assert "compiler" in outcome.how


def test_a_kernel_that_does_not_compile_is_not_caught(tmp_path: Path) -> None:
    (tmp_path / "x.pyx").write_text("a < b\n")
    with (
        pytest.raises(CannotBuild, match="not compiled here"),
        rebuilt(tmp_path, tmp_path / "x.pyx"),
    ):
        pass


@pytest.mark.skipif(not can_build(), reason="there is no C compiler")
@pytest.mark.slow(seconds=10)
def test_a_broken_kernel_is_built_and_the_sound_one_comes_back(tmp_path: Path) -> None:
    """In its place, from the source as it is then."""
    source = tmp_path / "kernel.pyx"
    module = tmp_path / f"kernel{sysconfig.get_config_var('EXT_SUFFIX')}"
    module.write_bytes(b"the sound one")
    source.write_text("def answer(): return 41\n")
    with rebuilt(tmp_path, source):
        command = [sys.executable, "-c", "import kernel; print(kernel.answer())"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("41\n", "")
    assert module.read_bytes() == b"the sound one"
    assert not source.with_suffix(".c").exists()
    source.write_text("def answer( return 41\n")
    with pytest.raises(CannotBuild, match="does not compile"), rebuilt(tmp_path, source):
        pass
    assert module.read_bytes() == b"the sound one"
