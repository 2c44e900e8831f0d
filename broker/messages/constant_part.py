"""Where the constant part of a record's properties ends: its first property, `PMQ_P`, says it.

The constant part is what all messages of one kind have in common; those of one message follow it.
"""

from __future__ import annotations

from typing import Final

Memory = bytes | bytearray | memoryview

PREFIX_HEAD_SIZE: Final = len("PMQ_P\x01hhhh\x02")


def constant_size(memory: Memory, first: int, last: int) -> int:
    """Size of the constant part of properties [first, last); 0 for a foreign record."""
    head = bytes(memory[first : min(last, first + PREFIX_HEAD_SIZE)])
    if len(head) < PREFIX_HEAD_SIZE or not head.startswith(b"PMQ_P\x01"):
        return 0
    return int(head[6:10], 16)
