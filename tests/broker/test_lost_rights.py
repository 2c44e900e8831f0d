"""What becomes of an MQTT session whose user loses the right to what it has subscribed to."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from polymq.broker.accounts.permissions import Effect
from polymq.broker.accounts.quotas import Quotas
from polymq.broker.admission.rights import LOGGED_MAX
from polymq.broker.pacing.sweeping import SWEPT_AT_ONCE
from polymq.broker.port import REST, Reason, Refused
from polymq.broker.sessions.session import END_STEPS
from polymq.broker.state.journal import Op
from tests.harness.broker import Broker, SpyLink, at_qos
from tests.harness.people import allow, connect, deny, port_of, publish, take_back


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("qos", [0, 1])
def test_a_session_that_loses_a_right_is_told_to_go(people: Broker, clean: bool, qos: int) -> None:
    allow(people, "ann", "subscribe", "a.#")
    allow(people, "ann", "subscribe", "b.#")
    session, link = connect(port_of(people, "ann", "c"), people, "c", clean=clean)
    session.subscribe(("a", REST), at_qos(qos))
    session.subscribe(("b", REST), at_qos(qos))
    people.step()
    deny(people, "ann", "subscribe", "c.#")
    assert link.expelled_for == ""
    deny(people, "ann", "subscribe", "b.secret")
    assert link.expelled_for


def test_a_resumed_session_has_lost_what_is_not_allowed_any_more(people: Broker) -> None:
    """Also the messages that waited for it, and those that it had not acknowledged; the rest of it
    goes on."""
    allow(people, "ann", "subscribe", "#")
    session, link = connect(port_of(people, "ann"), people, "c")
    session.subscribe(("a", REST), at_qos(1))
    session.subscribe(("b", REST), at_qos(1))
    session.subscribe(("d",), at_qos(0))
    people.step()
    publish(people, "b", "x", b"0")
    assert link.bodies == [b"0"]
    session.disconnect()
    publish(people, "a", "x", b"1")
    publish(people, "b", "x", b"2")
    deny(people, "ann", "subscribe", "b.#")
    deny(people, "ann", "subscribe", "d")
    again, link = connect(port_of(people, "ann"), people, "c")
    assert again.present
    assert link.bodies == [b"1"]
    for topic in ("a", "b"):
        publish(people, topic, "x", b"3")
    publish(people, "d", None, b"3")
    assert link.bodies == [b"1", b"3"]
    people.restart()
    session = people.engine.sessions.by_client["c"]
    assert list(session.subscriptions) == [("a", REST)]


@pytest.mark.parametrize("meanwhile", ["nothing", "reconnect", "kill"])
def test_thousands_of_subscriptions_without_a_right_end_in_steps(
    people: Broker, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    """Nothing is sent to the client before the last has ended, whatever comes in between."""
    count = 2 * SWEPT_AT_ONCE
    allow(people, "ann", "subscribe", "#")
    session, link = connect(port_of(people, "ann"), people, "c")
    for number in range(count):
        session.subscribe(("b", str(number)), at_qos(number % 2))
    session.subscribe(("a",), at_qos(1))
    people.step()
    publish(people, "b", str(count - 1), b"in flight")
    session.disconnect()
    publish(people, "b", str(count - 3), b"waits")
    publish(people, "a", None, b"allowed")
    deny(people, "ann", "subscribe", "b.#")
    written: list[Op] = []
    write = people.engine.core.journal.write

    def noting(op: Op) -> Any:
        if op["op"] == "sub-":
            written.append(op)
        return write(op)

    monkeypatch.setattr(people.engine.core.journal, "write", noting)
    link = SpyLink()
    session = port_of(people, "ann").sessions.connect(
        "c", clean=False, expiry_seconds=None, link=link, principal="ann"
    )
    people.step()
    written.clear()
    session.resume()
    assert 0 < len(written) <= SWEPT_AT_ONCE / END_STEPS + 1
    session.unsubscribe(("b", str(count - 1)))  # which does not save what is in flight
    if meanwhile == "reconnect":
        session.disconnect()
        session, link = connect(port_of(people, "ann"), people, "c")
    elif meanwhile == "kill":
        people.kill()
        people.open()
        session, link = connect(port_of(people, "ann"), people, "c")
    else:
        before = len(written)
        while people.loop.step():
            assert len(written) - before <= SWEPT_AT_ONCE / END_STEPS + 2
            before = len(written)
        people.step()
    assert link.bodies == [b"allowed"]
    left = people.engine.sessions.by_client["c"].subscriptions
    assert list(left) == [("a",)]
    people.restart()
    assert list(people.engine.sessions.by_client["c"].subscriptions) == [("a",)]


@pytest.mark.parametrize("ended_by", ["the server", "the client"])
def test_a_right_that_comes_back_does_not_bring_back_what_was_lost(
    people: Broker, ended_by: str
) -> None:
    """What was in flight went with its subscription, although nothing was sent again meanwhile."""
    count = 2 * SWEPT_AT_ONCE
    lost = 0 if ended_by == "the server" else count - 1
    allow(people, "ann", "subscribe", "#")
    session, link = connect(port_of(people, "ann"), people, "c")
    for number in range(count):
        session.subscribe(("b", str(number)), at_qos(1))
    people.step()
    publish(people, "b", str(lost), b"in flight")
    assert link.bodies == [b"in flight"]
    session.disconnect()
    deny(people, "ann", "subscribe", "b.#")
    session = port_of(people, "ann").sessions.connect(
        "c", clean=False, expiry_seconds=None, link=SpyLink(), principal="ann"
    )
    people.step()
    session.resume()  # the first subscriptions end; the others would in later steps
    if ended_by == "the client":
        session.unsubscribe(("b", str(lost)))
    left = people.engine.sessions.by_client["c"].subscriptions
    assert len(left) > 0
    assert ("b", str(lost)) not in left
    session.disconnect()
    take_back(people, "ann", "subscribe", "b.#", Effect.DENY)
    _, link = connect(port_of(people, "ann"), people, "c")
    assert link.bodies == []


def test_a_subscription_made_while_others_end_gets_each_message_once(people: Broker) -> None:
    """What was first sent to this connection is not sent to it again as what was in flight."""
    allow(people, "ann", "subscribe", "#")
    session, _ = connect(port_of(people, "ann"), people, "c")
    for number in range(8 * SWEPT_AT_ONCE):
        session.subscribe(("b", str(number)), at_qos(1))
    people.step()
    publish(people, "b", "1", b"in flight")
    session.disconnect()
    link = SpyLink()
    session = port_of(people, "ann").sessions.connect(
        "c", clean=False, expiry_seconds=None, link=link, principal="ann"
    )
    people.step()
    session.resume()
    session.subscribe(("a",), at_qos(1))
    people.publish(people.template("a", None), b"new")
    unacked = people.engine.sessions.by_client["c"].unacked
    assert unacked.count == 1
    while unacked.count == 1:
        if people.engine.core.flush_pending:
            people.flush()
        else:
            assert people.loop.step()
    assert link.bodies == []
    people.step()
    assert sorted(link.bodies) == [b"in flight", b"new"]


def test_a_session_whose_log_takes_nothing_is_told_to_go(
    people: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may not be resumed with a subscription that cannot be ended."""
    allow(people, "ann", "subscribe", "a")
    session, _ = connect(port_of(people, "ann"), people, "c")
    session.subscribe(("a",), at_qos(1))
    people.step()
    session.disconnect()
    take_back(people, "ann", "subscribe", "a")

    def refuse(*_: object, **__: object) -> None:
        raise Refused(Reason.READ_ONLY, "the log takes nothing")

    monkeypatch.setattr(people.engine.sessions, "unsubscribe", refuse)
    _, link = connect(port_of(people, "ann"), people, "c")
    assert link.expelled_for


def test_the_log_has_some_lines_about_what_a_client_lost_or_may_not_have(
    people: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """However many filters there are: a client chooses their number."""
    count = 2 * LOGGED_MAX
    allow(people, "ann", "subscribe", "#")
    session, _ = connect(port_of(people, "ann", "c"), people, "c")
    for number in range(count):
        session.subscribe(("b", str(number)), at_qos(1))
    people.step()
    session.disconnect()
    deny(people, "ann", "subscribe", "b.#")
    people.engine.users.set_quotas("ann", Quotas(subscriptions=0))
    people.step()
    with caplog.at_level(logging.INFO, "polymq.audit"):
        session, _ = connect(port_of(people, "ann", "c"), people, "c")
        ended = [record for record in caplog.records if record.message == "subscription ended"]
        assert len(ended) == LOGGED_MAX
        session, _ = connect(port_of(people, "ann", "d"), people, "d")
        caplog.clear()
        for number in range(count):
            with pytest.raises(Refused):
                session.subscribe(("a", str(number)), at_qos(1))
    (line,) = [vars(record) for record in caplog.records]
    assert (line["what"], line["reason"]) == ("subscriptions", "quota")
