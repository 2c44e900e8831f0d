"""The plain and the compiled kernels of the store are one function each: for every input the same
result, the same bytes in memory, the same error."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymq.core_log.kernels import walking, writing
from polymq.core_log.kernels.batch import EXTRA_BASE64, EXTRA_NONE, EXTRA_VERBATIM, Batch
from polymq.core_log.kernels.layout import ENTRY_AT_MOST_ONCE, NO_BATCH, SYSTEM_TOPIC
from polymq.core_log.record import RecordTemplate, encode_properties, java_hash
from polymq.kernel_forms import FORM, plain_form

if FORM == "pure":
    pytest.skip("the kernels were not compiled", allow_module_level=True)
plain, plain_walk = plain_form(writing.__name__), plain_form(walking.__name__)

HOSTS = bytes(range(8))
LETTERS = st.characters(codec="utf-8", exclude_characters="\x01\x02") | st.just("\udcff")
TEXT = st.text(LETTERS, max_size=12)


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    """What a call does: its result, or the type and text of its error."""
    try:
        return function(*args)
    except (ValueError, IndexError) as error:
        return type(error), str(error)


def same(name: str, twins: tuple[ModuleType, ModuleType], *args: Any) -> Any:
    """The result that both twins give."""
    expected = outcome(getattr(twins[0], name), *args)
    assert expected == outcome(getattr(twins[1], name), *args)
    return expected


WRITING = (plain, writing)
WALKING = (plain_walk, walking)


@st.composite
def batches(draw: st.DrawFn, *, wild: bool = False) -> Batch:
    """A batch over a buffer; a wild one has rows that point anywhere."""
    batch = Batch(16)
    batch.buffer = draw(st.binary(max_size=300))
    size = len(batch.buffer)
    at_byte = st.integers(-2, size + 2) if wild else st.integers(0, size)
    for _ in range(draw(st.integers(0, 8))):
        parts = []
        for _ in range(3):
            start = draw(at_byte)
            most = 400 if wild else size - start
            parts.append((start, draw(st.integers(-2 if wild else 0, max(most, 0)))))
        topic, body, extra = parts
        if draw(st.booleans()) and batch.count:  # equal neighbours, so that runs are long
            start, most = batch.row(batch.count - 1)[:2]
            topic = (start, most)
        batch.add(topic, body, extra, draw(st.integers(0, 9)), draw(st.integers(0, 1)))
    return batch


@st.composite
def templates(draw: st.DrawFn) -> RecordTemplate:
    tag = draw(st.none() | TEXT)
    pairs = {} if tag is None else {"TAGS": tag}
    pairs |= draw(st.dictionaries(TEXT.filter(bool), TEXT, max_size=3))
    return RecordTemplate(
        topic=draw(st.binary(min_size=1, max_size=127)),
        queue_id=draw(st.integers(-(1 << 31), (1 << 31) - 1)),
        properties=encode_properties(pairs),
        tag_hash=java_hash(pairs["TAGS"]) if "TAGS" in pairs else 0,
        flag=draw(st.integers(-(1 << 31), (1 << 31) - 1)),
        system_flag=draw(st.integers(0, 1 << 20)),
        extra_kind=draw(st.sampled_from((EXTRA_NONE, EXTRA_BASE64, EXTRA_VERBATIM))),
        extra_name=draw(st.binary(max_size=10)),
        reconsume=draw(st.integers(0, 99)),
        prepared=draw(st.integers(0, 1 << 60)),
    )


LIVES = st.sampled_from(
    (b"", b"PMQ_X\x010a0b0c0d0e\x02", b"PMQ_X\x010a0b0c0dxx\x02", b"PMQ_X\x01", b"PMQ_X\x01ff\x02")
)

TARGETS = st.lists(
    st.tuples(
        st.integers(0, 0xFFFF_FFFF) | st.integers(-1, 1 << 40),
        st.integers(0, 1 << 40) | st.integers(-1, 1 << 70),
    ),
    max_size=5,
) | st.integers(250, 260).map(lambda count: [(n, n * 7) for n in range(count)])


@given(batches(wild=True), st.integers(-1, 9))
def test_runs_end_at_the_same_row(batch: Batch, first: int) -> None:
    same("next_run", WRITING, batch, first)


@given(
    batches(wild=True),
    st.integers(-1, 9),
    st.integers(-1, 9),
    templates(),
    st.integers(0, 256),
    st.integers(0, 40),
)
def test_runs_are_measured_alike(
    batch: Batch, first: int, last: int, template: RecordTemplate, targets: int, suffix: int
) -> None:
    same("run_size", WRITING, batch, first, last, template.form, targets, suffix)


@given(
    batches() | batches(wild=True),
    templates(),
    TARGETS,
    st.binary(max_size=40),
    st.integers(0, 50),
    st.integers(0, 4000),
    st.integers(0, 1 << 50),
    st.integers(0, 5),
    st.integers(0, 1 << 45),
)
def test_runs_are_written_alike(
    batch: Batch,
    template: RecordTemplate,
    targets: list[tuple[int, int]],
    suffix: bytes,
    start: int,
    limit: int,
    position: int,
    base: int,
    born_ms: int,
) -> None:
    """Any rows, all extra kinds, few and many targets, and a limit that falls anywhere."""
    results = []
    for twin in WRITING:
        memory = bytearray(b"\xee" * 3000)
        result = outcome(
            twin.append_run,
            memory,
            *(start, limit, position, template.form, HOSTS, suffix, targets, base),
            *(batch, 0, batch.count, born_ms, born_ms + 1),
        )
        results.append((result, memory))
    assert results[0] == results[1]


def written(
    batch: Batch,
    template: RecordTemplate,
    targets: list[tuple[int, int]],
    suffixes: list[bytes],
    position: int,
) -> tuple[bytearray, bytes]:
    """Records in memory, each row with its own suffix, and their entries."""
    memory = bytearray(1 << 20)
    entries = b""
    at = 0
    for row in range(batch.count):
        suffix = suffixes[row % len(suffixes)] if suffixes else b""
        count, end, more = plain.append_run(
            memory,
            *(at, len(memory), position + at, template.form, HOSTS, suffix, targets, row),
            *(batch, row, row + 1, 1, 2),
        )
        assert count == 1
        at = end
        entries += more
    del memory[at:]
    return memory, entries


@st.composite
def logs(draw: st.DrawFn) -> tuple[bytearray, bytes, int]:
    """(records in memory, their entries, the position of the first), perhaps damaged."""
    position = draw(st.integers(0, 1 << 40))
    targets = [(number, draw(st.integers(0, 1 << 40))) for number in range(draw(st.integers(0, 4)))]
    batch_of = f"{position:016x}"
    suffix = st.sampled_from(
        [b""]
        + [f"PMQ_B\x01{batch_of}{i:04x}{n:04x}\x02".encode() for n in (2, 3) for i in range(n)]
        + [b"PMQ_B\x01" + b"x" * 24 + b"\x02", b"PMQ_Q\x01zz\x02"]
    )
    template = draw(templates())
    if draw(st.booleans()):
        kind = draw(st.sampled_from((b"PMQ_OF\x01" + b"0a" * 20 + b"\x02", b"PMQ_E\x010\x02")))
        template = RecordTemplate(SYSTEM_TOPIC, 0, kind + draw(LIVES))
    elif draw(st.booleans()):
        template = RecordTemplate(b"t", 0, b"PMQ_P\x01001c\x02" + draw(LIVES))
    memory, entries = written(
        draw(batches()), template, targets, draw(st.lists(suffix, max_size=3)), position
    )
    for _ in range(draw(st.integers(0, 2))):
        if memory:
            memory[draw(st.integers(0, len(memory) - 1))] = draw(st.integers(0, 255))
    return memory, entries, position


@given(logs(), st.integers(-1, 40), st.integers(-3, 3), st.booleans())
def test_records_are_checked_alike(
    log: tuple[bytearray, bytes, int], start: int, cut: int, sound_position: bool
) -> None:
    memory, _, position = log
    end = len(memory) + cut
    for begin in (0, start):
        same("check_record", WALKING, memory, begin, end, position if sound_position else -1)
        same("scan", WALKING, memory, begin, end, position, NO_BATCH)
        same("scan", WALKING, memory, begin, end, position, (position, 1, 2))


@given(logs(), st.integers(0, 500))
def test_torn_records_are_checked_alike(log: tuple[bytearray, bytes, int], keep: int) -> None:
    memory, _, position = log
    del memory[keep:]
    memory += bytes(keep % 9)
    same("scan", WALKING, memory, 0, len(memory), position, NO_BATCH)


@given(logs())
def test_indexes_are_rebuilt_alike(log: tuple[bytearray, bytes, int]) -> None:
    memory, _, _ = log
    tables: list[dict[int, list[Any]]] = [{}, {}]
    results = [
        outcome(twin.dispatch, memory, 0, len(memory), table)
        for twin, table in zip(WALKING, tables, strict=True)
    ]
    assert results[0] == results[1]
    assert tables[0] == tables[1]
    for name in (b"PMQ_E", b"PMQ_OF", b"TAGS"):
        same("find_system", WALKING, memory, 0, len(memory), SYSTEM_TOPIC, name)
    same("find_system", WALKING, memory, 0, len(memory) - 1, b"x", b"")


@given(logs(), st.integers(0, 4), st.integers(0, 1 << 40))
def test_targets_are_checked_alike(
    log: tuple[bytearray, bytes, int], number: int, offset: int
) -> None:
    memory, _, _ = log
    same("check_targets", WALKING, memory, number, offset)
    tables: dict[int, list[Any]] = {}
    if outcome(plain_walk.dispatch, memory, 0, len(memory), tables) == -1:
        for queue, (_, first, following, _) in tables.items():
            same("check_targets", WALKING, memory, queue, first)
            same("check_targets", WALKING, memory, queue, following)


@given(
    logs(),
    st.sampled_from((20, 32, 19)),
    st.integers(-1, 4),
    st.integers(-1, 2000),
    st.booleans(),
    st.binary(max_size=60),
    st.integers(-300, 300),
)
def test_records_are_gathered_alike(
    log: tuple[bytearray, bytes, int],
    stride: int,
    first: int,
    used: int,
    verify: bool,
    noise: bytes,
    shift: int,
) -> None:
    memory, entries, position = log
    if stride == 32:
        entries = plain.widen(entries)
    for size in (used, len(memory)):
        args = (stride, first, memory, position + shift, size, verify)
        same("gather", WALKING, entries + noise, *args)
        same("gather", WALKING, noise + entries, *args)


@given(
    logs(),
    st.binary(max_size=60),
    st.integers(-1, 3),
    st.integers(0, 500),
    st.integers(0, 3000),
    st.integers(0, 3000),
)
def test_reads_are_planned_alike(
    log: tuple[bytearray, bytes, int],
    noise: bytes,
    first: int,
    gap: int,
    size_max: int,
    room: int,
) -> None:
    _, entries, position = log
    for given_entries in (entries, entries[::-1], entries + noise, entries[40:] + entries[:40]):
        limit = position + room
        same("plan_read", WRITING, given_entries, 20, first, gap, size_max, limit)
        same("fit", WRITING, given_entries, 20, first, size_max)


@given(
    st.binary(max_size=100),
    st.integers(-1, 1 << 49),
    st.integers(-1, 256),
    st.integers(-1, 1 << 33),
    st.integers(0, 8 * 32 * 5),
)
def test_entries_are_widened_alike(
    noise: bytes, store_ms: int, priority: int, ttl_code: int, flipped: int
) -> None:
    for entries in (noise, noise[: len(noise) // 20 * 20]):
        same("widen", WRITING, entries, store_ms, priority, ttl_code)
        same("find_damaged", WRITING, entries)
    wide = bytearray(plain.widen(entries, abs(store_ms) >> 2))
    same("find_damaged", WRITING, wide)
    if flipped < 8 * len(wide):
        wide[flipped // 8] ^= 1 << flipped % 8
        same("find_damaged", WRITING, wide)


@given(
    st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=8),
    st.integers(-1, 250),
    st.integers(0, 99) | st.integers(-1, 1 << 33),
    st.binary(max_size=40),
)
def test_entries_expire_alike(
    times: list[tuple[int, int]], now_ms: int, ttl_code: int, noise: bytes
) -> None:
    for flag in (0, ENTRY_AT_MOST_ONCE):
        entries = b"".join(plain.widen(bytes(20), stored | flag, 0, code) for stored, code in times)
        same("expired", WRITING, entries, now_ms, ttl_code)
    same("expired", WRITING, entries + noise, now_ms, ttl_code)
    same("expired", WRITING, noise * 32, now_ms * 1000, ttl_code)


@given(st.text() | st.text(st.characters(codec=None)))
def test_tags_are_hashed_alike(text: str) -> None:
    same("java_hash", WRITING, text)


@pytest.mark.parametrize("folds", [True, False])
def test_sums_are_zlibs_sums_in_every_way_to_make_them(folds: bool) -> None:
    """Every size up to 300, at every alignment, and some large ones; folded and by tables."""
    data = bytes(zlib.crc32(struct.pack(">I", n)) & 255 for n in range(70_000))
    compiled = vars(writing)
    folding = compiled["prepare_crc"](folds)
    try:
        assert folding == (folds and compiled["CRC_FOLDS"])
        for size in (*range(300), 4095, 65_536, 69_999):
            for start in range(17 if size < 300 else 1):
                for value in (0, 0xDEADBEEF):
                    expected = zlib.crc32(data[start : start + size], value)
                    assert expected == writing.crc32(data, start, start + size, value)
    finally:
        compiled["prepare_crc"](True)


@given(st.binary(max_size=50), st.integers(-1, 60), st.integers(-1, 60))
def test_sums_refuse_the_same_ranges(data: bytes, start: int, end: int) -> None:
    same("crc32", WRITING, data, start, end)
