"""Receives from an HTTP subscription by long polls, and acknowledges what it received."""

from __future__ import annotations

import base64
import http.client
import json
from typing import Any

from interop_tests.ledger.bodies import Corrupt, read_body
from interop_tests.ledger.books import Book, What
from interop_tests.ledger.client import Options, Stop, read_options

ANSWER_SECONDS_MAX = 20.0
POLL_SECONDS = 1
EVENTS_PER_POLL = 500


class Refused(Exception):
    """The server answered with an error."""


class Consumer:
    """Receives until it is stopped, over as many connections as it takes."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._book = Book(options.book)
        self._connection: http.client.HTTPConnection
        path = f"/topics/{options.topic}/subscriptions/{options.name}"
        self._receive_path = (
            f"{path}:receive?maxEvents={EVENTS_PER_POLL}&maxWaitTime={POLL_SECONDS}"
        )
        self._acknowledge_path = f"{path}:acknowledge"

    def run(self, stop: Stop) -> None:
        """Receive until stopped; with `declare_only`, until the subscription is there."""
        name = self._options.name
        while not stop.asked:
            self._connection = http.client.HTTPConnection(
                "127.0.0.1", self._options.port, timeout=ANSWER_SECONDS_MAX
            )
            try:
                self._connection.connect()
                self._book.write(What.CONNECTED, name)
                self._ask("PUT", f"/subscriptions/{name}", {"topic": self._options.topic})
                self._book.write(What.READY, name)
                if self._options.declare_only:
                    return
                self._receive_until(stop)
                return
            except Refused as error:
                self._book.write(What.REFUSED, name, note=str(error))
                stop.pause()
            except (OSError, http.client.HTTPException) as error:
                self._book.write(What.DISCONNECTED, name, note=repr(error))
                stop.pause()
            finally:
                self._connection.close()

    def _receive_until(self, stop: Stop) -> None:
        while not stop.asked:
            self._receive()

    def _receive(self) -> None:
        """One poll, and the acknowledgement of what it brought."""
        tokens = []
        for received in self._ask("POST", self._receive_path)["value"]:
            tokens.append(received["brokerProperties"]["lockToken"])
            self._note(received["event"], received["brokerProperties"]["deliveryCount"])
        if tokens:
            outcome = self._ask("POST", self._acknowledge_path, {"lockTokens": tokens})
            if outcome["failedLockTokens"]:
                raise Refused(f"{outcome['failedLockTokens'][0]}")

    def _note(self, event: dict[str, Any], delivery_count: int) -> None:
        try:
            publisher, number = read_body(_body_of(event))
        except Corrupt as error:
            self._book.write(What.CORRUPT, self._options.name, note=str(error))
            return
        self._book.write(What.GOT, publisher, number, "again" if delivery_count > 1 else "")

    def _ask(self, method: str, path: str, value: object = None) -> dict[str, Any]:
        body = None if value is None else json.dumps(value)
        self._connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        text = answer.read()
        if not 200 <= answer.status < 300:
            raise Refused(f"{method} {path}: {answer.status} {text.decode(errors='replace')}")
        parsed: dict[str, Any] = json.loads(text)
        return parsed


def _body_of(event: dict[str, Any]) -> bytes:
    """The data of a CloudEvent in JSON (JSON Event Format 3.1.1)."""
    if "data_base64" in event:
        return base64.b64decode(event["data_base64"], validate=True)
    data = event.get("data", "")
    return data.encode() if isinstance(data, str) else json.dumps(data).encode()


if __name__ == "__main__":
    Consumer(read_options()).run(Stop())
