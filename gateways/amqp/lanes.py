"""`Lane` and what belongs to it (`kernels/lane.py`), in the form that the kernels have."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from polymq.gateways.amqp.kernels import FORM
from polymq.gateways.amqp.kernels.lane import PLACE_AT

if TYPE_CHECKING or FORM == "pure":
    from polymq.gateways.amqp.kernels.lane import Kind, Lane
elif os.environ.get("POLYMQ_KERNELS") == "compiled":
    from polymq.gateways.amqp.kernels.fast_lane import Kind, Lane
else:
    try:
        from polymq.gateways.amqp.kernels.fast_lane import Kind, Lane
    except ImportError:
        from polymq.gateways.amqp.kernels.lane import Kind, Lane

__all__ = ["PLACE_AT", "Kind", "Lane"]
