"""Open files of the process: how many there may be, and how they are divided.

The operating system limits them (RLIMIT_NOFILE). Some are reserved for the store, for `state.db`,
for webhooks and for what the interpreter needs; connections get the rest, all listeners together
(`net.budget`).
"""

from __future__ import annotations

import resource
from typing import Final

from polymq.logs import logger
from polymq.net.budget import Budget

RESERVED: Final = 512
"""Webhooks have up to 256 requests under way, the log 64 files, name servers and replicas a few
dozen; a server that does nothing has about 50."""
SEGMENTS_MAX: Final = 64
"""Files of the log that are open at a time, where there are enough descriptors."""
SEGMENTS_MIN: Final = 4
FEW_CONNECTIONS: Final = 10_000
"""A server that can take so many needs no advice."""


def raise_open_files() -> int:
    """Allow as many open files as the system lets us: every client is one. Returns the number.

    The usual soft limit of 1024 is there for programs that use select(), which we do not.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:
            logger("polymq").warning("open files stay limited", limit=soft, error=str(error))
            return soft
    return hard


def open_files_max() -> int:
    """How many files the process may open, at present."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def reserved(open_files: int) -> int:
    """How many of so many are not for connections: at most half."""
    return min(RESERVED, open_files // 2)


def open_segments_max(open_files: int) -> int:
    """How many files of the log may be open at a time."""
    return max(SEGMENTS_MIN, min(SEGMENTS_MAX, reserved(open_files) // 4))


def connection_budget(open_files: int) -> Budget:
    """What all listeners together may accept."""
    return Budget(open_files - reserved(open_files))


def say_what_was_lowered(budget: Budget, open_files: int) -> None:
    """Log it, if not all listeners can reach their limits."""
    if budget.is_tight:
        log = logger("polymq")
        (log.warning if budget.total < FEW_CONNECTIONS else log.info)(
            "connections are limited by the open files that this process may have: all listeners"
            " together accept fewer than their connections_max. Raise the hard limit (ulimit -Hn,"
            " LimitNOFILE= of a systemd unit, --ulimit nofile= of a container), or lower"
            " connections_max",
            connections=budget.total,
            open_files=open_files,
            open_files_wanted=budget.wanted + reserved(2 * RESERVED),
        )
