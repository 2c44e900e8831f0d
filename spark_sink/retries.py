"""Which failures of the sink's query are tried again, when, and how often. Pure.

Spark reports a failure as text, with the traces of Java and Python in it. Ours are found in there
by their names, and keep their kind:

* What `errors` names comes again however often it is tried, and ends the sink: a wrong option,
  messages lost, another sink. Only `Unavailable` may pass.
* All else may pass: Spark's worker that did not connect back, an executor that was lost, a full
  disk. It is `SinkFailed`, in one line.
"""

from __future__ import annotations

import re
from typing import Final

from polymq.spark_sink import errors
from polymq.spark_sink.errors import SinkError, SinkFailed, Unavailable

FAILURES_MAX: Final = 10
"""In a row. With the pauses, and two minutes in which each attempt waits for its broker, a broker
may be away for almost half an hour."""
PAUSE_FIRST_SECONDS: Final = 1.0
PAUSE_SECONDS_MAX: Final = 60.0
STEADY_SECONDS: Final = 900.0
"""A query that ran so long did well, though there was nothing to read: no attempt to reach a broker
takes as long."""
CAUSE_CHARACTERS_MAX: Final = 300
"""Of a failure that is not ours."""

_OURS: Final = re.compile(r"spark_sink\.errors\.(\w+): (.+)")
_BEGINNING: Final = re.compile(r"\A\[STREAM_FAILED\][^\n]*? terminated with exception: ")


def failure_of(report: str) -> SinkError:
    """The error that Spark's report tells of."""
    ours = _OURS.findall(report)
    if ours:
        name, text = ours[-1]
        kind = getattr(errors, name, SinkError)
        error: SinkError = kind(text.strip())
        return error
    # What failed stands between the query's ids and its plan; traces come behind.
    line = " ".join(_BEGINNING.sub("", report).partition("=== Streaming Query")[0].split())
    more = "..." if len(line) > CAUSE_CHARACTERS_MAX else ""
    return SinkFailed(line[:CAUSE_CHARACTERS_MAX] + more or "Spark does not say why")


class Retries:
    """Counts the failures of one run."""

    def __init__(self) -> None:
        self.failure_count = 0

    def pause_after(self, error: SinkError, *, has_written: bool, seconds: float) -> float:
        """How many seconds to wait before the next attempt.

        Args:
            has_written: whether the attempt wrote a batch before it failed.
            seconds: how long it ran.

        Raises:
            SinkError: this error, if there is none.
        """
        if not isinstance(error, Unavailable | SinkFailed):
            raise error
        if has_written or seconds >= STEADY_SECONDS:
            self.failure_count = 0
        self.failure_count += 1
        if self.failure_count > FAILURES_MAX:
            raise error
        doubled: float = PAUSE_FIRST_SECONDS * 2 ** (self.failure_count - 1)
        return min(doubled, PAUSE_SECONDS_MAX)
