"""What dialogs make of what was typed."""

from __future__ import annotations

from typing import Any

import pytest

from polymq.console.configuration import ROWS_MAX, outcome_text, shown_rows
from polymq.console.forms import Field, values_of
from polymq.console.queue_forms import arguments_of, bindings_of, moved_text
from polymq.console.reader_forms import reset_body
from polymq.console.user_forms import quotas_changed, roles_changed

FIELDS = {
    "name": Field(label="Name", is_needed=True),
    "password": Field(label="Password", kind="password"),
    "roles": Field(label="Roles", kind="list"),
    "count": Field(label="Count", kind="number"),
    "force": Field(label="Force", kind="switch"),
}
EMPTY: dict[str, Any] = dict.fromkeys(FIELDS) | {"force": False}


def test_fields_that_are_empty_are_not_sent() -> None:
    """A switch always is; a number may be 0, and a password may have blanks."""
    typed = EMPTY | {"name": " a ", "password": " x ", "roles": "r, ,s", "count": 0.0}
    assert values_of(FIELDS, typed) == {
        "name": "a",
        "password": " x ",
        "roles": ["r", "s"],
        "count": 0,
        "force": False,
    }
    assert values_of(FIELDS, EMPTY | {"name": "a"}) == {"name": "a", "force": False}


@pytest.mark.parametrize("name", ["", "  ", None])
def test_a_field_that_is_needed(name: str | None) -> None:
    with pytest.raises(ValueError, match="Name is missing"):
        values_of(FIELDS, EMPTY | {"name": name})


def test_roles_are_added_and_removed() -> None:
    """The field has all roles that there are to be; an empty one has none."""
    row = {"roles": ["reader", "device"]}
    changes = roles_changed({"roles": ["device", "operator"]}, row)
    assert changes == {"add_roles": ["operator"], "remove_roles": ["reader"]}
    assert roles_changed({}, row)["remove_roles"] == ["device", "reader"]


def test_only_quotas_that_are_different_are_sent() -> None:
    row = {"quotas": {"connections": 5, "sessions": None, "queues": 7, "inflight": 1}}
    typed = {"connections": "5", "sessions": "none", "queues": "none", "inflight": "2"}
    assert quotas_changed(typed, row) == {"quotas": {"queues": None, "inflight": 2}}
    assert quotas_changed({**typed, "connections": "default"}, row)["quotas"]["connections"] == (
        "default"
    )
    with pytest.raises(ValueError, match="connections: write a number"):
        quotas_changed({**typed, "connections": "-1"}, row)


@pytest.mark.parametrize(
    ("values", "body"),
    [
        ({"to": "oldest", "offset": 3, "time": "x"}, {"to": "oldest"}),
        ({"to": "offset", "offset": 3, "topic": "t"}, {"to": "offset", "offset": 3, "topic": "t"}),
        ({"to": "time", "time": "1970-01-01 00:01"}, {"to": "time", "time_ms": 60_000}),
    ],
)
def test_where_a_reader_goes_on(values: dict[str, Any], body: dict[str, Any]) -> None:
    """Fields of other places are left alone."""
    assert reset_body(values, {}) == body


@pytest.mark.parametrize("values", [{"to": "time"}, {"to": "time", "time": "x"}, {"to": "offset"}])
def test_a_place_that_is_not_said(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"is missing|is written as"):
        reset_body(values, {})


def test_bindings_that_can_be_removed() -> None:
    """That to the default exchange stays."""
    bindings = [
        {"exchange": "", "routing_key": "orders"},
        {"exchange": "shop", "routing_key": "a.#"},
    ]
    assert bindings_of({"bindings": bindings}) == {'["shop", "a.#"]': "shop: a.#"}
    assert bindings_of({}) == {}


def test_arguments_are_an_object() -> None:
    assert arguments_of('{"x-match": "any"}') == {"x-match": "any"}
    for text in ("x", "[1]", "[" * 100_000):
        with pytest.raises(ValueError, match="JSON object"):
            arguments_of(text)


def test_what_became_of_a_move() -> None:
    answer = {"messages": 3, "failed": {"it is too large": 1}, "complete": False}
    assert moved_text(answer) == "3 messages were moved; 1 not: it is too large; there are more"


def test_what_became_of_an_import() -> None:
    """A bounded number of definitions is shown, and none that was equal."""
    row = {"section": "topics", "name": "t", "outcome": "created", "difference": ""}
    answer: dict[str, Any] = {"dry_run": True, "counts": {"created": 300, "kept": 0, "equal": 1}}
    answer["definitions"] = [row] * 300 + [{**row, "outcome": "equal"}]
    assert outcome_text(answer) == "300 created, 1 equal. Nothing was changed: this was a try."
    assert len(shown_rows(answer)) == ROWS_MAX
    assert shown_rows({**answer, "definitions": answer["definitions"][-1:]}) == []
