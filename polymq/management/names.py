"""How connections and channels are called, as RabbitMQ does: `127.0.0.1:5555 -> 127.0.0.1:5672`,
and `(1)` behind it for a channel. Pure."""

from __future__ import annotations


def connection_name(peer: str, listener: str) -> str:
    """The name of a connection."""
    return f"{peer} -> {listener}"


def channel_name(connection: str, number: int) -> str:
    """The name of a channel."""
    return f"{connection} ({number})"


def host_and_port(address: str) -> tuple[str, int]:
    """The parts of an address; port 0 if there is none."""
    host, separator, port = address.rpartition(":")
    if separator and port.isascii() and port.isdecimal():
        return host, int(port)
    return address, 0
