"""What can go wrong for the person who started the program, and how it ends then.

Rule: every expected failure reaches the command line as a `Failure`: one line on stderr that says
what is wrong and what to do, and an exit code from `ExitCode`. A traceback is always our bug.
"""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """How the program ends. The numbers above 63 are those of BSD's sysexits.h."""

    OK = 0
    FAILED = 1
    """The command was understood and could not do it: no such topic, doctor found a problem."""
    USAGE = 2
    """A wrong option, or a wrong key or value in the configuration."""
    DATA_DAMAGED = 65
    """The data directory or a backup is not what this program writes; it refuses to guess."""
    UNREACHABLE = 69
    """No server answers where the command looked for one."""
    BUG = 70
    """An error that nobody foresaw; the traceback is in the log."""
    CANNOT_LISTEN = 71
    """A port is taken, or the address is not of this machine."""
    CANNOT_CREATE = 73
    """The data directory or a backup directory cannot be created or written."""
    DISK_FAILED = 74
    """The disk gave an I/O error. What was acked is safe; the server does not go on without it."""
    IN_USE = 75
    """Another server has the data directory open, or a command changes the backup directory."""
    INTERRUPTED = 130
    """A second Ctrl-C, or Ctrl-C in a command that is not a server."""


class Failure(Exception):
    """An expected failure: the text is one line for the user.

    Args:
        code: how the program ends.
        text: what is wrong and what to do, without a newline.
    """

    def __init__(self, code: ExitCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
