"""What pages say of commands and settings exists: each `polymq ...` is parsed as the program would
parse it, and each key is looked up."""

from __future__ import annotations

import itertools
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import pytest

from docs.site.navigation import ROOT
from polymq.cli import polymq
from polymq.settings import SECTIONS

CODE: Final = re.compile(r"^ *```(\w*)\n(.*?)^ *```|`([^`\n]+)`", re.MULTILINE | re.DOTALL)
PROGRAM: Final = re.compile(r"(?:^\s*|[;&|(] ?|sudo |bin/|\$ )polymq (?=[a-z-])")
PLACEHOLDER: Final = re.compile(r"[A-Z_]+|\.\.\.|[A-Z]+=[A-Z]+|…")
KEY: Final = re.compile(rf"`({'|'.join(SECTIONS)})\.([a-z0-9_]+)(?: = [^`]*)?`")
VARIABLE: Final = re.compile(r"\bPOLYMQ_([A-Z]+(?:_[A-Z]+)*)__([A-Z0-9_]+)\b")
TABLES: Final = {"listeners", "bridges"}
"""Keys of `[mqtt]` that hold tables."""
NO_COMMANDS: Final = {"proxy", "controller", "version"}
"""What ARCHITECTURE.md lists as not built yet, and the text of `$SYS/broker/version`."""
NO_SETTINGS: Final = {
    "admin.token", "mqtt.retain", "replication.json", "server.json", "server.py", "tls.enable",
}  # fmt: skip
"""Files, and names of others, that look like settings."""
NAMES_OF_OTHERS: Final = {"migrating-from-emqx.md", "parquet.md", "properties.md"}
"""Pages with names of EMQX's settings, and of properties, that look like settings."""


def markdown() -> Iterator[tuple[str, str]]:
    """(path, text) of every page for users."""
    for path in sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")}):
        if path.name != "CHANGELOG.md":  # it tells of the past, too
            yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def commands_in(text: str) -> Iterator[list[str]]:
    """The words behind `polymq` of each command of a page."""
    for language, block, inline in CODE.findall(text):
        if language in ("python", "java", "js", "toml", "json", "text"):
            continue
        for line in (inline or block.replace("\\\n", " ")).splitlines():
            if language == "console" and not line.startswith("$ "):
                continue
            for found in PROGRAM.finditer(line):
                yield arguments_of(line[found.end() :])


def arguments_of(line: str) -> list[str]:
    """The words of a command line, up to where the shell ends the command or a comment begins."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    return [*itertools.takewhile(lambda word: not re.fullmatch(r"#|[();<>|&]+", word), lexer)]


def wrong_with(arguments: list[str]) -> str | None:
    """What the program would say against a command line, or None."""
    command: click.Command = polymq
    context = click.Context(polymq, info_name="polymq")
    while arguments and isinstance(command, click.Group):
        below = command.get_command(context, arguments[0])
        if below is None:
            break
        command, arguments = below, arguments[1:]
        context = click.Context(command, parent=context, info_name=command.name)
    if isinstance(command, click.Group) and arguments and not arguments[0].startswith("-"):
        return f"no command {arguments[0]!r}"
    if arguments and arguments[-1].startswith("-"):
        arguments = [*arguments, "X"]  # an option that is named without its value
    try:
        values, rest, _ = command.make_parser(context).parse_args(arguments)
    except click.UsageError as error:
        return error.format_message()
    if rest and not PLACEHOLDER.fullmatch(rest[0]):
        return f"too much: {rest}"
    return wrong_choice(command, values)


def wrong_choice(command: click.Command, values: dict[str, Any]) -> str | None:
    """An option with a value that it does not take."""
    for option in command.params:
        value = values.get(option.name or "")
        if isinstance(value, str) and not PLACEHOLDER.fullmatch(value):
            try:
                if not isinstance(option.type, click.Path):
                    option.type.convert(value, option, None)
            except click.UsageError as error:
                return error.format_message()
    return None


def test_commands_exist_with_their_options() -> None:
    assert [
        f"{path}: polymq {' '.join(arguments)}: {wrong}"
        for path, text in markdown()
        for arguments in commands_in(text)
        if arguments[0] not in NO_COMMANDS and (wrong := wrong_with(arguments)) is not None
    ] == []


def test_settings_exist() -> None:
    """`section.key` in the text, and `POLYMQ_SECTION__KEY`."""
    wrong = []
    for path, text in markdown():
        named = [] if Path(path).name in NAMES_OF_OTHERS else KEY.findall(text)
        named += [tuple(map(str.lower, found)) for found in VARIABLE.findall(text)]
        for section, key in named:
            name = f"{section}.{key}"
            if key not in SECTIONS[section].model_fields and name not in NO_SETTINGS:
                wrong.append(f"{path}: {name}")
    assert wrong == []


def test_settings_in_files_exist() -> None:
    """Each block of TOML is read, and its keys are those of the sections."""
    wrong = []
    for path, text in markdown():
        for language, block, _ in CODE.findall(text):
            if language != "toml":
                continue
            for section, keys in tomllib.loads(block).items():
                if section not in SECTIONS:
                    wrong.append(f"{path}: [{section}]")
                    continue
                known = {*SECTIONS[section].model_fields, *TABLES}
                wrong += [f"{path}: {section}.{key}" for key in keys if key not in known]
    assert wrong == []


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("queue list --sort ready --limit 3", None),
        ("queue list --sort size", "'size' is not one of"),
        ("queue lost", "no command 'lost'"),
        ("queue list --sorted", "No such option"),
        ("topic show orders sensors", "too much"),
        ("topic create NAME --queues N", None),
    ],
)
def test_a_wrong_command_is_noticed(line: str, wrong: str | None) -> None:
    found = wrong_with(arguments_of(line))
    assert (found is None) if wrong is None else (found is not None and wrong in found)


def test_the_search_sees_commands() -> None:
    text = "`polymq store`\n```console\n$ sudo polymq doctor | head\npolymq is not one\n```\n"
    assert list(commands_in(text)) == [["store"], ["doctor"]]
    assert arguments_of("topic list --json > all  # for later") == ["topic", "list", "--json"]
