"""Bit rot: single flipped bits in a sound store, one at a time, in every kind of file.

The store has some tens of MiB of messages, large and small queues, a session and retained messages,
as a process leaves it that was killed. For each trial a bit that means something is flipped, an
engine is started on it, and every queue is read. What is demanded: the engine starts or says in a
sentence why not; nothing that is served differs from what was published; nothing is gone unless the
recovery's report says that it cut something; the folded state is the same.

    log          every record's bytes: checksum of the record
    packs        frames and blocks have checksums
    own index    large indexes: a private entry has a check of its own; a topic's own one is
                 RocketMQ's, without: position and size are held against the log when they are read,
                 and nothing reads its tag hash from there
    checkpoint, epochs   checksum
    state.db     checksum of each row, and the sum of all
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from polymq.broker.state.database import StateDb
from polymq.core_log.checkpoint import CHECKPOINT_NAME
from polymq.core_log.epochs import EPOCHS_NAME
from polymq.core_log.errors import CorruptRecord, StorageFailed, StoreError
from polymq.core_log.index_recovery import CHECKPOINT_DAMAGED
from polymq.core_log.indexes import INDEXES_NAME
from polymq.core_log.packs import PACKS_NAME
from polymq.core_log.queue_index import QueueIndex
from polymq.core_log.settings import StoreSettings
from polymq.core_log.store import Store
from tests.crash.checks import demand
from tests.crash.disk import LOG_PART, Disk
from tests.crash.engine import EngineActor, World
from tests.crash.losses import EVERYTHING, damage
from tests.crash.parts.basics import Basics
from tests.harness.stores import DIRECTORY, read_messages

BODY_SIZE: Final = 4096
RUN_COUNT: Final = 64
READ_COUNT: Final = 128
SMALL_QUEUES: Final = 30
STATE_KIND: Final = "state.db"
KINDS: Final = {
    "log": 50,
    "packs": 12,
    "own index": 15,
    "checkpoint": 4,
    "epochs": 4,
    STATE_KIND: 15,
}
"""Every kind of file, and how often it is hit."""


@dataclass(slots=True)
class Sound:
    """A sound store, and what reading it gives.

    Attributes:
        disk: as it was left. Each trial has its own copy.
        state_db: bytes of `state.db`.
        queues: number -> (entry size, [(first offset, how many, the records)]).
        records: (position, size) of each record.
        rows: the folded state, by kind and key.
        epochs: as the store's.
    """

    disk: Disk
    state_db: bytes
    settings: StoreSettings
    queues: dict[int, tuple[int, list[tuple[int, int, bytes]]]]
    records: list[tuple[int, int]]
    rows: dict[tuple[str, str], str]
    epochs: list[tuple[int, int]]

    def start(self, disk: Disk, state_db: bytes, directory: Path) -> EngineActor:
        """Start an engine on a disk. Raises StoreError."""
        path = directory / "state.db"
        database = StateDb(path)
        database.discard()
        path.write_bytes(state_db)
        return EngineActor(disk, database, World(settings=self.settings))


def make_sound(size: int, directory: Path) -> Sound:
    """A store of about `size` bytes."""
    settings = StoreSettings(segment_bytes=max(size // 4, 1 << 16), index_packed_bytes_max=4096)
    database = StateDb(directory / "state.db")
    clients = Basics()
    actor = EngineActor(Disk(), database, World(parts=[clients], settings=settings))
    clients.declare(actor, "large")
    for number in range(SMALL_QUEUES):
        name = f"small{number}"
        actor.declare(name)
        actor.bind(name, "amq.topic", f"a.t{number}")
    clients.subscribe(actor)
    random = Random(size)
    count = size // BODY_SIZE // RUN_COUNT
    for run in range(count):
        bodies = [random.randbytes(BODY_SIZE) for _ in range(RUN_COUNT)]
        clients.stream.publish(actor, f"t{run % 40}", bodies)
        clients.retain(actor, b"%d" % run, f"x{run % 7}")
        actor.iterate()
        if run % 8 == 7:
            actor.flush(1.0)
        if run == count * 9 // 10:
            clients.queues["large"][0].take(actor, "large", 100, 50)
            clients.receive(actor, 50, 20)
            actor.save()
    actor.flush(1.0)
    state_db = _bytes_of(directory / "state.db")
    disk = actor.disk.crash(EVERYTHING)
    sound = Sound(disk, state_db, settings, {}, [], {}, list(actor.store.epochs))
    started = sound.start(disk.crash(EVERYTHING), state_db, directory)
    assert started.database.load() is not None
    sound.rows = rows_of(started, {})
    sound.records = [(record.position, record.size) for record in started.store.replay(0)]
    for number in started.store.index_numbers():
        sound.queues[number] = read_all(started.store, number)
    return sound


def _bytes_of(path: Path) -> bytes:
    """A database's bytes, its log included."""
    assert not Path(f"{path}-wal").exists() or not Path(f"{path}-wal").stat().st_size
    return path.read_bytes()


