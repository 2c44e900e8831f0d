"""The checkpoint and the list of epochs: what was written is read, and nothing else is."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from core_log.checkpoint import (
    DROPPING_COUNT_MAX,
    Checkpoint,
    add_digests,
    decode_checkpoint,
    encode_checkpoint,
    index_digest,
    write_whole_file,
)
from core_log.epochs import decode_epochs, encode_epochs, epoch_holds
from tests.harness.files import EVERYTHING, NOTHING, Chooser, MemoryFiles
from tests.harness.stores import DIRECTORY, Bench, numbered

LONG = st.integers(0, (1 << 63) - 1)
CHECKPOINTS = st.builds(
    Checkpoint,
    position=LONG,
    store_ms=LONG,
    index_count=st.integers(0, 1 << 40),
    index_sum=st.integers(0, (1 << 64) - 1),
    dropping=st.lists(st.integers(0, (1 << 32) - 1), max_size=DROPPING_COUNT_MAX).map(tuple),
)


@given(CHECKPOINTS, st.integers(0, 4095), st.integers(0, 7))
def test_a_checkpoint_is_read_as_written_or_not_at_all(
    checkpoint: Checkpoint, place: int, bit: int
) -> None:
    data = bytearray(encode_checkpoint(checkpoint))
    assert len(data) == 4096
    assert decode_checkpoint(bytes(data)) == checkpoint
    data[place] ^= 1 << bit
    assert decode_checkpoint(bytes(data)) is None


@given(st.lists(st.tuples(st.integers(1, 1 << 40), LONG), max_size=20), st.data())
def test_epochs_are_read_as_written_or_not_at_all(
    epochs: list[tuple[int, int]], data: st.DataObject
) -> None:
    encoded = bytearray(encode_epochs(epochs))
    assert decode_epochs(bytes(encoded)) == epochs
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert decode_epochs(bytes(encoded)) is None


def test_an_epoch_reaches_to_the_start_of_the_next() -> None:
    epochs = [(1, 0), (2, 100), (4, 100), (5, 300)]
    for epoch, position, holds in (
        (1, 0, True),
        (1, 100, True),
        (1, 101, False),
        (2, 99, False),
        (2, 100, True),
        (3, 100, False),
        (4, 300, True),
        (5, 300, True),
        (5, 400, True),
        (5, 401, False),
    ):
        assert epoch_holds(epochs, epoch, position, 400) is holds


def test_the_sum_over_indexes_does_not_depend_on_the_order() -> None:
    digests = [index_digest(n, 20 if n % 2 else 32, 0, n * 7) for n in range(1, 9)]
    assert len(set(digests)) == 8
    forward = backward = 0
    for digest in digests:
        forward = add_digests(forward, digest)
    for digest in reversed(digests):
        backward = add_digests(backward, digest)
    assert forward == backward
    assert add_digests(forward, 0, digests[3]) == add_digests(
        backward, index_digest(9, 20, 5, 5), digests[3]
    )


def test_a_small_file_is_the_old_one_or_the_new_one() -> None:
    """Power is cut anywhere while it is replaced, and anything of that is on the disk."""
    for seed in range(200):
        files = MemoryFiles()
        files.make_directory("/d")
        files.sync_directory("/")
        write_whole_file(files, "/d", "file", b"old" * 400)
        files.cut_power_after(seed % 7)
        try:
            write_whole_file(files, "/d", "file", b"new" * 500)
        except OSError:
            assert seed % 7 < 6
        chooser = (NOTHING, EVERYTHING, Chooser(Random(seed)))[seed % 3]
        found = files.after_crash(chooser).read("/d/file")
        assert found in (b"old" * 400, b"new" * 500)
        if seed % 7 == 6:
            assert found == b"new" * 500


def test_more_dropped_queues_than_one_checkpoint_names_go_with_the_next_ones() -> None:
    files = MemoryFiles()
    bench = Bench(files)
    bench.publish(numbered(0, 1))
    count = DROPPING_COUNT_MAX + 50
    for number in range(1000, 1000 + count):
        bench.store.index(number, 20)
        bench.store.drop_index(number)
    bench.flush()
    for expected in (DROPPING_COUNT_MAX, 50, 0):
        bench.checkpoint()
        written = decode_checkpoint(files.read(f"{DIRECTORY}/checkpoint"))
        assert written is not None
        assert len(written.dropping) == expected
    found = Bench(files.after_crash(NOTHING))
    assert found.store.recovery.rebuilt_all == ""
