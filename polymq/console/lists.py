"""Screens that are lists: the server filters, sorts and cuts pages; the browser shows one page."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from urllib.parse import quote

from nicegui import events, ui

from polymq.console.details import Action, carry_out
from polymq.console.shell import REFRESH_SECONDS, Console, every, shown_errors
from polymq.console.texts import number, sparkline

PAGE_ROWS: Final = 50
TREND_VALUES: Final = 30
"""Values of a trend: with a refresh every two seconds, those of a minute."""

CARD: Final = """
<div class="col-12 q-pa-xs" @click="$parent.$emit('rowClick', $event, props.row)">
  <q-card flat bordered class="q-pa-sm">
    <div class="text-weight-medium" style="overflow-wrap: anywhere">{{ props.cols[0].value }}</div>
    <span v-for="col in props.cols.slice(1)" :key="col.name" class="q-mr-md">
      <template v-if="!col.is_trend"><span class="text-grey-7">{{ col.label }}</span>
      {{ col.value }}</template>
    </span>
    %s
  </q-card>
</div>
"""
"""A row on a phone. The place is that of the button, if rows have one."""
BUTTON: Final = """
<q-btn flat dense no-caps icon="%s" label="%s" color="negative"
 @click.stop="$parent.$emit('act', props.row.key)"/>
"""

ACT_COLUMN: Final = {"name": "act", "field": "act", "label": "", "align": "right"}

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a list.

    Attributes:
        label: the heading.
        text: what is shown of a row.
        align: numbers stand at the right.
        trend: a number whose last values are drawn as a line instead of the text.
    """

    label: str
    text: Callable[[Row], str] = lambda _row: ""
    align: Literal["left", "right"] = "left"
    trend: Callable[[Row], float] | None = None


def text_column(label: str, name: str) -> Column:
    """A column with a field as it is."""
    return Column(label=label, text=lambda row: str(row.get(name) or "-"))


def number_column(label: str, name: str) -> Column:
    """A column with a number."""
    return Column(label=label, text=lambda row: number(row.get(name)), align="right")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListScreen:
    """A list.

    Attributes:
        parts: of the path of the API.
        key: the field that names a row, or what makes a name of it.
        columns: from left to right.
        sorts: values of `sort` and what they are called.
        filters: parameters that are chosen from lists: the choices with what they are called.
        texts: parameters that are typed, and what they are called.
        opened: called with the key of the row that was clicked on; None: rows do not open.
        query: parameters that are always sent.
        action: what the button of a row does, by the key of the row, for who has the right; None:
            rows have no button. Its label, icon and right are the same for all rows.
    """

    parts: Sequence[str]
    key: str | Callable[[Row], str]
    columns: Sequence[Column]
    sorts: Mapping[str, str] = field(default_factory=dict)
    filters: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=lambda: {"prefix": "Names begin with"})
    opened: Callable[[str], object] | None = None
    query: Mapping[str, object] = field(default_factory=dict)
    action: Callable[[str], Action] | None = None


def opens(path: str) -> Callable[[str], None]:
    """What a click on a row does: it opens the screen of that row below a path."""

    def opened(key: str) -> None:
        ui.navigate.to(f"{path}/{quote(key, safe='')}")

    return opened


