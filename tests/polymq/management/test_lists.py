"""Lists of the management API: order, pages, columns, and how much is done in one step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from polymq.management.errors import Problem
from polymq.management.filters import matcher_of
from polymq.management.json_values import encode, plain
from polymq.management.lists import Items, wanted_of, write_list

COUNT = 3_500
ROWS = {
    f"q{number * 1009 % COUNT:04}": {
        "name": f"q{number * 1009 % COUNT:04}",
        "messages": number % 7,
        "stats": {"rate": -number, "kind": "a"},
    }
    for number in range(COUNT)
}

ORDER = {f"q{number * 1009 % COUNT:04}": number for number in range(COUNT)}


def items(rows: Mapping[str, Mapping[str, Any]] = ROWS, **more: Any) -> Items:
    return Items(entries=list(rows), row=rows.get, name=str, **more)


def written(items: Items, **query: str) -> tuple[Any, int]:
    """The answer, and in how many steps it was made."""
    parts = list(write_list(items, wanted_of(query)))
    return json.loads(b"".join(part for part in parts if part is not None)), len(parts)


def test_a_whole_list_is_sorted_by_name_and_made_in_many_steps() -> None:
    """A hundred thousand queues hold the loop for no longer than a few of them."""
    found, steps = written(items())
    assert [row["name"] for row in found] == sorted(ROWS)
    assert steps >= COUNT / 50


def test_pages_have_the_envelope_of_rabbitmq() -> None:
    names: list[str] = []
    for page in range(1, 8):
        found, _ = written(items(), page=str(page), page_size="500")
        names += [row.pop("name") for row in found.pop("items")]
        assert found == {
            "filtered_count": COUNT,
            "item_count": 500,
            "page": page,
            "page_count": 7,
            "page_size": 500,
            "total_count": COUNT,
        }
    assert names == sorted(ROWS)
    with pytest.raises(Problem, match="page_out_of_range: page 8"):
        written(items(), page="8", page_size="500")
    empty, _ = written(items({}), page="1")
    assert (empty["items"], empty["page_count"]) == ([], 1)


def test_a_filter_counts_what_passes() -> None:
    found, _ = written(items(), page="1", name="Q000")
    assert [row["name"] for row in found["items"]] == [f"q000{digit}" for digit in range(10)]
    assert (found["filtered_count"], found["total_count"]) == (10, COUNT)
    found, _ = written(items(), name="^q.*99$", use_regex="true")
    assert [row["name"] for row in found] == [f"q{number:02}99" for number in range(35)]


def test_sorting_by_a_field_within_a_field() -> None:
    found, _ = written(items(), page="1", page_size="2", sort="stats.rate")
    assert [row["stats"]["rate"] for row in found["items"]] == [1 - COUNT, 2 - COUNT]
    found, _ = written(items(), page="1", page_size="2", sort="stats.rate", sort_reverse="true")
    assert [row["stats"]["rate"] for row in found["items"]] == [0, -1]
    found, _ = written(items(), page="1", page_size="3", sort_reverse="true")
    assert [row["name"] for row in found["items"]] == sorted(ROWS)[:-4:-1]
    rows: dict[str, dict[str, Any]] = {"a": {"n": "text"}, "b": {"n": 3}, "c": {"n": None}, "d": {}}
    found, _ = written(items(rows), sort="n", columns="n")
    assert found == [{"n": None}, {}, {"n": 3}, {"n": "text"}]


def test_a_number_that_is_known_without_the_row_costs_no_rows() -> None:
    """A page of a hundred thousand queues by their messages makes the rows of the page only, and
    has the order that the rows themselves give."""
    for reverse in ("true", "false"):
        made: list[str] = []

        def row(name: str, made: list[str] = made) -> Mapping[str, Any]:
            made.append(name)
            return ROWS[name]

        quick = Items(
            entries=[*ROWS, "gone"],
            row=row,
            name=str,
            key={name: number % 7 for name, number in ORDER.items()}.get,
        )
        query = {"page": "2", "page_size": "7", "sort": "messages", "sort_reverse": reverse}
        found, steps = written(quick, **query)
        assert found["items"] == written(items(), **query)[0]["items"]
        assert len(made) == 7
        assert steps >= COUNT / 500
    assert written(items(), sort="name")[0] == written(items())[0]


def test_columns_choose_fields() -> None:
    found, _ = written(items(), page="1", page_size="1", columns="messages,stats.rate,none.x")
    assert set(found["items"][0]) == {"messages", "stats"}
    assert set(found["items"][0]["stats"]) == {"rate"}


def test_what_is_gone_or_hidden_is_left_out() -> None:
    hidden = items(wants=lambda name: name < "q0003")
    assert [row["name"] for row in written(hidden)[0]] == ["q0000", "q0001", "q0002"]
    found, _ = written(hidden, page="1")
    assert (found["total_count"], found["filtered_count"]) == (3, 3)
    gone = Items(entries=["a", None, "b", "c"], row={"a": {"x": 1}, "c": {"x": 2}}.get)
    assert written(gone)[0] == [{"x": 1}, {"x": 2}]
    assert written(Items(entries=(), row=ROWS.get))[0] == []


@pytest.mark.parametrize("text", ["0", "x", "-1", "1" * 20])
def test_a_page_is_a_number(text: str) -> None:
    with pytest.raises(Problem, match="page has to be a number"):
        wanted_of({"page": text})


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+$",
        "(a*)*",
        "(a|aa){30,}.*.*",
        "^(ab|a|b)*c$",
        "a*a*a*b",
        "(?=a)b",
        "(a)\\1",
        "((a?){20}){20}",
        "a?" * 30 + "b",
        "(|a)" * 30 + "b",
        "(|a)" * 5 + ".*.*",
        "(",
    ],
)
def test_an_expression_that_may_take_for_ever_is_refused(pattern: str) -> None:
    """The loop would stand still, for one request of one client."""
    with pytest.raises(Problem):
        matcher_of(pattern, is_regex=True)


@pytest.mark.parametrize(
    "pattern",
    ["^a", "celery.*", "^(a|b).*x$", "[0-9]{3}", "a?b?c?", "a{2}", ".*(foo|bar).*", "(ab)+"],
)
def test_what_people_look_for_is_accepted(pattern: str) -> None:
    assert matcher_of(pattern, is_regex=True) is not None


@pytest.mark.parametrize(("pattern", "compared"), [("b", 4_096), ("a.*b", 1_183), ("a.*a.*b", 161)])
def test_of_a_long_name_a_part_is_compared(pattern: str, compared: int) -> None:
    """A topic may have a name of any length, and each character more costs more than the one
    before."""
    matches = matcher_of(pattern, is_regex=True)
    assert matches is not None
    assert matches("a" * (compared - 1) + "b")
    assert not matches("a" * compared + "b")


def test_names_that_are_no_text_are_escaped() -> None:
    assert encode({"name": "a\udcff"}) == b'{"name":"a\\udcff"}'
    assert plain({"x": b"\xff", "y": [b"a"]}) == {"x": "\\xff", "y": ["a"]}
