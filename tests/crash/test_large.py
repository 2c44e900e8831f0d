"""A small part of `make crash` with large messages, and mistakes that it has to find."""

from __future__ import annotations

import pytest

from polymq.core_log.commit_log import CommitLog
from polymq.core_log.kernels.log_end import Chunk
from polymq.core_log.segment_files import Segment
from tests.crash.explore_large import LargeExplorer, LargeThreadsExplorer
from tests.crash.seeds import explore


@pytest.mark.parametrize("explorer", [LargeExplorer, LargeThreadsExplorer])
def test_states_with_large_messages(
    explorer: type[LargeExplorer] | type[LargeThreadsExplorer],
) -> None:
    """No violation; and the same seed gives the same states, so a failure can be repeated."""
    first, second = explorer(2).run(), explorer(2).run()
    assert first.failures == []
    assert first.states.total() > 40
    assert first == second
    alone = explorer(2, only=20).run()
    assert alone.states.total() == 1
    assert alone.images <= first.images


@pytest.mark.parametrize("explorer", [LargeExplorer, LargeThreadsExplorer])
def test_a_slice_that_is_taken_for_the_record_is_found(
    explorer: type[LargeExplorer] | type[LargeThreadsExplorer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands behind it is flushed then, and acknowledged, and the record has a hole."""
    write = CommitLog._write_chunk

    def written(self: CommitLog, chunk: Chunk, segment: Segment, left: int) -> int:
        count = write(self, chunk, segment, left)
        self.written = chunk.end
        return count

    monkeypatch.setattr(CommitLog, "_write_chunk", written)
    assert any("(a) " in text for seed in range(1, 4) for text in explorer(seed).run().failures)


@pytest.mark.parametrize(
    ("seed", "state"),
    [
        pytest.param(680636, 800017, id="a checkpoint within a blank record"),
        pytest.param(60996, 700057, id="a flush within an atomic batch"),
        pytest.param(833708, 700018, id="segments open after a start that was refused"),
        pytest.param(425920, 700000, id="a spare open that could not be taken"),
    ],
)
def test_states_that_once_broke_a_promise(seed: int, state: int) -> None:
    assert explore(seed, state, "").failures == []
