"""Documents: a gateway's own durable settings, kept as JSON values by kind and key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from polymq.broker.core import Core
from polymq.broker.errors import Reason, Refused
from polymq.broker.port.values import Position
from polymq.broker.state.journal import Op, Touched
from polymq.broker.state.kinds import StateKind, each


class Documents:
    """All documents of one engine."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._by_kind: dict[str, dict[str, Mapping[str, Any]]] = {}
        core.journal.handle("doc", self._apply)

    def put(self, kind: str, key: str, value: Mapping[str, Any] | None) -> Position:
        """See `DocumentPort.put`."""
        self._core.check_writable()
        bytes_max = self._core.limits.document_bytes_max
        if len(json.dumps(value)) > bytes_max:
            raise Refused(Reason.TOO_LARGE, f"the setting {key!r} is larger than {bytes_max} bytes")
        return self._core.journal.write({"op": "doc", "kind": kind, "key": key, "value": value})

    def of_kind(self, kind: str) -> Mapping[str, Mapping[str, Any]]:
        """See `DocumentPort.of_kind`."""
        return self._by_kind.get(kind, {})

    def _apply(self, op: Op) -> Touched:
        name = f"{op['kind']}\x00{op['key']}"
        self.load(name, op["value"])
        return [("document", name)]

    def state_kinds(self) -> tuple[StateKind, ...]:
        """See `state/kinds.py`."""
        return (StateKind("document", self.row, each(self.load)),)

    def load(self, name: str, value: Mapping[str, Any] | None) -> None:
        """Take a document (kind, 0, key) from its op or its snapshot."""
        kind, _, key = name.partition("\x00")
        documents = self._by_kind.setdefault(kind, {})
        if value is None:
            documents.pop(key, None)
        else:
            documents[key] = value

    def row(self, name: str) -> Mapping[str, Any] | None:
        """The document as a JSON value for the snapshot."""
        kind, _, key = name.partition("\x00")
        return self._by_kind.get(kind, {}).get(key)
