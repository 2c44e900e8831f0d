"""Which form of the kernels runs: for `polymq doctor`, and for the health of a server."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Final

KERNELS: Final = (
    "polymq.core_log.kernels",
    "polymq.broker.kernels",
    "polymq.gateways.mqtt.kernels",
    "polymq.gateways.amqp.kernels",
    "polymq.gateways.http_cloudevents.kernels",
    "polymq.net.kernels",
)


def kernel_forms() -> dict[str, str]:
    """Package -> `compiled` or `pure`, of those that are installed."""
    forms = {}
    for name in KERNELS:
        try:
            module: ModuleType = importlib.import_module(name)
        except ImportError as error:
            forms[name] = f"missing ({error})"
            continue
        forms[name] = str(module.FORM)
    return forms
