"""Saving beside the log: never ahead of the flush, never twice at a time, never after a failure."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Generator
from typing import Any, cast

import pytest

from polymq.broker.engine import Engine
from polymq.broker.errors import StorageFailed
from polymq.core_log.errors import StorageFull
from polymq.core_log.store import Store
from polymq.upkeep import Upkeep
from polymq.workers import Workers


class SpyPreparation:
    """Something to save that is gathered in three slices."""

    def __init__(self, write: Callable[[], None]) -> None:
        self.position = 77
        self.entities: set[tuple[str, str]] = set()
        self._write = write
        self._slices_left = 3

    def gather(self, count_max: int) -> bool:
        assert count_max > 0
        self._slices_left -= 1
        return self._slices_left == 0

    def __call__(self) -> None:
        assert self._slices_left == 0, "it was not gathered to its end"
        self._write()


class SpyBallast:
    """Nobody needs its room here."""

    is_lent = False

    def see_to(self, _state_bytes: int, _free_bytes: int, _disk_bytes: int) -> None:
        pass


class SpyEngine:
    """What upkeep uses of engine and store, and a list of what it did with them."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.core = self
        self.log = self
        self.journal = self
        self.dirty: set[tuple[str, str]] = {("topic", "t")}
        self.failure: StorageFailed | None = None
        self.unknown = None
        self.appended = 100
        self.keyed_end = 55
        self.waiting: list[tuple[int, Callable[[], None]]] = []
        self.on_failure: list[Callable[[StorageFailed], None]] = []
        self.state_error: Exception | None = None
        self.index_error: Exception | None = None
        self.key_error: Exception | None = None
        self.put_back: set[tuple[str, str]] = set()
        self.short_count = self.repeated_count = 0
        self.short_text = ""
        self.ballast = SpyBallast()

    def write_gathered(self) -> None:
        self.done.append("acks")

    def begin_snapshot(self) -> SpyPreparation:
        self.done.append("snapshot")
        saving = SpyPreparation(lambda: self.work("state", self.state_error))
        saving.position = self.appended
        saving.entities = self.dirty
        self.dirty = set()
        return saving

    def state_bytes(self) -> int:
        return 0

    def space(self) -> tuple[int, int]:
        return 0, 0

    def snapshot_failed(self, entities: set[tuple[str, str]]) -> None:
        self.put_back = entities

    @property
    def keys(self) -> SpyEngine:
        return self

    @property
    def patient_readers(self) -> SpyEngine:
        return self

    def catch_up(self, end: int, keyed_end: int) -> None:
        assert keyed_end == self.keyed_end
        assert end == 77
        if self.key_error is not None:
            raise self.key_error

    def begin_checkpoint(self) -> SpyPreparation:
        self.done.append("prepare")
        return SpyPreparation(lambda: self.work("indexes", self.index_error))

    def work(self, name: str, error: Exception | None) -> None:
        if error is not None:
            raise error
        self.done.append(name)

    def when_flushed(self, position: int, callback: Any) -> None:
        self.waiting.append((position, callback))

    def when_failed(self, callback: Callable[[StorageFailed], None]) -> None:
        self.on_failure.append(callback)

    def flush(self) -> None:
        while self.waiting:
            self.waiting.pop()[1]()

    def fail(self) -> None:
        self.failure = StorageFailed("no disk")
        for callback in self.on_failure:
            callback(self.failure)


async def turns(count: int = 9) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def run(scenario: Callable[[SpyEngine, Upkeep], Any]) -> SpyEngine:
    async def inside() -> SpyEngine:
        engine = SpyEngine()
        workers = Workers(asyncio.get_running_loop(), name="test", count=1)
        upkeep = Upkeep(
            engine=cast(Engine, engine),
            store=cast(Store, engine),
            workers=workers,
            save_seconds=0.001,
        )
        await asyncio.wait_for(scenario(engine, upkeep), 10)
        workers.close()
        return engine

    return asyncio.run(inside())


def test_nothing_is_saved_before_it_is_flushed() -> None:
    """A state that names a position which a crash takes away would be worse than none."""

    async def scenario(engine: SpyEngine, upkeep: Upkeep) -> None:
        saving = asyncio.ensure_future(upkeep.save())
        await turns()
        assert engine.done == ["acks", "snapshot"]
        assert [position for position, _ in engine.waiting] == [100]
        engine.flush()
        await saving

    assert run(scenario).done == ["acks", "snapshot", "prepare", "state", "indexes"]


def test_what_is_saved_already_is_not_saved_again() -> None:
    async def scenario(engine: SpyEngine, upkeep: Upkeep) -> None:
        for end in (100, 100, 101):
            engine.appended = end
            saving = asyncio.ensure_future(upkeep.save())
            await turns()
            engine.flush()
            await saving
        assert upkeep.saved_count == 2

    assert run(scenario).done.count("snapshot") == 2


