"""Values with their names, and small tables, on a screen about one object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nicegui import ui


def show_fields(fields: Mapping[str, object]) -> None:
    """Names at the left, values at the right; below each other on a phone."""
    with ui.element("dl").classes("w-full q-ma-none"):
        for name, value in fields.items():
            with ui.row().classes("w-full q-py-xs gap-2"):
                with ui.element("dt").classes("text-weight-medium").style("min-width: 11em"):
                    ui.label(name)
                with ui.element("dd").classes("q-ma-none col").style("overflow-wrap: anywhere"):
                    ui.label(str(value))


def show_text(text: str) -> None:
    """What somebody else wrote, as it is: with its blanks, and not as Markdown or HTML, which could
    load pictures from elsewhere."""
    ui.label(text).classes("w-full").style(
        "white-space: pre-wrap; overflow-wrap: anywhere; font-family: monospace"
    )


def show_rows(title: str, headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table that is small enough to be shown whole."""
    ui.label(title).classes("text-h6 q-mt-md").props("role=heading aria-level=2")
    if not rows:
        ui.label("none").classes("text-grey")
        return
    names = [f"c{at}" for at in range(len(headings))]
    ui.table(
        columns=[
            {"name": name, "field": name, "label": label, "align": "left"}
            for name, label in zip(names, headings, strict=True)
        ],
        rows=[
            {"key": at, **dict(zip(names, map(str, row), strict=True))}
            for at, row in enumerate(rows)
        ],
        row_key="key",
    ).props('flat dense wrap-cells hide-pagination :grid="Quasar.Screen.lt.sm"').classes("w-full")
