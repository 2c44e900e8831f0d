"""The two forms of what serves a connection's reads, for tests that run with both."""

from __future__ import annotations

from types import ModuleType

import pytest

import polymq.gateways.mqtt.connection
import polymq.gateways.mqtt.shared
from polymq.kernel_forms import plain_form
from tests.harness.forms import compiled_form

NAMES = ("polymq.gateways.mqtt.kernels.fast_path", "polymq.gateways.mqtt.kernels.batch_path")
FORMS = ("pure", "compiled")


def use_form(form: str, monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    """Fast and batch paths of this form are those of the brokers that the test makes. Returns the
    two modules; skips the test where the form is not here."""
    get = plain_form if form == "pure" else compiled_form
    fast_path, batch_path = map(get, NAMES)
    if fast_path is None or batch_path is None:
        pytest.skip("the compiled paths go with compiled kernels")
    monkeypatch.setattr(polymq.gateways.mqtt.connection, "FastPath", fast_path.FastPath)
    monkeypatch.setattr(polymq.gateways.mqtt.shared, "SharedPaths", fast_path.SharedPaths)
    monkeypatch.setattr(polymq.gateways.mqtt.shared, "BatchPath", batch_path.BatchPath)
    return fast_path, batch_path
