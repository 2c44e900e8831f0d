"""Writing runs: both forms on the inputs where a loop over rows could go wrong."""

from __future__ import annotations

from typing import Any

import pytest

from polymq.core_log.kernels import writing
from polymq.core_log.kernels.batch import EXTRA_BASE64, EXTRA_NONE, EXTRA_VERBATIM, Batch
from polymq.core_log.record import RecordTemplate
from polymq.kernel_forms import FORM, plain_form

if FORM == "pure":
    pytest.skip("no compiled kernels on this machine", allow_module_level=True)
plain = plain_form(writing.__name__)

HOSTS = bytes(range(8))
BODY = bytes(range(256)) * 2


def batch_of(*sizes: tuple[int, int]) -> Batch:
    """A batch of rows with these sizes of body and extra bytes."""
    batch = Batch(len(sizes))
    batch.buffer = BODY
    for index, (body, extra) in enumerate(sizes):
        batch.add((0, 1), (index, body), (index + 3, extra))
    return batch


def append(kernels: Any, batch: Batch, kind: int, targets: int, limit: int, suffix: bytes) -> Any:
    """What the kernel returns or raises, and the memory afterwards."""
    template = RecordTemplate(
        topic=b"topic", queue_id=3, properties=b"a\x01b\x02", extra_kind=kind, extra_name=b"X"
    )
    memory = bytearray(b"\xee" * 4000)
    positions = [(number, 0xFFFE + number) for number in range(targets)]
    try:
        result = kernels.append_run(
            memory,
            *(7, limit, 1 << 33, template.form, HOSTS, suffix, positions, 2),
            *(batch, 0, batch.count, 1_700_000_000_000, 1_700_000_000_001),
        )
    except ValueError as error:
        result = str(error)
    return result, memory


ROWS = {
    "equal": [(100, 0)] * 5,
    "different bodies": [(0, 0), (1, 0), (200, 0), (5, 0)],
    "different extras": [(9, 0), (9, 1), (9, 2), (9, 3), (9, 3), (9, 0)],
    "no rows": [],
    "a row outside the buffer": [(10, 4), (10, 4), (600, 4), (10, 4)],
    "an extra outside the buffer": [(10, 4), (10, 600), (10, 4)],
    "a negative size": [(10, 4), (-1, 4)],
}


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("kind", [EXTRA_NONE, EXTRA_BASE64, EXTRA_VERBATIM])
@pytest.mark.parametrize("targets", [0, 1, 2, 5, 257])
@pytest.mark.parametrize("limit", [7, 500, 4000])
def test_both_forms_write_alike(
    rows: list[tuple[int, int]], kind: int, targets: int, limit: int
) -> None:
    """Offsets count up in every target; what comes before a wrong row, or before the limit, is
    written and nothing else."""
    batch = batch_of(*rows)
    results = [
        append(form, batch, kind, targets, limit, b"S\x01s\x02") for form in (plain, writing)
    ]
    assert results[0] == results[1]
    (outcome, memory), untouched = results[0], b"\xee" * 50
    assert memory[:7] == untouched[:7]
    assert isinstance(outcome, str) or memory[outcome[1] :].startswith(untouched[: 4000 - limit])


def test_properties_that_do_not_fit_are_refused_alike() -> None:
    """An extra property of 32 KiB in the second of three rows."""
    batch = Batch(3)
    batch.buffer = bytes(40_000)
    for size in (10, 33_000, 10):
        batch.add((0, 1), (0, 5), (0, size))
    results = [append(form, batch, EXTRA_VERBATIM, 1, 4000, b"") for form in (plain, writing)]
    assert results[0] == results[1]
    assert results[0][0] == "the properties do not fit"
