"""The entries of mosquitto's dynamic security ("ACLs") as rules of ours, and back. Pure.

Theory: an entry becomes rules that allow no more than it does. mosquitto asks when a client
subscribes and again when it delivers, and has defaults for both; we ask when it subscribes. So
there is nothing to be said about deliveries, nor about unsubscribing, which is always allowed.

Rules have no priorities: one that denies takes precedence. What is then allowed, mosquitto allows
with any priorities.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from polymq.broker.accounts.permissions import (
    EXACT_PREFIX,
    Action,
    BadPattern,
    Effect,
    Rule,
    exact_text,
    format_pattern,
    parse_pattern,
)
from polymq.mosquitto.files import why_no_rule

AclType = Literal[
    "publishClientSend",
    "publishClientReceive",
    "subscribeLiteral",
    "subscribePattern",
    "unsubscribeLiteral",
    "unsubscribePattern",
]
SEND: Final = "publishClientSend"
RECEIVE: Final = "publishClientReceive"
SUBSCRIBE: Final = "subscribePattern"
READING: Final = frozenset({SUBSCRIBE, "subscribeLiteral"})
DEFAULTS: Final[Mapping[str, bool]] = {
    SEND: False,
    RECEIVE: True,
    "subscribe": False,
    "unsubscribe": True,
}
"""What is allowed where no entry says anything: here always, and in mosquitto if nobody has changed
it."""
_ALWAYS: Final = frozenset({RECEIVE, "unsubscribeLiteral", "unsubscribePattern"})
"""What clients may do without a rule: get what they have subscribed to, and unsubscribe."""
_SHOWN: Final[Mapping[Action, AclType]] = {Action.PUBLISH: SEND, Action.SUBSCRIBE: SUBSCRIBE}


class NoRule(ValueError):
    """No rule says what an entry says; the text says why."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The rules of an entry, one for each action.

    Attributes:
        topic: as a pattern of rules.
    """

    effect: Literal["allow", "deny"]
    actions: tuple[Literal["publish", "subscribe", "create"], ...]
    topic: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A rule as an entry."""

    acltype: AclType
    topic: str
    allow: bool


def wanted_rules(acltype: AclType, topic: str, *, allow: bool) -> Wanted | None:
    """The rules of an entry; None: it holds without a rule. Raises NoRule."""
    if acltype in _ALWAYS:
        if allow:
            return None
        if acltype == RECEIVE:
            raise NoRule("a client gets what it has subscribed to: deny subscribePattern instead")
        raise NoRule("unsubscribing is always allowed")
    is_sending = acltype == SEND
    if acltype == "subscribeLiteral" and ("+" in topic or "#" in topic):
        raise NoRule(
            "a rule about a topic filter is about all that the filter matches: use subscribePattern"
        )
    why = why_no_rule(topic, is_pattern=True, of_server=not is_sending)
    if why is None:
        topic = exact_text(topic)
        try:
            parse_pattern(topic)
        except BadPattern as error:
            why = str(error)
    if why is not None:
        raise NoRule(why)
    if not is_sending:
        return Wanted("allow" if allow else "deny", ("subscribe",), topic)
    return (
        Wanted("allow", ("publish", "create"), topic)
        if allow
        else Wanted("deny", ("publish",), topic)
    )


def rules_to_remove(acltype: AclType, topic: str) -> tuple[tuple[Action, ...], tuple[str, ...]]:
    """The actions and the patterns of the rules that an entry may be shown for. None: there can be
    none."""
    if acltype in _ALWAYS:
        return (), ()
    actions = (Action.PUBLISH, Action.CREATE) if acltype == SEND else (Action.SUBSCRIBE,)
    patterns = []
    for text in dict.fromkeys((exact_text(topic), topic)):
        try:
            patterns.append(format_pattern(parse_pattern(text)))
        except BadPattern:
            continue
    return actions, tuple(patterns)


def entries(rules: Iterable[Rule]) -> Iterator[Entry]:
    """Rules as entries. What operators may do, and the making of topics, is none."""
    for rule in rules:
        acltype = _SHOWN.get(rule.action)
        if acltype is not None:
            yield Entry(acltype, topic_filter(rule), rule.effect is Effect.ALLOW)


def topic_filter(rule: Rule) -> str:
    """The topics of a rule in MQTT's notation."""
    text = format_pattern(rule.pattern)
    if text.startswith(EXACT_PREFIX):
        text = text.removeprefix(EXACT_PREFIX)
    elif "/" not in text:
        levels = text.split(".")
        text = "/".join("+" if level == "*" else level for level in levels)
    return text.replace("{user}", "%u").replace("{client_id}", "%c")
