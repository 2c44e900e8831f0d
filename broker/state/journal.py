"""State changes as records of the log, and their way back into memory.

Every change is an *op*: a JSON object with a name (`"op"`). `Journal.write` appends it to the
system topic and applies it; after a restart, `Journal.replay` applies the ops that the log holds.
Both go through the same handler, so memory is always what a fold of the log would give.

Rules:

* Handlers are deterministic: they look at the op and at state made by earlier ops, at nothing else.
* A handler returns the entities that it changed, as (kind, key). They are what the next snapshot
  for `state.db` rewrites.
* An op is applied when it is appended, which is before it is committed. What is answered waits for
  the position; what is snapshotted waits for it too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, Final

from polymq.broker.errors import Refused, UnknownChange
from polymq.broker.port.values import Position
from polymq.core_log.commit_log import CommitLog
from polymq.core_log.errors import StoreError
from polymq.core_log.record import RecordParts, RecordTemplate

STATE_TOPIC: Final = "RMQ_SYS_POLYMQ_STATE"
"""The system topic of all state records. Closed to clients."""

UNREADABLE: Final = (KeyError, IndexError, TypeError, ValueError)
"""What a handler raises that finds a field missing, or of another type."""

Op = dict[str, Any]
Entity = tuple[str, str]
"""Kind and key of something that is kept in `state.db`."""
Touched = Iterable[Entity]
Handler = Callable[[Op], Touched]

_TEMPLATE: Final = RecordTemplate(
    topic=STATE_TOPIC.encode(), queue_id=0, properties=b"TAGS\x01op\x02", tag_hash=0
)
OP_TAG: Final = "op"
"""Tag of records whose body is an op; the store's own records have others."""


class Journal:
    """Writes ops, applies them, and keeps note of what they changed.

    Args:
        appended: called after each write, so that the record leaves with this loop iteration.
        refused: what the caller is told when the log takes nothing.
    """

    def __init__(
        self,
        *,
        log: CommitLog,
        clock_ms: Callable[[], int],
        appended: Callable[[], None],
        refused: Callable[[StoreError], Refused],
    ) -> None:
        self._log = log
        self._clock_ms = clock_ms
        self._appended = appended
        self._refused = refused
        self._handlers: dict[str, Handler] = {}
        self.dirty: set[Entity] = set()
        """Entities changed since the last snapshot."""

    def handle(self, name: str, handler: Handler) -> None:
        """Register the handler of an op."""
        assert name not in self._handlers
        self._handlers[name] = handler

    def write(self, op: Op) -> Position:
        """Append the op, apply it, and return the position that its answer waits for.

        Raises:
            Refused: the log takes nothing (full, behind, failed); nothing has changed.
        """
        now = self._clock_ms()
        try:
            self._log.append_record(_TEMPLATE, _encode(op), born_ms=now, store_ms=now)
        except StoreError as error:
            raise self._refused(error) from error
        self.apply(op)
        self._appended()
        return Position(self._log.appended)

    def record(self, op: Op, now_ms: int) -> RecordParts:
        """The op as a record of an atomic batch. Whoever appends it applies it."""
        return RecordParts(template=_TEMPLATE, body=_encode(op), born_ms=now_ms)

    def apply(self, op: Op) -> None:
        """Apply an op that the log holds."""
        self.dirty.update(self._handlers[op["op"]](op))

    def replay(self, body: bytes) -> None:
        """Apply an op by its record's body. Raises UnknownChange: there is no handler, or it finds
        other contents than it knows. Some of the change may have been applied then."""
        name: object = "?"
        try:
            op: Op = json.loads(body.decode("utf-8", "surrogatepass"))
            name = op["op"]
            if name not in self._handlers:
                raise UnknownChange(f"the change {name!r}")
            self.apply(op)
        except UNREADABLE as error:
            found = f"{type(error).__name__}: {error}"
            raise UnknownChange(f"the change {name!r} with other contents ({found})") from error


def _encode(op: Op) -> bytes:
    return json.dumps(op, separators=(",", ":")).encode("utf-8", "surrogatepass")
