"""Real clients over TLS, at the ports that the configuration opens for it.

The certificates in `certificates/` were made for this: an authority whose key is gone, and what it
signed for this machine and for a client, valid until 2120 (one expired in 2021).
"""

from __future__ import annotations

import json
import socket
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pika
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from interop_tests.conftest import Server, StartServer

FILES = Path(__file__).parent / "certificates"
SECONDS_MAX = 20.0
TLS = {
    "tls.certificate": FILES / "server.pem",
    "tls.key": FILES / "server.key",
    "mqtt.tls_port": 0,
    "amqp.tls_port": 0,
    "http.tls_port": 0,
    "rocketmq.tls_port": 0,
}


def logged_ports(server: Server) -> dict[str, int | None]:
    """What the server wrote of itself: None where a listener is closed."""
    found: dict[str, int | None] = json.loads((server.data_directory / "server.json").read_text())
    return found


def ports_of(server: Server) -> dict[str, int]:
    """Those of the open listeners."""
    return {listener: port for listener, port in logged_ports(server).items() if port is not None}


def client_context(*, with_certificate: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(FILES / "ca.pem"))
    if with_certificate:
        context.load_cert_chain(FILES / "client.pem", FILES / "client.key")
    return context


def amqp_connection(port: int, context: ssl.SSLContext) -> Any:
    return pika.BlockingConnection(
        pika.ConnectionParameters(
            "127.0.0.1", port, ssl_options=pika.SSLOptions(context, "localhost")
        )
    )


def mqtt_publish(port: int, topic: str, body: bytes, *, with_certificate: bool = False) -> None:
    client = paho.Client(CallbackAPIVersion.VERSION2)
    client.tls_set_context(client_context(with_certificate=with_certificate))
    client.connect("localhost", port)
    client.loop_start()
    try:
        client.publish(topic, body, qos=1).wait_for_publish(SECONDS_MAX)
    finally:
        client.disconnect()
        client.loop_stop()


def http_publish(port: int, context: ssl.SSLContext, body: bytes) -> int:
    request = urllib.request.Request(
        f"https://127.0.0.1:{port}/topics/secret",
        data=body,
        headers={"content-type": "text/plain", "polymq-tag": "http"},
    )
    with urllib.request.urlopen(request, timeout=SECONDS_MAX, context=context) as answer:
        return int(answer.status)


@pytest.mark.slow
def test_all_three_protocols_beside_their_plain_ports(start_server: StartServer) -> None:
    """One queue gets what came over each; also a message of many TLS records; and the server stops
    in order with the clients still there."""
    server = start_server(**TLS)
    ports, context = ports_of(server), client_context()
    connection = amqp_connection(ports["amqps"], context)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("q", durable=True)
    channel.queue_bind("q", "amq.topic", "secret.#")
    large = b"x" * 1_000_000
    channel.basic_publish("amq.topic", "secret.amqp", large)
    mqtt_publish(ports["mqtts"], "secret/mqtt", b"mqtt")
    assert http_publish(ports["https"], context, b"http") < 300
    bodies = []
    for _, _, body in channel.consume("q", auto_ack=True, inactivity_timeout=SECONDS_MAX):
        bodies.append(body)
        if len(bodies) == 3:
            break
    assert bodies == [large, b"mqtt", b"http"]
    plain = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", ports["amqp"]))
    plain.close()
    assert server.terminate() == 0
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        connection.process_data_events(SECONDS_MAX)  # it learns that the server went, and closes


def test_only_tls_and_only_clients_with_a_certificate(start_server: StartServer) -> None:
    """No plain port is open; a client without a certificate, or one that speaks plain, gets
    nowhere, and the others go on."""
    server = start_server(
        **TLS,
        **{"tls.client_ca": FILES / "ca.pem"},
        **{f"{name}.plain": False for name in ("mqtt", "amqp", "http")},
    )
    ports = ports_of(server)
    reported = logged_ports(server)
    assert [reported[name] for name in ("mqtt", "amqp", "http")] == [None, None, None]
    with pytest.raises((ssl.SSLError, urllib.error.URLError, ConnectionError)):
        http_publish(ports["https"], client_context(), b"x")
    with socket.create_connection(("127.0.0.1", ports["amqps"]), SECONDS_MAX) as raw:
        raw.sendall(b"AMQP\x00\x00\x09\x01" * 3)
        raw.settimeout(SECONDS_MAX)
        while raw.recv(1024):
            pass
    with_one = client_context(with_certificate=True)
    assert http_publish(ports["https"], with_one, b"x") < 300
    amqp_connection(ports["amqps"], with_one).close()
    mqtt_publish(ports["mqtts"], "a/b", b"x", with_certificate=True)


def test_a_certificate_that_expired_is_a_warning(start_server: StartServer) -> None:
    files = {"tls.certificate": FILES / "expired.pem", "tls.key": FILES / "expired.key"}
    server = start_server(**{**TLS, **files})
    assert any("expired on 2021-01-01" in line for line in server.log_lines())
    with pytest.raises(urllib.error.URLError, match="expired"):
        http_publish(ports_of(server)["https"], client_context(), b"x")
