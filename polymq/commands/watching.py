"""`--watch`: a command that shows something shows it again and again, until Ctrl-C."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from polymq.admin.client import AdminClient
from polymq.errors import ExitCode, Failure

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
        help="Show it again every so many seconds, until Ctrl-C. A server that is restarted is "
        "waited for.",
    )(command)


def show_again(watch: float | None, admin: AdminClient, show: Callable[[], None]) -> None:
    """Show something once, or as often as `--watch` says. A terminal is cleared in between. A
    server that goes away after the first look, as one that is restarted, is waited for."""
    pause = threading.Event()
    is_away = seen = False
    while True:
        is_terminal = sys.stdout.isatty()
        if watch is not None and is_terminal:
            click.echo(CLEAR, nl=False)
        try:
            _look(admin, show)
        except Failure as failure:
            if watch is None or not seen or failure.code is not ExitCode.UNREACHABLE:
                raise
            if is_terminal or not is_away:
                text = f"polymq: the server is away, and is waited for: {failure.text}"
                click.echo(text, err=True)
            is_away = True
        else:
            if is_away:
                click.echo("polymq: the server is back", err=True)
            is_away, seen = False, True
        sys.stdout.flush()
        if watch is None:
            return
        pause.wait(watch)


def _look(admin: AdminClient, show: Callable[[], None]) -> None:
    """Show it; of a server that was restarted, from where it is now."""
    try:
        show()
    except Failure:
        if not admin.find_again():
            raise
        show()
