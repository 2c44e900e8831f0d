"""Receives with QoS 1 through paho-mqtt, in a persistent session."""

from __future__ import annotations

from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from interop_tests.ledger.bodies import Corrupt, read_body
from interop_tests.ledger.books import Book, What
from interop_tests.ledger.client import Options, Stop, read_options

LOOP_SECONDS = 0.02
QOS = 1


class Consumer:
    """One paho client. It acknowledges what it has written into its book."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._book = Book(options.book)
        self._ready = False
        client = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            client_id=options.name,
            clean_session=False,
            reconnect_on_failure=False,
        )
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        client.on_message = self._on_message
        self._client = client

    def run(self, stop: Stop) -> None:
        """Receive until stopped; with `declare_only`, until the session is there."""
        while not self._done(stop):
            try:
                self._client.connect("127.0.0.1", self._options.port, keepalive=60)
            except OSError:
                stop.pause()
                continue
            while not self._done(stop):
                if self._client.loop(LOOP_SECONDS) != mqtt.MQTT_ERR_SUCCESS:
                    self._book.write(What.DISCONNECTED, self._options.name)
                    break
        self._client.disconnect()

    def _done(self, stop: Stop) -> bool:
        return stop.asked or (self._ready and self._options.declare_only)

    def _on_connect(self, client: mqtt.Client, data: Any, flags: Any, reason: Any, _: Any) -> None:
        if reason.is_failure:
            self._book.write(What.REFUSED, self._options.name, note=f"CONNECT: {reason}")
            return
        note = "present" if flags.session_present else "new"
        self._book.write(What.CONNECTED, self._options.name, note=note)
        if not flags.session_present:
            client.subscribe(f"{self._options.topic}/#", QOS)

    def _on_subscribe(
        self, client: mqtt.Client, data: Any, packet_id: int, reasons: Any, _: Any
    ) -> None:
        if reasons[0].is_failure:
            self._book.write(What.REFUSED, self._options.name, note=f"SUBSCRIBE: {reasons[0]}")
            return
        self._ready = True
        self._book.write(What.READY, self._options.name)

    def _on_message(self, client: mqtt.Client, data: Any, message: mqtt.MQTTMessage) -> None:
        try:
            publisher, number = read_body(bytes(message.payload))
        except Corrupt as error:
            self._book.write(What.CORRUPT, self._options.name, note=str(error))
            return
        self._book.write(What.GOT, publisher, number, "again" if message.dup else "")


if __name__ == "__main__":
    Consumer(read_options()).run(Stop())
