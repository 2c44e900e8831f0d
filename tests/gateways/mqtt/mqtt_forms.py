"""The two forms of what serves a connection's reads, for tests that run with both."""

from __future__ import annotations

from types import ModuleType

import pytest

import polymq.gateways.mqtt.client
import polymq.gateways.mqtt.shared
from tests.harness.forms import compiled_form, plain_form

NAMES = ("polymq.gateways.mqtt.kernels.lane", "polymq.gateways.mqtt.kernels.bulk")
FORMS = ("pure", "compiled")


def use_form(form: str, monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    """Lanes and bulk of this form are those of the brokers that the test makes. Returns the two
    modules; skips the test where the form is not here."""
    get = plain_form if form == "pure" else compiled_form
    lane, bulk = map(get, NAMES)
    if lane is None or bulk is None:
        pytest.skip("the compiled lane goes with compiled kernels")
    monkeypatch.setattr(polymq.gateways.mqtt.client, "Lane", lane.Lane)
    monkeypatch.setattr(polymq.gateways.mqtt.shared, "Yard", lane.Yard)
    monkeypatch.setattr(polymq.gateways.mqtt.shared, "Bulk", bulk.Bulk)
    return lane, bulk
