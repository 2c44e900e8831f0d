"""Sorted names against a plain set, and walks over them while they change."""

from __future__ import annotations

import random

import pytest

from polymq.broker.port import Address
from polymq.broker.topics.sorted_names import BLOCK_COUNT_MAX, STEP_COUNT_MAX, SortedNames

PREFIXES: list[Address] = [(), ("t3",), ("t4", "7"), ("t4", "7", "8"), ("none",), ("t",), ("zz",)]


def drawn(dice: random.Random) -> Address:
    """A name of one to three words."""
    return (f"t{dice.randrange(8)}", *(f"{dice.randrange(40)}" for _ in range(dice.randrange(3))))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("removed", [0.1, 0.5, 0.9])
def test_it_is_a_sorted_set(seed: int, removed: float) -> None:
    dice = random.Random(seed)
    names, model = SortedNames(), set[Address]()
    for _ in range(20_000):
        address = drawn(dice)
        if address not in model:
            names.add(address)
            model.add(address)
        elif dice.random() < removed:
            names.remove(address)
            model.remove(address)
    assert len(model) > BLOCK_COUNT_MAX
    for prefix in PREFIXES:
        below = sorted(address for address in model if address[: len(prefix)] == prefix)
        assert list(names.below(prefix)) == below
        assert names.has_below(prefix) == bool(below)
        for behind in [prefix, (*prefix, "3"), drawn(dice), ("a",), ("z",)]:
            assert list(names.below(prefix, behind)) == [
                address for address in below if address > behind
            ]
    for address in model:
        names.remove(address)
    assert list(names.below(())) == []
    assert not names.has_below(())
    assert not names._blocks, "it takes the memory of what is there"


@pytest.mark.parametrize("count", [0, 1, STEP_COUNT_MAX, BLOCK_COUNT_MAX, 5 * BLOCK_COUNT_MAX + 1])
@pytest.mark.parametrize("order", ["sorted", "reversed", "shuffled"])
def test_names_in_any_order(count: int, order: str) -> None:
    expected = [("t", f"{number:05}") for number in range(count)]
    added = expected[:: -1 if order == "reversed" else 1]
    if order == "shuffled":
        random.Random(1).shuffle(added)
    names = SortedNames()
    for address in added:
        names.add(address)
    assert list(names.below(("t",))) == expected
    assert max(map(len, names._blocks), default=0) <= BLOCK_COUNT_MAX
    if order == "sorted":
        assert len(names._blocks) == -(-count // BLOCK_COUNT_MAX), "blocks of a start are full"


@pytest.mark.parametrize("seed", range(5))
def test_a_walk_meets_what_stays_exactly_once(seed: int) -> None:
    """Whatever is added and removed, its own place among it, and wherever it is taken up again."""
    dice = random.Random(seed)
    names, model = SortedNames(), set[Address]()
    stays: set[Address] = {("t4", f"s{number}") for number in range(300)}
    for address in stays:
        names.add(address)
    met: list[Address] = []
    walk = names.below(("t4",))
    while (found := next(walk, None)) is not None:
        met.append(found)
        if found not in stays and found in model and dice.random() < 0.5:
            names.remove(found)
            model.remove(found)
        for _ in range(20):
            address = drawn(dice)
            (names.remove if address in model else names.add)(address)
            model ^= {address}
        if dice.random() < 0.1:
            walk = names.below(("t4",), found)  # as after a restart
    assert met == sorted(set(met))
    assert stays <= set(met)
