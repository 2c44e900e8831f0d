"""The pictures of the documentation: `docs/pictures/*.svg`, drawn from the texts beside them.

A text has one thing a line. Boxes stand on a grid whose cells are counted from 0, and may stand
between cells:

    box NAME COLUMN ROW [WIDTH HEIGHT]: a bold line | a line below it
    store NAME COLUMN ROW [WIDTH HEIGHT]: the same, for what is on the disk
    group NAME COLUMN ROW WIDTH HEIGHT: a frame around cells, with its title
    note COLUMN ROW: text without a box
    FROM -> TO: a label      (also `<->`, and `..>` for what happens later or at times)

Empty lines and lines that begin with `#` say nothing. The first line is what the picture shows, for
those who cannot see it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

CELL_WIDTH: Final = 196
CELL_HEIGHT: Final = 96
BOX_WIDTH: Final = 168
BOX_HEIGHT: Final = 60
MARGIN: Final = 14
LINE_HEIGHT: Final = 17
LABEL_LETTER_WIDTH: Final = 6.8
"""The width of a letter of a label, on average."""

BOX: Final = re.compile(
    r"(?P<kind>box|store|group) (?P<name>\w+) (?P<place>[\d. ]+): ?(?P<text>.*)"
)
NOTE: Final = re.compile(r"note (?P<place>[\d. ]+): ?(?P<text>.*)")
ARROW: Final = re.compile(r"(?P<start>\w+) (?P<kind><?->|\.\.>) (?P<end>\w+)(?:: ?(?P<text>.*))?")

STYLE: Final = """
  text { font-family: system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1c2733; }
  .first { font-size: 14px; font-weight: 600; }
  .more, .note { font-size: 12.5px; fill: #44525f; }
  .label { font-size: 12px; fill: #1c2733; }
  .title { font-size: 12.5px; font-weight: 600; fill: #44525f; }
  .sheet { fill: #ffffff; }
  .box { fill: #eef4fb; stroke: #4a78a8; stroke-width: 1.4; }
  .store { fill: #fdf3e1; stroke: #b0812a; stroke-width: 1.4; }
  .group { fill: #f7f8fa; stroke: #b9c2cc; stroke-width: 1.2; }
  .arrow { stroke: #44525f; stroke-width: 1.5; fill: none; }
  .later { stroke-dasharray: 5 4; }
  .under { fill: #ffffff; fill-opacity: 0.88; }
"""
HEAD: Final = (
    '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
    'orient="auto-start-reverse"><path d="M0 0 L8 4 L0 8 z" fill="#44525f"/></marker>'
)


class PictureError(ValueError):
    """A text that is no picture; names the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A box, a store, or the frame of a group. Lengths are in pixels."""

    kind: str
    x: float
    y: float
    width: float
    height: float
    lines: list[str]

    @property
    def middle(self) -> tuple[float, float]:
        """Where lines to the shape aim."""
        return self.x + self.width / 2, self.y + self.height / 2

    def rim_towards(self, x: float, y: float) -> tuple[float, float]:
        """Where the line from the middle to a point outside leaves the shape."""
        middle_x, middle_y = self.middle
        across, down = x - middle_x, y - middle_y
        share = min(
            self.width / 2 / abs(across) if across else float("inf"),
            self.height / 2 / abs(down) if down else float("inf"),
        )
        return middle_x + across * share, middle_y + down * share


def draw(text: str) -> str:
    """The picture as SVG.

    Raises:
        PictureError: a line that says nothing known, or an arrow to a box that there is not.
    """
    title, *lines = text.strip().splitlines()
    shapes: dict[str, Shape] = {}
    over: list[str] = []
    for number, line in enumerate(lines, 2):
        if not line.strip() or line.startswith("#"):
            continue
        if found := BOX.fullmatch(line):
            shapes[found["name"]] = _shape(found)
        elif found := NOTE.fullmatch(line):
            over.append(_note(found))
        elif (found := ARROW.fullmatch(line)) and {found["start"], found["end"]} <= {*shapes}:
            over.append(_arrow(found, shapes))
        else:
            raise PictureError(f"line {number}: {line}")
    width = max(shape.x + shape.width for shape in shapes.values()) + MARGIN
    height = max(shape.y + shape.height for shape in shapes.values()) + MARGIN
    return "\n".join(
        [
            '<svg xmlns="http://www.w3.org/2000/svg" role="img"',
            f'     viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}">',
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}</style>",
            f"<defs>{HEAD}</defs>",
            f'<rect class="sheet" width="{width:g}" height="{height:g}" rx="8"/>',
            *(part for shape in shapes.values() for part in _drawn(shape)),
            *over,
            "</svg>\n",
        ]
    )


def _shape(found: re.Match[str]) -> Shape:
    column, row, *size = map(float, found["place"].split())
    columns, rows = size or (1.0, 1.0)
    inset_x = 0 if found["kind"] == "group" else (CELL_WIDTH - BOX_WIDTH) / 2
    inset_y = 0 if found["kind"] == "group" else (CELL_HEIGHT - BOX_HEIGHT) / 2
    return Shape(
        kind=found["kind"],
        x=MARGIN + column * CELL_WIDTH + inset_x,
        y=MARGIN + row * CELL_HEIGHT + inset_y,
        width=columns * CELL_WIDTH - 2 * inset_x,
        height=rows * CELL_HEIGHT - 2 * inset_y,
        lines=[line.strip() for line in found["text"].split("|")],
    )


def _drawn(shape: Shape) -> Iterator[str]:
    yield (
        f'<rect class="{shape.kind}" x="{shape.x:g}" y="{shape.y:g}" width="{shape.width:g}" '
        f'height="{shape.height:g}" rx="7"/>'
    )
    if shape.kind == "group":
        yield _text("title", shape.x + 12, shape.y + 20, shape.lines[0], "start")
        return
    x, middle = shape.middle
    y = middle - (len(shape.lines) - 1) * LINE_HEIGHT / 2 + 5
    for number, line in enumerate(shape.lines):
        yield _text("more" if number else "first", x, y + number * LINE_HEIGHT, line)


def _note(found: re.Match[str]) -> str:
    column, row = map(float, found["place"].split())
    x, y = MARGIN + column * CELL_WIDTH + 18, MARGIN + row * CELL_HEIGHT + CELL_HEIGHT / 2 + 4
    return "\n".join(
        _text("note", x, y + number * LINE_HEIGHT, line.strip(), "start")
        for number, line in enumerate(found["text"].split("|"))
    )


def _arrow(found: re.Match[str], shapes: dict[str, Shape]) -> str:
    start, end = shapes[found["start"]], shapes[found["end"]]
    x1, y1 = start.rim_towards(*end.middle)
    x2, y2 = end.rim_towards(*start.middle)
    style = "arrow later" if found["kind"] == "..>" else "arrow"
    back = ' marker-start="url(#head)"' if found["kind"] == "<->" else ""
    parts = [
        f'<path class="{style}" d="M{x1:.1f} {y1:.1f} L{x2:.1f} {y2:.1f}"',
        f'      marker-end="url(#head)"{back}/>',
    ]
    if found["text"]:
        x, y = (x1 + x2) / 2, (y1 + y2) / 2
        width = len(found["text"]) * LABEL_LETTER_WIDTH + 6
        parts.append(
            f'<rect class="under" x="{x - width / 2:.1f}" y="{y - 9:.1f}" '
            f'width="{width:.1f}" height="18" rx="3"/>'
        )
        parts.append(_text("label", x, y + 4, found["text"]))
    return "\n".join(parts)


def _text(style: str, x: float, y: float, text: str, anchor: str = "middle") -> str:
    where = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{style}" {where}>{escape(text)}</text>'


def drawn_pictures(folder: Path) -> dict[Path, str]:
    """Each picture's file, with what has to be in it."""
    return {
        path.with_suffix(".svg"): draw(path.read_text(encoding="utf-8"))
        for path in sorted(folder.glob("*.txt"))
    }
