"""`polymq export`: one topic into one file or pipe, with our settings and exit codes."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, TextIO

from polymq.errors import ExitCode, Failure
from polymq.remoting.errors import LocalProtocolError
from polymq.remoting.signing import Credentials
from polymq.remoting.tls import Tls
from polymq.settings import Settings
from polymq.sink import own_broker

if TYPE_CHECKING:
    from polymq.spark_sink.exporting import Part

SHOW_SECONDS: Final = 0.2
"""Between two lines of progress."""


class Destination:
    """Where the rows go: a file, or a pipe that is open already."""

    def __init__(self, path: Path | None, pipe: BinaryIO, *, replace: bool) -> None:
        self.path = path
        self.pipe = pipe
        self.replace = replace

    def write(self, write: Callable[[BinaryIO], None]) -> None:
        """Call with the file. Raises Failure if there can be no such file."""
        from polymq.spark_sink.exporting import appearing  # noqa: PLC0415

        if self.path is None:
            write(self.pipe)
            return
        try:
            with appearing(self.path, replace=self.replace) as file:
                write(file)
        except FileExistsError as error:
            hint = "use --overwrite" if self.path.is_file() else "it is not a file"
            text = f"export: {self.path} exists already: {hint}"
            raise Failure(ExitCode.CANNOT_CREATE, text) from error
        except OSError as error:
            text = f"export: {self.path} cannot be written: {error.strerror or error}"
            raise Failure(ExitCode.CANNOT_CREATE, text) from error


class Progress:
    """A line about how far it is, on a terminal."""

    def __init__(
        self, total: int, stream: TextIO, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total = total
        self._stream = stream
        self._clock = clock
        self._is_shown = stream.isatty()
        self._done = 0
        self._begun = self._shown = clock()

    def advance(self, count: int) -> None:
        """So many messages more are written."""
        self._done += count
        now = self._clock()
        if self._is_shown and now - self._shown >= SHOW_SECONDS:
            self._shown = now
            rate = self._done / (now - self._begun)
            line = f"{self._done:,} of {self._total:,} messages, {rate:,.0f} a second"
            self._stream.write(f"\r\x1b[K{line}")
            self._stream.flush()

    def end(self) -> None:
        """Leave the line empty."""
        if self._is_shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


def run_export(
    settings: Settings,
    topic: str,
    part: Part,
    destination: Destination,
    form: str,
    *,
    broker: str | None,
    credentials: Credentials | None,
    tls: Tls | None,
    progress: TextIO,
) -> int:
    """Write the messages of a topic; returns how many there were.

    Args:
        broker: None for the server on this machine.
        progress: where it is shown how far it is, if that is a terminal.

    Raises:
        Failure: no broker answers, there is no such topic, or it cannot be written.
    """
    from polymq.spark_sink import exporting  # noqa: PLC0415
    from polymq.spark_sink.errors import BadOption, SinkError, Unavailable  # noqa: PLC0415
    from polymq.spark_sink.reading import parse_brokers  # noqa: PLC0415

    if broker is None:
        broker, tls = own_broker(settings, tls)
    access = _Access(credentials, tls)
    try:
        brokers = parse_brokers(broker)
        ranges = exporting.plan_export(brokers, access, topic, part)
        row_count = exporting.count_rows(ranges)
        shown = Progress(row_count, progress)
        rows = exporting.read_ranges(ranges, brokers, access)
        try:
            destination.write(
                lambda file: exporting.write_rows(rows, file, form, advance=shown.advance)
            )
        finally:
            shown.end()
    except (BadOption, LocalProtocolError) as error:
        raise Failure(ExitCode.USAGE, f"export: {error}") from error
    except Unavailable as error:
        raise Failure(ExitCode.UNREACHABLE, f"export: {error}") from error
    except SinkError as error:
        raise Failure(ExitCode.FAILED, f"export: {error}") from error
    return row_count


class _Access:
    """How brokers are reached."""

    def __init__(self, credentials: Credentials | None, tls: Tls | None) -> None:
        self.credentials = credentials
        self.tls = tls


def need_pyarrow() -> None:
    """Raise Failure if the package is missing that writes the files."""
    if find_spec("pyarrow") is None:
        text = "polymq export needs pyarrow: pip install 'polymq[export]'"
        raise Failure(ExitCode.FAILED, text)
