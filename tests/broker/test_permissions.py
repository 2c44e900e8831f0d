"""Rules and places: what a pattern matches, covers and overlaps, against their definitions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polymq.broker.accounts.permissions import (
    ADMIN_RULES,
    CLIENT_ID,
    EXACT,
    USER,
    Action,
    BadPattern,
    Effect,
    Rule,
    RuleSet,
    covers,
    exact_text,
    format_pattern,
    group_address,
    is_level,
    matches,
    overlaps,
    parse_pattern,
)
from polymq.broker.port import ONE_LEVEL, REST, Address
from polymq.broker.routing.patterns import matches as filter_matches

# Two words that patterns use, and one that none does: it stands for every other word.
ADDRESSES = [
    topic_address for size in range(1, 6) for topic_address in itertools.product("abc", repeat=size)
]
PATTERNS: list[Address] = [
    (*address, *rest)
    for size in range(3)
    for address in itertools.product(("a", "b", ONE_LEVEL), repeat=size)
    for rest in ((), (REST,))
    if address or rest
]
FILTERS: list[Address] = [
    address
    for size in range(1, 4)
    for address in itertools.product(("a", "b", ONE_LEVEL, REST), repeat=size)
]


def rule(text: str, *, effect: Effect = Effect.ALLOW, action: Action = Action.PUBLISH) -> Rule:
    return Rule(subject="u", effect=effect, action=action, pattern=parse_pattern(text))


def allowed(*rules: Rule, action: Action, address: Address, **names: str | None) -> bool:
    made = RuleSet(rules, user=names.get("user"), client_id=names.get("client_id"))
    reads = action is Action.SUBSCRIBE
    return (made.decide_filter if reads else made.decide)(action, address).allowed


# --- the three questions ---------------------------------------------------------------------


def test_covers_and_overlaps_are_what_their_places_say() -> None:
    """Every pattern of up to two words and every filter of up to three, over all places of up to
    five: enough words for every difference to show."""
    for wanted in FILTERS:
        found = [
            topic_address for topic_address in ADDRESSES if filter_matches(wanted, topic_address)
        ]
        for pattern in PATTERNS:
            seen = [matches(pattern, topic_address) for topic_address in found]
            assert covers(pattern, wanted) == all(seen), (pattern, wanted)
            assert overlaps(pattern, wanted) == any(seen), (pattern, wanted)


def test_matches_is_what_the_router_says() -> None:
    for pattern in PATTERNS:
        for topic_address in ADDRESSES:
            assert matches(pattern, topic_address) == filter_matches(pattern, topic_address)


def test_what_may_be_subscribed_to_may_be_read_message_by_message() -> None:
    """The promise that no delivery has to be checked: every place that a granted filter matches
    would be granted alone."""
    random = Random(20)
    addresses = [topic_address for topic_address in ADDRESSES if len(topic_address) < 4]
    addresses += [("a.b", *others) for others in ((), ("a",), ("b", "c"))]
    granted = 0
    for _ in range(2_000):
        rules = [
            Rule(
                subject="u",
                effect=random.choice((Effect.ALLOW, Effect.ALLOW, Effect.DENY)),
                action=Action.SUBSCRIBE,
                pattern=(*random.choice(((), (EXACT,))), *random.choice(PATTERNS)),
            )
            for _ in range(random.randint(1, 5))
        ]
        made = RuleSet(rules, user="u")
        wanted = random.choice(FILTERS)
        if made.decide_filter(Action.SUBSCRIBE, wanted).allowed:
            granted += 1
            for topic_address in addresses:
                if filter_matches(wanted, topic_address):
                    assert made.decide(Action.SUBSCRIBE, topic_address).allowed, (
                        rules,
                        wanted,
                        topic_address,
                    )
    assert granted > 200


# --- names ----------------------------------------------------------------------------------

NASTY = [
    "#",
    "*",
    "+",
    "a.b",
    "{client_id}",
    "%c",
    "%u",
    "\x00#",
    "",
    ONE_LEVEL,
    REST,
    CLIENT_ID,
    "a/b",
    "a\n",
]


def ids(count: int) -> Iterator[str]:
    """Client ids, those among them that would like to be more than a name."""
    yield from NASTY
    random = Random(7)
    for _ in range(count - len(NASTY)):
        letters = random.choice(("abcdefgh0123-_:", "ab.*#/+{}\x00$", "aé漢\U0001f600 \u2028"))
        yield "".join(random.choices(letters, k=random.randint(0, 10)))


def test_a_client_id_opens_its_own_place_only() -> None:
    """20,000 ids: whatever a client calls itself, it reaches the word that is its id, or none."""
    pattern = parse_pattern("devices.{client_id}.#")
    rules = [
        Rule(subject="u", effect=Effect.ALLOW, action=action, pattern=pattern)
        for action in (Action.PUBLISH, Action.SUBSCRIBE)
    ]
    for client_id in ids(20_000):
        made = RuleSet(rules, user="u").for_client(client_id)
        for level in (client_id, "b", "#", ONE_LEVEL, REST):
            own = level == client_id and is_level(client_id)
            assert made.decide(Action.PUBLISH, ("devices", level, "x")).allowed == own
            wanted = ("devices", level, REST)
            assert made.decide_filter(Action.SUBSCRIBE, wanted).allowed == own
        assert not made.decide_filter(Action.SUBSCRIBE, ("devices", REST)).allowed


def test_a_denied_name_cannot_be_dodged() -> None:
    """A name that is no word makes a rule that denies wider, not empty."""
    rules = [rule("#"), rule("devices.{client_id}.admin", effect=Effect.DENY)]
    for client_id in ids(5_000):
        made = RuleSet(rules, user="u", client_id=client_id)
        assert not made.decide(Action.PUBLISH, ("devices", client_id, "admin")).allowed


def test_names_are_put_in_as_whole_words() -> None:
    pattern = parse_pattern("fleet.{user}.{client_id}.#")
    assert pattern == ("fleet", USER, CLIENT_ID, REST)
    rules = [Rule(subject="u", effect=Effect.ALLOW, action=Action.PUBLISH, pattern=pattern)]
    made = RuleSet(rules, user="ann", client_id="d1")
    assert made.decide(Action.PUBLISH, ("fleet", "ann", "d1", "x")).allowed
    assert not made.decide(Action.PUBLISH, ("fleet", "bob", "d1", "x")).allowed
    nobody = RuleSet(rules, user=None).for_client("d1")
    assert not nobody.decide(Action.PUBLISH, ("fleet", "anonymous", "d1", "x")).allowed
    nameless = RuleSet(rules, user="ann")
    assert not nameless.decide(Action.PUBLISH, ("fleet", "ann", "d1", "x")).allowed


# --- decisions ------------------------------------------------------------------------------


def test_nothing_is_allowed_that_no_rule_allows() -> None:
    for action in Action:
        assert not allowed(action=action, address=("a",))
        assert not allowed(rule("a", action=action), action=action, address=("b",))


def test_who_denies_wins_in_whatever_order() -> None:
    deny = rule("a.secret.#", effect=Effect.DENY)
    for rules in ((rule("a.#"), deny), (deny, rule("a.#"))):
        assert allowed(*rules, action=Action.PUBLISH, address=("a", "x"))
        assert not allowed(*rules, action=Action.PUBLISH, address=("a", "secret"))
        assert not allowed(*rules, action=Action.PUBLISH, address=("a", "secret", "x"))


def test_a_subscription_that_would_see_something_denied_is_refused() -> None:
    rules = (
        rule("a.#", action=Action.SUBSCRIBE),
        rule("a.secret", action=Action.SUBSCRIBE, effect=Effect.DENY),
    )
    assert allowed(*rules, action=Action.SUBSCRIBE, address=("a", "x"))
    assert allowed(*rules, action=Action.SUBSCRIBE, address=("a", "x", REST))
    for wanted in (("a", REST), ("a", ONE_LEVEL), (REST,), (REST, "secret"), ("a", "secret")):
        assert not allowed(*rules, action=Action.SUBSCRIBE, address=wanted), wanted


def test_a_topic_with_dots_is_read_both_ways() -> None:
    """The exchange `orders.eu` with key `x`, and the exchange `orders` with key `eu.x`."""
    for address in (("orders.eu", "x"), ("orders", "eu", "x")):
        assert allowed(rule("orders.eu.#"), action=Action.PUBLISH, address=address)
        denied = (rule("#"), rule("orders.eu.#", effect=Effect.DENY))
        assert not allowed(*denied, action=Action.PUBLISH, address=address)
    assert allowed(rule("*.x"), action=Action.PUBLISH, address=("orders.eu", "x"))
    reads = (
        rule("#", action=Action.SUBSCRIBE),
        rule("orders.eu.x", action=Action.SUBSCRIBE, effect=Effect.DENY),
    )
    assert not allowed(*reads, action=Action.SUBSCRIBE, address=(ONE_LEVEL, "x"))


@pytest.mark.parametrize("action", [Action.PUBLISH, Action.SUBSCRIBE])
@pytest.mark.parametrize(
    ("pattern", "there", "elsewhere"),
    [
        ("{exact}/a/b/c", ("a", "b", "c"), ("a.b", "c")),
        ("{exact}/a.b/c", ("a.b", "c"), ("a", "b", "c")),
        ("{exact}/a.b", ("a.b",), ("a", "b")),
        ("{exact}/a/#", ("a", "b"), ("a.b",)),
        ("{exact}/+/c", ("a.b", "c"), ("a.c",)),
        ("{exact}/%u/+", ("ann", "c"), ("ann.c",)),
        ("{exact}/%RETRY%/+", ("%RETRY%", "g"), ("%RETRY%g",)),
    ],
)
def test_an_exact_rule_takes_a_topic_as_it_is(
    action: Action, pattern: str, there: Address, elsewhere: Address
) -> None:
    """Whether it allows or denies: what a topic filter of MQTT means."""
    allows = rule(pattern, action=action)
    denies = (rule("#", action=action), rule(pattern, action=action, effect=Effect.DENY))
    if action is Action.SUBSCRIBE or not there[0].startswith("%"):
        assert allowed(allows, action=action, address=there, user="ann")
    assert not allowed(*denies, action=action, address=there, user="ann")
    assert not allowed(allows, action=action, address=elsewhere, user="ann")
    if action is Action.SUBSCRIBE or not elsewhere[0].startswith("%"):
        assert allowed(*denies, action=action, address=elsewhere, user="ann")
    asked = RuleSet([allows], user="ann")
    assert not asked.decide_some(action, elsewhere).allowed


def test_an_exact_rule_is_written_as_it_is_read() -> None:
    for text in ("{exact}/a/b.c/+", "{exact}/a.b/#", "{exact}/{user}/x", "{exact}//a", "{exact}/+"):
        assert format_pattern(parse_pattern(text)) == text
    for text in ("{exact}", "{exact}/", "{exact}/#/a", "{exact}/a/{exact}/b", "{exact}/*/a"):
        with pytest.raises(BadPattern):
            parse_pattern(text)


def test_the_exact_text_of_a_filter() -> None:
    texts = {"+": "*", "#": "#", "a": "a", "{user}": "{user}", "a.b": "{exact}/a.b"}
    texts |= {text: "{exact}/" + text for text in ("a/b", "/a", "+/#", "%u/x")}
    assert {text: exact_text(text) for text in texts} == texts


def test_no_client_calls_itself_a_topic_of_the_server() -> None:
    for text in ("{client_id}.#", "{exact}/{client_id}/#"):
        reads = rule(text, action=Action.SUBSCRIBE)
        wanted = ("$SYS", "broker", REST)
        assert not allowed(reads, action=Action.SUBSCRIBE, address=wanted, client_id="$SYS")
        own = ("a", "b")
        assert allowed(reads, action=Action.SUBSCRIBE, address=own, client_id="a")
    below = rule("a.{client_id}.#", action=Action.SUBSCRIBE)
    assert allowed(below, action=Action.SUBSCRIBE, address=("a", "$x", REST), client_id="$x")


@pytest.mark.parametrize(
    ("rules", "known"),
    [
        ("", False),
        ("allow ann publish orders", True),
        ("allow ann publish orders.eu", True),
        ("allow ann subscribe orders.*.x", True),
        ("allow ann subscribe orders.*.x; deny ann subscribe orders.a.#", True),
        ("allow ann create orders.#", False),
        ("allow ann admin #", False),
        ("allow ann publish orders2.#", False),
        ("allow ann publish #", True),
        ("allow ann publish #; deny ann publish orders.#", False),
        ("allow ann publish #; deny ann publish *.#", False),
        ("allow ann publish #; deny ann publish orders.#; allow ann subscribe orders.x", True),
    ],
)
def test_who_may_do_anything_in_a_topic_may_know_of_it(rules: str, known: bool) -> None:
    """A producer has to find its topic, whose every tag it may neither read nor publish."""
    made = []
    for text in filter(None, rules.split("; ")):
        effect, _, action, topic_address = text.split()
        made.append(rule(topic_address, effect=Effect(effect), action=Action(action)))
    assert RuleSet(made, user="ann").speaks_of("orders") is known


def test_topics_of_the_broker_are_closed_to_all() -> None:
    for action in Action:
        address = ("RMQ_SYS_POLYMQ_STATE",)
        assert not allowed(*ADMIN_RULES, action=action, address=address)
        assert not RuleSet(ADMIN_RULES, user="u").decide_filter(action, (*address, REST)).allowed
    assert allowed(*ADMIN_RULES, action=Action.PUBLISH, address=("RMQ_SYS_TRACE_TOPIC",))
    assert not allowed(*ADMIN_RULES, action=Action.PUBLISH, address=("RMQ_SYS_TRACE_TOPICS",))
    for topic in ("%DLQ%orders", "%RETRY%group"):
        assert not allowed(*ADMIN_RULES, action=Action.PUBLISH, address=(topic, "x"))
        assert allowed(*ADMIN_RULES, action=Action.SUBSCRIBE, address=(topic, REST))


@pytest.mark.parametrize(
    ("topic_address", "group", "may"),
    [
        ("%RETRY%billing.#", "billing", True),
        ("%RETRY%.billing.#", "billing", True),
        ("%RETRY%.*.#", "billing", True),
        ("%RETRY%.#", "billing", True),
        ("#", "billing", True),
        ("%RETRY%.{user}.#", "ann", True),
        ("%RETRY%.{user}.#", "billing", False),
        ("%RETRY%billing", "billing", False),  # a message without a tag, and no others
        ("%RETRY%bill.#", "billing", False),
        ("%DLQ%.#", "billing", False),
        ("billing.#", "billing", False),
    ],
)
def test_a_consumer_group_is_its_retry_topic(topic_address: str, group: str, may: bool) -> None:
    rules = RuleSet([rule(topic_address, action=Action.SUBSCRIBE)], user="ann")
    assert rules.decide_filter(Action.SUBSCRIBE, group_address(group)).allowed is may


def test_a_group_that_is_denied_as_a_word_is_denied_as_a_topic() -> None:
    rules = [
        rule("#", action=Action.SUBSCRIBE),
        rule("%RETRY%.billing.#", effect=Effect.DENY, action=Action.SUBSCRIBE),
    ]
    made = RuleSet(rules, user="ann")
    for address in (group_address("billing"), ("%RETRY%billing",), (ONE_LEVEL, REST), (REST,)):
        assert not made.decide_filter(Action.SUBSCRIBE, address).allowed, address
    assert made.decide_filter(Action.SUBSCRIBE, group_address("shipping")).allowed


def test_an_admin_may_everything_else() -> None:
    for action in Action:
        assert allowed(*ADMIN_RULES, action=action, address=("any", "place"))


# --- text -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("#", (REST,)),
        ("sensors", ("sensors",)),
        ("sensors.*.temp", ("sensors", ONE_LEVEL, "temp")),
        ("sensors.#", ("sensors", REST)),
        ("sensors/+/temp", ("sensors", ONE_LEVEL, "temp")),
        ("sensors/v1.2/#", ("sensors", "v1/2", REST)),
        ("a.b/c", ("a", "b", "c")),
        ("devices/{client_id}/#", ("devices", CLIENT_ID, REST)),
        ("devices/%c/#", ("devices", CLIENT_ID, REST)),
        ("fleet.%u.*", ("fleet", USER, ONE_LEVEL)),
        ("fleet.x%u", ("fleet", "x%u")),
        ("%DLQ%orders.#", ("%DLQ%orders", REST)),
        ("%RETRY%consumers.#", ("%RETRY%consumers", REST)),
        ("", None),
        ("a.#.b", None),
        ("a#", None),
        ("a*.b", None),
        ("a/*/b", None),
        ("a.+.b", None),
        ("x{user}", None),
        ("{name}", None),
        ("a\nb", None),
        ("a" * 1025, None),
        (".".join("a" * 129), None),
    ],
)
def test_patterns_as_people_write_them(text: str, pattern: Address | None) -> None:
    if pattern is None:
        with pytest.raises(BadPattern):
            parse_pattern(text)
    else:
        assert parse_pattern(text) == pattern


@given(st.text("ab./*+#{}user", min_size=1, max_size=12))
@settings(max_examples=500, deadline=None)
def test_the_text_of_a_pattern_gives_the_pattern(text: str) -> None:
    try:
        pattern = parse_pattern(text)
    except BadPattern:
        return
    assert parse_pattern(format_pattern(pattern)) == pattern
