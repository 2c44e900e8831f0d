"""The end of the log (`kernels/log_end.py`), in the form that the kernels have."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from polymq.core_log.kernels import FORM

if TYPE_CHECKING or FORM == "pure":
    from polymq.core_log.kernels.log_end import Chunk, ChunksEnd, LogEnd, Span
elif os.environ.get("POLYMQ_KERNELS") == "compiled":
    from polymq.core_log.kernels.fast_log_end import Chunk, ChunksEnd, LogEnd, Span
else:
    try:
        from polymq.core_log.kernels.fast_log_end import Chunk, ChunksEnd, LogEnd, Span
    except ImportError:
        from polymq.core_log.kernels.log_end import Chunk, ChunksEnd, LogEnd, Span

__all__ = ["Chunk", "ChunksEnd", "LogEnd", "Span"]
