"""`polymq definitions`: everything that operators have configured in the log, out and in."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any, Final

import click

from polymq.admin.client import api_path
from polymq.commands.access import admin_client, operator_options
from polymq.commands.tables import json_option, show_json, show_table
from polymq.errors import ExitCode, Failure
from polymq.terminal import echo

FILE_BYTES_MAX: Final = 64 * 1024 * 1024
"""As the server takes."""
DEFINITIONS: Final = "definitions"
OUTCOMES: Final = ("created", "changed", "equal", "kept", "conflict")


@click.group()
def definitions() -> None:
    """Export and import what operators have configured.

    A document of definitions has users, permissions, bans, topics with their settings, exchanges,
    queues, bindings, consumer groups and webhooks. It has no messages, no MQTT sessions and no
    positions of readers: those are in a backup.
    """


@definitions.command("export")
@operator_options
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
def definitions_export(file: Path | None, **options: Any) -> None:
    """Write all definitions to FILE, or to standard output.

    The document has secrets: the hashes of passwords, access keys, and the URLs of webhooks. FILE
    can be read by its owner only. Documents of the same definitions are equal to the byte, with a
    line for each definition.

    Example: polymq definitions export definitions.json
    """
    _, content = admin_client(options).request("GET", api_path(DEFINITIONS))
    if file is None:
        sys.stdout.buffer.write(content)
        return
    try:
        _write_private(file, content)
    except OSError as error:
        raise Failure(ExitCode.FAILED, f"cannot write {file}: {error.strerror}") from error
    echo(f"Definitions were written to {file}: {len(content):,} bytes.")


@definitions.command("import")
@operator_options
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--dry-run", is_flag=True, help="Only say what would become of each definition.")
@click.option(
    "--prefer",
    type=click.Choice(["file", "server"]),
    help="Which side wins where a definition differs from what is there. Without it, such a "
    "definition stops the import before anything is changed.",
)
@json_option
def definitions_import(
    file: Path, dry_run: bool, prefer: str | None, as_json: bool, **options: Any
) -> int:
    """Import the definitions of FILE.

    Nothing is deleted, and what is equal already stays as it is. An import that was interrupted can
    be repeated. The exit code is 1 if a definition is in conflict with what is there.

    Example: polymq definitions import definitions.json --dry-run
    """
    query = {"dry_run": "true" if dry_run else None, "prefer": prefer}
    path = api_path(DEFINITIONS, query=query)
    answer = admin_client(options).post_file(path, _content(file))
    counts = answer["counts"]
    if as_json:
        show_json(answer)
    else:
        rows = [
            [row["outcome"], row["section"], row["name"], row["difference"] or None]
            for row in answer["definitions"]
            if row["outcome"] != "equal"
        ]
        show_table(["OUTCOME", "SECTION", "NAME", "DIFFERENCE"], rows)
        found = ", ".join(f"{counts[name]:,} {name}" for name in OUTCOMES if counts[name])
        echo(f"{found or 'No definitions'}{' (nothing was changed)' if dry_run else ''}.")
    return ExitCode.FAILED if counts["conflict"] else ExitCode.OK


def _content(file: Path) -> bytes:
    """What is in a file. Raises Failure."""
    try:
        if file.stat().st_size > FILE_BYTES_MAX:
            raise Failure(ExitCode.USAGE, f"{file} has more than {FILE_BYTES_MAX:,} bytes")
        return file.read_bytes()
    except OSError as error:
        text = f"cannot read {file}: {error.strerror or error}"
        raise Failure(ExitCode.USAGE, text) from error


def _write_private(file: Path, content: bytes) -> None:
    """Write a file for its owner only, whole or not at all. Raises OSError."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with open(
            temporary, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)
        ) as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(file)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
