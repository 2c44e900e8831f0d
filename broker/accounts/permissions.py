"""Who may do what where: rules over places, and the decision. Pure: no state, no clock.

A *place* is where messages are: a topic and a tag, written as levels with dots between them
(`sensors.room1.temp`; part 7 of ARCHITECTURE.md). A rule allows or denies a subject (a user or a
role) an action on all places that a pattern matches: `*` is one level, `#` at the end is the rest,
`{user}` and `{client_id}` are the name of who asks; `%u` and `%c` are other ways to write them.

Rules of this file:

* Nothing is allowed that no rule allows. A rule that denies wins over every rule that allows.
* To publish, the place has to match. To subscribe, *everything* that the filter may ever match has
  to be allowed by one rule, and nothing of it may be denied: so a subscription that was granted
  needs no look at its messages.
* A topic whose name has dots reads like a topic and a tag. It is taken both ways: either way is
  enough to match a rule. So `deny bob publish orders.secret` holds for the exchange
  `orders.secret` and for the key `secret` of the exchange `orders`. A rule whose pattern begins
  with EXACT takes a topic as it is, dots included: it means what a topic filter of MQTT means.
* A consumer group of RocketMQ's is its retry topic, `%RETRY%billing`: who may subscribe to all of
  that may be a member. Such a topic, and one of dead letters, also reads as two levels (`%RETRY%`
  and the group), so that a pattern can say all groups, or the one that is called as its user.
* Names are put in as whole levels and compared, never spliced into an expression: a client that
  calls itself `#` gains nothing. A name that is no level of its own (it is empty, or holds a dot, a
  slash or a wildcard) makes a rule that allows match nothing, and one that denies match every
  level. So does a name that begins with `$` in the first level, where the server's topics are.
* Topics of the broker itself are closed to everybody.

Theory of the two questions about filters, both over patterns of literals, ONE_LEVEL and REST:

* *covers*: a pattern has its REST at the end only, so it says what the first levels have to be and
  how many there are at least. A filter lies within it if it has that many levels, and if each
  literal of the pattern meets the same literal in the filter before any REST of it (behind one,
  any level may stand at that place, because there are infinitely many).
* *overlaps*: whether one sequence of levels matches both, by dynamic programming.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from polymq.broker.names import is_own_topic
from polymq.broker.port.values import ONE_LEVEL, REST, Address

USER: Final = "\x00user"
"""In a pattern: the name of the user who asks."""
CLIENT_ID: Final = "\x00client"
"""In a pattern: the MQTT client id of the connection that asks."""
EXACT: Final = "\x00exact"
"""Before the levels of a pattern: the topic is not read in other ways."""
EXACT_PREFIX: Final = "{exact}/"
"""The same as text. No level can have braces."""

ADMIN_ROLE: Final = "admin"
"""The role that may do everything, everywhere."""
OPERATOR_ROLE: Final = "operator"
"""The role that may see everything that operators see, and act on it: no users, rules or roles of
brokers. It may neither read nor publish messages."""
READER_ROLE: Final = "reader"
"""The role that may see what operators see, and change nothing."""
ANONYMOUS: Final = "anonymous"
"""Name and role of who comes without a name. No user can be called so."""

PATTERN_BYTES_MAX: Final = 1_024
"""A topic's name has at most 127 bytes as stored; a pattern of eight such levels is long."""
LEVELS_MAX: Final = 128
"""As `limits.levels_max`: a longer pattern could match nothing."""

RETRY_PREFIX: Final = "%RETRY%"
DEAD_LETTER_PREFIX: Final = "%DLQ%"
UNPUBLISHABLE_PREFIXES: Final = (RETRY_PREFIX, DEAD_LETTER_PREFIX)
"""Topics that only the broker puts messages into; they are read like any other. What follows the
prefix is the name of a consumer group."""

_NAMED: Final[Mapping[str, str]] = {USER: "{user}", CLIENT_ID: "{client_id}"}
_NAMES: Final[Mapping[str, str]] = {
    **{text: symbol for symbol, text in _NAMED.items()},
    "%u": USER,
    "%c": CLIENT_ID,  # as mosquitto and EMQX write them
}
_NO_LEVEL: Final = frozenset("./*#+{}")


