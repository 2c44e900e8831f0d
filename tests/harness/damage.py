"""What killed processes leave, and what every recovery of it has to show."""

from __future__ import annotations

from polymq.core_log.kernels.batch import MAGIC_V1
from polymq.core_log.settings import StoreSettings
from tests.harness.files import EVERYTHING, NOTHING, MemoryFiles
from tests.harness.stores import DIRECTORY, Bench, numbered, recover_only

LOG = f"{DIRECTORY}/commitlog"
QUEUES = f"{DIRECTORY}/consumequeue"
FIRST = f"{LOG}/{0:020d}"


def written_store(count: int, *, checkpoint_at: int = 0, segment: int = 1 << 16) -> MemoryFiles:
    """What a killed process left: `count` messages, a checkpoint after some of them."""
    files = MemoryFiles()
    bench = Bench(files, settings=sized(segment))
    bench.publish(numbered(0, checkpoint_at))
    bench.flush()
    if checkpoint_at:
        bench.checkpoint()
    for number in range(checkpoint_at, count):
        bench.publish(numbered(number, 1))
    bench.flush()
    return files.after_crash(EVERYTHING)


def sized(segment: int) -> StoreSettings:
    """Tiny settings with segments of this size."""
    return StoreSettings(
        segment_bytes=segment,
        chunk_bytes=1024,
        tail_bytes_max=2048,
        message_bytes_max=2000,
        index_file_entries=16,
        index_packed_bytes_max=0,
    )


WIDE = sized(1 << 16)


def end_of(files: MemoryFiles, settings: StoreSettings = WIDE) -> int:
    """Where the log ends, as a recovery of a copy finds it."""
    return recover_only(files.after_crash(EVERYTHING), settings).end


def check_recovered(
    files: MemoryFiles, expected: list[bytes], settings: StoreSettings = WIDE
) -> Bench:
    """Open, compare all queues, recover once more without any change, and go on."""
    image = files.after_crash(EVERYTHING)
    recover_only(image, settings)
    once = image.image()
    recover_only(image, settings)
    assert image.image() == once
    bench = Bench(files, settings=settings)
    for number in (1, 2, 3):
        assert bench.bodies(number) == expected
        assert bench.store.index(number, 20 if number == 1 else 32).end_offset == len(expected)
    bench.sent = list(expected)
    bench.publish(numbered(500, 3))
    bench.flush()
    assert bench.bodies() == expected + numbered(500, 3)
    found = Bench(files.after_crash(NOTHING), settings=settings)
    assert found.bodies() == found.bodies(2) == expected + numbered(500, 3)
    assert len(found.store.epochs) == len(bench.store.epochs) + 1
    return bench


def record_starts(data: bytes) -> list[int]:
    """Where the records of a segment start (the first is the epoch's)."""
    starts = []
    at = 0
    while int.from_bytes(data[at + 4 : at + 8], "big") == MAGIC_V1:
        starts.append(at)
        at += int.from_bytes(data[at : at + 4], "big")
    return starts
