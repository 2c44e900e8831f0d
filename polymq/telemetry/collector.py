"""Sending requests of one kind to the collector, one after the other.

Rules:

* One request is under way at a time, and has a time for the whole of it (`outside_http.Caller`).
  Nothing of the server waits for it.
* After a failure nothing is sent for a while, which doubles with each further one.
* Each failure is counted; the first of a row is logged, and so is the end of it.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Mapping
from ssl import SSLContext
from typing import Final, Literal

from polymq.logins.asked_http import read_header
from polymq.logins.outside_http import Caller, CallFailed, client_tls
from polymq.logs import logger
from polymq.telemetry.encoding import Encoder
from polymq.telemetry_settings import TelemetrySettings

ANSWER_BYTES_MAX: Final = 64 * 1024
PAUSE_SECONDS: Final = 1.0
"""After the first failure; twice as long after each further one."""
PAUSE_SECONDS_MAX: Final = 300.0
UNREACHED: Final = ("timeout", "unreachable")
"""Kinds of `CallFailed` without an answer."""
LATER: Final = frozenset({429, 502, 503, 504})
"""Answers after which a request is to be sent again (OTLP 1.9, part OTLP/HTTP, Failures)."""
MEDIA_TYPE: Final = "application/x-protobuf"

Signal = Literal["metrics", "traces"]
Files = tuple[SSLContext, Mapping[str, str]]
"""How the collector is checked, and the header that it is sent."""


class Outcome(enum.Enum):
    """What came of a request."""

    SENT = "sent"
    REFUSED = "refused"
    """The collector has answered, and does not take it."""
    UNREACHED = "unreached"
    """Nobody knows whether it has it, or it does not take it now: it may be sent again."""


class Collector:
    """Sends metrics or spans.

    Args:
        now: seconds, of a clock that does not go back.

    Attributes:
        encoder: makes the requests.
        results: requests by what came of them (a metric).
        rejected_count: points or spans that the collector did not take (a metric).
    """

    def __init__(
        self,
        settings: TelemetrySettings,
        signal: Signal,
        encoder: Encoder,
        files: Files,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._signal: Signal = signal
        self.encoder = encoder
        self._now = now
        self._settings = settings
        self._tls, self._headers = files
        self._caller: Caller | None = None
        self._failures = 0  # in a row
        self._paused_until = 0.0
        self.results = {"sent": 0, "failed": 0}
        self.rejected_count = 0

    @property
    def is_paused(self) -> bool:
        """Whether the last request failed, so that nothing is to be sent yet."""
        return self._now() < self._paused_until

    async def change(self, settings: TelemetrySettings, files: Files) -> None:
        """Send otherwise from the next request on. None is under way."""
        await self.close()
        self._settings = settings
        self._tls, self._headers = files
        self._paused_until = 0.0

    async def close(self) -> None:
        """Close the connection."""
        caller, self._caller = self._caller, None
        if caller is not None:
            await caller.close()

    async def send(self, request: bytes) -> Outcome:
        """Send a request."""
        if self._caller is None:
            self._caller = Caller(
                f"{self._settings.endpoint.rstrip('/')}/v1/{self._signal}",
                self._tls,
                connections_max=1,
                seconds_max=self._settings.timeout_seconds,
                size_max=ANSWER_BYTES_MAX,
                headers=self._headers,
                media_type=MEDIA_TYPE,
            )
        try:
            answer = await self._caller.call("POST", request)
            rejected, why = self.encoder.rejected_of(self._signal, answer)
        except CallFailed as error:
            self._failed(str(error))
            is_passing = error.kind in UNREACHED or error.status in LATER
            return Outcome.UNREACHED if is_passing else Outcome.REFUSED
        except ValueError as error:
            self._failed(str(error))
            return Outcome.REFUSED
        self._worked(rejected, why)
        return Outcome.SENT

    def _failed(self, reason: str) -> None:
        self.results["failed"] += 1
        seconds = min(PAUSE_SECONDS * 2 ** min(self._failures, 16), PAUSE_SECONDS_MAX)
        self._paused_until = self._now() + seconds
        self._failures += 1
        if self._failures == 1:
            logger("polymq.telemetry").warning(
                f"the collector does not take {self._signal}, which is tried again and again",
                endpoint=self._settings.endpoint,
                reason=reason,
            )

    def _worked(self, rejected: int, why: str) -> None:
        self.results["sent"] += 1
        if self._failures:
            logger("polymq.telemetry").info(
                f"the collector takes {self._signal} again", failures=self._failures
            )
        self._failures = 0
        if rejected:
            self.rejected_count += rejected
            logger("polymq.telemetry").warning(
                f"the collector rejected {self._signal}", count=rejected, reason=why[:200]
            )


def read_files(settings: TelemetrySettings) -> Files:
    """Read the files of the settings. Raises Failure: USAGE, one cannot be used."""
    return (
        client_tls(settings.ca, "telemetry.ca"),
        read_header(settings.header_file, "telemetry.header_file"),
    )
