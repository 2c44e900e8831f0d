"""Ports for servers that are started again while their clients keep trying to reach them.

A port that the system picks is one that it may also give to an outgoing connection. While a server
is down, a client that tries to reach it can be given the server's own port as its source (and even
connect to itself), and then the server cannot start. Below the range of such ports this cannot
happen.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

LISTENERS = ("mqtt", "amqp", "http", "rocketmq", "admin")
LOWEST = 10_240
OUTGOING_DEFAULT = 32_768
RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
ATTEMPTS_MAX = 1_000
_chance = random.SystemRandom()
"""Tests in other processes begin with the same seed, and would choose the same ports."""
_given: set[int] = set()
"""Ports of servers that have not begun yet look free, too."""


def lasting_ports() -> dict[str, int]:
    """Options for `start_server`: a free port for each listener, none of the outgoing ones."""
    highest = OUTGOING_DEFAULT
    if RANGE_FILE.exists():
        highest = int(RANGE_FILE.read_text().split()[0])
    ports: dict[str, int] = {}
    for _ in range(ATTEMPTS_MAX):
        port = _chance.randrange(LOWEST, highest)
        if port not in _given and _is_free(port):
            _given.add(port)
            ports[f"{LISTENERS[len(ports)]}.port"] = port
        if len(ports) == len(LISTENERS):
            return ports
    raise AssertionError("there are no free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
