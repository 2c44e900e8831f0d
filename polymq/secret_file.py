"""Secrets that servers share: each in a file of its own, which its owner alone can read."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from polymq.errors import ExitCode, Failure

SECRET_SIZE_MIN: Final = 16
"""Bytes: half of what `openssl rand -hex 16` gives, and still no word."""


def read_secret_file(path: str, setting: str, *, size_min: int = SECRET_SIZE_MIN) -> bytes:
    """What stands in the file, without the end of its line.

    Args:
        setting: that names the file.
        size_min: bytes that the secret has at least.

    Raises:
        Failure: USAGE, it cannot be read, others can read it, or it is too short.
    """
    try:
        secret = Path(path).read_bytes().strip()
        open_to_others = Path(path).stat().st_mode & 0o077
    except OSError as error:
        raise Failure(ExitCode.USAGE, f"cannot read {setting} {path}: {error.strerror}") from error
    if open_to_others:
        text = f"{setting} {path} can be read by others: chmod 600 {path}"
        raise Failure(ExitCode.USAGE, text)
    if len(secret) < size_min:
        text = f"the secret in {path} has {len(secret)} bytes: make it at least {size_min}"
        raise Failure(ExitCode.USAGE, text)
    return secret
