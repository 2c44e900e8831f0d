"""What the tests of the packages share: the tree, its version, and the ports of the settings."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final

from polymq.settings import Settings

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGING: Final = ROOT / "packaging"
PROJECT: Final[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
VERSION: Final[str] = PROJECT["project"]["version"]


def default_ports() -> dict[str, tuple[int, int]]:
    """The ports for clients, without TLS and with it, by the names that packages have for them."""
    settings = Settings()
    mqtt = settings.mqtt
    return {
        "mqtt": (mqtt.port, mqtt.tls_port),
        "websocket": (mqtt.websocket_port, mqtt.websocket_tls_port),
        "amqp": (settings.amqp.port, settings.amqp.tls_port),
        "http": (settings.http.port, settings.http.tls_port),
        "rocketmq": (settings.rocketmq.port, settings.rocketmq.tls_port),
        "names": (settings.names.port, settings.names.tls_port),
    }
