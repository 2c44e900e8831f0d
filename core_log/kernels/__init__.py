"""The store's inner loops, in the form that the environment asks for.

`POLYMQ_KERNELS=compiled` takes `fast.pyx` and fails if it was not built, `pure` takes `pure.py`;
without it the compiled form is taken where it is there. Both give the same results.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

_choice = os.environ.get("POLYMQ_KERNELS", "")
if _choice not in ("", "compiled", "pure"):
    raise ImportError(f"POLYMQ_KERNELS is {_choice!r}: it can be 'compiled' or 'pure'")

if TYPE_CHECKING or _choice == "pure":
    from core_log.kernels import pure as chosen
elif _choice == "compiled":
    from core_log.kernels import fast as chosen
else:
    try:
        from core_log.kernels import fast as chosen
    except ImportError:
        from core_log.kernels import pure as chosen

FORM: Final = "pure" if chosen.__name__.endswith(".pure") else "compiled"
"""Which form runs: "compiled" or "pure"."""

append_run = chosen.append_run
check_record = chosen.check_record
check_targets = chosen.check_targets
crc32 = chosen.crc32
dispatch = chosen.dispatch
find_system = chosen.find_system
fit = chosen.fit
gather = chosen.gather
java_hash = chosen.java_hash
next_run = chosen.next_run
plan_read = chosen.plan_read
run_size = chosen.run_size
scan = chosen.scan
widen = chosen.widen
