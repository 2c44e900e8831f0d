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
    from polymq.core_log.kernels import pure as chosen
    from polymq.core_log.kernels import pure_keys as chosen_keys
    from polymq.core_log.kernels import pure_walk as chosen_walk
elif _choice == "compiled":
    from polymq.core_log.kernels import fast as chosen
    from polymq.core_log.kernels import fast_keys as chosen_keys
    from polymq.core_log.kernels import fast_walk as chosen_walk
else:
    try:
        from polymq.core_log.kernels import fast as chosen
        from polymq.core_log.kernels import fast_keys as chosen_keys
        from polymq.core_log.kernels import fast_walk as chosen_walk
    except ImportError:
        from polymq.core_log.kernels import pure as chosen
        from polymq.core_log.kernels import pure_keys as chosen_keys
        from polymq.core_log.kernels import pure_walk as chosen_walk

FORM: Final = "pure" if chosen.__name__.endswith(".pure") else "compiled"
"""Which form runs: "compiled" or "pure"."""

# Sums, writing, index entries.
Appender = chosen.Appender
append_run = chosen.append_run
crc32 = chosen.crc32
expired = chosen.expired
fit = chosen.fit
java_hash = chosen.java_hash
next_run = chosen.next_run
plan_read = chosen.plan_read
run_size = chosen.run_size
find_damaged = chosen.find_damaged
widen = chosen.widen

# Walking over records in memory.
check_record = chosen_walk.check_record
check_targets = chosen_walk.check_targets
dispatch = chosen_walk.dispatch
find_marked = chosen_walk.find_marked
find_system = chosen_walk.find_system
gather = chosen_walk.gather
record_run = chosen_walk.record_run
scan = chosen_walk.scan

# The key index.
fill_slots = chosen_keys.fill_slots
find_keys = chosen_keys.find_keys
key_hash = chosen_keys.key_hash
link_keys = chosen_keys.link_keys
