"""What the screens of the console say: of the broker's state, of rates, messages, rights and
redrives."""

from __future__ import annotations

from typing import Any

import pytest

from polymq.console.access import verdict_text
from polymq.console.dead_letters import outcome_text
from polymq.console.messages import as_event, as_hex, as_json, as_text
from polymq.console.overview import Rates, state_text, until_full
from polymq.console.texts import milliseconds


def message(**values: Any) -> dict[str, Any]:
    row: dict[str, Any] = {"body": None, "body_base64": None, "properties": {}}
    row |= {"tag": "a.b", "topic": "t"}
    return {**row, "id": "7", **values}


def test_views_of_a_body() -> None:
    assert as_json(message(body='{"a":1}')) == '{\n  "a": 1\n}'
    assert as_json(message(body="no json")) == "no json"
    assert as_json(message(body="[" * 100_000)) == "[" * 100_000, "too deep to be parsed"
    assert as_text(message(body_base64="/wBB")) == "\\xff\x00A"
    lines = as_hex(message(body="0123456789abcdefZ")).splitlines()
    assert lines[0].endswith(" 0123456789abcdef")
    assert lines[1].split() == ["000010", "5a", "Z"]
    assert as_hex(message(body="")) == ""


def test_a_message_as_an_event() -> None:
    """One that is no event gets attributes out of what it has."""
    event = message(body="x", properties={"CE_type": "order", "CE_id": "1", "other": "y"})
    assert '"type": "order"' in as_event(event)
    assert "other" not in as_event(event)
    assert '"source": "t"' in as_event(message(body="x"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ("1970-01-01 00:01", 60_000),
        ("1970-01-01T02:00:01+02:00", 1_000),
    ],
)
def test_times_as_people_type_them(text: str, expected: int | None) -> None:
    assert milliseconds(text) == expected


def test_a_time_that_is_none() -> None:
    with pytest.raises(ValueError, match="isoformat"):
        milliseconds("yesterday")


def broker(time_ms: int, stored: int, started_ms: int = 1) -> dict[str, int]:
    figures = {"time_ms": time_ms, "started_ms": started_ms}
    return {**figures, "messages_stored": stored, "log_appended_bytes": 10 * stored}


def test_rates_begin_anew_with_a_broker_that_was_started_again() -> None:
    rates = Rates()
    rates.add(broker(1_000, 100))
    rates.add(broker(3_000, 300))
    rates.add(broker(3_000, 300))  # no time has passed
    rates.add(broker(4_000, 50, started_ms=2))
    rates.add(broker(5_000, 60, started_ms=2))
    rates.add(broker(6_000, 10, started_ms=2))  # a topic was deleted
    assert list(rates.messages) == [100, 10, 0]


def test_until_the_disk_is_full() -> None:
    store = {"free_bytes": 1_000, "reserve_bytes": 400}
    assert until_full(store, 60) == 10
    assert until_full(store, 0) is None
    assert until_full({"free_bytes": 1, "reserve_bytes": 2}, 5) == 0


def test_the_state_in_a_sentence() -> None:
    well: dict[str, Any] = {"status": "ok", "users": 1}
    disk = {"state": "ok", "reason": ""}
    assert state_text(well, disk) == "All is well."
    assert "no users" in state_text({**well, "users": 0}, disk)
    assert "the log failed" in state_text({**well, "status": "read-only: the log failed"}, disk)
    assert "too little room" in state_text(well, {"state": "low", "reason": "too little room"})


def test_may_somebody_do_something() -> None:
    allowed = {"allowed": True, "rule": "allow ann publish a.#", "needs": "publish"}
    assert verdict_text(allowed) == "Yes: allow ann publish a.#"
    assert verdict_text({**allowed, "allowed": False, "rule": "deny ann publish a.b"}) == (
        "No: deny ann publish a.b"
    )
    nothing = {"allowed": False, "rule": None, "needs": "create"}
    assert verdict_text(nothing) == "No: no rule allows it (create)"


def test_what_became_of_a_redrive() -> None:
    answer = {"messages": 3, "failed": {"there is no exchange": 2}, "complete": False}
    assert outcome_text({**answer, "dry_run": False}) == (
        "3 messages were sent on; 2 not: there is no exchange; there are more"
    )
    done = {"messages": 1, "failed": {}, "complete": True, "dry_run": True}
    assert outcome_text(done) == "1 messages would be sent on"
