"""The kinds of number that the store counts in. They are all ints; mixing them up is a bug.

A *position* is a byte in the commit log, an *offset* is an entry in a queue: neither is ever
reused for something else.
"""

from __future__ import annotations

from typing import NewType

Position = NewType("Position", int)
"""A byte position in the commit log, counted from the first byte ever written."""

QueueOffset = NewType("QueueOffset", int)
"""The place of a message in one queue. Dense, ascending, never reused."""

QueueNumber = NewType("QueueNumber", int)
"""The name of a queue inside the store. Given by the engine, never reused."""

Epoch = NewType("Epoch", int)
"""Counts the openings of a log for writing. The first opening is epoch 1."""

Milliseconds = NewType("Milliseconds", int)
"""Milliseconds since 1970, as RocketMQ stores them."""
