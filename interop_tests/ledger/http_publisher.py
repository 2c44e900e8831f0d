"""Publishes CloudEvents in binary mode over many connections, one request under way on each.

Each connection is a publisher of its own: between requests that are under way together there is no
order. After a lost connection the same event is sent again.
"""

from __future__ import annotations

import http.client
import random
import threading

from interop_tests.ledger.bodies import make_body
from interop_tests.ledger.books import Book, What
from interop_tests.ledger.client import Options, Stop, read_options

ANSWER_SECONDS_MAX = 20.0


class Publisher:
    """One connection's worth of events, in a thread of its own."""

    def __init__(self, options: Options, index: int, book: Book, stop: Stop) -> None:
        self._options = options
        self._name = f"{options.name}-{index}"
        self._book = book
        self._stop = stop
        self._chance = random.Random(options.seed * 1000 + index)
        self._connection: http.client.HTTPConnection | None = None

    def run(self) -> None:
        """Publish until stopped; the event that is under way is brought to its end."""
        number = 0
        while not self._stop.asked:
            body = make_body(self._name, number, self._chance)
            while not self._publish(number, body):
                self._stop.pause()
            number += 1
        if self._connection is not None:
            self._connection.close()

    def _publish(self, number: int, body: bytes) -> bool:
        """Send it once. False if its fate is unknown, or nobody listens."""
        connection = self._connected()
        if connection is None:
            return False
        headers = {
            "ce-specversion": "1.0",
            "ce-id": f"{self._name}/{number}",
            "ce-source": "/ledger",
            "ce-type": f"http.{self._name}",
            "Content-Type": "application/octet-stream",
        }
        self._book.write(What.SENT, self._name, number)
        try:
            connection.request("POST", f"/topics/{self._options.topic}", body, headers)
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException):
            self._book.write(What.UNKNOWN, self._name, number)
            self._book.write(What.DISCONNECTED, self._name)
            connection.close()
            self._connection = None
            return False
        if not 200 <= answer.status < 300:
            note = f"{answer.status} {text.decode(errors='replace')}"
            self._book.write(What.REFUSED, self._name, number, note)
            return False
        self._book.write(What.ACKED, self._name, number)
        return True

    def _connected(self) -> http.client.HTTPConnection | None:
        if self._connection is None:
            connection = http.client.HTTPConnection(
                "127.0.0.1", self._options.port, timeout=ANSWER_SECONDS_MAX
            )
            try:
                connection.connect()
            except OSError:
                return None
            self._connection = connection
            self._book.write(What.CONNECTED, self._name)
        return self._connection


def main() -> None:
    """As many publishers as the window is wide."""
    options, stop = read_options(), Stop()
    book = Book(options.book)
    threads = [
        threading.Thread(target=Publisher(options, index, book, stop).run)
        for index in range(options.window)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
