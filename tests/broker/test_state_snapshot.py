"""The state as records: what is written comes back, and nothing that is not whole counts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymq.broker.state.database import Folded
from polymq.broker.state.snapshot import SnapshotFinder, encode_snapshot


class Body:
    """What a finder needs of a record."""

    def __init__(self, body: bytes) -> None:
        self.body = body


def find(bodies: Sequence[bytes]) -> Folded | None:
    """What is found among records with these bodies."""
    finder = SnapshotFinder()
    for body in bodies:
        finder.take(Body(body))  # type: ignore[arg-type]
    return None if finder.newest is None else finder.newest.folded()


def folded(position: int, **kinds: list[tuple[str, str]]) -> Folded:
    return Folded(position=position, epoch=0, rows=kinds)


STATE = folded(
    100,
    topic=[("a\x00b\tc\nd", '{"q":[1]}'), ("ü\udcff", "[]")],
    document=[("x", '"tab\\t, line\\n, \\u2028"'), ("y", '"' + "z" * 300 + '"')],
)
OLDER = folded(50, topic=[("old", "1")])


@pytest.mark.parametrize("piece_bytes", [1, 7, 64, 1 << 20])
def test_what_was_written_comes_back(piece_bytes: int) -> None:
    assert find(encode_snapshot(STATE, piece_bytes)) == STATE
    assert find(encode_snapshot(folded(3), piece_bytes)) == folded(3)


names = st.text(max_size=20)


@given(
    rows=st.dictionaries(names, st.lists(st.tuples(names, st.just('{"a":1}')), min_size=1)),
    piece_bytes=st.integers(min_value=1, max_value=50),
)
def test_any_names_come_back(rows: dict[str, list[tuple[str, str]]], piece_bytes: int) -> None:
    state = Folded(position=7, epoch=0, rows=rows)
    assert find(encode_snapshot(state, piece_bytes)) == state


def test_the_newest_counts() -> None:
    assert find(encode_snapshot(OLDER, 64) + encode_snapshot(STATE, 64)) == STATE


@pytest.mark.parametrize("cut", [-1, -2, 0, 1])
def test_one_that_lacks_a_piece_does_not_count(cut: int) -> None:
    """The one before it does."""
    newer = encode_snapshot(STATE, 64)
    assert len(newer) > 4
    del newer[cut]
    assert find(encode_snapshot(OLDER, 64) + newer) == OLDER


def test_one_with_other_bytes_does_not_count() -> None:
    newer = encode_snapshot(STATE, 64)
    newer[1] = newer[1][:-1] + bytes((newer[1][-1] ^ 1,))
    assert find(encode_snapshot(OLDER, 64) + newer) == OLDER


def test_a_second_attempt_at_the_same_position_counts() -> None:
    """The first one was given up in the middle."""
    bodies = encode_snapshot(STATE, 64)
    assert find(bodies[:3] + bodies) == STATE
