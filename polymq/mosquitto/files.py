"""Mosquitto's password files and access control lists as users and rules of ours. Pure.

What a line says either becomes users or rules that allow no more than the line does, or the line is
listed with the reason. Rules:

* A line of `topic` belongs to the user named before it, or to clients without a name. A line of
  `pattern` belongs to everybody, which is a role here.
* `write` is the right to publish and to create the topic by it, `read` the right to subscribe,
  `deny` denies both.
* A rule is about the levels of the line and nothing else: a topic with a dot in its first level is
  none of two levels (`exact_text`).
* Names stand for themselves in a line of `topic`, and `{user}` and `*` in any line: such lines
  cannot be written as rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from polymq.broker.accounts import passwords
from polymq.broker.accounts.permissions import BadPattern, exact_text, parse_pattern
from polymq.broker.accounts.user import USER_NAME

ANONYMOUS_SUBJECT: Final = "role:anonymous"
_ACCESS: Final = {
    "read": ("allow", ("subscribe",)),
    "write": ("allow", ("publish", "create")),
    "readwrite": ("allow", ("publish", "create", "subscribe")),
    "deny": ("deny", ("publish", "subscribe")),
}
_OURS_ONLY: Final = ("{user}", "{client_id}")


@dataclass(frozen=True, slots=True)
class Imported:
    """A line that can be imported as a user.

    Attributes:
        line: its number, from 1.
        password_hash: as it stands there.
    """

    line: int
    name: str
    password_hash: str


@dataclass(frozen=True, slots=True)
class ImportedRule:
    """A line that can be imported as rules, one for each action.

    Attributes:
        topic: as a pattern of rules.
    """

    line: int
    effect: str
    subject: str
    actions: tuple[str, ...]
    topic: str


@dataclass(frozen=True, slots=True)
class Problem:
    """A line that cannot, and why."""

    line: int
    text: str


def read_passwords(lines: Iterable[str]) -> Iterator[Imported | Problem]:
    """The users of a password file: `name:hash`."""
    seen: set[str] = set()
    for number, line in enumerate(lines, 1):
        text = line.rstrip("\r\n")
        if not text.strip() or text.startswith("#"):
            continue
        name, colon, stored = text.partition(":")
        if not colon:
            yield Problem(number, "there is no colon between a name and a password")
        elif USER_NAME.fullmatch(name) is None:
            yield Problem(number, _bad_name(name))
        elif name in seen:
            yield Problem(number, f"user {name!r} is in the file twice")
        elif not stored.startswith("$"):
            yield Problem(
                number, "the password is not hashed: run `mosquitto_passwd -U FILE` on a copy"
            )
        elif not passwords.is_importable(stored):
            yield Problem(number, "the hash is neither $6$ (SHA-512) nor $7$ (PBKDF2-SHA512)")
        else:
            seen.add(name)
            yield Imported(number, name, stored)


def read_acl(lines: Iterable[str], everybody: str) -> Iterator[ImportedRule | Problem]:
    """The rules of an access control list.

    Args:
        everybody: the role that has the rules of `pattern` lines.
    """
    subject: str | None = ANONYMOUS_SUBJECT
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        keyword, _, rest = text.partition(" ")
        rest = rest.strip()
        if keyword == "user":
            subject = rest if USER_NAME.fullmatch(rest) else None
            if subject is None:
                yield Problem(number, _bad_name(rest))
        elif keyword == "pattern":
            yield _rule(number, f"role:{everybody}", rest, is_pattern=True)
        elif keyword != "topic":
            yield Problem(number, f"{keyword!r} is none of user, topic and pattern")
        elif subject is None:
            yield Problem(number, "it belongs to a user that cannot be imported")
        else:
            yield _rule(number, subject, rest, is_pattern=False)


def _rule(number: int, subject: str, rest: str, *, is_pattern: bool) -> ImportedRule | Problem:
    word, space, topic = rest.partition(" ")
    if not space:
        word, topic = "readwrite", rest
    elif word not in _ACCESS:
        return Problem(number, f"{word!r} is none of {', '.join(_ACCESS)}")
    topic = topic.strip()
    why = why_no_rule(topic, is_pattern=is_pattern)
    if why is None:
        topic = exact_text(topic)
        try:
            parse_pattern(topic)
        except BadPattern as error:
            why = str(error)
    if why is not None:
        return Problem(number, why)
    effect, actions = _ACCESS[word]
    return ImportedRule(number, effect, subject, actions, topic)


def why_no_rule(topic: str, *, is_pattern: bool, of_server: bool = False) -> str | None:
    """Why there is no rule that is about the same topics.

    Args:
        topic: a topic filter.
        is_pattern: `%u` and `%c` stand for names in it.
        of_server: it may be about topics of the server.
    """
    if not topic:
        return "there is no topic"
    levels = topic.split("/")
    if topic.startswith("$") and not of_server:
        return f"there are no topics {levels[0]}/... of the server that clients could be allowed"
    if any("*" in level for level in levels):
        return "* stands for one level in rules, and cannot be a character of a topic there"
    for level in levels:
        names = level in ("%u", "%c")
        if level in _OURS_ONLY or (names and not is_pattern):
            return f"{level} stands for a name in rules, and cannot be the text of a level there"
        if is_pattern and not names and ("%u" in level or "%c" in level):
            return f"a name has to be a whole level, unlike in {level!r}"
    return None


def _bad_name(name: str) -> str:
    return (
        f"{name!r} cannot be a user's name: that is 1 to 64 letters, digits, '.', '_', '@' and "
        "'-', and begins with a letter or digit, or the subject of a certificate"
    )
