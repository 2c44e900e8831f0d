"""The trie against the definition of matching, and cached routes against the trie."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymq.broker.names import decode_name, display_name, encode_name, parse_display_name
from polymq.broker.port import ONE_LEVEL, REST, Address, Reason, Refused
from polymq.broker.routing.patterns import matches, normal_form
from polymq.broker.routing.trie import CachedRoute, Router

level = st.sampled_from(["a", "b", "", "$x"])
message = st.lists(level, min_size=1, max_size=4).map(tuple)
pattern = st.lists(st.one_of(level, st.just(ONE_LEVEL), st.just(REST)), min_size=1, max_size=5).map(
    tuple
)


@pytest.mark.parametrize(
    ("pattern", "address", "expected"),
    [
        (("a", REST), ("a",), True),
        (("a", REST), ("a", "b", "c"), True),
        (("a", ONE_LEVEL), ("a",), False),
        (("a", ONE_LEVEL), ("a", ""), True),
        (("a", REST, "c"), ("a", "c"), True),
        (("a", REST, "c"), ("a", "b", "b", "c"), True),
        (("a", REST, "c"), ("a", "b"), False),
        ((REST,), ("$SYS", "x"), False),
        ((ONE_LEVEL, REST), ("$SYS", "x"), False),
        (("$SYS", REST), ("$SYS", "x"), True),
        (("a", ONE_LEVEL, REST), ("a", "b"), True),
    ],
)
def test_matching_as_mqtt_and_amqp_define_it(
    pattern: Address, address: Address, expected: bool
) -> None:
    """`#` is any number of words, `+` and `*` exactly one; `$` topics hide from a leading one."""
    assert matches(pattern, address) is expected


@given(st.lists(st.tuples(st.booleans(), pattern), max_size=25), st.lists(message, max_size=6))
def test_routes_follow_every_change(
    changes: list[tuple[bool, Address]], asked: list[Address]
) -> None:
    """However subscriptions come and go, a cached route says what the definition says."""
    router: Router[int, CachedRoute[int]] = Router(CachedRoute, routes_max=4)
    live: set[tuple[Address, int]] = set()
    for number, (add, pattern) in enumerate(changes):
        address = normal_form(pattern)
        if add:
            router.subscribe(address, number % 3)
            live.add((address, number % 3))
        else:
            for target in range(3):
                router.unsubscribe(address, target)
                live.discard((address, target))
        for message_texts in asked:
            expected = {target for address, target in live if matches(address, message_texts)}
            assert set(router.route(message_texts).counts) == expected


class Sorted(CachedRoute[int]):
    """A route that notes how often its targets were sorted."""

    __slots__ = ("sorts",)

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self.sorts = 0

    def targets_changed(self) -> None:
        self.sorts += 1


def test_exact_patterns_are_sorted_out_when_their_route_is_used() -> None:
    """Once, however many queues were bound in between; each time would take as long as there are
    queues."""
    router: Router[int, Sorted] = Router(Sorted)
    route = router.route(("x", "k"))
    for target in range(100):
        router.subscribe(("x", "k"), target)
    router.unsubscribe(("x", "k"), 7)
    assert route.sorts == 1
    router.refresh(route)
    router.refresh(route)
    assert route.sorts == 2
    assert sorted(route.counts) == [target for target in range(100) if target != 7]


def test_a_route_that_is_far_behind_is_matched_anew() -> None:
    """Many changes of long patterns cost a route no more than a new match."""
    router: Router[int, CachedRoute[int]] = Router(CachedRoute)
    key = ("x", *["a"] * 127)
    route = router.route(key)
    for number in range(1_000):
        router.subscribe(("x", REST, *["a"] * 100, str(number), REST), number)
    router.subscribe(("x", REST, "a"), -1)
    before = time.process_time()
    router.refresh(route)
    assert time.process_time() - before < 0.25
    assert set(route.counts) == {-1}


def test_costly_patterns_have_room_for_some_words() -> None:
    """Exact patterns, and those with a `#` at their end, need none of it."""
    router: Router[int, CachedRoute[int]] = Router(CachedRoute, complex_levels_max=6)
    router.check_room(("a", REST, "b"))
    router.subscribe(("a", REST, "b"), 1)
    router.check_room(("a", REST, REST, "c"))
    router.subscribe(("a", REST, "c"), 1)
    for plain in (("a", "b"), ("a", ONE_LEVEL, REST), ("a", REST, ONE_LEVEL, REST)):
        router.check_room(plain)
    for costly in (("a", REST, "d"), ("a", *[ONE_LEVEL] * 4), ("a", ONE_LEVEL, *["b"] * 15)):
        with pytest.raises(Refused) as caught:
            router.check_room(costly)
        assert caught.value.reason is Reason.LIMIT
    router.unsubscribe(("a", REST, "b"), 1)
    router.check_room(("a", REST, "d"))


def test_an_exact_subscription_patches_one_route_in_place() -> None:
    """A publisher that holds a route sees a new exact subscriber without asking again."""
    router: Router[str, CachedRoute[str]] = Router(CachedRoute)
    route = router.route(("a", "b"))
    router.subscribe(("a", "b"), "s")
    assert set(route.counts) == {"s"}


@given(st.text(max_size=200))
def test_names_are_one_to_one(name: str) -> None:
    """A stored name has RocketMQ's characters and gives the user's name back."""
    try:
        stored = encode_name(name)
    except UnicodeEncodeError:
        return  # lone surrogates that are no escapes: gateways refuse them before
    assert len(stored) <= 127
    assert set(stored) <= set("%|abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
    if not stored.startswith("|h"):
        assert decode_name(stored) == name


@given(st.text(max_size=20) | st.text("|a", max_size=5))
def test_display_names_are_one_to_one_and_never_empty(name: str) -> None:
    shown = display_name(name)
    assert shown
    assert parse_display_name(shown) == name


def test_display_names_as_the_documentation_has_them() -> None:
    names = {"": "||", "||": "|||", "|||": "||||", "|": "|", "a||": "a||", "sensors": "sensors"}
    assert {name: display_name(name) for name in names} == names


def test_a_long_name_is_a_hash() -> None:
    """128 bytes do not fit: the name becomes a hash that differs for each name."""
    assert encode_name("a" * 127) == "a" * 127
    assert encode_name("a" * 128).startswith("|h")
    assert encode_name("a" * 128) != encode_name("a" * 129)
