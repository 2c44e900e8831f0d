"""The table of operations in docs/admin-api.md: it has all that there are, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from polymq.admin.operations import Group
from tests.harness.broker import Broker
from tests.polymq.admin.harness import groups_of

PAGE = Path(__file__).parents[3] / "docs" / "admin-api.md"
BEGIN, END = "<!-- operations -->\n", "<!-- end of operations -->"


def table(groups: list[Group]) -> Iterator[str]:
    """What the page has to have between its marks."""
    yield ""
    yield "| object | operation | right | what it does |"
    yield "|---|---|---|---|"
    for group in groups:
        name = group.name
        for one in group.operations:
            yield f"| {name} | `{one.method} {one.path}` | `{one.right}` | {one.summary} |"
            name = ""
    yield ""


def test_the_table_is_that_of_the_code(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data", with_state_db=False)
    wanted = "\n".join(table(groups_of(broker)))
    broker.stop()
    _, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    found, _, _ = rest.partition(END)
    assert found.rstrip("\n") == wanted.rstrip("\n"), f"docs/admin-api.md has to have\n{wanted}"
