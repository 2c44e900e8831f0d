"""Which ports a running server has: written by the server, read by the commands and by tests.

`server.json` stands in the data directory while the server runs. It is a hint, not a lock: after
a kill it stays behind, and the reader finds nobody at its ports.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from polymq.settings import Settings

FILE_NAME: Final = "server.json"
ADMIN_HOST: Final = "127.0.0.1"
ADMIN_HEADER: Final = "X-PolyMQ-Admin"
"""What a request to the admin listener carries that changes something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Where a server's listeners are. None: the listener is not open."""

    host: str
    mqtt: int | None
    amqp: int | None
    http: int | None
    rocketmq: int | None
    admin: int | None
    names: int | None = None
    replication: int | None = None
    mqtt_ws: int | None = None
    mqtts: int | None = None
    mqtt_wss: int | None = None
    amqps: int | None = None
    https: int | None = None
    rocketmqs: int | None = None
    names_tls: int | None = None
    api: int | None = None
    metrics: int | None = None
    management: int | None = None
    mqtt_listeners: Mapping[str, int | str] | None = None
    """By the names of the further MQTT listeners: the port, or the path of the socket."""


def write_ports(path: Path, ports: Ports) -> None:
    """Write the file for this process."""
    write_values(path, {"pid": os.getpid(), **asdict(ports)})


def write_values(path: Path, values: Mapping[str, Any]) -> None:
    """Replace the file in one step, so that a reader never sees half of it. Its owner's only, like
    all that stands in a data directory."""
    text = json.dumps(values) + "\n"
    partial = path.with_name(path.name + ".part")
    partial.unlink(missing_ok=True)
    write_own(partial, text)
    partial.replace(path)


def write_own(path: Path, text: str) -> None:
    """Make a file that is its owner's only; it must not exist. What fails leaves none.

    Raises:
        OSError: with the file's name, also where the system's error has none.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error


def running_server(settings: Settings) -> tuple[int, Ports] | None:
    """Process id and ports of the server that uses the configured data directory, or None."""
    try:
        text = (settings.server.data_directory / FILE_NAME).read_text(encoding="utf-8")
        value = json.loads(text)
        process_id = int(value.pop("pid"))
        os.kill(process_id, 0)
        return process_id, Ports(**value)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def find_ports(settings: Settings) -> Ports:
    """The ports of the server that uses the configured data directory, else the configured ones."""
    running = running_server(settings)
    if running is not None:
        return running[1]
    return Ports(
        host=settings.server.host,
        mqtt=settings.mqtt.port,
        amqp=settings.amqp.port,
        http=settings.http.port,
        rocketmq=settings.rocketmq.port,
        admin=settings.admin.port,
        names=settings.names.port,
    )
