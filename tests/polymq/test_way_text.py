"""What people read of a message's way: answers that follow each other become one, and what is not
known is called so."""

from __future__ import annotations

from typing import Any

from polymq.way_text import (
    destination_text,
    event_text,
    merged,
    origin_text,
    published_text,
    search_text,
)

Row = dict[str, Any]


def event(what: str, destination: str | None = "queue:q", **more: Any) -> Row:
    base: Row = {"reason": "", "times": None, "to_position": None, "to_topic": None}
    return {"what": what, "destination": destination, **base, **more}


def destination(identity: str, state: str, **more: Any) -> Row:
    base: Row = {"redelivered": None, "returned": None, "holder": None}
    return {"id": identity, "kind": identity.partition(":")[0], "state": state, **base, **more}


def answer(*events: Row, session: str = "unknown", complete: bool = False, begin: int = 15) -> Row:
    return {
        "position": 10,
        "size": 5,
        "events": list(events),
        "destinations": [destination("session:s a/b", session), destination("queue:q", "settled")],
        "looked_from": begin,
        "looked_until": begin + 10,
        "complete": complete,
    }


def what(found: Row) -> list[str]:
    return [one["what"] for one in found["events"]]


def test_what_a_later_part_of_the_log_repeats_is_said_once() -> None:
    parts = (
        answer(event("delivered"), event("dead-lettered", to_position=7)),
        answer(event("delivered"), event("settled"), begin=25),
        answer(event("cleared", None), event("cleared", None), begin=35, complete=True),
    )
    found = merged(parts)
    assert what(found) == ["delivered", "dead-lettered", "cleared", "cleared"]
    assert (found["looked_from"], found["looked_until"]) == (15, 45)


def test_a_reason_and_a_second_delivery_are_not_repetitions() -> None:
    given_back = answer(
        event("delivered"),
        event("returned", times=1),
        event("settled", reason="rejected"),
        complete=True,
    )
    assert what(merged([given_back])) == ["delivered", "returned", "settled"]


def test_whether_a_session_was_there_before_the_message() -> None:
    """The end of the log decides, a record of it, or nothing does."""

    def state(*answers: Row) -> str:
        found: str = merged(answers)["destinations"][0]["state"]
        return found

    assert state(answer()) == "unknown"
    assert state(answer(begin=20, complete=True)) == "unknown", "not from the message on"
    assert state(answer(), answer(begin=25, complete=True)) == "settled"
    assert state(answer(event("settled", "session:s a/b")), answer(begin=25)) == "settled"
    assert state(answer(session="not routed"), answer(begin=25)) == "not routed"


def test_texts() -> None:
    way: Row = {
        "body_bytes": 1234,
        "protocol": "amqp",
        "sender": "10.0.0.1:5",
        "user": None,
        "topic": "q",
        "exchange": "",
        "routing_key": "q",
    }
    assert published_text(way) == (
        "1,234 bytes, by amqp, from 10.0.0.1:5, user unknown, the default exchange, routing key 'q'"
    )
    known = {"what": "dead-lettered", "reason": "expired", "position": 7, "destination": "queue:q"}
    assert origin_text(known) == "dead-lettered (expired) out of queue:q: position 7"
    lost = {"what": "moved", "reason": "", "position": None, "destination": None}
    assert origin_text(lost) == "moved: position unknown"
    nobody = destination("queue:q", "unacknowledged")
    assert destination_text(nobody) == "it is not known who has it"
    holder = {"name": "tag1", "connection": "7", "user": "ann"}
    has = destination("queue:q", "unacknowledged", holder=holder, returned=2)
    assert destination_text(has) == "given back 2 times, with tag1, connection 7, user ann"
    assert event_text(event("dead-lettered", reason="rejected", to_position=9, to_topic="d")) == (
        "rejected, now position 9 of topic d"
    )
    assert event_text(event("returned", times=3)) == "3 times by then"
    assert "position 25" in search_text(answer())
    assert search_text(answer(complete=True)) == "The log was read to its end."
