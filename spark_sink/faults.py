"""Places where a test can stop the sink, to kill it there.

`PMQ_SINK_FAULT=<point>:<batch>:<file>` makes the process that reaches the place in that batch
create the file and wait for ever; whoever waits for the file then kills the sink. Without the
variable nothing happens. The places, in the order in which a batch passes them:

    after-write     a task has written and synced its temporary files
    before-rename   all tasks are done, the driver holds the list of files
    after-rename-1  the first file has its final name, the others have not
    after-rename    all files have their final names, the batch's manifest is not written
    after-manifest  the manifest is written, Spark has not logged the batch as done
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

VARIABLE: Final = "PMQ_SINK_FAULT"

Reach = Callable[[str, int | None], None]
"""Called with the place and the batch that reached it."""


def reach_nothing(point: str, batch: int | None) -> None:
    """What runs outside tests."""


def from_environment(environment: Mapping[str, str] = os.environ) -> Reach:
    """What the environment asks for."""
    wanted = environment.get(VARIABLE)
    if not wanted:
        return reach_nothing
    wanted_point, wanted_batch, marker = wanted.split(":", 2)

    def reach(point: str, batch: int | None) -> None:
        if point == wanted_point and str(batch) == wanted_batch:
            Path(marker).touch()
            while True:
                signal.pause()

    return reach
