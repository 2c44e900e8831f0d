"""Receives from a durable queue through pika, and acks each message by itself."""

from __future__ import annotations

import logging
from typing import Any

import pika
import pika.exceptions
from pika.adapters.blocking_connection import BlockingConnection

from interop_tests.ledger.bodies import Corrupt, read_body
from interop_tests.ledger.books import Book, What
from interop_tests.ledger.client import Options, Stop, read_options

LOOK_SECONDS = 0.05
PREFETCH_COUNT = 500


class Consumer:
    """Consumes until it is stopped, over as many connections as it takes."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._book = Book(options.book)

    def run(self, stop: Stop) -> None:
        """Receive until stopped; with `declare_only`, until the queue is bound."""
        parameters = pika.ConnectionParameters(
            "127.0.0.1", self._options.port, connection_attempts=1, socket_timeout=5
        )
        while not stop.asked:
            try:
                connection = BlockingConnection(parameters)
                if self._converse(connection, stop):
                    connection.close()
                    return
            except (pika.exceptions.AMQPError, OSError) as error:
                self._book.write(What.DISCONNECTED, self._options.name, note=repr(error))
                stop.pause()

    def _converse(self, connection: Any, stop: Stop) -> bool:
        """Consume on this connection. True when there is nothing more to do."""
        channel = connection.channel()
        name, exchange = self._options.name, self._options.topic
        channel.exchange_declare(exchange, "topic", durable=True)
        channel.queue_declare(name, durable=True)
        channel.queue_bind(name, exchange, "#")
        self._book.write(What.READY, name)
        if self._options.declare_only:
            return True
        channel.basic_qos(prefetch_count=PREFETCH_COUNT)
        channel.basic_consume(name, self._on_message)
        self._book.write(What.CONNECTED, name)
        while not stop.asked:
            connection.process_data_events(LOOK_SECONDS)
        return True

    def _on_message(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        try:
            publisher, number = read_body(body)
        except Corrupt as error:
            self._book.write(What.CORRUPT, self._options.name, note=str(error))
            return
        self._book.write(What.GOT, publisher, number, "again" if method.redelivered else "")
        channel.basic_ack(method.delivery_tag)


if __name__ == "__main__":
    logging.getLogger("pika").setLevel(logging.CRITICAL)
    Consumer(read_options()).run(Stop())
