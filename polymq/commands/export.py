"""`polymq export`: a topic, or a part of it, as a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import click

from polymq.commands.access import access_key, access_key_options, broker_options
from polymq.commands.find import moment
from polymq.commands.options import config_option, data_flag, settings_from
from polymq.errors import ExitCode, Failure
from polymq.export import Destination, need_pyarrow, run_export
from polymq.terminal import echo, leave_quietly
from polymq.tls import chosen_tls

FORMATS: Final = ("parquet", "arrow", "csv", "jsonl")


@click.command()
@config_option
@data_flag
@click.argument("topic")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    help="Format of FILE. Default: what the name ends with: .parquet, .arrow, .csv or .jsonl.",
)
@click.option(
    "--queue",
    "queues",
    type=click.IntRange(min=0),
    multiple=True,
    help="Only this queue of the topic. May be repeated. Default: all queues.",
)
@click.option(
    "--from-offset",
    type=click.IntRange(min=0),
    help="Only messages from this offset on. The topic needs one queue, or --queue names one.",
)
@click.option(
    "--to-offset",
    type=click.IntRange(min=0),
    help="Only messages before this offset.",
)
@click.option(
    "--since",
    callback=moment,
    metavar="TIME",
    help="Only messages stored at this time or later: 2h (ago), 2026-11-21T10:00 (UTC).",
)
@click.option(
    "--until", callback=moment, metavar="TIME", help="Only messages stored at this time or earlier."
)
@click.option("--overwrite", is_flag=True, help="Replace FILE if it exists.")
@broker_options
@access_key_options
def export(
    topic: str,
    file: Path,
    form: str | None,
    queues: tuple[int, ...],
    from_offset: int | None,
    to_offset: int | None,
    since: int | None,
    until: int | None,
    overwrite: bool,
    broker: str | None,
    encrypted: bool,
    tls_ca: str | None,
    **options: Any,
) -> None:
    """Write the messages of TOPIC to FILE.

    FILE is Parquet, Arrow, CSV, or JSON lines, and has a row for each message. It appears when it
    is whole. If FILE is -, the rows go to standard output, in the format that --format names.
    Messages that are published after the start are not included.

    The command needs pip install 'polymq[export]', and no Java.
    """
    need_pyarrow()
    from polymq.spark_sink.exporting import Part  # noqa: PLC0415

    is_pipe = str(file) == "-"
    form = _format(file, form, is_pipe=is_pipe)
    destination = Destination(None if is_pipe else file, sys.stdout.buffer, replace=overwrite)
    signed = access_key(options)
    try:
        row_count = run_export(
            settings_from(options),
            topic,
            Part(
                queues=queues,
                first=from_offset,
                end=to_offset,
                since_ms=since,
                until_ms=until,
            ),
            destination,
            form,
            broker=broker,
            credentials=signed,
            tls=chosen_tls(tls_ca) if encrypted or tls_ca else None,
            progress=sys.stderr,
        )
    except BrokenPipeError:
        leave_quietly()  # whoever read our output has enough (`| head`)
        return
    if not is_pipe:
        echo(f"{row_count:,} messages of {topic} are in {file}, {file.stat().st_size:,} bytes.")


def _format(file: Path, form: str | None, *, is_pipe: bool) -> str:
    """The format of `table_files`. Raises Failure."""
    from polymq.spark_sink.table_files import SUFFIXES  # noqa: PLC0415

    form = form or SUFFIXES.get(file.suffix.lower())
    if form is None:
        text = f"the name {file} does not say what format it is to have: use --format"
        raise Failure(ExitCode.USAGE, f"export: {text}")
    return "arrow-stream" if is_pipe and form == "arrow" else form
