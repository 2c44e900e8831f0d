"""Dead letters, grouped by reason, and sending them on."""

from __future__ import annotations

from typing import Any, Final

from polymq.console.details import Action, show_details
from polymq.console.fields import show_fields, show_rows
from polymq.console.lists import ListScreen, number_column, opens, show_list, text_column
from polymq.console.shell import Console, frame
from polymq.console.texts import moment, number

PATH = "/dead-letters"
REDRIVEN_AT_ONCE: Final = 1_000

LIST = ListScreen(
    parts=("dead-letters",),
    key="location",
    columns=(
        text_column("Where", "location"),
        text_column("Kind", "kind"),
        number_column("Messages", "messages"),
    ),
    opened=opens(PATH),
)


def show_dead_letters(console: Console) -> None:
    """The places that have some."""
    with frame(console, "Dead letters", PATH):
        show_list(console, LIST)


def show_location(console: Console, location: str) -> None:
    """What is in one place, and sending it back to where it was published first."""
    parts = ("dead-letters", location)
    count = Action(
        label="Try what a redrive would do",
        icon="rule",
        right="operate",
        method="POST",
        parts=(*parts, "redrive"),
        body={"dry_run": True, "limit": REDRIVEN_AT_ONCE},
        done=outcome_text,
        is_harmless=True,
    )
    redrive = Action(
        label="Redrive",
        icon="replay",
        right="operate",
        method="POST",
        parts=(*parts, "redrive"),
        body={"limit": REDRIVEN_AT_ONCE},
        question=lambda row: (
            f"Send up to {number(REDRIVEN_AT_ONCE)} of "
            f"{number(row.get('messages'))} messages back to where they were published first?"
        ),
        done=outcome_text,
    )
    with frame(console, f"Dead letters in {location}", PATH):
        show_details(console, parts, _show, actions=[count, redrive])


def outcome_text(answer: dict[str, Any]) -> str:
    """What became of a redrive, in words."""
    verb = "would be sent on" if answer["dry_run"] else "were sent on"
    text = f"{number(answer['messages'])} messages {verb}"
    for reason, count in answer["failed"].items():
        text += f"; {number(count)} not: {reason}"
    return text if answer["complete"] else f"{text}; there are more"


def _show(row: dict[str, Any]) -> None:
    show_fields({"Messages": number(row["messages"]), "Looked at": number(row["looked_at"])})
    show_rows(
        "By reason",
        ("Reason", "Given up by", "Published first to", "Messages", "Oldest"),
        [
            (
                one["reason"],
                one["source"] or "-",
                one["target"] or "not known",
                number(one["messages"]),
                moment(one["oldest_ms"]),
            )
            for one in row["groups"]
        ],
    )
