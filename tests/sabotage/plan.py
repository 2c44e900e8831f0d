"""What a sabotage is, and how it is put into a source text.

A *sabotage* is a mistake that somebody could make in one line: the exact old text, the new text,
and the suite that has to notice. It is data. The old text has to be found exactly once, or else
the code has moved on and the sabotage says nothing any more.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sabotage:
    """One mistake, made on purpose.

    Attributes:
        name: as the report and `--only` have it.
        why: what a user would lose.
        path: the file, from the project's root.
        old, new: the text that is replaced, and what stands there instead.
        tests: what pytest is to run: files, or tests of them.
        crash: arguments of `make crash` that are run too; empty for none.
        pure: the kernels in plain Python are run (compiled ones do not see the change).
    """

    name: str
    why: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...] = ()
    crash: str = ""
    pure: bool = False

    def commands(self) -> list[tuple[str, ...]]:
        """The suites, as arguments for `python -m`; the next is run if one notices nothing."""
        found: list[tuple[str, ...]] = []
        if self.tests:
            found.append(("pytest", *PYTEST_OPTIONS, *self.tests))
        if self.crash:
            found.append(("tests.crash", "--processes", "1", *shlex.split(self.crash)))
        return found

    def digest(self) -> str:
        """The same for the same mistake and the same suites."""
        return blake2b(repr(self).encode(), digest_size=16).hexdigest()

    def apply(self, text: str) -> str:
        """The file's text with the mistake in it. Raises ValueError."""
        count = text.count(self.old)
        if count != 1:
            raise ValueError(f"{self.name}: its old lines are {count} times in {self.path}")
        return text.replace(self.old, self.new)


# Always the same order and the same examples: a mistake that is noticed now and then is not.
PYTEST_OPTIONS = (
    *("-x", "-q", "--tb=no", "--no-header", "--hypothesis-seed=0"),
    *("-p", "no:randomly", "-p", "no:cacheprovider", "-p", "tests.sabotage.witness"),
)


def problems(sabotages: Iterable[Sabotage], root: Path = ROOT) -> list[str]:
    """What is wrong with the list: a sentence each."""
    found = []
    seen: set[str] = set()
    for sabotage in sabotages:
        name = sabotage.name
        if name in seen:
            found.append(f"{name}: there are two of this name")
        seen.add(name)
        try:
            sabotage.apply((root / sabotage.path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            found.append(str(error))
        if sabotage.old == sabotage.new or not sabotage.commands():
            found.append(f"{name}: it changes nothing, or nothing is run for it")
        found += [f"{name}: there is no {test}" for test in sabotage.tests if not _is(root, test)]
    return found


def _is(root: Path, test: str) -> bool:
    """Whether there is this file, and this test in it."""
    path, _, name = test.partition("::")
    if not (root / path).exists():
        return False
    text = "" if not name else (root / path).read_text(encoding="utf-8")
    return not name or f"def {name.partition('[')[0]}(" in text
