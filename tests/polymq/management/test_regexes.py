"""RabbitMQ's permissions as rules: what has a counterpart, what is refused, and the way back."""

from __future__ import annotations

import re

import pytest

from polymq.broker.accounts.permissions import (
    EVERYTHING,
    EXACT,
    Action,
    Effect,
    Rule,
    RuleSet,
)
from polymq.broker.port.values import ONE_LEVEL, REST, Address
from polymq.management.regexes import NoCounterpart, expression_of, patterns_of

TAKEN: dict[str, list[Address]] = {
    "": [],
    "^$": [],
    ".*": [EVERYTHING],
    "^.*$": [EVERYTHING],
    "^orders$": [(EXACT, "orders", REST)],
    "^orders\\.eu$": [(EXACT, "orders.eu", REST)],
    "^orders": [("orders", REST)],
    "^orders.*": [("orders", REST)],
    "^orders\\..*": [("orders", ONE_LEVEL, REST)],
    "^orders\\.eu\\..*$": [("orders", "eu", ONE_LEVEL, REST)],
    "^(a|b)$": [(EXACT, "a", REST), (EXACT, "b", REST)],
    "^(a|b\\.c).*": [("a", REST), ("b", "c", REST)],
    "^(?:a|b)$": [(EXACT, "a", REST), (EXACT, "b", REST)],
    "^a$|^b$": [(EXACT, "a", REST), (EXACT, "b", REST)],
    "^(amq\\.gen.*|amq\\.default)$": [],
    "^amq\\.gen.*|^jobs$": [(EXACT, "jobs", REST)],
    "^app-1$": [(EXACT, "app-1", REST)],
}
REFUSED = (
    "orders",
    ".*orders",
    "^app-.*",
    "^app-",
    "^(a|b",
    "^a+$",
    "^[ab]$",
    "^a\\d$",
    "^amq\\.topic$",
    "^a.*b$",
    "^(a|(b|c))$",
    "^\\.x$",
    "^" + "a" * 5_000,
)
NAMES = ("orders", "orders.eu", "orders-eu", "orders.eu.x", "a", "b", "b.c", "b.c.d", "jobs", "zzz")


@pytest.mark.parametrize("expression", TAKEN)
def test_what_has_a_counterpart(expression: str) -> None:
    assert patterns_of(expression) == TAKEN[expression]


@pytest.mark.parametrize("expression", REFUSED)
def test_what_is_refused_says_what_to_write(expression: str) -> None:
    with pytest.raises(NoCounterpart, match=r"counterpart|at most|amq\.topic"):
        patterns_of(expression)


@pytest.mark.parametrize("expression", TAKEN)
def test_no_queue_is_opened_that_the_expression_does_not_match(expression: str) -> None:
    """A queue is made under its name alone; RabbitMQ searches for the expression in it."""
    rules = RuleSet(
        [
            Rule(subject="ann", effect=Effect.ALLOW, action=Action.CREATE, pattern=pattern)
            for pattern in patterns_of(expression)
        ],
        user="ann",
    )
    for name in NAMES:
        if rules.decide(Action.CREATE, (name,)).allowed:
            assert re.search(expression, name), name


@pytest.mark.parametrize("expression", TAKEN)
def test_what_is_shown_means_the_same(expression: str) -> None:
    patterns = patterns_of(expression)
    assert set(patterns_of(expression_of(patterns))) == set(patterns)


def test_rules_that_no_expression_can_say_are_left_out() -> None:
    shown = expression_of([("a", ONE_LEVEL), ("\x00user", REST), (EXACT, "b", REST)])
    assert shown == "^b$"
    assert expression_of([]) == "^$"
