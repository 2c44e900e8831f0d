"""Routing keys besides a message's own (AMQP's headers `CC` and `BCC`), for its dead letters.

Where the message goes when it is published is the gateway's to say. As a dead letter it goes by the
same keys once more, unless its queue replaces its key. So they stay with it, as the constant
property `PMQ_COPIES`, in JSON: how many of them receivers may see, and the keys, those first.

A dead letter costs a look at each key, for each message: those with more than `KEYS_STORED_MAX`
keys keep none, and go by their own key only.

Source: RabbitMQ's documentation of dead letter exchanges and sender-selected distribution.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, NamedTuple

COPIES_PROPERTY: Final = "PMQ_COPIES"
KEYS_STORED_MAX: Final = 16
KEYS_STORED_BYTES_MAX: Final = 2_048
"""Of the property: a record's properties, the history among them, end at 32,767 bytes."""


class Copies(NamedTuple):
    """Routing keys besides a message's own, each once.

    Attributes:
        keys: all of them.
        shown_count: how many, from the first on, receivers may see (`CC`).
    """

    keys: tuple[str, ...] = ()
    shown_count: int = 0

    @property
    def shown(self) -> tuple[str, ...]:
        """The keys that receivers may see."""
        return self.keys[: self.shown_count]

    def properties(self) -> dict[str, str]:
        """As constant properties; none where there are too many."""
        if len(self.keys) > KEYS_STORED_MAX:
            return {}
        value = json.dumps([self.shown_count, *self.keys], separators=(",", ":"))
        return {COPIES_PROPERTY: value} if len(value) <= KEYS_STORED_BYTES_MAX else {}


def copies_of(properties: Mapping[str, str]) -> Copies:
    """What is kept in a message's constant properties."""
    value = properties.get(COPIES_PROPERTY)
    if value is None:
        return Copies()
    shown_count, *keys = json.loads(value)
    return Copies(tuple(keys), shown_count)
