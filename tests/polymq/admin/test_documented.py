"""The table of operations in docs/admin-api.md: it has all that there are, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from docs.site.commands import leaves
from docs.site.operations import REACHED, Reached, command_cell, is_reason
from polymq.admin.operations import Group
from tests.harness.broker import Broker
from tests.polymq.admin.harness import groups_of

PAGE = Path(__file__).parents[3] / "docs" / "admin-api.md"
UNKNOWN = Reached("(add it to docs/site/operations.py)", "(add it to docs/site/operations.py)")
BEGIN, END = "<!-- operations -->\n", "<!-- end of operations -->"


def table(groups: list[Group]) -> Iterator[str]:
    """What the page has to have between its marks."""
    yield ""
    yield "| object | operation | right | what it does | command | console |"
    yield "|---|---|---|---|---|---|"
    for group in groups:
        name = group.name
        for one in group.operations:
            key = f"{one.method} {one.path}"
            reached = REACHED.get(key, UNKNOWN)
            cells = f"{command_cell(reached.command)} | {reached.console}"
            yield f"| {name} | `{key}` | `{one.right}` | {one.summary} | {cells} |"
            name = ""
    yield ""


def test_the_table_is_that_of_the_code(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data", with_state_db=False)
    groups = groups_of(broker)
    wanted = "\n".join(table(groups))
    broker.stop()
    there = [f"{one.method} {one.path}" for group in groups for one in group.operations]
    assert list(REACHED) == there, "the same operations, in the same order"
    _, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    found, _, _ = rest.partition(END)
    assert found.rstrip("\n") == wanted.rstrip("\n"), f"docs/admin-api.md has to have\n{wanted}"


def test_the_commands_of_the_table_are_there() -> None:
    """A command that is renamed is renamed in the table, too."""
    found = {" ".join(path) for path, _ in leaves()}
    cells = [one.command for one in REACHED.values() if not is_reason(one.command)]
    assert {name for cell in cells for name in cell.split(", ")} - found == set()