def read_all(store: Store, number: int) -> tuple[int, list[tuple[int, int, bytes]]]:
    """All records of a queue."""
    size = 20 if number in _own_numbers(store) else 32
    index = store.index(number, size)
    chunks = []
    offset = index.first_offset
    while offset < index.end_offset:
        records, count = read_messages(store, index, offset, READ_COUNT)
        chunks.append((offset, count, records))
        offset += count
    return size, chunks


def _own_numbers(store: Store) -> set[int]:
    """The queues that some record names first."""
    return {record.targets[0][0] for record in store.replay(0) if record.targets}


def rows_of(actor: EngineActor, known: dict[tuple[str, str], str]) -> dict[tuple[str, str], str]:
    """The folded state as `state.db` would have it."""
    folded = actor.database.load()
    keys = set(actor.engine.core.journal.dirty) | set(known)
    if folded is not None:
        keys |= {(kind, key) for kind, rows in folded.rows.items() for key, _ in rows}
    return {
        (kind, key): json.dumps(actor.engine.fold.row(kind, key), sort_keys=True)
        for kind, key in sorted(keys)
        if kind not in ("number", "snapshot")
    }


# --- one trial ------------------------------------------------------------------------------------


def try_flip(sound: Sound, kind: str, random: Random, directory: Path) -> str:
    """Flip a bit of this kind of file, start, read everything. Returns how it was met.

    Raises:
        Violation: something wrong was served, or something is gone in silence.
    """
    disk = sound.disk.crash(EVERYTHING)
    state_db = bytearray(sound.state_db)
    if kind == STATE_KIND:
        state_db[random.randrange(len(state_db))] ^= 1 << random.randrange(8)
    else:
        path, at_byte = draw_position(sound, disk, kind, random)
        file = disk.files()[path]
        data = bytearray(file.data)
        data[at_byte] ^= 1 << random.randrange(8)
        damage(file, bytes(data))
    try:
        actor = sound.start(disk, bytes(state_db), directory)
    except StoreError:
        return "refused with a sentence"
    report = actor.store.recovery
    cut = report.cut_bytes > 0 or bool(report.removed) or report.rebuilt_all == CHECKPOINT_DAMAGED
    errors = sum(
        _read_errors(actor.store, number, size, chunks, cut)
        for number, (size, chunks) in sound.queues.items()
    )
    if report.cut_bytes > 0:
        return "cut, and reported"
    demand(actor.store.epochs[:-1] == sound.epochs, "the epochs differ")
    changed = {key for key, row in rows_of(actor, sound.rows).items() if sound.rows.get(key) != row}
    demand(not changed, f"the state differs: {sorted(changed)[:5]}")
    if errors:
        return "an error when it is read"
    if report.rebuilt_all:
        return "indexes made again"
    if kind == STATE_KIND and actor.engine.fold.count > len(sound.rows):
        return "state folded again"
    if kind == "log":  # a record of no queue, which a start does not need: state that is folded
        try:
            for _ in actor.store.replay(0):
                pass
        except CorruptRecord:
            return "an error when the log is folded"
        demand(False, "a record is damaged, and nobody notices")
    return "no difference"


