"""Servers with further MQTT listeners, and clients of them."""

from __future__ import annotations

import json
import queue
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from interop_tests.conftest import Server, StartServer

SECONDS = 20
ONE_LINE_CODES = (2, 71)


def start_with(start_server: StartServer, *listeners: dict[str, Any], **options: object) -> Server:
    """A server with these listeners."""
    return start_server(**{"mqtt.listeners": json.dumps(listeners), **options})


def addresses(server: Server) -> dict[str, Any]:
    """Port or path of each further listener, from the ready file."""
    ready = json.loads((server.data_directory.parent / "ready.json").read_text(encoding="utf-8"))
    found: dict[str, Any] = ready.get("mqtt_listeners") or {}
    return found


def refusal(start_server: StartServer, *listeners: object, **options: object) -> str:
    """The one line of a server that does not start with these."""
    server = start_server(
        ready=False, **{"mqtt.listeners": json.dumps(listeners), "log.format": "json", **options}
    )
    assert server.process.wait(SECONDS) in ONE_LINE_CODES
    lines = server.log_lines()
    assert len(lines) == 1, lines
    return lines[0]


def until(server: Server, condition: Callable[[], object]) -> None:
    """Wait for something that the server does in a moment."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        assert not server.ended_within(0.02)


class Client:
    """A paho client that keeps what comes."""

    def __init__(
        self, client_id: str = "", *, version: MQTTProtocolVersion = paho.MQTTv311, **more: Any
    ) -> None:
        clean = None if version == paho.MQTTv5 else True
        self.paho = paho.Client(
            CallbackAPIVersion.VERSION2, client_id, protocol=version, clean_session=clean, **more
        )
        self.messages: queue.Queue[tuple[str, bytes]] = queue.Queue()
        self.codes: queue.Queue[Any] = queue.Queue()
        self.granted: queue.Queue[Any] = queue.Queue()
        self.paho.on_connect = lambda *values: self.codes.put(values[3])
        self.paho.on_subscribe = lambda *values: self.granted.put(values[3])
        self.paho.on_message = lambda _client, _data, message: self.messages.put(
            (message.topic, bytes(message.payload))
        )

    def connect(self, address: int | str) -> str:
        """The name of the reason code."""
        if isinstance(address, str):
            self.paho.connect(address)
        else:
            self.paho.connect("localhost" if self.paho._ssl_context else "127.0.0.1", address)
        self.paho.loop_start()
        return str(self.codes.get(timeout=SECONDS))

    def subscribe(self, *filters: str) -> None:
        self.paho.subscribe([(each, 1) for each in filters])
        for code in self.granted.get(timeout=SECONDS):
            assert code.value < 3, code

    def publish(self, topic: str, body: bytes = b"x", **more: Any) -> None:
        self.paho.publish(topic, body, qos=1, **more).wait_for_publish(SECONDS)

    def message(self) -> tuple[str, bytes]:
        return self.messages.get(timeout=SECONDS)

    def close(self) -> None:
        self.paho.disconnect()
        self.paho.loop_stop()


@contextmanager
def connected(address: int | str, client_id: str = "", **more: Any) -> Iterator[Client]:
    """A client that is connected until the end of the block."""
    user, password = more.pop("user", None), more.pop("password", None)
    tls: ssl.SSLContext | None = more.pop("tls", None)
    url_path = more.pop("url_path", None)
    client = Client(client_id, **more)
    if url_path is not None:
        client.paho.ws_set_options(url_path)
    if user is not None:
        client.paho.username_pw_set(user, password)
    if tls is not None:
        client.paho.tls_set_context(tls)
    try:
        assert client.connect(address) == "Success"
        yield client
    finally:
        client.close()


def connect_code(address: int | str, **more: Any) -> str:
    """How a CONNECT is answered."""
    user, password = more.pop("user", None), more.pop("password", None)
    tls: ssl.SSLContext | None = more.pop("tls", None)
    client = Client("c", reconnect_on_failure=False, **more)
    if user is not None:
        client.paho.username_pw_set(user, password)
    if tls is not None:
        client.paho.tls_set_context(tls)
    try:
        return client.connect(address)
    finally:
        client.close()


def client_tls(authority: Path, pair: tuple[Path, Path] | None = None) -> ssl.SSLContext:
    """Of a client that trusts the authority, with a certificate and key or without."""
    context = ssl.create_default_context(cafile=str(authority))
    if pair is not None:
        context.load_cert_chain(*pair)
    return context
