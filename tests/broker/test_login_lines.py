"""Logins that wait: whose turn is next, and who has to go when there are too many."""

from __future__ import annotations

from polymq.broker.accounts.login_lines import Attempt, Lines


def attempt(source: str, user: str) -> Attempt:
    return Attempt(b"", user, b"", "", source, source)


def test_lines_take_turns_by_address_and_by_user() -> None:
    """One of each address, one of each of its users, in the order in which they came."""
    lines = Lines(10)
    for source, user in (
        *(("a", "x"), ("a", "x"), ("a", "y"), ("b", "x"), ("a", "x"), ("c", "z"), ("b", "w")),
    ):
        assert lines.add(attempt(source, user)) is None
    order = []
    while (one := lines.take()) is not None:
        order.append(one.source + one.user)
    assert order == ["ax", "bx", "cz", "ay", "bw", "ax", "ax"]
    assert (len(lines), lines.take()) == (0, None)


def test_a_full_line_refuses_the_last_of_the_address_that_has_the_most() -> None:
    """Of its users the one that has the most; the newcomer itself if it is from there."""
    lines = Lines(4)
    stored = [attempt("a", "x"), attempt("a", "y"), attempt("a", "y"), attempt("b", "x")]
    for one in stored:
        lines.add(one)
    again = attempt("a", "z")
    assert lines.add(again) is again
    assert lines.add(attempt("c", "x")) is stored[2]
    assert lines.add(attempt("d", "x")) is stored[1]
    last = attempt("b", "y")
    assert lines.add(last) is last  # all have one now
    assert len(lines) == 4


def test_what_is_taken_out_of_a_line_leaves_no_gap() -> None:
    lines = Lines(4)
    first, second, other = attempt("a", "x"), attempt("a", "x"), attempt("b", "x")
    for one in (first, second, other):
        lines.add(one)
    assert lines.remove(first)
    assert not lines.remove(first)
    assert not lines.remove(attempt("c", "x"))
    assert lines.remove(other)
    assert (lines.take(), lines.take(), len(lines)) == (second, None, 0)
