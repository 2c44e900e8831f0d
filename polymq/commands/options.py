"""Options that several commands share, and how they become settings."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import click

from polymq.errors import ExitCode, Failure
from polymq.settings import SECTIONS, Settings, load_settings

Command = TypeVar("Command", bound=Callable[..., Any])


def config_option(command: Command) -> Command:
    """`--config FILE`."""
    return click.option(
        "--config",
        "config",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Configuration file (TOML). Default: polymq.toml in this directory, if there is one.",
    )(command)


def ready_file_option(text: str) -> Callable[[Command], Command]:
    """`--ready-file FILE`, in a directory where it can be written: who waits for it waits in vain
    otherwise, beside a server that runs."""
    return click.option(
        "--ready-file",
        type=click.Path(dir_okay=False, path_type=Path),
        callback=_checked_ready_file,
        help=text,
    )


def _checked_ready_file(_ctx: click.Context, _option: click.Parameter, file: Path | None) -> Any:
    if file is None:
        return None
    directory = file.absolute().parent
    if not directory.is_dir():
        raise click.UsageError(f"--ready-file: there is no directory {directory}: create it first")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise click.UsageError(f"--ready-file: this user may not write in {directory}")
    return file


def setting_flag(flag: str, key: str, text: str) -> Callable[[Command], Command]:
    """A flag that stands for one key of the configuration; its default is shown, not set."""
    section, _, name = key.partition(".")
    field = SECTIONS[section].model_fields[name]
    parameter = key.replace(".", "__")
    if field.annotation is bool:
        return click.option(flag, parameter, is_flag=True, default=None, help=text)
    return click.option(
        flag,
        parameter,
        metavar=_metavar(name, field.annotation),
        default=None,
        help=f"{text} [default: {field.default}]",
    )


def _metavar(name: str, kind: Any) -> str:
    """What stands for a setting's value in the help."""
    if get_origin(kind) is Literal:
        return "|".join(get_args(kind))
    if kind is Path:
        return "DIRECTORY"
    unit = name.rpartition("_")[2]
    return unit.upper() if unit in ("host", "port", "seconds") else "VALUE"


data_flag = setting_flag(
    "--data-directory", "server.data_directory", "Data directory of the server to connect to."
)


def format_option(text: str = "As in `polymq message read`.") -> Callable[[Command], Command]:
    """`--format`: how messages are printed."""
    return click.option(
        "--format",
        "form",
        type=click.Choice(["text", "json", "body"]),
        default="text",
        show_default=True,
        help=text,
    )


def settings_from(options: dict[str, Any]) -> Settings:
    """The settings of a command: its flags, then environment, file and defaults. The options stay
    as they are."""
    options = dict(options)
    flags: dict[str, dict[str, Any]] = {}
    for assignment in options.pop("assignments", ()):
        key, equals, value = assignment.partition("=")
        section, dot, name = key.strip().partition(".")
        if not equals or not dot:
            text = f"option: --set takes section.key=value, not {assignment!r}"
            raise Failure(ExitCode.USAGE, text)
        flags.setdefault(section, {})[name] = _decode_list(value)
    file = options.pop("config", None)
    for parameter, value in options.items():
        section, nested, name = parameter.partition("__")
        if nested and value is not None:
            flags.setdefault(section, {})[name] = value
    return load_settings(file=file, flags=flags)


def _decode_list(value: str) -> Any:
    """Lists are JSON, as in the environment; everything else is converted by the model."""
    if not value.startswith("["):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise Failure(ExitCode.USAGE, f"option: {value} is not a JSON list: {error}") from error
