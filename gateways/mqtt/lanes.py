"""`Lane` and what belongs to it (`kernels/lane.py`), in the form that the kernels have."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gateways.mqtt.kernels import FORM

if TYPE_CHECKING or FORM == "pure":
    from gateways.mqtt.kernels.lane import Answers, Lane, Yard
elif os.environ.get("POLYMQ_KERNELS") == "compiled":
    from gateways.mqtt.kernels.fast_lane import Answers, Lane, Yard
else:
    try:
        from gateways.mqtt.kernels.fast_lane import Answers, Lane, Yard
    except ImportError:
        from gateways.mqtt.kernels.lane import Answers, Lane, Yard

__all__ = ["Answers", "Lane", "Yard"]
