"""What the kernels' functions return, and how their results are laid out."""

from __future__ import annotations

from typing import Final

MALFORMED: Final = -1
"""This is no JSON from some byte on."""
NOT_UTF8: Final = -2
"""From that byte on it is no UTF-8."""
TOO_DEEP: Final = -3
"""There are more values within one another than `DEPTH_MAX`."""
TOO_MANY: Final = -4
"""There are more children than asked for. What follows was not looked at."""
WRONG_KIND: Final = -5
"""It is something else than the array or the object that was asked for."""

DEPTH_MAX: Final = 1_000
"""Values within one another. Python's own parser ends there, too."""

SPAN_COLUMNS: Final = 4
NAME_START: Final = 0
"""Where a member's name begins, behind its quote; 0 for elements of an array."""
NAME_END: Final = 1
"""Where it ends, before its quote."""
VALUE_START: Final = 2
VALUE_END: Final = 3
