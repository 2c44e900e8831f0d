"""`polymq config import rabbitmq-definitions`: what RabbitMQ exports, taken over. A part of
`config.py`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click

from polymq.admin.operations import API_PATH
from polymq.commands.access import admin_client, operator_options
from polymq.errors import ExitCode, Failure
from polymq.management.definitions_file import SECTIONS, definitions_of, read_definitions
from polymq.management.errors import Problem
from polymq.management.import_group import PATH
from polymq.management.plans import Remark, Step, planned, without_lost_ends
from polymq.terminal import echo, printable

FILE_BYTES_MAX: Final = 256 * 1024 * 1024
BATCH_BYTES: Final = 32 * 1024
"""Of one request: the operator's listener takes 64 KiB."""


@click.command("rabbitmq-definitions")
@operator_options
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--dry-run", is_flag=True, help="Only say what cannot be taken. Needs no server.")
def rabbitmq_definitions(file: Path, dry_run: bool, **options: Any) -> int:
    """Take over the definitions of a RabbitMQ broker.

    FILE is what `rabbitmqctl export_definitions` or `rabbitmqadmin export` wrote. Users with the
    hashes of their passwords, permissions, exchanges, queues and bindings become those of the
    running server. What exists stays as it is; users and permissions are replaced. Standard error
    says what cannot be taken, and what to do instead. The exit code is 1 if there is any of it.

    Example: polymq config import rabbitmq-definitions definitions.json --dry-run
    """
    steps, remarks = _read(file)
    losses = sum(remark.is_loss for remark in remarks)
    harmless = len(remarks) - losses
    for remark in remarks:
        echo(printable(str(remark)), err=True)
    counts = dict.fromkeys(SECTIONS, 0)
    if dry_run:
        for step in steps:
            counts[step.section] += 1
    else:
        client = admin_client(options)
        for batch in _batches(steps):
            answer = client.ask("POST", API_PATH + PATH, {"definitions": batch})
            for text in answer["refused"]:
                echo(printable(text), err=True)
            losses += len(answer["refused"])
            for section, count in answer["taken"].items():
                counts[section] += count
    found = ", ".join(f"{count} {section}" for section, count in counts.items() if count)
    done = "can be taken" if dry_run else "were taken"
    rest = f", {harmless} need not be" if harmless else ""
    echo(f"{found or 'No definitions'} {done}, {losses} cannot be{rest}.")
    return ExitCode.FAILED if losses else ExitCode.OK


def _read(file: Path) -> tuple[list[Step], list[Remark]]:
    """What a file asks for. Raises Failure."""
    try:
        if file.stat().st_size > FILE_BYTES_MAX:
            raise Failure(ExitCode.USAGE, f"{file} has more than {FILE_BYTES_MAX} bytes")
        reading = read_definitions(file.read_bytes())
        while True:
            next(reading)
    except StopIteration as end:
        definitions = end.value
    except Problem as problem:
        raise Failure(ExitCode.USAGE, f"{file}: {problem.reason}") from None
    except OSError as error:
        raise Failure(ExitCode.USAGE, f"cannot read {file}: {error.strerror or error}") from error
    each = (planned(section, value) for section, value in definitions_of(definitions))
    try:
        plans = list(without_lost_ends(each))
    except Problem as problem:
        raise Failure(ExitCode.USAGE, f"{file}: {problem.reason}") from None
    steps = [one for one in plans if isinstance(one, Step)]
    return steps, [one for one in plans if isinstance(one, Remark)]


def _batches(steps: Sequence[Step]) -> Iterator[list[dict[str, Any]]]:
    batch: list[dict[str, Any]] = []
    size = 0
    for step in steps:
        one = {"section": step.section, "value": step.value}
        size += len(json.dumps(one))
        if batch and size > BATCH_BYTES:
            yield batch
            batch, size = [], len(json.dumps(one))
        batch.append(one)
    if batch:
        yield batch
