"""Runs of records of one kind, and records that a restart has to fold: both twins alike."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymq.core_log.files import RealFiles
from polymq.core_log.kernels import walking
from polymq.core_log.record import RecordTemplate, encode_properties
from polymq.core_log.settings import StoreSettings
from polymq.core_log.store import Store
from polymq.kernel_forms import FORM, plain_form

if FORM == "pure":
    pytest.skip("the kernels were not compiled", allow_module_level=True)
plain_walk = plain_form(walking.__name__)

KINDS = [
    RecordTemplate(topic=topic, queue_id=0, properties=encode_properties(pairs), system_flag=flags)
    for topic in (b"a", b"ab")
    for pairs in ({"K": "1"}, {"K": "2"}, {"K": "1", "L": "x"})
    for flags in (0, 1 << 16)
]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """One record of each kind, as the log writes it."""
    directory = tmp_path_factory.mktemp("records") / "store"
    store = Store.open(
        str(directory), files=RealFiles(), clock_ms=lambda: 1, settings=StoreSettings()
    )
    spans = [
        store.log.append_record(kind, b"body%d" % n, born_ms=1, store_ms=1)
        for n, kind in enumerate(KINDS)
    ]
    found = [bytes(span.memory[span.start : span.end]) for span in spans]
    store.close()
    assert not Path(directory / "abort").exists()
    return found


@given(st.lists(st.integers(0, len(KINDS) - 1), min_size=1, max_size=12), st.integers(0, 12))
def test_a_run_is_what_has_equal_topic_and_constant_part(
    records: list[bytes], picked: list[int], constant_size: int
) -> None:
    """The definition, record by record, against both kernels."""
    memory = b"".join(records[kind] for kind in picked)
    kinds: list[tuple[bytes, object]] = [
        (KINDS[k].topic, KINDS[k].properties[:constant_size]) for k in picked
    ]
    if any(len(KINDS[k].properties) < constant_size for k in picked):
        kinds = [(KINDS[k].topic, k) for k in picked]  # the checksum follows: nearly all differ
        assert plain_walk.record_run(memory, 0, len(memory), constant_size) == (
            walking.record_run(memory, 0, len(memory), constant_size)
        )
        return
    count = next((n for n, kind in enumerate(kinds) if kind != kinds[0]), len(kinds))
    end = sum(len(records[kind]) for kind in picked[:count])
    for walk in (plain_walk, walking):
        assert walk.record_run(memory, 0, len(memory), constant_size) == (end, count)


@given(st.lists(st.integers(0, len(KINDS) - 1), max_size=12), st.sampled_from([0, 1 << 16]))
def test_marked_records_are_found(records: list[bytes], picked: list[int], mask: int) -> None:
    """By topic, or by a bit of the system flag."""
    memory = b"".join(records[kind] for kind in picked)
    starts = [sum(len(records[k]) for k in picked[:n]) for n in range(len(picked))]
    expected = [
        start
        for start, kind in zip(starts, picked, strict=True)
        if KINDS[kind].topic == b"ab" or KINDS[kind].system_flag & mask
    ]
    for walk in (plain_walk, walking):
        assert walk.find_marked(memory, 0, len(memory), b"ab", mask) == expected


@given(st.binary(max_size=300), st.integers(-2, 300), st.integers(-2, 300), st.integers(-1, 90))
def test_garbage_is_refused_alike(memory: bytes, start: int, end: int, size: int) -> None:
    """Both say that there is no record, and read nothing outside of the memory."""
    for name, last in (("record_run", (size,)), ("find_marked", (b"ab", 7))):
        outcomes = []
        for walk in (plain_walk, walking):
            try:
                outcomes.append(getattr(walk, name)(memory, start, end, *last))
            except ValueError as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]
