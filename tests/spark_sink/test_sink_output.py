"""The exactly-once protocol of the output directory, stopped at every step.

The files are text here, one line per message: the protocol does not look into them. What a reader
would see is asked after every step of every story.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polymq.spark_sink import output
from polymq.spark_sink.errors import OutputRefused, SinkError, Stale
from polymq.spark_sink.former import former_path
from polymq.spark_sink.layout import Span, final_path
from polymq.spark_sink.output import (
    Run,
    WrittenFile,
    abort,
    commit,
    data_files,
    manifests,
    open_run,
    renewed,
    temporary_path,
)

HOUR = 472_222
STEPS = ("before-rename", "after-rename-1", "after-rename", "after-manifest")


class Killed(BaseException):
    """The process is gone: nothing after this ran."""


def killed_at(step: str) -> Callable[[str, int | None], None]:
    def reach(point: str, batch: int | None) -> None:
        if point == step:
            raise Killed

    return reach


@dataclass(frozen=True, slots=True)
class Point:
    """An output directory and its checkpoint."""

    output: Path
    checkpoint: Path

    @contextmanager
    def run(self) -> Iterator[Run]:
        with open_run(self.output, self.checkpoint) as run:
            yield run

    def log_batch(self, batch: int, text: str = "range") -> None:
        """What Spark does before it runs a batch."""
        (self.checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
        (self.checkpoint / "offsets" / str(batch)).write_text(text)

    def lines(self) -> Counter[str]:
        """What a reader with a glob finds."""
        globbed = sorted(self.output.glob("**/*.parquet"))
        assert globbed == data_files(self.output)
        return Counter(line for path in globbed for line in path.read_text().splitlines())


@pytest.fixture(autouse=True, scope="module")
def _no_power_failures() -> Iterator[None]:
    """Processes die here, the machine does not: syncing would only be slow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)
        yield


@pytest.fixture
def point(tmp_path: Path) -> Point:
    return Point(tmp_path / "lake", tmp_path / "checkpoint")


def write(
    run: Run,
    batch: int,
    first: int,
    end: int,
    *,
    queue_id: int = 0,
    topic: str = "t",
    broker: str = "b",
    cut: int | None = None,
    found_from: int | None = None,
    incarnation: int = 1,
    former: bool = False,
) -> list[WrittenFile]:
    """What a task does: offsets below `cut` belong to one hour, the others to the next.
    `found_from` is where retention lets the range begin."""
    span = Span(
        topic=topic,
        broker=broker,
        queue_id=queue_id,
        first=first,
        end=end,
        incarnation=None if former else incarnation,
        former=former,
    )
    files = []
    begin = first if found_from is None else found_from
    cut = end if cut is None else cut
    for hour, offsets in ((HOUR, range(begin, cut)), (HOUR + 1, range(max(begin, cut), end))):
        if not offsets:
            continue
        temporary = temporary_path(run.output, run.token, batch)
        temporary.write_text("".join(f"{topic}/{queue_id}/{offset}\n" for offset in offsets))
        files.append(
            WrittenFile(
                temporary=str(temporary.relative_to(run.output)),
                final=final_path(span, hour),
                former=former_path(span, hour) if former else None,
                broker=broker,
                topic=topic,
                queue_id=queue_id,
                first=first,
                end=end,
                row_count=len(offsets),
                byte_count=temporary.stat().st_size,
                complete=begin == first,
            )
        )
    return files


def messages(*spans: tuple[int, int, int]) -> Counter[str]:
    return Counter(
        f"t/{queue}/{offset}" for queue, first, end in spans for offset in range(first, end)
    )


# --- batches ----------------------------------------------------------------------------------


def test_a_committed_batch_is_there_and_says_what_it_is(point: Point) -> None:
    with point.run() as run:
        point.log_batch(0)
        files = write(run, 0, 0, 10, cut=4) + write(run, 0, 5, 7, queue_id=1)
        assert point.lines() == Counter()
        commit(run, 0, files)
        assert point.lines() == messages((0, 0, 10), (1, 5, 7))
        (manifest,) = manifests(point.output)
    assert (manifest["batch"], manifest["row_count"], manifest["run"]) == (0, 12, run.token)
    assert [(row["path"], row["row_count"]) for row in manifest["files"]] == [
        ("topic=t/date=2023-11-14/hour=22/q0-0-10-g1-b.parquet", 4),
        ("topic=t/date=2023-11-14/hour=23/q0-0-10-g1-b.parquet", 6),
        ("topic=t/date=2023-11-14/hour=22/q1-5-7-g1-b.parquet", 2),
    ]


