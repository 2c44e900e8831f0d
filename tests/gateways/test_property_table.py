"""The table of `docs/properties.md`, cell by cell: what one protocol publishes, another reads."""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.gateways.property_readers import BODY, COLUMNS, PARQUET, READERS, Sent
from tests.gateways.property_rows import ROWS, UNSAYABLE, Value
from tests.test_tidy import ROOT

START: Final = "<!-- table: tests/gateways/test_property_table.py -->\n"
END: Final = "<!-- end of table -->\n"


def cases() -> list[Any]:
    """Each cell of the table, for each protocol that publishes what the row is about."""
    found = []
    for row in ROWS:
        for column, cell in zip(COLUMNS, row.cells, strict=True):
            for sender, sent in row.sent.items():
                value = cell.of.get(sender, cell.value)
                if value is not None:
                    name = f"{row.meaning}: {sender} -> {column}"
                    found.append(pytest.param(column, sent, row.body, value, id=name))
    return found


@pytest.mark.parametrize(("column", "sent", "body", "value"), cases())
def test_each_cell_of_the_table(column: str, sent: Sent, body: bytes, value: Value) -> None:
    name, expected = value
    found = READERS[column](sent, body)
    if name is None:
        assert expected not in " ".join(map(str, found.values()))
    else:
        assert found.get(name) == expected


@pytest.mark.parametrize(
    ("column", "sent", "value"),
    [
        pytest.param(column, sent, value, id=f"{meaning}: {kind} -> {column}, {value[0]:.20}")
        for meaning, senders, readers in UNSAYABLE
        for kind, sent in senders.items()
        for column, _, value in readers
    ],
)
def test_what_cannot_be_said(column: str, sent: Sent, value: Value) -> None:
    name, expected = value
    assert name is not None
    assert READERS[column](sent, BODY).get(name) == expected


def test_every_cell_is_tried() -> None:
    """And every column has a publisher somewhere, but for Parquet, which publishes nothing."""
    for row in ROWS:
        for column, cell in zip(COLUMNS, row.cells, strict=True):
            assert cell.value or cell.of, (row.meaning, column)
    assert {sender for row in ROWS for sender in row.sent} == {*COLUMNS} - {PARQUET}


def tables() -> str:
    """Both tables, as the page has them."""
    lines = [f"| | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    lines += [f"| {row.meaning} | {' | '.join(cell.text for cell in row.cells)} |" for row in ROWS]
    lines += ["", "What one protocol has and another cannot say:", ""]
    lines += ["| | what becomes of it |", "|---|---|"]
    for meaning, _, readers in UNSAYABLE:
        texts: dict[str, list[str]] = {}
        for column, text, _ in readers:
            columns = texts.setdefault(text, [])
            if column not in columns:
                columns.append(column)
        cell = "; ".join(f"{', '.join(columns)}: {text}" for text, columns in texts.items())
        lines.append(f"| {meaning} | {cell} |")
    return "\n".join(lines) + "\n"


def test_the_page_has_this_table() -> None:
    """If it differs, write what this test shows between the two comments."""
    page = (ROOT / "docs/properties.md").read_text(encoding="utf-8")
    assert page.count(START) == page.count(END) == 1
    assert page.partition(START)[2].partition(END)[0] == tables()
