"""`polymq store cut`: what was cut from the log when a broker followed a new master.

The files are read where they are: no server has to run.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from polymq.admin.client import stored_message
from polymq.commands.find import show_message
from polymq.commands.options import config_option, data_flag, format_option, settings_from
from polymq.errors import ExitCode, Failure
from polymq.remoting.records import iterate_records
from polymq.terminal import echo, leave_quietly

STATE_TOPIC: Final = b"RMQ_SYS_POLYMQ_STATE"


@click.group()
def cut() -> None:
    """Show what was cut from the log, or would be.

    A broker that follows a new master gives up what the new master never had. A copy of it is
    first stored in the folder `cut` of the data directory. PolyMQ never deletes these files.
    """


@cut.command("list")
@config_option
@data_flag
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def cut_list(as_json: bool, **options: Any) -> None:
    """List the files with the positions of the log that each contains."""
    from polymq.core_log.cut_copy import CutFile, list_cuts  # noqa: PLC0415  (loads the store)
    from polymq.core_log.files import RealFiles  # noqa: PLC0415

    files, directory = RealFiles(), directory_of(options)
    try:
        for path, size in list_cuts(files, str(directory)):
            cut = CutFile(files, path)
            cut.close()
            head = cut.head
            if as_json:
                value = {"path": path, "bytes": size, "position": head.position}
                value |= {"end": head.end, "epoch": head.epoch, "kept_ms": head.cut_ms}
                echo(json.dumps(value))
            else:
                cut_at = datetime.fromtimestamp(head.cut_ms / 1000, UTC)
                echo(
                    f"{path}  positions {head.position:,} to {head.end:,}  epoch {head.epoch}  "
                    f"stored {cut_at:%Y-%m-%d %H:%M:%S} UTC  {size:,} bytes"
                )
    except BrokenPipeError:
        leave_quietly()
    except (OSError, ValueError) as error:
        raise _unreadable(directory, error) from error


@cut.command("show")
@config_option
@data_flag
@click.argument("file")
@click.option("--topic", help="Only messages of this topic.")
@format_option()
def cut_show(file: str, topic: str | None, form: str, **options: Any) -> None:
    """Show the messages in FILE.

    FILE is a path, or the name of a file in the folder, as `polymq store cut list` prints it.
    To publish a message again, use `--format json`: it prints the topic, the tag, all
    properties, and the body in base64. `polymq message publish` takes the decoded body.
    """
    from polymq.core_log.cut_copy import CutFile  # noqa: PLC0415  (loads the store)
    from polymq.core_log.errors import CorruptRecord  # noqa: PLC0415
    from polymq.core_log.files import RealFiles  # noqa: PLC0415

    path = Path(file) if "/" in file else directory_of(options) / file
    shown = changes = 0
    try:
        cut = CutFile(RealFiles(), str(path))
        for record in cut.records():
            if record.topic == STATE_TOPIC:
                changes += 1
                continue
            message = stored_message(next(iterate_records(record.raw)))
            if topic is None or topic == message.topic:
                show_message(message, form)
                shown += 1
    except BrokenPipeError:
        leave_quietly()  # whoever read our output has enough (`| head`)
        return
    except (OSError, ValueError, CorruptRecord) as error:
        raise _unreadable(path, error) from error
    if form == "text":
        echo(
            f"{shown:,} messages; {changes:,} records of the broker's own state are not shown.",
            err=True,
        )


def _unreadable(path: Path, error: Exception) -> Failure:
    reason = error.strerror if isinstance(error, OSError) else error
    return Failure(ExitCode.FAILED, f"{path} cannot be read: {reason}")


def directory_of(options: dict[str, Any]) -> Path:
    """Where the files are."""
    return settings_from(options).server.data_directory / "cut"
