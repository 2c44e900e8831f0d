"""The checkpoint and the list of epochs: what was written is read, and nothing else is."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from polymq.core_log.bookmark import read_bookmark, write_bookmark
from polymq.core_log.checkpoint import (
    Checkpoint,
    decode_checkpoint,
    encode_checkpoint,
    write_whole_file,
)
from polymq.core_log.epochs import decode_epochs, encode_epochs, epoch_covers
from tests.harness.files import EVERYTHING, NOTHING, Chooser, MemoryFiles

LONG = st.integers(0, (1 << 63) - 1)
CHECKPOINTS = st.builds(
    Checkpoint,
    position=LONG,
    store_ms=LONG,
    pack_generation=LONG,
    pack_length=LONG,
)


@given(CHECKPOINTS, st.integers(0, 4095), st.integers(0, 7))
def test_a_checkpoint_is_read_as_written_or_not_at_all(
    checkpoint: Checkpoint, offset: int, bit: int
) -> None:
    data = bytearray(encode_checkpoint(checkpoint))
    assert len(data) == 4096
    assert decode_checkpoint(bytes(data)) == checkpoint
    data[offset] ^= 1 << bit
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
    for epoch, position, is_covered in (
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
        assert epoch_covers(epochs, epoch, position, 400) is is_covered


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


def test_a_bookmark_with_any_bit_wrong_is_none() -> None:
    files = MemoryFiles()
    files.make_directory("/data")
    assert read_bookmark(files, "/data") is None
    write_bookmark(files, "/data", 77)
    assert read_bookmark(files, "/data") == 77
    sound = files.read("/data/bookmark")
    for offset in range(len(sound)):
        files.overwrite(
            "/data/bookmark", sound[:offset] + bytes([sound[offset] ^ 8]) + sound[offset + 1 :]
        )
        assert read_bookmark(files, "/data") is None
    for damaged in (b"", sound[:-1], sound + b"\0"):
        files.overwrite("/data/bookmark", damaged)
        assert read_bookmark(files, "/data") is None
