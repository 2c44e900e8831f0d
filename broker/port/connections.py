"""A connected MQTT client, as operators see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ConnectedClient:
    """A client that has logged in.

    Attributes:
        user: the principal that it logged in as.
        peer: its address and port.
        address: the address alone.
        listener: address and port that it connected to.
        version: of the protocol: `3.1`, `3.1.1` or `5.0`.
        keep_alive_seconds: what it said in CONNECT; 0: none.
        connected_ms: when it logged in, in milliseconds since the epoch.
        trace: lets a callback see what the connection receives (True) and sends (False) from now
            on, until what it returns is called.
        end: closes the connection because an operator wants that; the text says why, for the log.
    """

    client_id: str
    user: str
    peer: str
    address: str
    listener: str
    version: str
    keep_alive_seconds: int
    connected_ms: int
    end: Callable[[str], None]
    trace: Callable[[Callable[[bool, bytes], None]], Callable[[], None]]
