"""Holding the ports of a server that is about to start.

A start writes nothing if one of its ports is taken, so the ports come before the store. But nobody
may connect before the store is open, which takes a while after a crash. So each port is bound here
by a socket that does not listen: other programs do not get it, and the listener that belongs there
may bind it all the same (both say SO_REUSEADDR).
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

from polymq.errors import ExitCode, Failure
from polymq.mqtt_listeners import check_unix_paths, wanted_listener_ports
from polymq.net.listener import explain
from polymq.ports import ADMIN_HOST, running_server
from polymq.settings import Settings


def reserve_ports(settings: Settings) -> ExitStack:
    """Bind the ports that the settings name; closing what is returned lets them go.

    Raises:
        Failure: IN_USE, a server runs in the data directory; CANNOT_LISTEN, somebody else has a
            port, it cannot be bound, or two listeners have the same.
    """
    owners: dict[tuple[str, int], str] = {}
    with ExitStack() as held:
        for name, host, port in wanted_ports(settings):
            owner = owners.setdefault((host, port), name)
            if port and owner != name:
                text = f"{name}: port {port} is that of {owner}: choose another for one of the two"
                raise Failure(ExitCode.CANNOT_LISTEN, text)
            try:
                _reserve(held, host, port)
            except OSError as error:
                if running_server(settings) is not None:
                    directory = settings.server.data_directory
                    text = f"the data directory {directory} is in use: stop the server there, or"
                    raise Failure(ExitCode.IN_USE, f"{text} choose another") from error
                text = f"{name}: {explain(host, port, error)}"
                raise Failure(ExitCode.CANNOT_LISTEN, text) from error
        check_unix_paths(settings)
        return held.pop_all()


def wanted_ports(settings: Settings) -> Iterator[tuple[str, str, int]]:
    """(listener, host, port) of all; port 0, which the system picks, shows whether the host can be
    bound."""
    host = settings.server.host
    secure = bool(settings.tls.certificate)
    for name, section in settings.listeners.items():
        if section.enabled and section.plain:
            yield name, host, section.port
        if section.enabled and secure:
            yield f"{name}s", host, section.tls_port
    mqtt = settings.mqtt
    if mqtt.enabled and mqtt.websocket and mqtt.plain:
        yield "mqtt_ws", host, mqtt.websocket_port
    if mqtt.enabled and mqtt.websocket and secure:
        yield "mqtt_wss", host, mqtt.websocket_tls_port
    yield from wanted_listener_ports(settings)
    if settings.admin.enabled:
        yield "admin", ADMIN_HOST, settings.admin.port
    if settings.admin.enabled and settings.api.enabled:
        yield "api", settings.api.host or host, settings.api.port
    if settings.metrics.enabled:
        yield "metrics", settings.metrics.host or host, settings.metrics.port
    if settings.names.enabled:
        yield "names", host, settings.names.port
    if settings.names.enabled and secure:
        yield "names", host, settings.names.tls_port


def _reserve(held: ExitStack, host: str, port: int) -> None:
    """Bind every address of the host. Raises OSError."""
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, kind, protocol, _, address in dict.fromkeys(found):
        try:
            holder = socket.socket(family, kind, protocol)
        except OSError:
            continue  # the name has an address of a kind that this system does not speak
        held.enter_context(holder)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        holder.bind(address)
