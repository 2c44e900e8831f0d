"""A gateway's own durable settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from polymq.broker.port.values import Position


class DocumentPort(Protocol):
    """The operations on documents."""

    def put(self, kind: str, key: str, value: Mapping[str, Any] | None) -> Position:
        """Store a JSON value (None deletes). Survives restarts; followed by replicas."""

    def of_kind(self, kind: str) -> Mapping[str, Mapping[str, Any]]:
        """All documents of a kind by key."""
