"""Which test shows which statement: the tables of the standards and the tests, put together.

The tests are read, not imported: what counts is what their decorators say (`@shows(...)`).
`__main__.py` writes `docs/mqtt-conformance.md` from this and a run; `test_statements.py` checks
that no statement that concerns servers is left out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from interop_tests.mqtt_conformance import statements_5, statements_311
from interop_tests.mqtt_conformance.statements import Concerns, Table

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parent.parent
PAGE: Final = ROOT / "docs" / "mqtt-conformance.md"
TITLE: Final = "# MQTT conformance"
OUTCOMES: Final = ("failed", "skipped", "passed")
"""Of all runs of a test, the first of these that occurred is shown."""


@dataclass(frozen=True, slots=True)
class Version:
    """A version of the standard, with its statements and the folder of its tests."""

    name: str
    folder: str
    statements: Table


VERSIONS: Final = (
    Version("5.0", "v5", statements_5.STATEMENTS),
    Version("3.1.1", "v311", statements_311.STATEMENTS),
)


@dataclass(frozen=True, slots=True)
class Test:
    """A test function and what it shows."""

    path: str
    """Of its file, from the root of the tree."""
    name: str
    statements: tuple[str, ...]


def read_tests(version: Version) -> Iterator[Test]:
    """All tests of a version, file by file."""
    for path in sorted((HERE / version.folder).glob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                shown = [
                    argument.value
                    for decorator in node.decorator_list
                    if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "shows"
                    for argument in decorator.args
                    if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
                ]
                yield Test(str(path.relative_to(ROOT)), node.name, tuple(shown))


def find_tests(version: Version) -> dict[str, list[Test]]:
    """The tests of each statement of a version; an empty list where there is none."""
    found: dict[str, list[Test]] = {identifier: [] for identifier in version.statements}
    for test in read_tests(version):
        for identifier in test.statements:
            found[identifier].append(test)
    return found


def gaps(version: Version) -> list[str]:
    """Statements that concern servers, and have neither a test nor a reason, or both; tests that
    show none."""
    found = [
        f"{one.path}: {one.name} shows nothing" for one in read_tests(version) if not one.statements
    ]
    for identifier, tests in find_tests(version).items():
        statement = version.statements[identifier]
        if tests and statement.untested:
            found.append(f"{identifier} has a test, and a reason why it has none")
        elif not tests and not statement.untested and statement.concerns != Concerns.CLIENT:
            found.append(f"{identifier} has no test")
    return found


# --- the page ------------------------------------------------------------------------------------

Results = dict[tuple[str, str], str]
"""(path, name) of a test -> the worst outcome of its runs."""


INTRODUCTION: Final = f"""{TITLE}

The OASIS standards of MQTT number their normative statements. These tables list all of them, in our
words, with the tests that show them against a started server, and the result of the last run.
Statements that concern clients alone need no test of a server; where they have one, it shows what
the server does when a client breaks them.

`python -m interop_tests.mqtt_conformance` runs the tests and writes this page. The tests are in
[interop_tests/mqtt_conformance](../interop_tests/mqtt_conformance/README.md)."""


def page(results: Results) -> str:
    """The page that shows all this, with the outcomes of a run."""
    lines = [INTRODUCTION]
    for version in VERSIONS:
        lines += ["", f"## MQTT {version.name}", "", _summary(version, results), ""]
        lines += ["| statement | concerns | what it says | tests | result |"]
        lines += ["|---|---|---|---|---|", *_rows(version, results)]
    return "\n".join(lines) + "\n"


def _summary(version: Version, results: Results) -> str:
    tested = find_tests(version)
    servers = [
        identifier
        for identifier, statement in version.statements.items()
        if statement.concerns != Concerns.CLIENT
    ]
    shown = [identifier for identifier in servers if tested[identifier]]
    passed = [one for one in shown if _outcome(tested[one], results) == "passed"]
    return (
        f"{len(version.statements)} statements, of which {len(servers)} concern servers:"
        f" {len(shown)} have tests, and {len(servers) - len(shown)} a reason why not."
        f" All tests of {len(passed)} of them pass."
    )


def _outcome(tests: list[Test], results: Results) -> str:
    outcomes = {results.get((test.path, test.name), "") for test in tests}
    return next((outcome for outcome in OUTCOMES if outcome in outcomes), "not run")


def _rows(version: Version, results: Results) -> Iterator[str]:
    for identifier, tests in find_tests(version).items():
        statement = version.statements[identifier]
        links = "<br>".join(f"[{test.name}](../{test.path})" for test in tests)
        result = _outcome(tests, results) if tests else statement.untested
        fields = (identifier, statement.concerns.value, statement.text, links, result)
        yield f"| {' | '.join(fields)} |"


def without_results(text: str) -> list[str]:
    """The rows of a page less their last column, which depends on a run."""
    return [line.rpartition(" | ")[0] for line in text.splitlines() if line.startswith("| MQTT")]
