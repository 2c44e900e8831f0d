"""The key-value configuration: namespaces of text by key, which administrators write. Pure.

Clients see one namespace: `ORDER_TOPIC_CONFIG` gives the order of a topic's queues. The rest is
kept for whoever asks.

A change is made in two steps: `put` and `delete` return what the whole configuration would be, as
the bytes to keep; `accept` makes it so. In between stands the disk: what is answered as done is
kept, and what could not be kept was not done. The bytes are those of RocketMQ's `kvConfig.json`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from polymq.namesrv.errors import Busy, CannotKeep, Refused
from polymq.namesrv.limits import NameServerLimits

ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"

Table = dict[str, dict[str, str]]
"""Namespace -> key -> value."""


@dataclass(frozen=True, slots=True)
class Change:
    """A configuration that is not in force yet, and its bytes."""

    table: Table
    stored: bytes


class KeyValues:
    """The configuration in force.

    Raises:
        CannotKeep: `stored` is not a configuration.
    """

    def __init__(self, limits: NameServerLimits, stored: bytes | None = None) -> None:
        self._limits = limits
        self._table = {} if stored is None else _decode(stored)

    def get(self, namespace: str, key: str) -> str | None:
        """A value, or None."""
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """All keys and values of a namespace; None if it has none."""
        return self._table.get(namespace) or None

    def put(self, namespace: str, key: str, value: str) -> Change:
        """What setting a value would give. Raises Refused."""
        limits = self._limits
        for name in (namespace, key):
            if not 0 < len(name) <= limits.name_characters_max:
                raise Refused(f"a name has 1 to {limits.name_characters_max} characters")
        if len(value.encode(errors="surrogatepass")) > limits.value_bytes_max:
            raise Refused(f"a value has at most {limits.value_bytes_max} bytes")
        count = sum(len(values) for values in self._table.values())
        if count >= limits.keys_max and self.get(namespace, key) is None:
            raise Busy(f"{limits.keys_max} keys are configured, which is the most")
        table = {**self._table, namespace: {**self._table.get(namespace, {}), key: value}}
        return self._change(table)

    def delete(self, namespace: str, key: str) -> Change | None:
        """What taking a key out would give; None if it is not there."""
        if self.get(namespace, key) is None:
            return None
        left = {name: value for name, value in self._table[namespace].items() if name != key}
        return self._change({**self._table, namespace: left})

    def accept(self, change: Change) -> None:
        """The change is kept: it is in force now."""
        self._table = change.table

    def _change(self, table: Table) -> Change:
        stored = json.dumps({"configTable": table}, indent=1).encode()
        if len(stored) > self._limits.key_values_bytes_max:
            raise Busy(f"the configuration has at most {self._limits.key_values_bytes_max} bytes")
        return Change(table, stored)


def _decode(stored: bytes) -> Table:
    try:
        table = json.loads(stored)["configTable"]
        return {
            str(namespace): {str(key): str(value) for key, value in values.items()}
            for namespace, values in table.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CannotKeep(f"it is not the configuration of a name server: {error!r}") from error
