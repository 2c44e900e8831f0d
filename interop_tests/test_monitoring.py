"""The listener for monitoring: who may ask, what is said about readiness, and what real clients of
all protocols leave in the metrics."""

from __future__ import annotations

import base64
import http.client
import json
import signal
import ssl
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pika
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from interop_tests.conftest import Server, StartServer
from interop_tests.people import Admin, polymq
from interop_tests.remoting_wire import Client

FILES = Path(__file__).parent / "certificates"
OPEN = {"metrics.enabled": True, "metrics.port": 0}
SECONDS_MAX = 20.0
HEALTH = ("/health/live", "/health/ready", "/health/startup")


def port_of(server: Server) -> int:
    """Of the listener for monitoring."""
    found: int = json.loads((server.data_directory / "server.json").read_text())["metrics"]
    return found


def ask(
    server: Server,
    path: str,
    *,
    method: str = "GET",
    port: int = 0,
    tls: ssl.SSLContext | None = None,
    login: str = "",
    host: str = "",
) -> tuple[int, bytes]:
    """Status and body."""
    where = (server.host, port or port_of(server))
    connection: http.client.HTTPConnection
    if tls is None:
        connection = http.client.HTTPConnection(*where, timeout=SECONDS_MAX)
    else:
        connection = http.client.HTTPSConnection("localhost", where[1], context=tls, timeout=20)
    headers = {"Host": host} if host else {}
    if login:
        headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
    with closing(connection):
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()


