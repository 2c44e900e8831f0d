"""`--watch`: a command that shows something shows it again and again, until Ctrl-C."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

SECONDS_MIN: Final = 0.5
"""Each look costs the server some milliseconds for a large list."""
CLEAR: Final = "\x1b[H\x1b[2J"


def watch_option(command: Command) -> Command:
    """`--watch`, in the parameter `watch`: seconds, or None."""
    return click.option(
        "--watch",
        type=click.FloatRange(min=SECONDS_MIN),
        metavar="SECONDS",
        help="Show it again every so many seconds, until Ctrl-C.",
    )(command)


def show_again(watch: float | None, show: Callable[[], None]) -> None:
    """Show something once, or as often as `--watch` says. A terminal is cleared in between."""
    pause = threading.Event()
    while True:
        if watch is not None and sys.stdout.isatty():
            click.echo(CLEAR, nl=False)
        show()
        sys.stdout.flush()
        if watch is None:
            return
        pause.wait(watch)
