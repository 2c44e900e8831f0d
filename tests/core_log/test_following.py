"""A log that is taken from another one, byte for byte, however the bytes are cut."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from polymq.core_log.cutting import cut_log
from polymq.core_log.errors import CorruptRecord, Follows, StoreRefused
from polymq.core_log.files import RealFiles
from polymq.core_log.following import Following
from polymq.core_log.settings import StoreSettings
from polymq.core_log.store import Store
from tests.harness.stores import OWN, PRIVATE, TINY
from tests.replication.logs import fill, stream

WHY = "it follows another"


def opened(directory: Path, *, follows: str = "", settings: StoreSettings = TINY) -> Store:
    return Store.open(
        str(directory), files=RealFiles(), clock_ms=lambda: 1, settings=settings, follows=follows
    )


def same_files(one: Path, other: Path) -> None:
    """The logs are equal, byte for byte."""
    names = sorted(path.name for path in (one / "commitlog").iterdir() if path.name.isdigit())
    assert names == sorted(
        path.name for path in (other / "commitlog").iterdir() if path.name.isdigit()
    )
    for name in names:
        assert (one / "commitlog" / name).read_bytes() == (other / "commitlog" / name).read_bytes()


def take_all(following: Following, data: bytes, random: Random) -> None:
    at = 0
    while at < len(data):
        size = random.choice((1, 7, 100, 1000, 5000))
        following.take(data[at : at + size])
        at += size


@pytest.mark.parametrize("seed", range(20))
def test_a_copy_has_the_same_bytes_and_the_same_indexes(tmp_path: Path, seed: int) -> None:
    """Read from memory or from the disk, cut anywhere: files, queue entries and epochs are equal,
    and a promotion goes on in the same queues."""
    random = Random(seed)
    master = opened(tmp_path / "master")
    fill(master, random, 30)
    slave = opened(tmp_path / "slave", follows=WHY)
    following = Following(slave)
    take_all(following, stream(master, 0, random), random)
    assert slave.log.appended == master.log.written
    slave.log.write()
    master.flusher.request()
    for number, size in ((OWN, 20), *((number, 32) for number in PRIVATE)):
        one, other = master.index(number, size), slave.index(number, size)
        assert (one.first_offset, one.end_offset) == (other.first_offset, other.end_offset)
        entries = [index.read_hot(0, 10_000) for index in (one, other)]
        assert entries[0] == entries[1]
    assert slave.epochs == master.epochs
    assert slave.epoch == master.epoch
    with pytest.raises(Follows, match=WHY):
        fill(slave, random, 1)
    slave.close()
    master.close()
    same_files(tmp_path / "master", tmp_path / "slave")
    promoted = opened(tmp_path / "slave")
    assert promoted.recovery.clean
    assert promoted.epoch == master.epoch + 1
    fill(promoted, random, 3)
    promoted.close()


def test_what_is_damaged_or_from_elsewhere_is_not_taken(tmp_path: Path) -> None:
    """A flipped bit, a record of another place, and bytes after a hole: an error, and the log ends
    before it."""
    master = opened(tmp_path / "master")
    fill(master, Random(1), 3, batches=False)
    data = stream(master, 0)
    whole = opened(tmp_path / "whole", follows=WHY)
    ends = [taken.end for taken in Following(whole).take(data)]
    assert ends[-1] == master.log.written
    for at in range(40, len(data), 97):
        slave = opened(tmp_path / f"slave{at}", follows=WHY)
        following = Following(slave)
        damaged = bytearray(data)
        damaged[at] ^= 1
        with pytest.raises(CorruptRecord):
            following.take(bytes(damaged) + bytes(4096))
        assert slave.log.appended <= at
        slave.close()
    slave = opened(tmp_path / "elsewhere", follows=WHY)
    with pytest.raises(CorruptRecord):
        Following(slave).take(data[232:])
    for store in (slave, whole, master):
        store.close()


@pytest.mark.parametrize("seed", range(10))
def test_a_log_is_cut_and_goes_on_as_a_copy(tmp_path: Path, seed: int) -> None:
    """A slave that has more than its new master gives it up: indexes, checkpoint and segments
    behind the place, too. Cutting twice is cutting once."""
    random = Random(seed)
    store = opened(tmp_path / "slave")
    ends = [store.log.appended]
    for _ in range(12):
        fill(store, random, 1)
        ends.append(store.log.appended)
    at_byte = random.choice(ends)
    data = stream(store, 0)
    store.close()
    for _ in range(random.choice((1, 2))):
        cut_log(RealFiles(), str(tmp_path / "slave"), at_byte)
    slave = opened(tmp_path / "slave", follows=WHY)
    assert slave.log.appended == at_byte
    offset = slave.index(OWN, 20).end_offset
    other = opened(tmp_path / "other", follows=WHY)
    Following(other).take(data)
    other.log.write()
    rest = stream(other, 0)
    size = len(rest) - len(rest_behind(rest, at_byte))
    following = Following(slave)
    taken = following.take(rest[size:])
    assert all(number != OWN or first >= offset for one in taken for number, first in one.queues)
    assert slave.log.appended == other.log.appended
    slave.close()
    other.close()
    same_files(tmp_path / "slave", tmp_path / "other")


def rest_behind(data: bytes, at_byte: int) -> bytes:
    """The part of a stream that stands at or behind a place."""
    position = at = 0
    while at < len(data) and position < at_byte:
        size = int.from_bytes(data[at : at + 4], "big")
        if data[at + 4 : at + 8] == (0xCBD43194).to_bytes(4, "big"):
            position += size
            at += 8
        else:
            position += size
            at += size
    return data[at:]


def test_a_log_that_begins_behind_the_place_is_not_cut(tmp_path: Path) -> None:
    """One sentence, and nothing is changed."""
    store = opened(tmp_path / "store")
    with pytest.raises(StoreRefused, match="in use"):
        cut_log(RealFiles(), str(tmp_path / "store"), 0)
    store.close()
    (tmp_path / "store/commitlog/00000000000000000000").rename(
        tmp_path / "store/commitlog/00000000000000004096"
    )
    with pytest.raises(StoreRefused, match="does not reach back to 100"):
        cut_log(RealFiles(), str(tmp_path / "store"), 100)
