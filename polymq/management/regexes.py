"""RabbitMQ's permissions as rules, and back. Pure.

RabbitMQ compares a regular expression with the names of exchanges and queues. A rule here compares
whole words, which stand between dots. So there is a counterpart for some expressions only:

    (empty), ^$          nothing
    .*                   everything
    ^orders$             the name `orders`
    ^orders\\..*          names that begin with `orders.`
    ^orders, ^orders.*   `orders`, and names that begin with `orders.`; not `orders-eu`
    ^(a|b)$, ^a$|^b$     several of these

All others are refused, because they would give more, or far less, than they say. Names that clients
may use without a rule, or that no rule can be about, are passed over: `amq.gen`, `amq.default`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from polymq.broker.accounts.permissions import EVERYTHING, EXACT
from polymq.broker.port.values import ONE_LEVEL, REST, Address

CHARACTERS_MAX: Final = 4_096
_SPECIAL: Final = frozenset("\\.^$*+?{}[]|()")
_NEEDLESS: Final = ("amq.gen", "amq.default", "amq.rabbitmq.reply-to")
"""A server-named queue is its maker's, and a reply needs no permission."""
_ANY: Final = ".*"


class NoCounterpart(ValueError):
    """An expression that no rules stand for; the text says what to write."""


def patterns_of(expression: str) -> list[Address]:
    """The patterns of the rules that stand for an expression. Raises NoCounterpart."""
    if len(expression) > CHARACTERS_MAX:
        raise NoCounterpart(f"a permission has at most {CHARACTERS_MAX} characters")
    found: dict[Address, None] = {}
    for alternative in _alternatives(expression):
        pattern = _pattern(alternative, expression)
        if pattern is not None:
            found[pattern] = None
    return list(found)


def _alternatives(expression: str) -> list[str]:
    """The parts of an expression of which one has to match, each with its anchors."""
    text = expression
    head, tail = "", ""
    if text.startswith("^(") and _closes_at(text, 1) is not None:
        close = _closes_at(text, 1)
        assert close is not None
        head, tail = "^", text[close + 1 :]
        if tail in ("", "$", _ANY, f"{_ANY}$", "\\..*", "\\..*$"):
            inner = text[2:close].removeprefix("?:")
            return [f"{head}{part}{tail}" for part in _split(inner)]
    return _split(text)


def _closes_at(text: str, opened: int) -> int | None:
    """Where the group that opens there closes; None if it has groups in it, or never does."""
    at = opened + 1
    while at < len(text):
        if text[at] == "\\":
            at += 1
        elif text[at] == "(":
            return None
        elif text[at] == ")":
            return at
        at += 1
    return None


def _split(text: str) -> list[str]:
    """The parts between bars that are not escaped."""
    parts = [""]
    at = 0
    while at < len(text):
        if text[at] == "\\":
            parts[-1] += text[at : at + 2]
            at += 2
            continue
        if text[at] == "|":
            parts.append("")
        else:
            parts[-1] += text[at]
        at += 1
    return parts


def _pattern(alternative: str, expression: str) -> Address | None:
    """The pattern of one part; None: nothing."""
    if alternative in ("", "^", "$", "^$"):
        return None
    if alternative in (_ANY, f"^{_ANY}", f"{_ANY}$", f"^{_ANY}$"):
        return EVERYTHING
    if not alternative.startswith("^"):
        raise NoCounterpart(_advice(expression, f"{alternative!r} does not begin with ^"))
    body = alternative[1:]
    is_exact = body.endswith("$") and not body.endswith("\\$")
    if is_exact:
        body = body[:-1]
    if body.endswith(_ANY) and not body.endswith("\\.*"):
        body, is_exact = body[: -len(_ANY)], False
    name = _literal(body, expression)
    if name.startswith("amq."):
        if name.startswith(_NEEDLESS):
            return None
        raise NoCounterpart(
            f"{expression!r}: exchanges of AMQP's own, such as {name!r}, are no names for rules "
            "here: amq.topic carries all topics, by the first word of the routing key"
        )
    if is_exact:
        return (EXACT, name, REST)
    levels = name.split(".")
    if name.endswith("."):
        return (*levels[:-1], ONE_LEVEL, REST)
    if not name[-1:].isalnum():
        raise NoCounterpart(_advice(expression, f"{alternative!r} would match parts of a word"))
    return (*levels, REST)


def _literal(body: str, expression: str) -> str:
    """The characters that an expression without wildcards matches. A dot stands for itself: who
    writes one in a name means it."""
    found: list[str] = []
    at = 0
    while at < len(body):
        letter = body[at]
        if letter == "\\" and at + 1 < len(body) and not body[at + 1].isalnum():
            at += 1
            letter = body[at]
        elif letter in _SPECIAL and letter != ".":
            raise NoCounterpart(_advice(expression, f"{letter!r} has no counterpart in a rule"))
        found.append(letter)
        at += 1
    name = "".join(found)
    if not name or any(letter in "#+*{}/" or ord(letter) < 0x20 for letter in name):
        raise NoCounterpart(_advice(expression, f"{name!r} cannot stand in a rule"))
    if name.startswith(".") or ".." in name:
        raise NoCounterpart(_advice(expression, f"{name!r} has an empty word"))
    return name


def _advice(expression: str, problem: str) -> str:
    return (
        f"the permission {expression!r} has no counterpart here: {problem}. Rules compare whole "
        "words between dots: use .*, ^name$, ^name\\..*, or several of these as in ^(a|b)$, or "
        "`polymq permission allow`"
    )


def expression_of(patterns: Iterable[Address]) -> str:
    """An expression that stands for patterns. Those that no expression can say are left out: names
    of users and clients, and wildcards within."""
    parts: list[str] = []
    for pattern in patterns:
        if pattern == EVERYTHING:
            return _ANY
        part = _part_of(pattern)
        if part is not None:
            parts.append(part)
    if not parts:
        return "^$"
    if len(parts) == 1:
        return f"^{parts[0]}"
    return "|".join(f"^{part}" for part in sorted(parts))


def _part_of(pattern: Sequence[str]) -> str | None:
    if pattern[:1] == (EXACT,) and len(pattern) == 3 and pattern[2] == REST:
        return f"{_escaped(pattern[1])}$"
    if not pattern or pattern[-1] != REST:
        return None
    levels = pattern[:-1]
    is_below = bool(levels) and levels[-1] == ONE_LEVEL
    if is_below:
        levels = levels[:-1]
    if not levels or any(word.startswith("\x00") for word in levels):
        return None
    name = _escaped(".".join(levels))
    return f"{name}\\..*" if is_below else f"{name}.*"


def _escaped(name: str) -> str:
    return "".join(f"\\{letter}" if letter in _SPECIAL else letter for letter in name)
