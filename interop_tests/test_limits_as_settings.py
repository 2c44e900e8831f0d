"""Limits that users meet are settings."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

WAIT_SECONDS_MAX = 20.0


def test_subscriptions_have_limits_that_are_settings(start_server: Callable[..., Any]) -> None:
    """Up to the limit they are granted; one more is refused as the protocol has it."""
    server = start_server(**{"mqtt.subscriptions_max": 2, "http.subscriptions_max": 1})
    client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="many")
    codes: SimpleQueue[list[int]] = SimpleQueue()

    def subscribe(*_: Any) -> None:
        client.subscribe([("a", 1), ("b/+", 1), ("c", 0), ("a", 0)])

    client.on_connect = subscribe
    client.on_subscribe = lambda _c, _u, _m, reasons, _p: codes.put([r.value for r in reasons])
    client.connect(server.host, server.mqtt_port)
    client.loop_start()
    assert codes.get(timeout=WAIT_SECONDS_MAX) == [1, 1, 0x80, 0]
    client.disconnect()
    client.loop_stop()

    connection = http.client.HTTPConnection(server.host, server.http_port, timeout=WAIT_SECONDS_MAX)
    answers = []
    for name in ("one", "two", "one"):
        body = json.dumps({"topic": "t"})
        connection.request("PUT", f"/subscriptions/{name}", body)
        answer = connection.getresponse()
        answer.read()
        answers.append(answer.status)
    connection.close()
    assert answers[0] in (200, 201)
    assert answers[1:] == [429, 200]