@pytest.mark.parametrize("step", [*STEPS, "after-write", "mid-write"])
def test_a_batch_that_was_killed_anywhere_is_right_after_its_replay(
    point: Point, step: str
) -> None:
    """And while it is not replayed, a reader sees some of its messages, none twice."""
    with point.run() as run:
        point.log_batch(0)
        commit(run, 0, write(run, 0, 0, 5))
    batch_1 = messages((0, 5, 9), (1, 0, 3))
    with point.run() as run:
        point.log_batch(1)
        files = write(run, 1, 5, 9, cut=7) + write(run, 1, 0, 3, queue_id=1)
        if step == "mid-write":
            temporary_path(run.output, run.token, 1).write_bytes(b"PAR1 half a file")
        elif step != "after-write":
            with pytest.raises(Killed):
                commit(run, 1, files, reach=killed_at(step))
    seen = point.lines()
    assert seen <= messages((0, 0, 5)) + batch_1
    assert messages((0, 0, 5)) <= seen
    with point.run() as run:
        assert list(point.output.glob("_tmp/*/*")) == []
        commit(run, 1, write(run, 1, 5, 9, cut=7) + write(run, 1, 0, 3, queue_id=1))
    assert point.lines() == messages((0, 0, 5)) + batch_1


@settings(max_examples=30)
@given(
    story=st.lists(
        st.tuples(st.integers(1, 5), st.lists(st.sampled_from(STEPS), max_size=4)), max_size=6
    )
)
def test_any_story_of_batches_and_kills_ends_right(
    tmp_path_factory: pytest.TempPathFactory, story: list[tuple[int, list[str]]]
) -> None:
    """Each batch is killed at each of its steps in turn, then succeeds."""
    directory = tmp_path_factory.mktemp("story")
    point = Point(directory / "lake", directory / "checkpoint")
    end = 0
    for batch, (size, kills) in enumerate(story):
        first, end = end, end + size
        position_is_right = messages((0, 0, first), (1, 0, first))
        everything = messages((0, 0, end), (1, 0, end))
        for step in kills:
            with point.run() as run:
                point.log_batch(batch)
                files = write(run, batch, first, end) + write(run, batch, first, end, queue_id=1)
                with pytest.raises(Killed):
                    commit(run, batch, files, reach=killed_at(step))
            assert position_is_right <= point.lines() <= everything
        with point.run() as run:
            point.log_batch(batch)
            files = write(run, batch, first, end) + write(run, batch, first, end, queue_id=1)
            commit(run, batch, files)
        assert point.lines() == everything