def metrics(server: Server) -> dict[str, float]:
    """All series, with their labels as Prometheus shows them."""
    status, body = ask(server, "/metrics")
    assert status == 200
    lines = [line for line in body.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


@contextmanager
def amqp_channel(server: Server) -> Iterator[Any]:
    """A channel with confirms."""
    connection = pika.BlockingConnection(pika.ConnectionParameters(server.host, server.amqp_port))
    try:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel
    finally:
        connection.close()


# --- who may ask ----------------------------------------------------------------------------------


def test_the_listener_is_closed_unless_it_is_asked_for(server: Server) -> None:
    assert port_of(server) is None
    status, body = ask(server, "/health/ready", port=server.admin_port)
    assert (status, json.loads(body)) == (200, {"status": "ok"}), "this machine may ask in any case"


def test_it_has_metrics_and_health_and_nothing_else(start_server: StartServer) -> None:
    """Under any name by which other machines know this one, and nothing that changes a server."""
    server = start_server(**OPEN)
    assert b"polymq_readers{" in ask(server, "/metrics", host="broker.example")[1]
    for path in HEALTH:
        status, body = ask(server, path)
        assert (status, json.loads(body)) == (200, {"status": "ok"})
    for path in ("/health", "/topics", "/store", "/queues", "/users", "/"):
        assert ask(server, path)[0] == 404
    for method in ("POST", "PUT", "DELETE"):
        assert ask(server, "/metrics", method=method)[0] == 405


def test_metrics_may_need_a_login(start_server: StartServer, tmp_path: Path) -> None:
    """Of any user, who needs no permission; probes of Kubernetes have no login."""
    server = start_server(**OPEN, **{"metrics.login": True})
    assert ask(server, "/metrics", login="ann:secret-4-ann-77")[0] == 401, "there are no users"
    secret = tmp_path / "secret"
    secret.write_text("secret-4-ann-77\n", encoding="utf-8")
    secret.chmod(0o600)
    added = polymq(server, "user", "add", "ann", "--password-file", str(secret))
    assert added.returncode == 0, added.stderr
    status, body = ask(server, "/metrics")
    assert status == 401
    assert b"log in" in body
    assert ask(server, "/metrics", login="ann:wrong")[0] == 401
    assert ask(server, "/metrics", login="ann:secret-4-ann-77")[0] == 200
    assert ask(server, "/health/ready")[0] == 200


def test_tls(start_server: StartServer) -> None:
    files = {"tls.certificate": FILES / "server.pem", "tls.key": FILES / "server.key"}
    ports = {f"{name}.tls_port": 0 for name in ("mqtt", "amqp", "http", "rocketmq")}
    server = start_server(**OPEN, **files, **ports, **{"metrics.tls": True})
    context = ssl.create_default_context(cafile=str(FILES / "ca.pem"))
    assert ask(server, "/health/live", tls=context)[0] == 200
    with pytest.raises((http.client.HTTPException, OSError)):
        ask(server, "/health/live")


def test_tls_needs_a_certificate(start_server: StartServer) -> None:
    server = start_server(ready=False, **OPEN, **{"metrics.tls": True})
    assert server.process.wait(SECONDS_MAX) == 2
    said = "\n".join(server.log_lines())
    assert "metrics.tls is true, but there is no certificate" in said
    assert "Traceback" not in said


# --- health ---------------------------------------------------------------------------------------


def test_a_server_that_stops_is_not_ready(start_server: StartServer) -> None:
    """Kubernetes sends no more clients there, and does not kill it: it lives until it has ended."""
    server = start_server(**OPEN, **{"server.drain_seconds": 60})
    where = (server.host, port_of(server))
    monitor = http.client.HTTPConnection(*where, timeout=SECONDS_MAX)
    monitor.request("GET", "/health/ready")
    assert monitor.getresponse().read() == b'{"status": "ok"}'
    slow = http.client.HTTPConnection(server.host, server.http_port, timeout=SECONDS_MAX)
    slow.putrequest("POST", "/topics/t")
    slow.putheader("Content-Length", "4")
    slow.endheaders(b"ab")  # the server waits for the rest, or for this client to go
    assert metrics(server)['polymq_connections{protocol="http"}'] == 1
    server.process.send_signal(signal.SIGTERM)
    statuses: set[tuple[str, int]] = set()
    while ("/health/ready", 503) not in statuses:
        for path in HEALTH:
            monitor.request("GET", path)
            answer = monitor.getresponse()
            answer.read()
            statuses.add((path, answer.status))
    assert ("/health/live", 503) not in statuses
    assert ("/health/startup", 503) not in statuses
    monitor.close()
    slow.close()
    assert server.process.wait(SECONDS_MAX) == 0


# --- what clients leave ---------------------------------------------------------------------------


def test_messages_and_bytes_of_each_protocol(start_server: StartServer) -> None:
    server = start_server(**OPEN)
    client = mqtt.Client(CallbackAPIVersion.VERSION2, reconnect_on_failure=False)
    client.connect(server.host, server.mqtt_port)
    client.loop_start()
    for number in range(3):
        client.publish("metered/x", str(number), qos=1).wait_for_publish(10)
    client.disconnect()
    client.loop_stop()
    with amqp_channel(server) as channel:
        channel.queue_declare("q", durable=True)
        for _ in range(5):
            channel.basic_publish("", "q", b"x" * 1000)
        assert channel.basic_get("q", auto_ack=True)[2] == b"x" * 1000
    web = http.client.HTTPConnection(server.host, server.http_port, timeout=SECONDS_MAX)
    for _ in range(2):
        web.request("POST", "/topics/metered", b"y" * 500)
        assert web.getresponse().read() == b""
    web.close()
    with Client(server.host, server.rocketmq_port) as producer:
        for _ in range(4):
            producer.publish("orders", b"z" * 500)
        assert len(producer.pull("orders")[1]) == 4
    found = metrics(server)
    counted = {
        (protocol, direction): found[
            f'polymq_protocol_messages_total{{direction="{direction}",protocol="{protocol}"}}'
        ]
        for protocol in ("mqtt", "amqp", "http", "rocketmq")
        for direction in ("received", "sent")
    }
    assert counted == {
        ("mqtt", "received"): 3,
        ("mqtt", "sent"): 0,
        ("amqp", "received"): 5,
        ("amqp", "sent"): 1,
        ("http", "received"): 2,
        ("http", "sent"): 0,
        ("rocketmq", "received"): 4,
        ("rocketmq", "sent"): 4,
    }
    for protocol, least in (("amqp", 5000), ("http", 1000), ("mqtt", 3), ("rocketmq", 2000)):
        name = f'polymq_protocol_bytes_total{{direction="received",protocol="{protocol}"}}'
        assert least < found[name] < least + 5000
    assert found["polymq_commit_seconds_count"] >= 10
    assert found["polymq_log_flush_seconds_count"] >= 5


def test_a_backlog_shows_with_its_name_if_that_is_wanted(start_server: StartServer) -> None:
    """What waits, what is with a consumer, and for how long; over a restart as well."""
    server = start_server(**OPEN, **{"metrics.per_object": True, "metrics.objects_max": 1})
    with amqp_channel(server) as channel:
        for queue, count in (("small", 1), ("large", 4)):
            channel.queue_declare(queue, durable=True)
            for _ in range(count):
                channel.basic_publish("", queue, b"x", pika.BasicProperties(delivery_mode=2))
        channel.basic_get("large")
        found = metrics(server)
        labels = '{kind="amqp_queue",name="large",topic=""}'
        assert found[f"polymq_object_lag_messages{labels}"] == 3
        assert found[f"polymq_object_unacknowledged_messages{labels}"] == 1
        assert found['polymq_objects_left_out{kind="amqp_queue"}'] == 1
        assert found['polymq_reader_lag_messages{kind="amqp_queue"}'] == 4
    before = found['polymq_reader_oldest_message_seconds{kind="amqp_queue"}']
    server.restart()
    found = metrics(server)
    assert found['polymq_reader_lag_messages{kind="amqp_queue"}'] == 5
    assert found['polymq_reader_unacknowledged_messages{kind="amqp_queue"}'] == 0
    assert found['polymq_reader_lag_seconds{kind="amqp_queue"}'] > before
    assert found["polymq_reader_ages_unknown"] == 0


def test_banned_addresses_are_closed(start_server: StartServer) -> None:
    """As at every other listener for other machines; the admin listener lets operators undo it."""
    server = start_server(**OPEN)
    people = Admin(server)
    assert ask(server, "/health/live")[0] == 200
    people.good("POST", "/api/v1/bans", {"kind": "address", "value": "127.0.0.0/8"})
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        ask(server, "/health/live")
    people.good("DELETE", people.path("bans", "address", "127.0.0.0/8"))
    assert ask(server, "/health/live")[0] == 200
