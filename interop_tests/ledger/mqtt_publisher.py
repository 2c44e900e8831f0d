"""Publishes with QoS 1 through paho-mqtt, and keeps a window of unacknowledged messages full.

After a lost connection paho itself repeats, in order, what was not acknowledged [MQTT-4.4.0-1].
"""

from __future__ import annotations

import random
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from interop_tests.ledger.bodies import make_body
from interop_tests.ledger.books import Book, What
from interop_tests.ledger.client import Options, Stop, read_options

LOOP_SECONDS = 0.02


class Publisher:
    """One paho client that publishes until it is stopped."""

    def __init__(self, options: Options, stop: Stop) -> None:
        self._options = options
        self._stop = stop
        self._book = Book(options.book)
        self._chance = random.Random(options.seed)
        self._next = 0
        self._unacked: dict[int, int] = {}  # packet id -> number
        self._connected = False
        client = mqtt.Client(
            CallbackAPIVersion.VERSION2, client_id=options.name, reconnect_on_failure=False
        )
        client.max_inflight_messages_set(options.window)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_publish = self._on_publish
        self._client = client

    def run(self) -> None:
        """Publish; when stopped, wait for the last acks."""
        while not (self._stop.asked and not self._unacked):
            try:
                self._client.connect("127.0.0.1", self._options.port, keepalive=60)
            except OSError:
                self._stop.pause()
                continue
            self._converse()
        self._client.disconnect()

    def _converse(self) -> None:
        """Publish on this connection until it ends, or all is done."""
        while not (self._stop.asked and not self._unacked):
            if self._connected and not self._unacked and not self._stop.asked:
                self._fill_window()
            if self._client.loop(LOOP_SECONDS) != mqtt.MQTT_ERR_SUCCESS:
                return

    def _fill_window(self) -> None:
        name = self._options.name
        while len(self._unacked) < self._options.window:
            body = make_body(name, self._next, self._chance)
            self._book.write(What.SENT, name, self._next)
            info = self._client.publish(f"{self._options.topic}/mqtt/{name}", body, qos=1)
            self._unacked[info.mid] = self._next
            self._next += 1
            if info.rc != mqtt.MQTT_ERR_SUCCESS:
                return

    def _on_connect(self, client: mqtt.Client, data: Any, flags: Any, reason: Any, _: Any) -> None:
        if reason.is_failure:
            self._book.write(What.REFUSED, self._options.name, note=f"CONNECT: {reason}")
            return
        self._connected = True
        self._book.write(What.CONNECTED, self._options.name)
        for number in self._unacked.values():
            self._book.write(What.SENT, self._options.name, number)

    def _on_disconnect(self, client: mqtt.Client, data: Any, *details: Any) -> None:
        if not self._connected:
            return
        self._connected = False
        for number in self._unacked.values():
            self._book.write(What.UNKNOWN, self._options.name, number)
        self._book.write(What.DISCONNECTED, self._options.name)

    def _on_publish(
        self, client: mqtt.Client, data: Any, packet_id: int, reason: Any, _: Any
    ) -> None:
        self._book.write(What.ACKED, self._options.name, self._unacked.pop(packet_id))
        # Inside a callback paho gathers what is published, and sends all of it afterwards: the
        # server meets hundreds of messages at a time, not one after the other.
        if 2 * len(self._unacked) <= self._options.window and not self._stop.asked:
            self._fill_window()


if __name__ == "__main__":
    Publisher(read_options(), Stop()).run()
