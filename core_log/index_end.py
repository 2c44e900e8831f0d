"""The end of an index (`kernels/index_end.py`), in the form that the kernels have."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from polymq.core_log.kernels import FORM

if TYPE_CHECKING or FORM == "pure":
    from polymq.core_log.kernels.index_end import (
        BLOCK_BYTES,
        IndexEnd,
        TailEnd,
        append_to_all,
        targets_of,
    )
elif os.environ.get("POLYMQ_KERNELS") == "compiled":
    from polymq.core_log.kernels.fast_index_end import IndexEnd, TailEnd, append_to_all, targets_of
    from polymq.core_log.kernels.index_end import BLOCK_BYTES
else:
    from polymq.core_log.kernels.index_end import BLOCK_BYTES

    try:
        from polymq.core_log.kernels.fast_index_end import (
            IndexEnd,
            TailEnd,
            append_to_all,
            targets_of,
        )
    except ImportError:
        from polymq.core_log.kernels.index_end import IndexEnd, TailEnd, append_to_all, targets_of

__all__ = ["BLOCK_BYTES", "IndexEnd", "TailEnd", "append_to_all", "targets_of"]
