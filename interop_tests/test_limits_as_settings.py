"""Limits that users meet are settings."""

from __future__ import annotations

import http.client
import json
from queue import SimpleQueue
from typing import Any

import pytest
from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from interop_tests.conftest import StartServer

WAIT_SECONDS_MAX = 60.0


def test_subscriptions_have_limits_that_are_settings(start_server: StartServer) -> None:
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


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.slow
def test_one_packet_may_have_all_filters_of_a_session(
    start_server: StartServer, clean: bool
) -> None:
    """And more: the session gets as many as it may have, and the rest is refused one by one."""
    server = start_server()
    client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="many", clean_session=clean)
    answers: SimpleQueue[Any] = SimpleQueue()
    client.on_connect = lambda *_: answers.put("connected")
    client.on_disconnect = lambda *_: answers.put("disconnected")
    client.on_subscribe = lambda _c, _u, _m, codes, _p: answers.put([c.value for c in codes])
    client.on_unsubscribe = lambda *_: answers.put("unsubscribed")
    client.on_message = lambda _c, _u, message: answers.put(message.topic)
    client.connect(server.host, server.mqtt_port)
    client.loop_start()
    assert answers.get(timeout=WAIT_SECONDS_MAX) == "connected"
    names = [f"many/{number}" for number in range(12_000)]
    filters = [(name, 1) for name in names]
    client.subscribe(filters[:10_000])
    assert answers.get(timeout=WAIT_SECONDS_MAX) == [1] * 10_000
    client.publish(names[9_999], b"", 0)
    assert answers.get(timeout=WAIT_SECONDS_MAX) == names[9_999]
    client.unsubscribe(names)
    assert answers.get(timeout=WAIT_SECONDS_MAX) == "unsubscribed"
    client.publish(names[9_999], b"", 0)
    client.subscribe(filters)
    assert answers.get(timeout=WAIT_SECONDS_MAX) == [1] * 10_000 + [0x80] * 2_000
    client.disconnect()
    assert answers.get(timeout=WAIT_SECONDS_MAX) == "disconnected"
    client.loop_stop()