def draw_position(sound: Sound, disk: Disk, kind: str, random: Random) -> tuple[str, int]:
    """A byte that means something: the path of its file, and where it is."""
    if kind == "log":
        position, size = random.choice(sound.records)
        at_byte = position + random.randrange(size)
        segment = at_byte - at_byte % sound.settings.segment_bytes
        return f"{DIRECTORY}{LOG_PART}{segment:020d}", at_byte - segment
    part = {
        "packs": f"/{PACKS_NAME}/",
        "own index": f"/{INDEXES_NAME}/",
        "checkpoint": f"/{CHECKPOINT_NAME}",
        "epochs": f"/{EPOCHS_NAME}",
    }[kind]
    files = [(path, len(file.data)) for path, file in disk.files().items() if part in path]
    path, size = random.choice([found for found in files if found[1]])
    return path, random.randrange(size)


def _read_errors(
    store: Store, number: int, size: int, chunks: list[tuple[int, int, bytes]], cut: bool
) -> int:
    """Read a queue and compare. Returns how many messages cannot be read."""
    index = store.index(number, size)
    errors = 0
    for first, count, expected in chunks:
        if first + count > index.end_offset:
            demand(cut, f"message {index.end_offset} of queue {number} is gone in silence")
            return errors
        try:
            if read_messages(store, index, first, count) == (expected, count):
                continue
        except (CorruptRecord, StorageFailed):
            pass
        errors += _read_singly(store, index, first, expected)
    return errors


def _read_singly(store: Store, index: QueueIndex, first: int, expected: bytes) -> int:
    """Read one message after the other. Returns how many cannot be read."""
    errors = at = 0
    offset = first
    while at < len(expected):
        size = int.from_bytes(expected[at : at + 4], "big")
        try:
            found, _ = read_messages(store, index, offset, 1)
        except (CorruptRecord, StorageFailed):
            errors += 1
        else:
            wrong = f"message {offset} of queue {index.number} is wrong"
            demand(found == expected[at : at + size], wrong)
        at += size
        offset += 1
    return errors


# --- many -----------------------------------------------------------------------------------------

_made: list[tuple[Sound, tempfile.TemporaryDirectory[str]]] = []
"""The sound store of this worker process."""


def begin_worker(size: int) -> None:
    """Make the store that this process flips bits of."""
    directory = tempfile.TemporaryDirectory(prefix="polymq-flips-")
    _made.append((make_sound(size, Path(directory.name)), directory))


def run_trials(seed: int, first: int, count: int) -> tuple[Counter[tuple[str, str]], list[str]]:
    """Trials [first, first + count): what became of them by kind, and broken promises."""
    sound, directory = _made[0]
    outcomes: Counter[tuple[str, str]] = Counter()
    failures = []
    for trial in range(first, first + count):
        random = Random(f"flip {seed} {trial}")
        kind = random.choices(list(KINDS), list(KINDS.values()))[0]
        try:
            outcomes[kind, try_flip(sound, kind, random, Path(directory.name))] += 1
        except Exception as error:  # noqa: BLE001  (whatever it is, it is a finding)
            failures.append(f"seed {seed}, flip {trial} ({kind}): {type(error).__name__}: {error}")
    return outcomes, failures


def flip_many(
    seed: int, count: int, size: int, processes: int
) -> tuple[Counter[tuple[str, str]], list[str]]:
    """Many trials in several processes."""
    outcomes: Counter[tuple[str, str]] = Counter()
    failures: list[str] = []
    step = 10
    with ProcessPoolExecutor(processes, initializer=begin_worker, initargs=(size,)) as pool:
        parts = [
            pool.submit(run_trials, seed, first, min(step, count - first))
            for first in range(0, count, step)
        ]
        for part in parts:
            some, wrong = part.result()
            outcomes += some
            failures += wrong
    return outcomes, failures