class Action(enum.Enum):
    """What a rule is about."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    """Every kind of reading: subscriptions, consumers, gets, pulls by offset, purges."""
    CREATE = "create"
    """Topics that come into being, and AMQP's exchanges, queues and bindings: their making and
    their end."""
    MONITOR = "monitor"
    """To see what operators see: figures, names, settings; not what is in messages."""
    OPERATE = "operate"
    """To act on it: to purge, delete, move, disconnect, ban, pause. It includes MONITOR."""
    ADMIN = "admin"
    """Topics, users, permissions, the roles of brokers. It includes OPERATE."""


class Effect(enum.Enum):
    """What a rule does."""

    ALLOW = "allow"
    DENY = "deny"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One line of the permissions.

    Attributes:
        subject: a user's name, or `role:` and a role's.
        pattern: as `parse_pattern` gives it.
    """

    subject: str
    effect: Effect
    action: Action
    pattern: Address

    def __str__(self) -> str:
        pattern = format_pattern(self.pattern)
        return f"{self.effect.value} {self.subject} {self.action.value} {pattern}"


EVERYTHING: Final[Address] = (REST,)
MANAGING: Final = (Action.MONITOR, Action.OPERATE, Action.ADMIN)
"""What is done at the operators' listeners. Each includes those before it."""


def _given(role: str, *actions: Action) -> tuple[Rule, ...]:
    subject = f"role:{role}"
    return tuple(
        Rule(subject=subject, effect=Effect.ALLOW, action=action, pattern=EVERYTHING)
        for action in actions
    )


ADMIN_RULES: Final = _given(ADMIN_ROLE, *Action)
"""What the role `admin` has without being given it."""
ROLE_RULES: Final[Mapping[str, tuple[Rule, ...]]] = {
    ADMIN_ROLE: ADMIN_RULES,
    OPERATOR_ROLE: _given(OPERATOR_ROLE, Action.OPERATE),
    READER_ROLE: _given(READER_ROLE, Action.MONITOR),
}
"""What roles have without being given it, by the name of the role."""


class BadPattern(ValueError):
    """Not a pattern; the text says what is wrong and what to write."""


# --- patterns as text --------------------------------------------------------------------------


def parse_pattern(text: str) -> Address:
    """A pattern as a person writes it: `sensors.*.temp`, or as MQTT does, `sensors/+/temp`.

    A text with a slash is in MQTT's notation: there `.` is an ordinary character and `+` is one
    level. A topic that has dots in its name is written as its levels. `%u` and `%c` stand for names
    only where they are a whole level: `%RETRY%consumers` is a topic like others. Behind `{exact}/`
    the text is in MQTT's notation, and a dot in the first level is an ordinary character, too.

    Raises:
        BadPattern: with a sentence for the user.
    """
    if text.startswith(EXACT_PREFIX):
        return (EXACT, *_parsed(text.removeprefix(EXACT_PREFIX), exact=True))
    return _parsed(text, exact=False)


def exact_text(topic_filter: str) -> str:
    """The text of the pattern that matches what a topic filter of MQTT matches, and nothing else.
    It is no pattern if the filter is none."""
    if topic_filter == "+":
        return "*"
    if "/" in topic_filter or "." in topic_filter:
        return EXACT_PREFIX + topic_filter
    return topic_filter  # of one level, or `#`: no topic with dots is matched by it alone


def _parsed(text: str, *, exact: bool) -> Address:
    if not text:
        raise BadPattern("a pattern must not be empty: write # for every address")
    if len(text.encode("utf-8", "surrogatepass")) > PATTERN_BYTES_MAX:
        raise BadPattern(f"a pattern has at most {PATTERN_BYTES_MAX} bytes")
    if any(ord(letter) < 0x20 or 0xD800 <= ord(letter) < 0xE000 for letter in text):
        raise BadPattern("a pattern must not contain control characters")
    if "/" in text or exact:
        parts, one = _mqtt_parts(text, exact=exact), "+"
    else:
        parts, one = text.split("."), "*"
    if len(parts) > LEVELS_MAX:
        raise BadPattern(f"a pattern has at most {LEVELS_MAX} words")
    return tuple(
        _level(part, one, last=at == len(parts) - 1, text=text) for at, part in enumerate(parts)
    )


def _mqtt_parts(text: str, *, exact: bool) -> list[str]:
    levels = text.split("/")
    # As in tags: within a level a dot takes the place of the slash. The topic reads as its levels.
    topic = levels[:1] if exact else levels[0].split(".")
    return [*topic, *(level.replace(".", "/") for level in levels[1:])]


def _level(part: str, one: str, *, last: bool, text: str) -> str:
    if part == one:
        return ONE_LEVEL
    if part == "#":
        if not last:
            raise BadPattern(
                f"# stands for the rest, so it must be the last level, unlike in {text!r}"
            )
        return REST
    if part in _NAMES:
        return _NAMES[part]
    for letter in "*#+{}":
        if letter in part:
            raise BadPattern(
                f"{part!r} in {text!r} is not a level: {one}, #, {{user}} and {{client_id}} stand "
                "alone between the dots"
            )
    return part


