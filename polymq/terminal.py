"""Text for a terminal or a log that a person reads, whoever chose it.

Names of topics, queues and users, and texts of errors, come from clients. A control character in
one of them would reach the terminal as a command: set its title, hide a line, or write another one.
So everything that commands print, and values in logs for people, pass through `printable`.
"""

from __future__ import annotations

import os
import sys

import click

from polymq.errors import ExitCode, Failure


def printable(text: str, *, allowed: str = "") -> str:
    r"""The text with `\uXXXX` for each character that is not printed as one.

    These are the C0 and C1 control characters, DEL, characters that turn the direction of writing
    (U+202A to U+202E, U+2066 to U+2069), other invisible ones, and octets that are no UTF-8. What
    was a JSON document is one still, with the same values.

    Args:
        allowed: characters that are left as they are, such as a line end.
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in allowed else _escaped(letter) for letter in text
    )


def _escaped(letter: str) -> str:
    units = letter.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def echo(text: object = "", *, err: bool = False) -> None:
    """Print a line of a command's output, which may have several lines and tabs."""
    click.echo(printable(str(text), allowed="\n\t"), err=err)


def confirm(question: str) -> None:
    """Ask, and return if the answer is yes.

    Raises:
        click.Abort: it is not. Failure: standard input ends without an answer.
    """
    click.echo(f"{question} [y/N]: ", nl=False, err=True)
    answer = sys.stdin.readline()
    if not answer:
        click.echo(err=True)
        raise Failure(ExitCode.USAGE, "standard input ended without an answer: use --yes")
    if answer.strip().lower() not in ("y", "yes"):
        raise click.Abort


def size(count: int) -> str:
    """A number of bytes with a fitting unit."""
    amount = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(amount) < 1024:
            return f"{amount:,.0f} {unit}" if unit == "bytes" else f"{amount:,.1f} {unit}"
        amount /= 1024
    return f"{amount:,.1f} TiB"


def leave_quietly() -> None:
    """Nobody reads the output any more: write nothing, at exit either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
