"""Reading by offset with tags: what comes, where the reader goes on, and what is not read."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymq.broker.port import RecordRun
from polymq.broker.reading.tag_filter import choose
from polymq.core_log.kernels.writing import java_hash
from tests.harness.broker import Broker, bodies_of

TAGS = ("a", "b", "Aa", "BB", "")  # "Aa" and "BB" have one hash


def entry(number: int, size: int, tag: str) -> bytes:
    return number.to_bytes(8) + size.to_bytes(4) + java_hash(tag).to_bytes(8, signed=True)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.sampled_from(TAGS)), max_size=30),
    st.sets(st.sampled_from(TAGS[:4]), min_size=1),
    st.integers(1, 5),
    st.integers(1, 30),
)
def test_entries_are_chosen_as_one_by_one(
    rows: list[tuple[int, str]], tags: set[str], count_max: int, bytes_max: int
) -> None:
    """A run through the entries in order gives the same; nothing that matches is passed over."""
    entries = b"".join(entry(number, size, tag) for number, (size, tag) in enumerate(rows))
    hashes = {java_hash(tag) for tag in tags}
    taken: list[int] = []
    total = scanned = 0
    for number, (size, tag) in enumerate(rows):
        if java_hash(tag) in hashes:
            if len(taken) == count_max or (taken and total + size > bytes_max):
                break
            taken.append(number)
            total += size
        scanned = number + 1
    matching, looked_at = choose(entries, tags, count_max=count_max, bytes_max=bytes_max)
    assert [int.from_bytes(matching[at : at + 8]) for at in range(0, len(matching), 20)] == taken
    assert looked_at == scanned  # at the next one that does not fit, or at the end


def pull(broker: Broker, offset: int, *tags: str, **limits: int) -> tuple[list[bytes], int]:
    answers: list[tuple[list[bytes], int]] = []

    def take(records: bytes, next_offset: int) -> None:
        runs: list[RecordRun] = broker.engine.core.metas.runs(records, 0, len(records))
        answers.append(([body for run in runs for body in bodies_of(run)], next_offset))

    wanted = {"count_max": 100, "bytes_max": 1 << 20, **limits}
    broker.port.queries.pull("t", 0, offset, callback=take, tags=frozenset(tags), **wanted)
    broker.step()
    (answer,) = answers
    return answer


@pytest.mark.parametrize("cold", [False, True])
def test_a_reader_gets_its_tags_and_goes_on_behind_the_others(tmp_path: Path, cold: bool) -> None:
    broker = Broker(tmp_path / "data", tag_scan_count_max=50)
    chance = random.Random(1)
    sent: list[tuple[str | None, bytes]] = []
    for number in range(200):
        tag = chance.choice(["a", "b", "Aa", "BB", None])
        sent.append((tag, b"%d" % number))
        broker.publish(broker.template("t", tag), sent[-1][1])
    broker.step()
    if cold:
        broker.restart()
    for tags in (("a",), ("Aa",), ("a", "BB"), ("none",)):
        offset, got, calls = 0, [], 0
        while offset < 200:
            bodies, next_offset = pull(broker, offset, *tags, count_max=7)
            assert next_offset > offset
            offset, calls = next_offset, calls + 1
            got += bodies
        assert got == [body for tag, body in sent if tag in tags]
        assert calls >= 4
        assert pull(broker, offset, *tags) == ([], 200)
    broker.stop()


def test_the_bodies_of_others_are_not_read(broker: Broker) -> None:
    """One call for the only match among ten thousand reads one record."""
    other, mine = broker.template("t", "other"), broker.template("t", "mine")
    for template, body, count in ((other, b"x", 10), (mine, b"here", 1), (other, b"x", 10)):
        for _ in range(count):
            broker.publish(template, *[body] * (500 if count > 1 else 1))
    broker.step()
    read: list[int] = []
    inner = broker.engine.core.log.read_hot

    def counted(entries: bytes, stride: int) -> bytes | None:
        read.append(len(entries) // stride)
        return inner(entries, stride)

    broker.engine.core.log.read_hot = counted  # type: ignore[method-assign]
    assert pull(broker, 0, "mine") == ([b"here"], 10_001)
    assert read == [1]
