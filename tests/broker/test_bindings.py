"""A queue's bindings, and a place in the trie: small for most, right for all."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from polymq.broker.port import Address
from polymq.broker.routing.bindings import BindingKey, Bindings
from polymq.broker.routing.patterns import Trie

NAME = "queue"
KEYS = st.sampled_from([("", NAME, "{}"), ("", "other", "{}"), ("x", NAME, "{}"), ("x", "k", "1")])
TEXTS = st.sampled_from([(NAME,), ("x", NAME), ("topic", "tag")])


class Bound:
    """Something with a name and bindings."""

    name = NAME

    def __init__(self) -> None:
        self.bound_by_name = False
        self.bound_more: dict[BindingKey, Address] | None = None


@settings(max_examples=300)
@given(st.lists(st.tuples(st.booleans(), KEYS, TEXTS)))
def test_bindings_are_a_dictionary(
    steps: list[tuple[bool, tuple[str, str, str], tuple[str, ...]]],
) -> None:
    """Also where the binding by name has other words (a named subscription's pattern)."""
    bindings = Bindings(Bound())
    model: dict[tuple[str, str, str], tuple[str, ...]] = {}
    for adds, key, address in steps:
        if adds:
            bindings[key] = address
            model[key] = address
        else:
            assert bindings.pop(key, None) == model.pop(key, None)
        assert dict(bindings) == model
        assert len(bindings) == len(model)
        assert all(
            (key in bindings) == (key in model) for key in [("", NAME, "{}"), ("x", "k", "1")]
        )
        assert set(bindings.chosen()) == {key for key in model if key[0]}


@given(
    st.lists(
        st.tuples(
            st.booleans(),
            st.sampled_from([("a",), ("a", "b"), ("a", "b", "c"), ("b",)]),
            st.integers(0, 3),
        )
    )
)
def test_a_trie_is_a_set_of_patterns_and_targets(
    steps: list[tuple[bool, tuple[str, ...], int]],
) -> None:
    """The same target twice counts once; targets keep the order of their coming; an empty trie is
    empty."""
    trie: Trie[int] = Trie()
    model: dict[tuple[str, ...], list[int]] = {}
    for adds, pattern, target in steps:
        targets = model.setdefault(pattern, [])
        if adds:
            assert trie.add(pattern, target) is (target not in targets)
            if target not in targets:
                targets.append(target)
        else:
            assert trie.remove(pattern, target) is (target in targets)
            if target in targets:
                targets.remove(target)
        for address, expected in model.items():
            assert list(trie.match(address)) == expected
    for pattern, targets in model.items():
        for target in targets:
            assert trie.remove(pattern, target)
    assert trie._root.is_empty