def test_the_logged_range_is_durable_before_any_file_gets_its_name(
    point: Point, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power failure could forget the range and keep its files."""
    synced: list[Path] = []
    monkeypatch.setattr(output, "sync_file", synced.append)
    monkeypatch.setattr(output, "sync_directory", synced.append)
    with point.run() as run:
        point.log_batch(0)
        (point.checkpoint / "offsets" / ".0.crc").touch()
        with pytest.raises(Killed):
            commit(run, 0, write(run, 0, 0, 5), reach=killed_at("after-rename-1"))
    log = point.checkpoint / "offsets"
    assert synced == [log / "0", log / ".0.crc", log, point.checkpoint]


def test_a_batch_without_its_logged_range_is_not_committed(point: Point) -> None:
    with point.run() as run:
        files = write(run, 0, 0, 5)
        with pytest.raises(FileNotFoundError):
            commit(run, 0, files)
    assert point.lines() == Counter()


# --- what retention took ----------------------------------------------------------------------


def test_an_incomplete_range_never_replaces_a_file(point: Point) -> None:
    """The first attempt was whole and killed half-way; for the replay the beginning is gone."""
    with point.run() as run:
        point.log_batch(0)
        with pytest.raises(Killed):
            commit(run, 0, write(run, 0, 0, 10, cut=6), reach=killed_at("after-rename-1"))
    assert point.lines() == messages((0, 0, 6))
    with point.run() as run:
        commit(run, 0, write(run, 0, 0, 10, cut=6, found_from=3))
        (manifest,) = manifests(point.output)
    assert point.lines() == messages((0, 0, 10))
    assert [row["kept_older"] for row in manifest["files"]] == [True, False]


def test_an_incomplete_range_is_written_where_nothing_is(point: Point) -> None:
    with point.run() as run:
        point.log_batch(0)
        commit(run, 0, write(run, 0, 0, 10, found_from=4))
        assert point.lines() == messages((0, 4, 10))
        commit(run, 0, write(run, 0, 0, 10, found_from=7))  # a replay that finds even less
        assert point.lines() == messages((0, 4, 10))
        commit(run, 0, write(run, 0, 0, 10))  # cannot happen; but whole is whole
        assert point.lines() == messages((0, 0, 10))


# --- attempts that Spark gave up --------------------------------------------------------------


def test_files_of_attempts_that_do_not_count_go_with_the_next_commit(point: Point) -> None:
    with point.run() as run:
        point.log_batch(3)
        given_up = write(run, 3, 0, 5)
        ahead = write(run, 4, 5, 8)
        commit(run, 3, write(run, 3, 0, 5))
        assert not (point.output / given_up[0].temporary).exists()
        assert (point.output / ahead[0].temporary).exists()
    assert point.lines() == messages((0, 0, 5))


def test_an_aborted_batch_leaves_nothing(point: Point) -> None:
    with point.run() as run:
        files = write(run, 0, 0, 5, cut=2)
        abort(run, 0, files)
        abort(run, 0, files)
        assert list(point.output.glob("_tmp/*/*")) == []


# --- two sinks --------------------------------------------------------------------------------


def test_only_one_sink_writes_to_a_directory(point: Point) -> None:
    with point.run(), pytest.raises(OutputRefused, match="another sink writes"), point.run():
        pass


def test_what_outlives_a_killed_sink_cannot_commit(point: Point) -> None:
    """Its Java machine and workers run on for a moment, and commit with the old token."""
    with point.run() as old:
        point.log_batch(0)
        files = write(old, 0, 0, 5)
    with point.run() as new:
        with pytest.raises(Stale):
            commit(old, 0, files)
        commit(new, 0, write(new, 0, 0, 5))
        with pytest.raises(Stale):
            commit(old, 1, [])
    assert point.lines() == messages((0, 0, 5))


def test_two_tasks_cannot_claim_one_file(point: Point) -> None:
    with point.run() as run:
        point.log_batch(0)
        files = write(run, 0, 0, 5) + write(run, 0, 0, 5)
        with pytest.raises(SinkError, match="two tasks claim topic=t/"):
            commit(run, 0, files)
    assert point.lines() == Counter()


def test_two_brokers_and_two_generations_of_a_topic_stand_side_by_side(point: Point) -> None:
    """With the same queues and the same ranges, in one batch and in several."""
    with point.run() as run:
        for batch, incarnation in enumerate((1, 2)):
            point.log_batch(batch)
            files = [
                file
                for broker in "bc"
                for file in write(run, batch, 0, 5, broker=broker, incarnation=incarnation)
            ]
            commit(run, batch, files)
    assert point.lines() == Counter(
        {line: 4 * count for line, count in messages((0, 0, 5)).items()}
    )


def test_an_attempt_that_failed_cannot_commit_after_the_next_one_began(point: Point) -> None:
    """Its query is over, but a process of it may still be at work."""
    with point.run() as run:
        point.log_batch(0)
        files = write(run, 0, 0, 5)
        again = renewed(run)
        assert list(point.output.glob("_tmp/*/*")) == []
        with pytest.raises(Stale):
            commit(run, 0, files)
        commit(again, 0, write(again, 0, 0, 5))
        with pytest.raises(OutputRefused, match="another sink writes"), point.run():
            pass
    assert point.lines() == messages((0, 0, 5))


# --- lakes of the first version ---------------------------------------------------------------


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("again", ["former", "this"])
def test_a_batch_that_the_first_version_left_half_done_is_not_doubled(
    point: Point, step: str, again: str
) -> None:
    """It was killed anywhere; then this version is killed there too, and goes on."""
    names = [f"topic=t/date=2023-11-14/hour={hour}/q{queue}-0-9.parquet" for hour, queue in
             (("22", 0), ("23", 0), ("22", 1))]  # fmt: skip
    with point.run() as run:
        point.log_batch(0)
        files = write(run, 0, 0, 9, cut=7, former=True)
        files += write(run, 0, 0, 9, cut=9, queue_id=1, former=True)
        assert [file.former for file in files] == names
        if again == "former":
            for file, name in list(zip(files, names, strict=True))[: STEPS.index(step)]:
                (point.output / name).parent.mkdir(parents=True, exist_ok=True)
                (point.output / file.temporary).rename(point.output / name)
        else:
            with pytest.raises(Killed):
                commit(run, 0, files, reach=killed_at(step))
    with point.run() as run:
        files = write(run, 0, 0, 9, cut=7, former=True)
        commit(run, 0, files + write(run, 0, 0, 9, cut=9, queue_id=1, former=True))
        point.log_batch(1)
        commit(run, 1, write(run, 1, 9, 12))
    assert point.lines() == messages((0, 0, 12), (1, 0, 9))
    assert sorted(str(path.relative_to(point.output)) for path in data_files(point.output)) == [
        *sorted([*names, "topic=t/date=2023-11-14/hour=22/q0-9-12-g1-b.parquet"])
    ]


def test_a_batch_that_the_first_version_could_not_write_gets_names_of_today(point: Point) -> None:
    """A topic on two brokers, or with a long name. Killed half-way, it keeps those names, also if
    retention then took what made it impossible."""
    with point.run() as run:
        point.log_batch(0)
        files = write(run, 0, 0, 5, former=True) + write(run, 0, 0, 5, broker="c", former=True)
        with pytest.raises(Killed):
            commit(run, 0, files, reach=killed_at("after-rename-1"))
        commit(run, 0, write(run, 0, 0, 5, former=True))
        point.log_batch(1)
        long = write(run, 1, 0, 1, topic="x" * 300, former=True)
        commit(run, 1, write(run, 1, 5, 7, former=True) + long)
    assert point.lines() == messages((0, 0, 7)) + Counter({f"{'x' * 300}/0/0": 1})
    assert all("-g0-b" in path.name for path in data_files(point.output))


def test_a_checkpoint_that_is_older_than_the_files_is_noticed(point: Point) -> None:
    """It was restored from a copy, say: the batch comes again with another range."""
    with point.run() as run:
        point.log_batch(0)
        commit(run, 0, write(run, 0, 0, 5))
        with pytest.raises(SinkError, match="the checkpoint is older than the files"):
            commit(run, 0, write(run, 0, 0, 8))
    assert point.lines() == messages((0, 0, 5))


# --- the wrong directory ----------------------------------------------------------------------


def test_another_checkpoint_cannot_write_to_the_directory(point: Point, tmp_path: Path) -> None:
    """It would write the messages again, in other ranges."""
    with point.run():
        pass
    other = Point(point.output, tmp_path / "other")
    with pytest.raises(OutputRefused, match="do not belong together"), other.run():
        pass
    with Point(tmp_path / "third-lake", tmp_path / "third").run():
        pass
    third = Point(point.output, tmp_path / "third")
    with pytest.raises(OutputRefused, match="belongs to another checkpoint"), third.run():
        pass


def test_a_checkpoint_whose_files_are_elsewhere_is_refused(point: Point, tmp_path: Path) -> None:
    """What it has read would be missing here."""
    with point.run():
        point.log_batch(0)
    moved = Point(tmp_path / "elsewhere", point.checkpoint)
    with pytest.raises(OutputRefused, match="has read messages"), moved.run():
        pass
    (tmp_path / "elsewhere" / "_manifest").mkdir(parents=True)
    with pytest.raises(OutputRefused, match="wrote to another directory"), moved.run():
        pass


def test_a_directory_with_strange_files_is_refused(point: Point) -> None:
    point.output.mkdir()
    (point.output / "mine.parquet").touch()
    with pytest.raises(OutputRefused, match="no sink wrote"), point.run():
        pass


def test_a_refused_start_does_not_fence_the_rightful_run_off(point: Point, tmp_path: Path) -> None:
    with point.run() as run:
        point.log_batch(0)
        with pytest.raises(OutputRefused), Point(point.output, tmp_path / "other").run():
            pass
        commit(run, 0, write(run, 0, 0, 5))
    assert point.lines() == messages((0, 0, 5))


# --- odds and ends ----------------------------------------------------------------------------


@pytest.mark.parametrize("log", ["offsets", "commits"])
def test_what_a_power_failure_left_empty_of_spark_s_logs_is_taken_away(
    point: Point, log: str
) -> None:
    """Spark does not sync them, and refuses to start on an empty one."""
    with point.run():
        pass
    directory = point.checkpoint / log
    directory.mkdir()
    for name in ("9", "10"):
        (directory / name).write_text("v1\n{}")
    (directory / "11").touch()
    (directory / ".11.crc").touch()
    with point.run():
        assert sorted(path.name for path in directory.iterdir()) == ["10", "9"]


def test_old_manifests_go(point: Point, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "MANIFESTS_MAX", 3)
    with point.run() as run:
        for batch in range(6):
            point.log_batch(batch)
            commit(run, batch, write(run, batch, batch, batch + 1))
    assert [manifest["batch"] for manifest in manifests(point.output)] == [3, 4, 5]


def test_a_manifest_is_json_for_everybody(point: Point) -> None:
    with point.run() as run:
        point.log_batch(0)
        commit(run, 0, write(run, 0, 0, 2, topic="wärme"))
    document = json.loads((point.output / "_manifest" / "0.json").read_text(encoding="utf-8"))
    assert document["files"][0]["topic"] == "wärme"
    assert "temporary" not in document["files"][0]
