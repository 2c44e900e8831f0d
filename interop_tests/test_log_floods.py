"""Strangers that connect and send nonsense, again and again: each is closed, and the log says so,
but it does not grow with their number."""

from __future__ import annotations

import json
import re
import socket
import urllib.request
from collections import Counter

import pytest

from interop_tests.conftest import StartServer

STRANGERS = 200
LINES_PER_MINUTE = 60
LAST = "not logged for a minute"
NONSENSE = {
    "mqtt": b"\xf0\x00",  # a packet of a type that 3.1.1 does not have
    "rocketmq": b"\x7f\xff\xff\xff\x00\x00\x00\x00",  # a frame of 2 GiB
    "names": b"\x7f\xff\xff\xff\x00\x00\x00\x00",
}


@pytest.mark.parametrize("listener", NONSENSE)
@pytest.mark.slow
def test_strangers_do_not_fill_the_log(start_server: StartServer, listener: str) -> None:
    server = start_server(**{"names.enabled": True})
    ports = json.loads((server.data_directory / "server.json").read_text())
    for _ in range(STRANGERS):
        with socket.create_connection((server.host, ports[listener])) as stranger:
            stranger.sendall(NONSENSE[listener])
            assert stranger.recv(1) == b"", "it is closed"
    events = server.log_events()
    kinds = Counter(re.sub(r"\d+", "", event["event"]) for event in events)
    ((_, most),) = kinds.most_common(1)
    # A minute may end meanwhile.
    assert LINES_PER_MINUTE <= most < STRANGERS
    assert LAST in {event.get("more") for event in events}
    url = f"http://{server.host}:{server.admin_port}/metrics"
    with urllib.request.urlopen(url) as answer:
        text = answer.read().decode()
    found = re.search(r"^polymq_logging_suppressed_lines_total (\S+)$", text, re.MULTILINE)
    assert found is not None
    assert float(found[1]) >= STRANGERS - most
