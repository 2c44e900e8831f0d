"""What a broker remembers beside the log, and what follows from it for its role.

`replication.json` of the data directory says how far the log is known to be committed, which a
restart shows, the role that the broker had, the highest term that it heard of, and, of a slave,
whether its copy is known to be whole. The settings say the role. That it was a slave before and is
a master now is a promotion, whether a command or the settings made it one: a new term begins. A
master that has heard of a higher term than its log's was replaced: it is *fenced*. It opens its log
as a slave does, serves readers by offset, and takes nothing, until it is started as a slave or
promoted.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass
from typing import Final

from polymq.core_log.epochs import read_epochs, term_of
from polymq.core_log.files import RealFiles
from polymq.ports import write_values
from polymq.settings import Settings

FILE_NAME: Final = "replication.json"
STORE_DIRECTORY: Final = "store"
CUT_DIRECTORY: Final = "cut"
"""Of the data directory: what was cut from the log, or would be (`core_log/cut_copy.py`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What `replication.json` has.

    Attributes:
        flushed, in_sync: the points that were told last.
        role: `master`, `slave` or `fenced`.
        heard: the highest term of another master that this broker was told of.
        whole: of a slave: whether its connection to the master ended while this broker had all
            that its master had told of. False while it follows: if it is killed then, it does not
            know what its master took afterwards.
        heard_ms: of a slave: when its master was last heard of, as far as was noted; 0: never.
        promoted: an operator has promoted this slave: it may be opened as a master.
    """

    flushed: int = 0
    in_sync: int = 0
    role: str = "master"
    heard: int = 0
    whole: bool = False
    heard_ms: int = 0
    promoted: bool = False


def recall(settings: Settings) -> Memory | None:
    """What is remembered; None if nothing is, or it cannot be read."""
    try:
        text = (settings.server.data_directory / FILE_NAME).read_text(encoding="utf-8")
        value = json.loads(text)
        memory = Memory(**value)
        assert type(memory.flushed) is int
        assert type(memory.in_sync) is int
        assert type(memory.role) is str
        assert type(memory.heard) is int
        assert type(memory.whole) is bool
        assert type(memory.heard_ms) is int
        assert type(memory.promoted) is bool
    except (OSError, ValueError, TypeError, AssertionError):
        return None
    return memory


def remember(settings: Settings, memory: Memory) -> None:
    """Write `replication.json`. Raises OSError."""
    write_values(settings.server.data_directory / FILE_NAME, asdict(memory))


def last_epoch(settings: Settings) -> int:
    """The epoch of the closed log; 0 if there is none, or its list cannot be read."""
    with contextlib.suppress(OSError):
        epochs = read_epochs(RealFiles(), str(settings.server.data_directory / STORE_DIRECTORY))
        return epochs[-1][0] if epochs else 0
    return 0


def fenced(settings: Settings) -> int:
    """The term that another broker leads in, of one that its settings call a master; 0 if it may
    lead. To be asked before the log is opened."""
    memory = recall(settings)
    if settings.replication.role == "slave" or memory is None or memory.role == "slave":
        return 0
    return memory.heard if memory.heard > term_of(last_epoch(settings)) else 0


def refusal(settings: Settings) -> str:
    """What the clients of a broker are told that want to change something, if it is a slave or
    fenced; empty if it leads."""
    if settings.replication.role == "slave":
        return f"this broker is a slave: its master is {settings.replication.master}, ask there"
    term = fenced(settings)
    if not term:
        return ""
    return (
        f"this broker was replaced as the master: another one leads in term {term}, publish there. "
        "Start this one as its slave"
    )


def above_term(settings: Settings) -> int | None:
    """Of a slave that is a master from now on: the highest term that it heard of."""
    memory = recall(settings)
    if memory is None or memory.role != "slave" or settings.replication.role == "slave":
        return None
    return memory.heard
