"""The end of the files (`kernels/pure_files.py`), in the form that the kernels have."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from polymq.core_log.kernels import FORM

if TYPE_CHECKING or FORM == "pure":
    from polymq.core_log.kernels.pure_files import FilesEnd
elif os.environ.get("POLYMQ_KERNELS") == "compiled":
    from polymq.core_log.kernels.fast_files import FilesEnd
else:
    try:
        from polymq.core_log.kernels.fast_files import FilesEnd
    except ImportError:
        from polymq.core_log.kernels.pure_files import FilesEnd

__all__ = ["FilesEnd"]
