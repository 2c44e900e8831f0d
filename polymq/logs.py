"""Logs on stderr: one event a line, for a person or for a machine.

The folders below know only the standard library's `logging`; what they say goes through the same
processors as what the program says itself, so there is one format, one level, and one limit.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Any, Final, TextIO

import structlog
from structlog.typing import EventDict

from polymq.broker.accounts import audit
from polymq.log_limits import LineLimit
from polymq.recent_lines import RecentLines, no_lines
from polymq.settings import LogSettings
from polymq.terminal import printable

SHARED: Final[tuple[Any, ...]] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.ExtraAdder(),
    structlog.processors.TimeStamper(fmt="iso", utc=True),
)

_OF_ERRORS: Final = frozenset({"exception", "stack"})
"""Texts of several lines, which the program itself makes."""
_BOUND_THEIR_LINES: Final = frozenset({audit.LOGGER})
"""Loggers that leave nothing out by chance: what strangers can cause is bounded there."""
_OF_EACH_USER: Final = frozenset({(audit.LOGGER, audit.REFUSED)})
"""Lines that a user can cause with each new connection."""


def configure_logs(settings: LogSettings, stream: TextIO | None = None) -> None:
    """Send everything that is logged to `stream` (stderr) in the configured form."""
    handler = _Handler(stream or sys.stderr, RecentLines(time.time_ns() // 1_000_000))
    handler.addFilter(LineLimit(exempt=_BOUND_THEIR_LINES, by_user=_OF_EACH_USER))
    logging.getLogger().handlers[:] = [handler]
    _apply(settings, handler)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *SHARED,
            structlog.processors.StackInfoRenderer(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def change_logs(settings: LogSettings) -> None:
    """Another level and another form, from the next line on. What was counted of lines stays."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and _limits_of(handler):
            _apply(settings, handler)


def _apply(settings: LogSettings, handler: logging.StreamHandler[TextIO]) -> None:
    stream = handler.stream
    as_json = settings.format == "json" or (settings.format == "auto" and not stream.isatty())
    last: list[Any]
    if as_json:
        last = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        console = structlog.dev.ConsoleRenderer(colors=stream.isatty(), pad_event_to=0)
        last = [_printable_values, console]
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=SHARED,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
    )
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.setLevel(settings.level.upper())
    # They tell about selectors and connections of their own; nobody asked.
    for chatty in ("asyncio", "py4j"):
        logging.getLogger(chatty).setLevel(max(root.level, logging.WARNING))


class _Handler(logging.StreamHandler[TextIO]):
    """Writes lines, and keeps the last of them."""

    def __init__(self, stream: TextIO, recent: RecentLines) -> None:
        super().__init__(stream)
        self.recent = recent

    def emit(self, record: logging.LogRecord) -> None:
        """A line that is to be written."""
        self.recent.keep(record)
        super().emit(record)


def recent_lines() -> RecentLines:
    """The last lines that were written; none if logs are not configured."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _Handler):
            return handler.recent
    return no_lines()


def suppressed_lines() -> int:
    """Lines that were not written because there were too many of their kind."""
    handlers = logging.getLogger().handlers
    return sum(found.suppressed_count for handler in handlers for found in _limits_of(handler))


def _limits_of(handler: logging.Handler) -> list[LineLimit]:
    return [found for found in handler.filters if isinstance(found, LineLimit)]


def _printable_values(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Values for a terminal: clients have named some of them. (JSON escapes by itself.)"""
    return {
        key: printable(value) if isinstance(value, str) and key not in _OF_ERRORS else value
        for key, value in event.items()
    }


def logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger that takes an event and keyword values."""
    bound: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return bound
