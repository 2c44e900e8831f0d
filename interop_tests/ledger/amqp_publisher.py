"""Publishes with asynchronous confirms through pika, and keeps a window of messages unconfirmed.

After a lost connection it repeats, in order, what was not confirmed.
"""

from __future__ import annotations

import logging
import random
from typing import Any

import pika
from pika.adapters.select_connection import SelectConnection

from interop_tests.ledger.bodies import make_body
from interop_tests.ledger.books import Book, What
from interop_tests.ledger.client import Options, Stop, read_options

LOOK_SECONDS = 0.02
PERSISTENT = 2


class Publisher:
    """Publishes until it is stopped, over as many connections as it takes."""

    def __init__(self, options: Options, stop: Stop) -> None:
        self._options = options
        self._stop = stop
        self._book = Book(options.book)
        self._chance = random.Random(options.seed)
        self._next = 0
        self._waiting: dict[int, tuple[int, bytes]] = {}  # delivery tag -> number and body
        self._tag = 0  # the last delivery tag of this channel
        self._connection: Any = None
        self._channel: Any = None

    def run(self) -> None:
        """Publish; when stopped, wait for the last confirms."""
        while not self._done():
            parameters = pika.ConnectionParameters(
                "127.0.0.1", self._options.port, connection_attempts=1, socket_timeout=5
            )
            self._connection = SelectConnection(
                parameters,
                on_open_callback=self._on_open,
                on_open_error_callback=self._on_open_error,
                on_close_callback=self._on_close,
            )
            try:
                self._connection.ioloop.start()
            except OSError as error:
                # Seldom, pika's loop fails over the sockets that it wakes itself with.
                self._lost(str(error))
            if not self._done():
                self._stop.pause()

    def _done(self) -> bool:
        return self._stop.asked and not self._waiting

    # --- connection -----------------------------------------------------------------------------

    def _on_open(self, connection: Any) -> None:
        connection.channel(on_open_callback=self._on_channel)

    def _on_open_error(self, connection: Any, error: object) -> None:
        connection.ioloop.stop()

    def _on_channel(self, channel: Any) -> None:
        self._channel = channel
        self._tag = 0
        channel.confirm_delivery(self._on_confirm, callback=self._on_confirms_selected)

    def _on_confirms_selected(self, frame: object) -> None:
        self._book.write(What.CONNECTED, self._options.name)
        waiting, self._waiting = self._waiting, {}
        for number, body in waiting.values():
            self._publish(number, body)
        self._fill_window()
        self._look()

    def _on_close(self, connection: Any, reason: object) -> None:
        self._lost(str(reason))
        connection.ioloop.stop()

    def _lost(self, reason: str) -> None:
        if self._channel is not None:
            self._channel = None
            for number, _ in self._waiting.values():
                self._book.write(What.UNKNOWN, self._options.name, number)
            self._book.write(What.DISCONNECTED, self._options.name, note=reason)

    def _look(self) -> None:
        """Whether it is time to end."""
        if self._done():
            self._channel = None
            self._connection.close()
        elif self._channel is not None:
            self._connection.ioloop.call_later(LOOK_SECONDS, self._look)

    # --- publishing -----------------------------------------------------------------------------

    def _publish(self, number: int, body: bytes) -> None:
        self._tag += 1
        self._waiting[self._tag] = number, body
        self._book.write(What.SENT, self._options.name, number)
        self._channel.basic_publish(
            self._options.topic,
            f"amqp.{self._options.name}",
            body,
            pika.BasicProperties(delivery_mode=PERSISTENT),
        )

    def _fill_window(self) -> None:
        while not self._stop.asked and len(self._waiting) < self._options.window:
            body = make_body(self._options.name, self._next, self._chance)
            self._publish(self._next, body)
            self._next += 1

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        tags = [method.delivery_tag]
        if method.multiple:
            tags = [tag for tag in self._waiting if tag <= method.delivery_tag]
        what = What.ACKED if isinstance(method, pika.spec.Basic.Ack) else What.REFUSED
        for tag in tags:
            self._book.write(what, self._options.name, self._waiting.pop(tag)[0])
        self._fill_window()


if __name__ == "__main__":
    logging.getLogger("pika").setLevel(logging.CRITICAL)
    Publisher(read_options(), Stop()).run()
