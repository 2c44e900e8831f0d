"""Runs a command line: the one place that turns errors into a line and an exit code."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from typing import Any, Final

import click

from polymq.cli import polymq
from polymq.errors import ExitCode, Failure
from polymq.terminal import leave_quietly, printable

_NO_DESCRIPTORS: Final = (
    "this process, or the system, may not open more files: raise the limit (ulimit -n, LimitNOFILE="
    " of a systemd unit, --ulimit nofile= of a container)"
)

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""Of the file that a command's output goes to."""


def run(arguments: list[str] | None = None) -> int:
    """Run a command line; returns the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
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
        if error.errno in _NO_ROOM and error.filename is None:  # what has a name is a file of ours
            leave_quietly()
            return complain(f"the output cannot be written: {error.strerror}", ExitCode.FAILED)
        return _bug()
    except ImportError as error:
        reason = why_no_kernels(error)
        return complain(reason, ExitCode.USAGE) if reason else _bug()
    except Exception as error:  # noqa: BLE001  (the rim of the program: what is left is a bug of ours)
        cause = error if isinstance(error, UnicodeEncodeError) else error.__context__
        if isinstance(cause, UnicodeEncodeError):
            wrong = [argument for argument in given if cause.object in argument]
            if wrong:
                return complain(f"an argument is not UTF-8: {wrong[0]}", ExitCode.USAGE)
        return _bug()
    return int(result) if isinstance(result, int) else ExitCode.OK


def why_no_kernels(error: ImportError) -> str:
    """What is wrong with the kernels, or with the form of them that was asked for. Empty if the
    error has another cause."""
    form = os.environ.get("POLYMQ_KERNELS", "")
    if form == "compiled":
        return (
            "POLYMQ_KERNELS is 'compiled', but the compiled kernels are not installed: install "
            f"again where there is a C compiler, or unset the variable ({error})"
        )
    if not form and "kernels" in str(error):
        return (
            "the compiled kernels cannot be loaded: install again, or set POLYMQ_KERNELS=pure for "
            f"plain Python ({error})"
        )
    if form in ("", "pure"):
        return ""
    return f"POLYMQ_KERNELS is {form!r}: it can be 'compiled' or 'pure', or unset"


def _bug() -> ExitCode:
    traceback.print_exc()
    return complain("this is a bug; please report the lines above", ExitCode.BUG)


def complain(text: str, code: ExitCode) -> ExitCode:
    """One line on stderr."""
    text = printable(text, allowed="\n")
    print(f"polymq: {text}", file=sys.stderr)
    return code
