"""`docs/commands.md`: every command of `polymq`, with its options and examples."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import click

from docs.site.command_examples import EXAMPLES
from polymq.cli import polymq

HEAD: Final = """\
# Commands

Every command of `polymq`, with its options. `polymq COMMAND --help` prints the same on the
terminal. This page is written by `make reference` from the commands themselves.

A command that does something returns silently. A mistake is one line on standard error and an exit
code; [configuration.md](configuration.md#exit-codes) lists the codes.

Most commands ask a running server, through its [admin listener](security.md#operators). They find
it by its data directory, and have these options, which the tables below do not repeat:
"""
SHARED: Final = ("config", "server__data_directory", "as_user", "as_password_file")
"""Options of all commands that ask a running server, by their parameters."""
EXAMPLE: Final = re.compile(r"Example: (polymq .*)", re.DOTALL)
COLUMN_ENDS: Final = str.maketrans({"|": r"\|", "\n": " "})


def leaves(
    command: click.Command = polymq, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """(words after `polymq`, command) of everything that can be run, in the order of the page."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    if command.invoke_without_command:
        yield path, command
    context = click.Context(command)
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        yield from leaves(below, (*path, name))


def rendered() -> str:
    """The page."""
    every = dict(leaves())
    shared = {param.name: param for param in every["topic", "list"].params}
    head = (" ".join(paragraph.split()) for paragraph in HEAD.split("\n\n"))
    parts = ["\n\n".join(head), "\n\n", *_table([shared[name] for name in SHARED])]
    group = ""
    for path, command in every.items():
        if path[0] != group:
            group = path[0]
            top = polymq.get_command(click.Context(polymq), group)
            assert top is not None
            parts.append(f"\n## `polymq {group}`\n")
            if isinstance(top, click.Group) and not top.invoke_without_command:
                parts.append(f"\n{_prose(top)[0]}\n")
        parts += _command(path, command)
    return "".join(parts)


def _command(path: tuple[str, ...], command: click.Command) -> Iterator[str]:
    name = " ".join(("polymq", *path))
    if len(path) > 1:
        yield f"\n### `{name}`\n"
    context = click.Context(command, info_name=name)
    prose, of_help = _prose(command)
    yield f"\n```text\n{name} {' '.join(command.collect_usage_pieces(context))}\n```\n"
    yield f"\n{prose}\n"
    options = [param for param in command.params if isinstance(param, click.Option)]
    has_shared = {*SHARED} <= {param.name for param in options}
    own = [param for param in options if not (has_shared and param.name in SHARED)]
    if own:
        yield "\n"
        yield from _table(own)
    if has_shared:
        begin = "Also" if own else "Options"
        yield f"\n{begin}: [those of all commands that ask a server](#commands).\n"
    if examples := [*EXAMPLES.get(" ".join(path), ()), *of_help]:
        yield "\n```console\n" + "".join(f"$ {example}\n" for example in examples) + "```\n"


def _prose(command: click.Command) -> tuple[str, list[str]]:
    """A command's help as Markdown, and the examples in it."""
    paragraphs, examples = [], []
    for paragraph in (command.help or "").replace("\b\n", "").split("\n\n"):
        line = " ".join(paragraph.split())
        if found := EXAMPLE.fullmatch(line):
            examples.append(found[1])
        elif line:
            paragraphs.append(_escaped(line))
    return "\n\n".join(paragraphs), examples


def _table(options: list[Any]) -> Iterator[str]:
    yield "| option | meaning |\n|---|---|\n"
    for option in options:
        names, text = option.get_help_record(click.Context(click.Command("")))
        yield f"| `{names.translate(COLUMN_ENDS)}` | {_escaped(text.translate(COLUMN_ENDS))} |\n"


def _escaped(text: str) -> str:
    """Help as Markdown: it has code in backquotes, and nothing else that Markdown would read."""
    outside = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"(?<!\\)([*_<>\[\]])", r"\\\1", part)
        for part in outside
    )