def format_pattern(pattern: Address) -> str:
    """The text of a pattern: in dots, or in MQTT's notation where a level has a slash."""
    if pattern[:1] == (EXACT,):
        topic, *others = pattern[1:]
        wildcards = {ONE_LEVEL: "+", REST: "#", **_NAMED}
        levels = [topic, *(level.replace("/", ".") for level in others)]
        return EXACT_PREFIX + "/".join(wildcards.get(level, level) for level in levels)
    if any("/" in level for level in pattern):
        wildcards = {ONE_LEVEL: "+", REST: "#", **_NAMED}
        return "/".join(wildcards.get(level, level.replace("/", ".")) for level in pattern)
    wildcards = {ONE_LEVEL: "*", REST: "#", **_NAMED}
    return ".".join(wildcards.get(level, level) for level in pattern)


# --- places ------------------------------------------------------------------------------------


def views(address: Address) -> Iterable[Address]:
    """The ways to read a place or a filter: as it is, with the topic's dots between levels, and
    with a consumer group as a level of its own."""
    yield address
    if "." in address[0]:
        yield (*address[0].split("."), *address[1:])
    if address[0].startswith(UNPUBLISHABLE_PREFIXES):
        prefix, group = _group_of(address[0])
        if group:
            yield (prefix, group, *address[1:])


def _group_of(topic: str) -> tuple[str, str]:
    """The prefix of a retry or dead-letter topic, and its consumer group."""
    prefix = next(one for one in UNPUBLISHABLE_PREFIXES if topic.startswith(one))
    return prefix, topic.removeprefix(prefix)


def group_address(group: str) -> Address:
    """All of the place that stands for a consumer group: its retry topic."""
    return (RETRY_PREFIX + group, REST)


def is_closed(topic: str, action: Action) -> bool:
    """Whether nobody may do this with the topic, whatever the rules say."""
    if is_own_topic(topic):
        return True
    return action is Action.PUBLISH and topic.startswith(UNPUBLISHABLE_PREFIXES)


def matches(pattern: Address, address: Address) -> bool:
    """Whether a message with these levels is at a place of the pattern."""
    fixed = len(pattern)
    if pattern and pattern[-1] == REST:
        fixed -= 1
        if len(address) < fixed:
            return False
    elif len(address) != fixed:
        return False
    return all(pattern[at] in (ONE_LEVEL, address[at]) for at in range(fixed))


def covers(pattern: Address, wanted: Address) -> bool:
    """Whether every message that the filter matches is at a place of the pattern."""
    rest = wanted.index(REST) if REST in wanted else None
    least = max(1, sum(level != REST for level in wanted))  # every place has a topic
    fixed = len(pattern)
    if pattern and pattern[-1] == REST:
        fixed -= 1
        if least < fixed:
            return False
    elif rest is not None or least != fixed:
        return False
    for at in range(fixed):
        if pattern[at] == ONE_LEVEL:
            continue
        if (rest is not None and at >= rest) or wanted[at] != pattern[at]:
            return False
    return True


def overlaps(pattern: Address, wanted: Address) -> bool:
    """Whether some message that the filter matches is at a place of the pattern."""
    # `reached` holds the `j` for which levels of pattern[:i] and wanted[:j] agree.
    reached = _past_rests(wanted, {0})
    for level in pattern:
        following: set[int] = set()
        if level == REST:
            following = set(range(min(reached), len(wanted) + 1)) if reached else set()
        else:
            for at in reached:
                if at == len(wanted):
                    continue
                if wanted[at] == REST:
                    following.add(at)
                elif ONE_LEVEL in (level, wanted[at]) or level == wanted[at]:
                    following.add(at + 1)
        reached = _past_rests(wanted, following)
    return len(wanted) in reached


def _past_rests(wanted: Address, reached: set[int]) -> set[int]:
    found = set(reached)
    for at in reached:
        while at < len(wanted) and wanted[at] == REST:
            at += 1
            found.add(at)
    return found


def is_level(name: str | None) -> bool:
    """Whether a name can stand in a place as one level."""
    return bool(name) and not any(
        letter in _NO_LEVEL or ord(letter) < 0x20 or 0xD800 <= ord(letter) < 0xE000
        for letter in name or ""
    )


