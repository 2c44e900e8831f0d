"""How long a message lives and how important it is, as its constant property `PMQ_X`.

Recovery makes index entries again from records, so the store knows the form
(`core_log.kernels.layout`): the time to live as an entry has it and the priority, in hex. The
property stands at a fixed place, right behind `PMQ_P`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from polymq.core_log.kernels.layout import PROPERTY_TTL, TTL_CODE_MAX

TTL_PROPERTY: Final = PROPERTY_TTL.decode()
TTL_MS_MAX: Final = TTL_CODE_MAX - 1
PRIORITY_MAX: Final = 255


def ttl_property(ttl_ms: int | None, priority: int) -> str:
    """The value of `TTL_PROPERTY`.

    Args:
        ttl_ms: None for no end; a longer time than an entry can say (49 days) is no end either.
        priority: 0 to 255.
    """
    code = 0 if ttl_ms is None or ttl_ms > TTL_MS_MAX else ttl_ms + 1
    return f"{code:08x}{priority:02x}"


def ttl_of(properties: Mapping[str, str]) -> tuple[int, int]:
    """(time to live as in an entry, priority) of constant properties; zeros where there are
    none."""
    value = properties.get(TTL_PROPERTY)
    if value is None:
        return 0, 0
    return int(value[:8], 16), int(value[8:10], 16)
