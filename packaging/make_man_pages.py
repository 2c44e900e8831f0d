"""Write the man pages: one for `polymq`, and one for each of its commands.

    python packaging/make_man_pages.py DIRECTORY

Everything on them is what the commands say of themselves with `--help`. Run it with an interpreter
that has PolyMQ installed. `SOURCE_DATE_EPOCH` sets the date on the pages.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import click

from polymq import program_version
from polymq.cli import polymq
from polymq.errors import ExitCode

EXIT_STATUS: Final = {
    ExitCode.OK: "The command is done. A server was stopped in order.",
    ExitCode.FAILED: "The command was understood, and could not be carried out.",
    ExitCode.USAGE: "An option, or a key or value in the configuration, is wrong.",
    ExitCode.DATA_DAMAGED: "The data directory or a backup is damaged, or not PolyMQ's.",
    ExitCode.UNREACHABLE: "No server answers, or this one cannot do it now.",
    ExitCode.BUG: "A bug: please report the traceback.",
    ExitCode.CANNOT_LISTEN: "A port is in use, or the address is not of this machine.",
    ExitCode.CANNOT_CREATE: "A directory or file cannot be created, read or written.",
    ExitCode.DISK_FAILED: "The disk returned an I/O error.",
    ExitCode.IN_USE: "Another server or command uses the data directory or the backup.",
    ExitCode.INTERRUPTED: "Interrupted by Ctrl-C.",
}
FILES: Final = {
    "polymq.toml": "The configuration, in the working directory, unless another file is named.",
    "/etc/polymq/polymq.toml": "The configuration of a server that a package installed.",
    "/var/lib/polymq": "Its data directory.",
}
ENVIRONMENT: Final = {
    "POLYMQ_SECTION__KEY": "A setting, such as POLYMQ_MQTT__PORT=1884.",
    "POLYMQ_CONFIG": "The configuration file.",
    "POLYMQ_USER, POLYMQ_PASSWORD_FILE": "The user that a command asks as, and a file with the "
    "password.",
    "POLYMQ_KERNELS": "Which form of the inner loops runs: compiled or pure.",
}


def main(directory: Path) -> None:
    """Write all pages."""
    directory.mkdir(parents=True, exist_ok=True)
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))
    day = time.strftime("%Y-%m-%d", time.gmtime(seconds))
    for ctx in contexts(polymq, "polymq", None):
        path = directory / f"{page_name(ctx)}.1"
        path.write_text("\n".join(page(ctx, day)) + "\n", encoding="utf-8")


def contexts(
    command: click.Command, name: str, parent: click.Context | None
) -> Iterator[click.Context]:
    """The context of a command, and of all below it, as if each had been called."""
    ctx = click.Context(command, info_name=name, parent=parent, **command.context_settings)
    yield ctx
    for child_name, child in children(ctx):
        yield from contexts(child, child_name, ctx)


def children(ctx: click.Context) -> Iterator[tuple[str, click.Command]]:
    """The commands of a group; none, if it is not one."""
    if isinstance(ctx.command, click.Group):
        for name in ctx.command.list_commands(ctx):
            child = ctx.command.get_command(ctx, name)
            if child is not None and not child.hidden:
                yield name, child


def page_name(ctx: click.Context) -> str:
    """`polymq-topic-list`."""
    return ctx.command_path.replace(" ", "-")


def page(ctx: click.Context, day: str) -> Iterator[str]:
    """The lines of a page, in man(7)'s macros."""
    name, version = page_name(ctx), f"PolyMQ {program_version()}"
    yield f'.TH "{escaped(name.upper())}" "1" "{day}" "{version}" "PolyMQ manual"'
    yield ".SH NAME"
    summary = ctx.command.get_short_help_str(limit=200).rstrip(".")
    yield f"{escaped(name)} \\- {escaped(summary)}"
    yield ".SH SYNOPSIS"
    usage = " ".join(ctx.command.collect_usage_pieces(ctx))
    yield f".B {escaped(ctx.command_path)}"
    yield line(usage)
    yield ".SH DESCRIPTION"
    yield from paragraphs(ctx.command.help or "")
    yield from definitions("OPTIONS", options(ctx))
    commands = [
        (f"{ctx.command_path} {child}", command.get_short_help_str(limit=200))
        for child, command in children(ctx)
    ]
    yield from definitions("COMMANDS", commands)
    if ctx.parent is None:
        yield from definitions("FILES", FILES.items())
        yield from definitions("ENVIRONMENT", ENVIRONMENT.items())
    statuses = ((str(int(code)), text) for code, text in EXIT_STATUS.items())
    yield from definitions("EXIT STATUS", statuses)
    yield from see_also(ctx)


def options(ctx: click.Context) -> Iterator[tuple[str, str]]:
    """(`--count N`, what it does) of each option."""
    for parameter in ctx.command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is not None:
            yield record


def see_also(ctx: click.Context) -> Iterator[str]:
    """The pages above and below this one."""
    above = [] if ctx.parent is None else [page_name(ctx.parent)]
    names = [*above, *(f"{page_name(ctx)}-{child}" for child, _ in children(ctx))]
    yield ".SH SEE ALSO"
    for number, name in enumerate(names, 1):
        yield f".BR {escaped(name)} (1){',' if number < len(names) else ''}"


def definitions(title: str, found: Iterable[tuple[str, str]]) -> Iterator[str]:
    """A section of terms with their meanings; nothing, if there are none."""
    entries = list(found)
    if entries:
        yield f".SH {title}"
    for term, meaning in entries:
        yield ".TP"
        yield f"\\fB{escaped(term)}\\fR"
        yield line(meaning)


def paragraphs(text: str) -> Iterator[str]:
    """Prose as in a docstring: empty lines are between paragraphs."""
    for number, paragraph in enumerate(re.split(r"\n\s*\n", text.strip())):
        if number:
            yield ".PP"
        yield line(" ".join(paragraph.replace("\b", "").split()))


def line(text: str) -> str:
    """A line of prose, which begins with no macro. What stands in backquotes is bold."""
    shown = re.sub(r"`([^`]+)`", r"\\fB\1\\fR", escaped(text))
    return f"\\&{shown}" if shown.startswith((".", "'")) else shown


def escaped(text: str) -> str:
    """Text in which nothing means something to troff: dashes are those that a shell knows."""
    return text.replace("\\", "\\e").replace("-", "\\-")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: make_man_pages.py DIRECTORY")
    main(Path(sys.argv[1]))
