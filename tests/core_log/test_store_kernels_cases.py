"""Runs of many rows: both kernels write the same bytes and entries, and raise the same errors. Each
case makes other bytes differ from record to record."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

from polymq.core_log.kernels import writing
from polymq.core_log.kernels.batch import (
    EXTRA_BASE64,
    EXTRA_NONE,
    EXTRA_VERBATIM,
    PROPERTIES_SIZE_MAX,
    Batch,
)
from polymq.core_log.record import RecordTemplate
from polymq.kernel_forms import plain_form
from tests.harness.forms import compiled_form

plain, fast = plain_form(writing.__name__), compiled_form(writing.__name__)
COMPILED = pytest.mark.skipif(fast is None, reason="the kernels were not compiled")
COUNT = 67


@dataclass(frozen=True)
class Case:
    """A run: what its rows have, and where it goes."""

    body_size: int = 10
    count: int = COUNT
    kind: int = EXTRA_NONE
    extra: bytes = b""
    targets: tuple[tuple[int, int], ...] = ((7, 1000),)
    position: int = 4096
    start: int = 5
    room: int | None = None
    base: int = 0
    suffix: bytes = b""
    first: int = 0
    odd_body: int = 0
    odd_extra: bytes | None = None


CASES = {
    "plain": Case(),
    "no-body": Case(body_size=0),
    "no-target": Case(targets=()),
    "some-targets": Case(targets=((7, 1), (0xFFFF_FFFF, 0xFFF_FFF0), (9, 0))),
    "offsets-grow-a-digit": Case(targets=((7, 0xFFFF_FFF0),)),
    "offsets-grow-a-byte": Case(targets=((7, 0xFF_FFFF),)),
    "largest-offsets": Case(targets=((7, (1 << 48) - 1 - COUNT),)),
    "position-0": Case(position=0),
    "positions-grow-bytes": Case(position=(1 << 32) - 1000),
    "far-position": Case(position=(1 << 62) + 77),
    "base64": Case(kind=EXTRA_BASE64, extra=b"\x00\xff\x10"),
    "verbatim": Case(kind=EXTRA_VERBATIM, extra=b"a\x01b\x02"),
    "suffix": Case(suffix=b"X\x01y\x02"),
    "behind-others": Case(base=400),
    "behind-other-rows": Case(first=3),
    "only-some-fit": Case(room=3000),
    "one-fits": Case(room=300),
    "none-fits": Case(room=100),
    "large-bodies": Case(body_size=(16 << 10) + 1),
    "a-larger-body": Case(odd_body=1),
    "another-extra": Case(kind=EXTRA_VERBATIM, extra=b"a\x01b\x02", odd_extra=b"a\x01c\x02"),
    "a-longer-extra": Case(
        kind=EXTRA_VERBATIM, extra=b"a\x01b\x02", odd_extra=b"a\x01b\x02c\x01d\x02"
    ),
    "properties-too-large": Case(kind=EXTRA_VERBATIM, extra=b"x" * PROPERTIES_SIZE_MAX),
    "one-row": Case(count=1),
}


def rows(case: Case) -> Batch:
    """Bodies and extras at irregular places of a buffer."""
    chance = random.Random(5)
    batch = Batch(case.count)
    buffer = bytearray(b"topic")
    for row in range(case.count):
        buffer += bytes(chance.randrange(5))
        body = chance.randbytes(case.body_size + case.odd_body * (row == case.count // 2))
        odd = row == case.count - 1 and case.odd_extra is not None
        extra = (case.odd_extra or b"") if odd else case.extra
        at = len(buffer)
        buffer += body + extra
        batch.add((0, 5), (at, len(body)), (at + len(body), len(extra)))
    batch.buffer = bytes(buffer)
    return batch


def written(kernels: Any, case: Case) -> Any:
    """What the kernel answers, and the memory that it leaves."""
    form = RecordTemplate(
        topic=b"topic",
        queue_id=1,
        properties=b"TAGS\x01t\x02",
        tag_hash=-3,
        extra_kind=case.kind,
        extra_name=b"E" if case.kind == EXTRA_BASE64 else b"",
    ).form
    batch = rows(case)
    memory = bytearray(case.start + 300_000 + case.count * case.body_size)
    limit = len(memory) if case.room is None else case.start + case.room
    try:
        answer: Any = kernels.append_run(
            memory,
            case.start,
            limit,
            case.position,
            form,
            b"hostport",
            case.suffix,
            case.targets,
            case.base,
            batch,
            case.first,
            case.count,
            1_700_000_000_000,
            1_700_000_000_001,
        )
    except ValueError as error:
        answer = str(error)
    return answer, bytes(memory[:limit] if isinstance(answer, str) else memory[: answer[1]])


@COMPILED
@pytest.mark.parametrize("name", CASES)
def test_a_run_is_written_alike(name: str) -> None:
    case = CASES[name]
    assert written(plain, case) == written(fast, case)


@pytest.mark.parametrize("kernels", [plain, pytest.param(fast, marks=COMPILED)])
@pytest.mark.parametrize("column", [2, 3, 4, 5])
@pytest.mark.parametrize("value", [-1, 1 << 40])
def test_a_part_outside_the_buffer_is_an_error(kernels: Any, column: int, value: int) -> None:
    """In any row; what comes before it may have been written."""
    for row in (0, COUNT // 2, COUNT - 1):
        batch = rows(CASES["plain"])
        batch.rows[row * 8 + column] = value
        form = RecordTemplate(topic=b"t", queue_id=0, properties=b"", tag_hash=0).form
        memory = bytearray(100_000)
        with pytest.raises(ValueError, match="outside the buffer"):
            kernels.append_run(
                memory, 0, 100_000, 0, form, bytes(8), b"", (), 0, batch, 0, COUNT, 0, 0
            )
