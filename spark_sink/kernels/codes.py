"""Numbers and types that both forms of the kernel share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from polymq.remoting.compression import COMPRESSED
from polymq.remoting.records import BORN_HOST_IS_V6, CRC_MASK, MAGIC_V1, MAGIC_V2, STORE_HOST_IS_V6

__all__ = (
    "BORN_HOST_IS_V6",
    "COMPRESSED",
    "CRC_MASK",
    "FIRST_MS",
    "LAST_MS",
    "MAGIC_V1",
    "MAGIC_V2",
    "STORE_HOST_IS_V6",
)

# The years 1 to 9999, which every reader of Parquet can show. Clients send any number as the time
# of birth: one beyond becomes null. The store time is the broker's clock and names a directory.
FIRST_MS: Final = -62_135_596_800_000
LAST_MS: Final = 253_402_300_799_999

Headers = Sequence[tuple[bytes, bytes | None]]
Interpreted = tuple[
    bytes | None, bytes | None, bytes | None, bytes | None, bytes | None, Headers, bytes
]
"""What a message says: tag, unique key, keys, content type, protocol, headers, and its body."""
Interpret = Callable[[bytes, bytes, int], Interpreted]
"""Called with a record's properties, body and system flag."""
Given = tuple[bytes | None, bytes] | tuple[bytes | None, bytes, bytes]
"""The parts of a column, as Arrow has them."""