# --- decisions ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether something is allowed, and the rule that says so; None where no rule speaks of it.

    Attributes:
        is_open: no rule speaks of it, and one could.
    """

    allowed: bool
    rule: Rule | None
    is_open: bool = False


_CLOSED: Final = Decision(False, None)
_OPEN: Final = Decision(False, None, is_open=True)


_Resolved = tuple[Address, int | None, Rule]
"""A pattern with names put in, how many of the `views` it is compared with (None: all), and where
it comes from."""


class RuleSet:
    """The rules of one principal, with its names put in.

    Args:
        rules: those of the user and of all its roles.
        user, client_id: what `{user}` and `{client_id}` stand for; None where there is none.
    """

    __slots__ = ("_allows", "_denies", "_rules", "_user", "names_clients")

    def __init__(
        self, rules: Sequence[Rule], *, user: str | None, client_id: str | None = None
    ) -> None:
        self._rules = tuple(rules)
        self._user = user
        self.names_clients = any(CLIENT_ID in rule.pattern for rule in rules)
        """Whether `{client_id}` occurs: then every connection needs a set of its own."""
        self._allows: dict[Action, list[_Resolved]] = {}
        self._denies: dict[Action, list[_Resolved]] = {}
        names = {USER: user, CLIENT_ID: client_id}
        for rule in rules:
            allow = rule.effect is Effect.ALLOW
            exact = rule.pattern[:1] == (EXACT,)
            levels = rule.pattern[1:] if exact else rule.pattern
            pattern = _resolved(levels, names, None if allow else ONE_LEVEL)
            if pattern is not None:
                by_action = self._allows if allow else self._denies
                ways = 1 if exact else None
                by_action.setdefault(rule.action, []).append((pattern, ways, rule))

    def for_client(self, client_id: str | None) -> RuleSet:
        """The same rules for one client of the same user."""
        if not self.names_clients or client_id is None:
            return self
        return RuleSet(self._rules, user=self._user, client_id=client_id)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is allowed anywhere."""
        return not self._allows

    def decide(self, action: Action, address: Address) -> Decision:
        """About one place: publishing to it, creating it, administering it."""
        if is_closed(address[0], action):
            return _CLOSED
        seen = tuple(views(address))
        for pattern, ways, rule in self._denies.get(action, ()):
            if any(matches(pattern, view) for view in seen[:ways]):
                return Decision(False, rule)
        for pattern, ways, rule in self._allows.get(action, ()):
            if any(matches(pattern, view) for view in seen[:ways]):
                return Decision(True, rule)
        return _OPEN

    def decide_filter(self, action: Action, wanted: Address) -> Decision:
        """About everything that a filter may match: subscribing to it."""
        if is_closed(wanted[0], action):
            return _CLOSED
        seen = tuple(views(wanted))
        # A wildcard in the place of the topic also stands for topics with dots in their names.
        reach = [(ONE_LEVEL, REST, *wanted[1:])] if wanted[0] == ONE_LEVEL else []
        for pattern, ways, rule in self._denies.get(action, ()):
            if any(overlaps(pattern, view) for view in (*seen, *reach)[:ways]):
                return Decision(False, rule)
        for pattern, ways, rule in self._allows.get(action, ()):
            if any(covers(pattern, view) for view in seen[:ways]):
                return Decision(True, rule)
        return _OPEN

    def speaks_of(self, topic: str) -> bool:
        """Whether something in a topic may be read or published, be it a single tag: who may do
        that may know that the topic is there."""
        wanted = (topic, REST)
        return any(
            self.decide_some(action, wanted).allowed
            for action in (Action.SUBSCRIBE, Action.PUBLISH)
        )

    def decide_some(self, action: Action, wanted: Address) -> Decision:
        """About a filter, be it for a single place of those that it matches."""
        if is_closed(wanted[0], action):
            return _CLOSED
        seen = tuple(views(wanted))
        for pattern, ways, rule in self._denies.get(action, ()):
            if any(covers(pattern, one) for one in seen[:ways]):
                return Decision(False, rule)
        for pattern, ways, rule in self._allows.get(action, ()):
            if any(overlaps(pattern, one) for one in seen[:ways]):
                return Decision(True, rule)
        return _OPEN


def _resolved(
    pattern: Address, names: Mapping[str, str | None], unnamed: str | None
) -> Address | None:
    """The pattern with names put in; `unnamed` in the place of one that is no level, or no pattern
    at all if that is None."""
    address: list[str] = []
    for level in pattern:
        if level in names:
            name = names[level]
            put = name if is_level(name) else unnamed
            if put and not address and put.startswith("$"):  # no client calls itself $SYS
                put = unnamed
            if put is None:
                return None
            address.append(put)
        else:
            address.append(level)
    return tuple(address)
