"""The two forms of what serves a connection's reads, for tests that run with both."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest

import polymq.gateways.mqtt.client
import polymq.gateways.mqtt.shared
from polymq.gateways.mqtt.kernels import FORM

PREFIXES = ("", "fast_")


def use_form(prefix: str, monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    """Lanes and bulk of this form are those of the brokers that the test makes. Returns the two
    modules; skips the test where the form is not here."""
    if prefix and FORM == "pure":
        pytest.skip("the compiled lane goes with compiled kernels")
    try:
        lane = importlib.import_module(f"polymq.gateways.mqtt.kernels.{prefix}lane")
        bulk = importlib.import_module(f"polymq.gateways.mqtt.kernels.{prefix}bulk")
    except ImportError:
        pytest.skip("not compiled here")
    monkeypatch.setattr(polymq.gateways.mqtt.client, "Lane", lane.Lane)
    monkeypatch.setattr(polymq.gateways.mqtt.shared, "Yard", lane.Yard)
    monkeypatch.setattr(polymq.gateways.mqtt.shared, "Bulk", bulk.Bulk)
    return lane, bulk
