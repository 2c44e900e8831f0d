"""Rules that publish and subscribe clients elsewhere than they ask for: topic rewriting.

A rule has a source, which is a topic filter, and a destination. Its wildcards capture: each `+` one
level, and a `#` at the end all levels that are left, at least one. In the destination `$1`, `$2`
and so on stand for what they captured, `%c` for the client id and `%u` for the user. There are no
regular expressions: a rule takes time in proportion to the length of the name, whatever is sent.

Rules:

* The first rule that matches counts. What it makes is not rewritten again.
* Names and filters that begin with `$` are not rewritten. Of `$delayed/{seconds}/{topic}` the topic
  is, and of `$exclusive/{filter}` the filter.
* In a filter of a client, `+` is a level like any other, and `#` is captured by `#` only.
* A rule that needs the user of a client that has none, or a client id or user that is more than one
  level or has a wildcard, does not match.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from polymq.gateways.mqtt.topic_filters import check_filter

Action = Literal["publish", "subscribe", "all"]
RULES_MAX: Final = 64
"""Rules of a server: all of them may be compared with each new name."""
SUBSCRIPTIONS_MAX: Final = 32
"""Automatic subscriptions: they are made in one step when a client connects."""
_CAPTURE: Final = re.compile(r"\$(\d{1,3})|%([cu])")


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteRule:
    """One rule; `check` says whether it makes sense.

    Attributes:
        action: which packets it is for.
        source: a topic filter.
        destination: with `$1`, `%c`, `%u`.
    """

    action: Action
    source: str
    destination: str

    @property
    def names_client(self) -> bool:
        """Whether what it makes depends on the client."""
        return any(found[2] for found in _CAPTURE.finditer(self.destination))


def check_rule(source: str, destination: str) -> None:
    """Whether a rule makes sense. Raises ValueError, with what is wrong."""
    check_filter(source)
    is_of_server = destination.startswith("$") and not _CAPTURE.match(destination)
    if source.startswith("$") or is_of_server:
        raise ValueError("topics that begin with $ are not rewritten")
    if not destination or any(wildcard in destination for wildcard in "+#"):
        raise ValueError("a destination is not empty and has no wildcards: use $1 for what matched")
    captured = sum(level in ("+", "#") for level in source.split("/"))
    for found in _CAPTURE.finditer(destination):
        if found[1] and not 1 <= int(found[1]) <= captured:
            raise ValueError(f"${found[1]} is none of the {captured} wildcards of the source")


def fill_in(text: str, captured: Sequence[str], client_id: str, user: str) -> str | None:
    """The text with what its places stand for; None if the client has no name to stand there."""
    names = {"c": client_id, "u": user}
    for found in _CAPTURE.finditer(text):
        if found[2] and not is_level(names[found[2]]):
            return None
    return _CAPTURE.sub(
        lambda found: captured[int(found[1]) - 1] if found[1] else names[found[2]], text
    )


def is_level(name: str) -> bool:
    """Whether the name of a client or user can stand in a topic as one level or a part of it."""
    return bool(name) and not any(character in "+#/\0" for character in name)


class Rewriting:
    """The rules for one client.

    Args:
        client_id, user: empty before they are known.
    """

    __slots__ = ("_client_id", "_publish", "_rules", "_subscribe", "_user")

    def __init__(
        self, rules: Sequence[RewriteRule] = (), client_id: str = "", user: str = ""
    ) -> None:
        self._rules = rules
        self._client_id = client_id
        self._user = user
        self._publish = tuple(rule for rule in rules if rule.action != "subscribe")
        self._subscribe = tuple(rule for rule in rules if rule.action != "publish")

    @property
    def names_client(self) -> bool:
        """Whether what they make depends on the client."""
        return any(rule.names_client for rule in self._rules)

    def for_client(self, client_id: str, user: str) -> Rewriting:
        """The same rules for a client."""
        return Rewriting(self._rules, client_id, user)

    def topic(self, name: str) -> str:
        """Where what is published to this topic name goes."""
        return self._apply(self._publish, name) if self._publish else name

    def filter(self, pattern: str) -> str:
        """What a client gets that subscribes to this filter, or no longer gets. Raises ValueError:
        what is made of it is no filter."""
        made = self._apply(self._subscribe, pattern) if self._subscribe else pattern
        if made is not pattern:
            check_filter(made)
        return made

    def _apply(self, rules: Sequence[RewriteRule], name: str) -> str:
        if name.startswith("$"):
            return name
        levels = name.split("/")
        for rule in rules:
            captured = _captures(rule.source.split("/"), levels)
            if captured is not None:
                made = fill_in(rule.destination, captured, self._client_id, self._user)
                if made is not None:
                    return made
        return name


def _captures(source: Sequence[str], levels: Sequence[str]) -> list[str] | None:
    """What the wildcards of a source stand for; None if it does not match."""
    captured = []
    for index, level in enumerate(source):
        if index >= len(levels):
            return None
        if level == "#":
            captured.append("/".join(levels[index:]))
            return captured
        if level == "+" and levels[index] != "#":
            captured.append(levels[index])
        elif level != levels[index]:
            return None
    return captured if len(source) == len(levels) else None
