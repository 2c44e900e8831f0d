"""The operator's token: what the commands of this machine show at the operator's listener.

Random for each start, in a file of the data directory that only the server's own account can read.
Whoever can read that file can read every message beside it, so the token gives nothing away; it is
what lets `polymq user password NAME` help when a password is lost.

Commands read it, too: nothing of a server is loaded here.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final

from polymq.ports import write_own

TOKEN_FILE: Final = "admin.token"
TOKEN_BYTES: Final = 32


def new_token() -> str:
    """The token of a start."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def write_token(directory: Path, token: str) -> None:
    """Let the operator have the token: the file is readable by its owner only. Raises OSError."""
    path = directory / TOKEN_FILE
    path.unlink(missing_ok=True)
    write_own(path, token + "\n")


def remove_token(directory: Path) -> None:
    """The server stops: its token is worth nothing any more."""
    (directory / TOKEN_FILE).unlink(missing_ok=True)


def read_token(directory: Path) -> str | None:
    """The token of the server that uses the directory, if we may read it."""
    try:
        return (directory / TOKEN_FILE).read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None
