"""A run of messages that was just appended, still in memory: what live delivery hands on."""

from __future__ import annotations

from polymq.broker.kernels import Committed

__all__ = ["Committed"]
