"""`Lane` and what belongs to it (`kernels/lane.py`), and `Bulk` (`kernels/bulk.py`), in the form
that the kernels have."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from polymq.gateways.mqtt.kernels import FORM
from polymq.net.kernels import FORM as NET_FORM

# The compiled lane knows the compiled stream by its type.
if TYPE_CHECKING or "pure" in {FORM, NET_FORM}:
    from polymq.gateways.mqtt.kernels.bulk import Bulk
    from polymq.gateways.mqtt.kernels.lane import Answers, Lane, Yard
elif os.environ.get("POLYMQ_KERNELS") == "compiled":
    from polymq.gateways.mqtt.kernels.fast_bulk import Bulk
    from polymq.gateways.mqtt.kernels.fast_lane import Answers, Lane, Yard
else:
    try:
        from polymq.gateways.mqtt.kernels.fast_bulk import Bulk
        from polymq.gateways.mqtt.kernels.fast_lane import Answers, Lane, Yard
    except ImportError:
        from polymq.gateways.mqtt.kernels.bulk import Bulk
        from polymq.gateways.mqtt.kernels.lane import Answers, Lane, Yard

__all__ = ["Answers", "Bulk", "Lane", "Yard"]
