"""`polymq config import`: settings from another broker's configuration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from polymq.commands.rabbitmq_definitions import rabbitmq_definitions
from polymq.errors import ExitCode, Failure
from polymq.mosquitto.conf import Kind
from polymq.mosquitto.settings import Conversion, convert
from polymq.mosquitto.toml import write_toml
from polymq.terminal import echo

FILE_BYTES_MAX: Final = 16 * 1024 * 1024


@click.group()
def config() -> None:
    """Take over configurations of other brokers."""


@config.group("import")
def import_config() -> None:
    """Take over the configuration of another broker."""


import_config.add_command(rabbitmq_definitions)


@import_config.command("mosquitto-conf")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the settings to this file, which must not exist. Default: standard output.",
)
@click.option("--overwrite", is_flag=True, help="Replace the output file if it exists.")
@click.option("--dry-run", is_flag=True, help="Only say what would not be converted.")
def mosquitto_conf(file: Path, output: Path | None, overwrite: bool, dry_run: bool) -> int:
    """Convert a mosquitto.conf to settings.

    The result is a file for `polymq serve --config`. Files of include_dir are read, too. For every
    line that becomes no setting, standard error says why, and what to do. After that come the
    commands that take over users and permissions. A listener whose certificates, pre-shared keys or
    mount point cannot be converted is left out, so that no more clients come in than before.

    The exit code is 1 if something has no counterpart. It is 2, and nothing is written, if a line
    is wrong: mosquitto does not start with such a file.

    Example: polymq config import mosquitto-conf /etc/mosquitto/mosquitto.conf --output polymq.toml
    """
    try:
        conversion = convert(str(file), _text(file), _included)
    except OSError as error:
        raise Failure(ExitCode.USAGE, f"cannot read {file}: {error.strerror or error}") from error
    for remark in conversion.remarks:
        echo(remark, err=True)
    if conversion.has(Kind.WRONG):
        raise Failure(ExitCode.USAGE, f"{file} has lines that are wrong: correct them first")
    text = write_toml(conversion, str(file))
    if not dry_run:
        _write(text, output, overwrite=overwrite)
    _say_what_to_do(conversion)
    return ExitCode.FAILED if conversion.has(Kind.MISSING) else ExitCode.OK


def _text(file: Path) -> str:
    """What a file contains; bytes that are no UTF-8 as lone surrogates. Raises OSError, Failure."""
    if file.stat().st_size > FILE_BYTES_MAX:
        raise Failure(ExitCode.USAGE, f"{file} has more than {FILE_BYTES_MAX} bytes")
    return file.read_bytes().decode("utf-8", "surrogateescape")


def _included(directory: str) -> Sequence[tuple[str, str]]:
    """The files that mosquitto includes: letter by letter without case, upper case first."""
    names = [path for path in Path(directory).iterdir() if path.name.endswith(".conf")]
    names.sort(key=lambda path: [(letter.lower(), letter) for letter in path.name])
    return [(str(path), _text(path)) for path in names]


def _write(text: str, output: Path | None, *, overwrite: bool) -> None:
    if output is None:
        echo(text.removesuffix("\n"))
        return
    try:
        with output.open("w" if overwrite else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        problem = f"{output} exists: choose another file, or use --overwrite"
        raise Failure(ExitCode.USAGE, problem) from error
    except OSError as error:
        problem = f"cannot write {output}: {error.strerror or error}"
        raise Failure(ExitCode.USAGE, problem) from error


def _say_what_to_do(conversion: Conversion) -> None:
    if conversion.steps:
        echo("To do when the server runs:", err=True)
    for command, why in conversion.steps:
        echo(f"  {command}\n    ({why})", err=True)
    missing = sum(remark.kind is Kind.MISSING for remark in conversion.remarks)
    notes = sum(remark.kind is Kind.NOTE for remark in conversion.remarks)
    echo(
        f"{len(conversion.used)} lines converted, {missing} not, {notes} not needed or noted.",
        err=True,
    )
