"""What a bridge carries: which topics, in which direction, and by which names. Pure.

A rule has a pattern, which is a topic filter, and two prefixes. Here the pattern stands behind the
local prefix, at the remote broker behind the remote one:

    pattern `#`, local prefix `plant/`, remote prefix `site7/`
    here `plant/a/b`, at the remote broker `site7/a/b`

The pattern `#` stands for the topics below its prefix, without the one that is called as the prefix
is: the filter is `plant/+/#` then. With an empty pattern the prefixes are the two names of one
topic. A prefix is put in front as it is: it mostly ends with `/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from polymq.gateways.mqtt.topic_filters import (
    MULTI,
    SINGLE,
    check_filter,
    is_shared_filter,
    matches,
    shortened,
)

Direction = Literal["out", "in", "both"]
RULES_MAX: Final = 64
"""Rules of one bridge: a new topic name may be compared with all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeRule:
    """One rule; `check_rules` says whether it makes sense.

    Attributes:
        qos: the highest that messages are carried with.
    """

    pattern: str
    direction: Direction
    qos: int
    local_prefix: str = ""
    remote_prefix: str = ""

    @property
    def goes_out(self) -> bool:
        """Whether it carries what is published here to the remote broker."""
        return self.direction != "in"

    @property
    def comes_in(self) -> bool:
        """Whether it carries what is published there to here."""
        return self.direction != "out"

    @property
    def local_filter(self) -> str:
        """What it matches here."""
        return _filter(self.local_prefix, self.pattern)

    @property
    def remote_filter(self) -> str:
        """What it matches at the remote broker."""
        return _filter(self.remote_prefix, self.pattern)

    def to_remote(self, name: str) -> str:
        """The remote name of a topic that the local filter matches."""
        return self.remote_prefix + name.removeprefix(self.local_prefix)

    def to_local(self, name: str) -> str:
        """The local name of a topic that the remote filter matches."""
        return self.local_prefix + name.removeprefix(self.remote_prefix)


def _filter(prefix: str, pattern: str) -> str:
    return f"{prefix}{SINGLE}/{MULTI}" if prefix and pattern == MULTI else prefix + pattern


def check_rules(rules: Sequence[BridgeRule]) -> None:
    """Whether the rules of a bridge make sense. Raises ValueError, with what is wrong."""
    if not rules:
        raise ValueError("a bridge without topics carries nothing: add one to topics")
    if len(rules) > RULES_MAX:
        raise ValueError(f"a bridge has at most {RULES_MAX} topics")
    for rule in rules:
        _check_rule(rule)
    for what in ("local", "remote"):
        seen = set()
        for rule in rules:
            if rule.goes_out if what == "local" else rule.comes_in:
                name = rule.local_filter if what == "local" else rule.remote_filter
                if name in seen:
                    raise ValueError(
                        f"two topics have the {what} filter {shortened(name)!r}: remove one"
                    )
                seen.add(name)


def _check_rule(rule: BridgeRule) -> None:
    for prefix in (rule.local_prefix, rule.remote_prefix):
        if {SINGLE, MULTI, "\0"} & set(prefix):
            raise ValueError(f"the prefix {shortened(prefix)!r} must have no +, # or U+0000")
    if not rule.pattern and not (rule.local_prefix and rule.remote_prefix):
        raise ValueError("an empty pattern needs both prefixes: they are the names of one topic")
    names = [prefix + rule.pattern for prefix in (rule.local_prefix, rule.remote_prefix)]
    for name in (*names, rule.local_filter, rule.remote_filter):
        try:
            check_filter(name)
        except ValueError as error:
            raise ValueError(f"{shortened(name)!r} is no topic filter: {error}") from None
    if rule.local_filter.startswith("$"):
        raise ValueError(
            f"{shortened(rule.local_filter)!r}: topics that begin with $ are the server's own"
        )
    if rule.goes_out and rule.remote_filter.startswith("$"):
        raise ValueError(
            f"{shortened(rule.remote_filter)!r}: topics that begin with $ are the remote's own"
        )
    if is_shared_filter(rule.remote_filter):
        raise ValueError(f"{shortened(rule.remote_filter)!r}: a bridge has no shared subscriptions")


def rule_of(name: str, filters: Sequence[tuple[Sequence[str], BridgeRule]]) -> BridgeRule | None:
    """The first rule whose filter, split into levels, matches the name; None: there is none."""
    levels = name.split("/")
    return next((rule for pattern, rule in filters if matches(pattern, levels)), None)
