"""Runs a command line: the one place that turns errors into a line and an exit code."""

from __future__ import annotations

import errno
import sys
import traceback
from typing import Any, Final

import click

from polymq.cli import polymq
from polymq.errors import ExitCode, Failure
from polymq.terminal import printable

_NO_DESCRIPTORS: Final = (
    "this process, or the system, may not open more files: raise the limit (ulimit -n, LimitNOFILE="
    " of a systemd unit, --ulimit nofile= of a container)"
)


def run(arguments: list[str] | None = None) -> int:
    """Run a command line; returns the exit code."""
    try:
        result: Any = polymq.main(arguments, prog_name="polymq", standalone_mode=False)
    except Failure as failure:
        return complain(failure.text, failure.code)
    except click.UsageError as error:
        if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
            print(error.format_message(), file=sys.stderr)  # a command without its subcommand
            return ExitCode.USAGE
        command = error.ctx.command_path if error.ctx else "polymq"
        text = " ".join(error.format_message().split())
        return complain(f"{text.rstrip('.')} (see {command} --help)", ExitCode.USAGE)
    except click.ClickException as error:
        return complain(error.format_message(), ExitCode.FAILED)
    except (click.Abort, KeyboardInterrupt):
        return complain("interrupted", ExitCode.INTERRUPTED)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            return complain(_NO_DESCRIPTORS, ExitCode.FAILED)
        return _bug()
    except Exception:  # noqa: BLE001  (the rim of the program: what is left is a bug of ours)
        return _bug()
    return int(result) if isinstance(result, int) else ExitCode.OK


def _bug() -> ExitCode:
    traceback.print_exc()
    return complain("this is a bug; please report the lines above", ExitCode.BUG)


def complain(text: str, code: ExitCode) -> ExitCode:
    """One line on stderr."""
    text = printable(text, kept="\n")
    print(f"polymq: {text}", file=sys.stderr)
    return code
