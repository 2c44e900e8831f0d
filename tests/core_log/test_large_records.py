"""Large bodies become records in the memory that they came in, and are written in slices."""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymq.core_log.atomic import row_of
from polymq.core_log.errors import TooLarge
from polymq.core_log.files import RealFiles
from polymq.core_log.kernels.batch import EXTRA_BASE64, RECORD_BODY_AT, Batch, LargeBatch
from polymq.core_log.kernels.log_end import Span
from polymq.core_log.large_record import combined_crc
from polymq.core_log.record import RecordTemplate
from polymq.core_log.settings import StoreSettings
from polymq.core_log.store import Store

TEMPLATE = RecordTemplate(
    topic=b"t",
    queue_id=3,
    properties=b"TAGS\x01x\x02",
    tag_hash=120,
    extra_kind=EXTRA_BASE64,
    extra_name=b"PMQ_B",
)
EXTRA = b"\x90\x00\x0atext/plain\x02"
SETTINGS = StoreSettings(segment_bytes=1 << 20, chunk_bytes=1 << 14, segments_zeroed=False)


def open_store(path: Path, settings: StoreSettings = SETTINGS) -> Store:
    return Store.open(str(path), files=RealFiles(), clock_ms=lambda: 5, settings=settings)


def large(body: bytes) -> LargeBatch:
    """As a gateway fills it: room, body, place, extra bytes."""
    memory = bytearray(RECORD_BODY_AT) + body + b"place" + EXTRA
    batch = LargeBatch(memory, zlib.crc32(body))
    end = RECORD_BODY_AT + len(body)
    batch.add((end, 5), (RECORD_BODY_AT, len(body)), (end + 5, len(EXTRA)))
    return batch


def append(store: Store, batch: Batch, offset: int) -> Span:
    return store.log.append_run(
        TEMPLATE, batch, 0, 1, targets=[(1, offset), (7, 4)], born_ms=6, store_ms=7
    )[0]


@given(st.binary(), st.binary(max_size=300))
def test_sums_of_pieces_give_the_sum_of_the_whole(first: bytes, second: bytes) -> None:
    whole = zlib.crc32(first + second)
    assert combined_crc(zlib.crc32(first), zlib.crc32(second), len(second)) == whole


@pytest.mark.parametrize("size", [1, 1000, 300_000])
def test_a_record_is_the_same_as_one_that_was_copied(tmp_path: Path, size: int) -> None:
    """But for its place, of which its sum knows: both are read and checked like any record."""
    body = bytes(range(256)) * (size // 256 + 1)
    one, other = open_store(tmp_path / "one"), open_store(tmp_path / "other")
    span = append(one, large(body), 0)
    copied = append(other, row_of(body, EXTRA), 0)
    assert span.entries == copied.entries
    made = bytes(span.memory[span.start : span.end])
    assert made == bytes(copied.memory[copied.start : copied.end])
    for store in (one, other):
        store.close()


def test_large_and_small_records_follow_each_other_over_segments(tmp_path: Path) -> None:
    """And are there after a start that recovers them, and one that does not."""
    store = open_store(tmp_path)
    bodies = [bytes([n]) * (300_000 if n % 2 else 10) for n in range(12)]
    spans = [
        append(store, large(body) if len(body) > 10 else row_of(body, EXTRA), n)
        for n, body in enumerate(bodies)
    ]
    entries = b"".join(bytes(span.entries) for span in spans)
    hot = store.log.read_hot(entries, 20)
    assert hot is not None
    store.log.write()
    assert store.log.written == store.log.appended
    assert store.log.read_cold(entries, 20) == hot
    store.close()
    again = open_store(tmp_path)
    assert again.log.read_cold(entries, 20) == hot
    again.close()


def test_a_record_that_no_segment_holds_leaves_its_batch_alone(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    batch = large(bytes(2 << 20))
    with pytest.raises(TooLarge):
        append(store, batch, 0)
    assert batch.count == 1
    assert len(batch.buffer) == RECORD_BODY_AT + (2 << 20) + 5 + len(EXTRA)
    position = store.log.appended
    assert append(store, large(b"next"), 0).position == position
    store.close()


def test_a_large_record_is_written_in_slices(tmp_path: Path) -> None:
    """Until all of it is handed over `written` stays before it, and what is behind waits."""
    store = open_store(tmp_path, replace(SETTINGS, write_slice_bytes=100_000))
    calls: list[int] = []
    store.log.on_unwritten = lambda: calls.append(store.log.written)
    before = store.log.appended
    span = append(store, large(bytes(450_000)), 0)
    append(store, row_of(b"small", EXTRA), 1)
    for count in range(1, 5):
        store.log.write()
        assert len(calls) == count
        assert store.log.written == before == span.position
    store.log.write()
    assert store.log.written == store.log.appended
    assert len(calls) == 4
    assert store.log.read_cold(bytes(span.entries), 20) == bytes(span.memory)
    append(store, large(bytes(450_000)), 2)
    store.log.write()
    store.close()
    again = open_store(tmp_path)
    assert again.log.start == 0
    assert len(again.log.read_cold(bytes(span.entries), 20)) == span.end
    again.close()


@pytest.mark.parametrize("copied", [False, True], ids=["in-its-own-memory", "copied"])
def test_a_large_record_with_nothing_around_it_is_written_in_slices(
    tmp_path: Path, copied: bool
) -> None:
    """Others are served between two slices, also where the large record is all there is to write
    (a message of 16 MiB, say, while everybody else only asks for an answer to a ping)."""
    store = open_store(tmp_path, replace(SETTINGS, write_slice_bytes=100_000))
    calls: list[int] = []
    store.log.on_unwritten = lambda: calls.append(store.log.written)
    before = store.log.appended
    body = bytes(450_000)
    span = append(store, row_of(body, EXTRA) if copied else large(body), 0)
    for count in range(1, 5):
        store.log.write()
        assert calls == [before] * count
        assert store.log.written == before
    store.log.write()
    assert store.log.written == store.log.appended
    assert store.log.read_cold(bytes(span.entries), 20) == bytes(
        memoryview(span.memory)[span.start : span.end]
    )
    store.close()


def test_usual_chunks_are_written_whole(tmp_path: Path) -> None:
    """They grow while they are written: in slices, `written` might never reach their ends."""
    store = open_store(tmp_path, replace(SETTINGS, write_slice_bytes=1_000))
    store.log.on_unwritten = lambda: None
    append(store, row_of(bytes(9_000), EXTRA), 0)
    end = store.log.appended
    append(store, row_of(bytes(9_000), EXTRA), 1)  # in the next chunk
    store.log.write()
    assert store.log.written == end
    store.log.write()
    assert store.log.written == store.log.appended
    store.close()