@pytest.mark.parametrize("error", [sqlite3.OperationalError("locked"), OSError("no space")])
def test_a_state_that_was_not_saved_belongs_in_the_next(error: Exception) -> None:
    async def scenario(engine: SpyEngine, upkeep: Upkeep) -> None:
        engine.state_error = error
        saving = asyncio.ensure_future(upkeep.save())
        await turns()
        engine.flush()
        await saving
        assert engine.put_back == {("topic", "t")}
        assert (upkeep.failures_count, upkeep.saved_count) == (1, 0)

    run(scenario)


def test_indexes_that_were_not_saved_are_tried_again() -> None:
    async def scenario(engine: SpyEngine, upkeep: Upkeep) -> None:
        engine.index_error = StorageFull("no room")
        for _ in range(2):
            saving = asyncio.ensure_future(upkeep.save())
            await turns()
            engine.flush()
            await saving
            engine.index_error = None
        assert (upkeep.failures_count, upkeep.saved_count) == (1, 1)

    assert run(scenario).done.count("indexes") == 1


def test_a_failed_log_ends_the_saving_and_the_waiting() -> None:
    """The flush that it waits for never comes; a stop must not wait for it either."""

    async def scenario(engine: SpyEngine, upkeep: Upkeep) -> None:
        saving = asyncio.ensure_future(upkeep.save())
        await turns()
        engine.fail()
        await saving
        await upkeep.stop()

    engine = run(scenario)
    assert engine.done == ["acks", "snapshot"]
    assert len(engine.on_failure) == 1


def test_a_stop_waits_for_the_saving_that_runs_and_saves_a_last_time() -> None:
    async def scenario(engine: SpyEngine, upkeep: Upkeep) -> None:
        upkeep.start()
        while not engine.waiting:  # noqa: ASYNC110  (the spy has no event to wait for)
            await asyncio.sleep(0)
        stopping = asyncio.ensure_future(upkeep.stop())
        await turns()
        assert not stopping.done()
        engine.appended = 200
        engine.flush()
        while not engine.waiting:  # noqa: ASYNC110  (the spy has no event to wait for)
            await asyncio.sleep(0)
        engine.flush()
        await stopping
        assert upkeep.saved_count == 2

    done = run(scenario).done
    assert done.count("state") == done.count("indexes") == 2


def test_a_stop_leaves_a_round_of_retention_where_it_is() -> None:
    """One over many queues would keep a server from stopping for long."""

    class TidyEngine(SpyEngine):
        standby = None
        deleted_bytes = 0
        drops: tuple[()] = ()
        left = False

        @property
        def retention(self) -> TidyEngine:
            return self

        def round(self, _wanted_bytes: int) -> Generator[None, None, None]:
            try:
                while True:
                    yield None
            finally:
                self.left = True

    async def inside() -> None:
        engine = TidyEngine()
        workers = Workers(asyncio.get_running_loop(), name="test", count=1)
        upkeep = Upkeep(
            engine=cast(Engine, engine), store=cast(Store, engine), workers=workers, save_seconds=9
        )
        tidying = asyncio.ensure_future(upkeep.tidy())
        await turns()
        assert not tidying.done()
        stopping = asyncio.ensure_future(upkeep.stop())
        while not engine.waiting:  # noqa: ASYNC110  (the spy has no event to wait for)
            await asyncio.sleep(0)
        assert engine.left
        engine.flush()
        await stopping
        assert await tidying == 0
        workers.close()

    asyncio.run(asyncio.wait_for(inside(), 10))


def test_files_kept_to_be_used_again_go_before_messages_do() -> None:
    """A disk that gets short of room is measured again without them; one with room keeps them."""
    rooms = [(500, 1000), (0, 0), (100, 1000), (400, 1000), (0, 0), (90, 1000), (0, 0)]
    spares = [200]

    class ShortEngine(SpyEngine):
        """Below 300 free bytes the disk is short."""

        @property
        def disk(self) -> SpyEngine:
            return self

        @property
        def wanted_bytes(self) -> int:
            return max(0, 300 - int(self.done[-1]))

        def measured(self, free_bytes: int, size_bytes: int) -> None:
            self.done.append(str(free_bytes))

        def space(self) -> tuple[int, int]:
            return rooms.pop(0)

        def drop_spares(self) -> int:
            return spares.pop() if spares else 0

    async def inside() -> None:
        engine = ShortEngine()
        workers = Workers(asyncio.get_running_loop(), name="test", count=1)
        upkeep = Upkeep(
            engine=cast(Engine, engine), store=cast(Store, engine), workers=workers, save_seconds=9
        )
        await upkeep.measure_disk()
        assert engine.done == ["500"]
        assert spares == [200]
        await upkeep.measure_disk()
        assert engine.done == ["500", "100", "400"]
        await upkeep.measure_disk()
        assert engine.done == ["500", "100", "400", "90"]
        workers.close()

    asyncio.run(inside())
