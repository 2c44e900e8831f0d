"""What a data directory remembers of its backups: whose they are, and the newest of them.

`backup-state.json` has the identity of the store, which its first backup draws. A store that was
restored has none, so it gets another one: its history is not that of the store it was made of.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from polymq.core_log.checkpoint import write_whole_file
from polymq.core_log.files import RealFiles

MEMORY_NAME: Final = "backup-state.json"
IDENTITY_BYTES: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupMemory:
    """What the file has.

    Attributes:
        store: the identity of the store.
        completed_ms, position: of the newest backup that is complete; 0: there is none.
    """

    store: str
    completed_ms: int = 0
    position: int = 0


def recall_backups(directory: Path) -> BackupMemory | None:
    """What is remembered; None if nothing is, or it cannot be read."""
    try:
        value = json.loads((directory / MEMORY_NAME).read_text(encoding="utf-8"))
        memory = BackupMemory(
            store=value["store"], completed_ms=value["completed_ms"], position=value["position"]
        )
        assert type(value["store"]) is str
        assert type(value["completed_ms"]) is type(value["position"]) is int
    except (OSError, ValueError, TypeError, KeyError, AssertionError):
        return None
    return memory


def remember_backups(directory: Path, memory: BackupMemory) -> None:
    """Write the file, durably. Waits for the disk. Raises OSError."""
    data = json.dumps(asdict(memory)).encode() + b"\n"
    write_whole_file(RealFiles(), str(directory), MEMORY_NAME, data)


def recall_or_begin(directory: Path) -> BackupMemory:
    """What is remembered, with a new identity if there is none yet. Waits for the disk. Raises
    OSError."""
    memory = recall_backups(directory)
    if memory is None:
        memory = BackupMemory(store=secrets.token_hex(IDENTITY_BYTES))
        remember_backups(directory, memory)
    return memory