class _List:
    """A list while it is shown."""

    def __init__(self, console: Console, screen: ListScreen) -> None:
        self._console = console
        self._screen = screen
        self._before: list[str | None] = []  # where the pages before this one begin
        self._after: str | None = None
        self._next: str | None = None
        self._asked_count = 0
        self._trends: dict[str, deque[float]] = {}
        self._values: dict[str, Any] = dict.fromkeys(screen.filters, "")

    def show(self) -> Callable[[], Awaitable[None]]:
        """Put it on the page. Returns what asks for the rows again."""
        screen = self._screen
        with ui.row().classes("w-full items-center"):
            for name, label in screen.texts.items():
                ui.input(
                    label, on_change=lambda event, name=name: self._chosen(name, event.value)
                ).props("dense clearable debounce=300").classes("list-filter")
            if len(screen.sorts) > 1:
                self._sort: ui.select | None = (
                    ui.select(
                        dict(screen.sorts),
                        value=next(iter(screen.sorts)),
                        label="Sorted by",
                        on_change=self._first,
                    )
                    .props("dense")
                    .style("min-width: 9em")
                )
            else:
                self._sort = None
            for name, choices in screen.filters.items():
                ui.select(
                    dict(choices),
                    value=next(iter(choices)),
                    label=name.capitalize(),
                    on_change=lambda event, name=name: self._chosen(name, event.value),
                ).props("dense").style("min-width: 8em")
            ui.space()
            with ui.row().classes("items-center no-wrap"):
                self._count = ui.label()
                self._back = ui.button(icon="chevron_left", on_click=self._previous).props(
                    'flat dense aria-label="Previous page"'
                )
                self._on = ui.button(icon="chevron_right", on_click=self._following).props(
                    'flat dense aria-label="Next page"'
                )
        self._table = (
            ui.table(rows=[], columns=_columns(screen), row_key="key")
            .props('flat dense wrap-cells :grid="Quasar.Screen.lt.sm" hide-pagination')
            .props('no-data-label="none"')
            .classes("w-full")
        )
        self._add_buttons()
        for at, column in enumerate(screen.columns):
            if column.trend is not None:
                self._table.add_slot(
                    f"body-cell-c{at}",
                    '<q-td :props="props"><span v-html="props.value"></span></q-td>',
                )
        if screen.opened is not None:
            self._table.on("rowClick", self._clicked).classes("cursor-pointer")
        return self.refresh

    def _add_buttons(self) -> None:
        """The button of each row, if who is logged in may use it; and rows on a phone."""
        action, button = self._screen.action, ""
        if action is not None and self._console.may(action("").right):
            button = BUTTON % (action("").icon, action("").label)
            self._table.columns = [*self._table.columns, {**ACT_COLUMN}]
            self._table.add_slot(
                "body-cell-act", f'<q-td :props="props" class="text-right">{button}</q-td>'
            )
            self._table.on("act", self._act)
        self._table.add_slot("item", CARD % button)

    async def refresh(self) -> None:
        """Ask for the rows. Raises ApiError."""
        screen = self._screen
        asked = {
            **screen.query,
            **{name: value or None for name, value in self._values.items()},
            "limit": PAGE_ROWS,
            "after": self._after,
        }
        if self._sort is not None:
            asked["sort"] = self._sort.value
        self._asked_count += 1
        this = self._asked_count
        answer = await self._console.ask("GET", *screen.parts, query=asked)
        if this != self._asked_count:
            return  # another page or other filters were asked for meanwhile
        self._next = answer["next"]
        before, self._trends = self._trends, {}  # of rows that are gone, nothing is kept
        self._table.rows = [self._shown(row, before) for row in answer["items"]]
        first = len(self._before) * PAGE_ROWS
        last = first + len(answer["items"])
        shown = f"{first + 1:,} to {last:,} of " if last else ""
        self._count.set_text(f"{shown}{answer['total']:,}")
        self._back.set_enabled(bool(self._before))
        self._on.set_enabled(self._next is not None)

    def _shown(self, row: Row, before: Mapping[str, deque[float]]) -> Row:
        named = self._screen.key
        key = named(row) if callable(named) else str(row[named])
        cells: Row = {"key": key}
        for at, column in enumerate(self._screen.columns):
            if column.trend is None:
                cells[f"c{at}"] = column.text(row)
                continue
            values = before.get(f"{at} {key}") or deque(maxlen=TREND_VALUES)
            self._trends[f"{at} {key}"] = values
            values.append(column.trend(row))
            cells[f"c{at}"] = sparkline(values)
        return cells

    async def _turned(self) -> None:
        """Show another page now."""
        self._trends.clear()
        with shown_errors():
            await self.refresh()

    async def _first(self) -> None:
        self._before, self._after = [], None
        await self._turned()

    async def _chosen(self, name: str, value: str) -> None:
        self._values[name] = value
        await self._first()

    async def _following(self) -> None:
        if self._next is not None:
            self._before.append(self._after)
            self._after = self._next
            await self._turned()

    async def _previous(self) -> None:
        if self._before:
            self._after = self._before.pop()
            await self._turned()

    async def _act(self, event: events.GenericEventArguments) -> None:
        action = self._screen.action
        assert action is not None, "there is a button"
        if await carry_out(self._console, action(event.args), {}):
            await self._turned()

    def _clicked(self, event: events.GenericEventArguments) -> None:
        opened = self._screen.opened
        if opened is not None:
            opened(event.args[1]["key"])


def _columns(screen: ListScreen) -> list[dict[str, Any]]:
    return [
        {
            "name": f"c{at}",
            "field": f"c{at}",
            "label": column.label,
            "align": column.align,
            "is_trend": column.trend is not None,
        }
        for at, column in enumerate(screen.columns)
    ]


def show_list(console: Console, screen: ListScreen) -> None:
    """Show a list that refreshes itself."""
    every(REFRESH_SECONDS, _List(console, screen).show())
