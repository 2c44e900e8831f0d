"""Holding the ports of a server that is about to start.

A start writes nothing if one of its ports is taken, so the ports come before the store. But nobody
may connect before the store is open, which takes a while after a crash. So each port is bound here
by a socket that does not listen: other programs do not get it, and the listener that belongs there
may bind it all the same (both say SO_REUSEADDR).
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from polymq.errors import ExitCode, Failure
from polymq.mqtt_listeners import check_unix_paths, host_of, owner_of
from polymq.net.listener import explain
from polymq.ports import ADMIN_HOST, running_server
from polymq.settings import Settings


def reserve_ports(settings: Settings, inherited: Collection[str] = ()) -> ExitStack:
    """Bind the ports that the settings name; closing what is returned lets them go.

    Args:
        inherited: labels of listeners that have their sockets already.

    Raises:
        Failure: IN_USE, a server runs in the data directory; CANNOT_LISTEN, somebody else has a
            port, it cannot be bound, or two listeners have the same.
    """
    owners: dict[tuple[str, int], str] = {}
    with ExitStack() as held:
        for wanted in wanted_ports(settings):
            if wanted.label in inherited:
                continue
            name, host, port = wanted.owner, wanted.host, wanted.port
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
        check_unix_paths(settings, inherited)
        return held.pop_all()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenAddress:
    """Where a listener is to be.

    Attributes:
        label: its name in the log and of its inherited sockets.
        owner: what messages about it begin with.
    """

    label: str
    host: str
    port: int
    owner: str


def wanted_ports(settings: Settings) -> Iterator[ListenAddress]:
    """The addresses of all listeners with a port; port 0, which the system picks, shows whether the
    host can be bound."""
    for label, host, port in _own_ports(settings):
        yield ListenAddress(label=label, host=host, port=port, owner=label)
    for listener in settings.mqtt.listeners:
        if listener.type != "unix":
            host = host_of(settings, listener)
            owner = owner_of(listener)
            yield ListenAddress(label=listener.label, host=host, port=listener.port, owner=owner)
    if settings.admin.enabled:
        yield ListenAddress(label="admin", host=ADMIN_HOST, port=settings.admin.port, owner="admin")
    if settings.admin.enabled and settings.api.enabled:
        host = settings.api.host or settings.server.host
        yield ListenAddress(label="api", host=host, port=settings.api.port, owner="api")
    if settings.metrics.enabled:
        host = settings.metrics.host or settings.server.host
        yield ListenAddress(label="metrics", host=host, port=settings.metrics.port, owner="metrics")
    management = settings.management
    if management.enabled:
        host, port = management.host or settings.server.host, management.port
        yield ListenAddress(label="management", host=host, port=port, owner="management")
    yield from wanted_name_ports(settings)


def socket_hosts(settings: Settings) -> dict[str, str]:
    """For which listeners there may be inherited sockets, and the host that the settings say; empty
    for Unix sockets."""
    hosts = {wanted.label: wanted.host for wanted in wanted_ports(settings)}
    unix = [listener for listener in settings.mqtt.listeners if listener.type == "unix"]
    return hosts | {listener.label: "" for listener in unix}


def _own_ports(settings: Settings) -> Iterator[tuple[str, str, int]]:
    """(label, host, port) of those that each protocol has."""
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


def wanted_name_ports(settings: Settings, *, alone: bool = False) -> Iterator[ListenAddress]:
    """Those of a name server.

    Args:
        alone: it is a program of its own, which runs whatever `names.enabled` says.
    """
    names, host = settings.names, settings.server.host
    if names.enabled or alone:
        yield ListenAddress(label="names", host=host, port=names.port, owner="names")
        if settings.tls.certificate:
            yield ListenAddress(label="names_tls", host=host, port=names.tls_port, owner="names")


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
