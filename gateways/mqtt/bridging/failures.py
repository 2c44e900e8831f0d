"""Why a bridge is not connected."""

from __future__ import annotations

import os
from typing import Final, NamedTuple

KINDS: Final = (
    "unreachable",
    "tls",
    "no_answer",
    "refused",
    "closed",
    "protocol",
    "local",
)
"""The remote broker cannot be reached; TLS failed; it does not answer in time; it refused the
login; it closed the connection; it broke the protocol; something here, such as a right."""
AGAIN: Final = "again"
"""No failure: the bridge connects once more at once."""


class Failure(NamedTuple):
    """Why a connection ended or could not be made.

    Attributes:
        kind: one of `KINDS`, or `AGAIN`.
        text: the same for people. It has no password.
    """

    kind: str
    text: str


def system_text(error: OSError) -> str:
    """The system's own words, where it has any: the loop's say what was called."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return error.strerror or str(error)
