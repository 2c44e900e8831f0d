"""The operator's listener: metrics, health, and who may not come in."""

from __future__ import annotations

import http.client
import json
import socket

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from interop_tests.conftest import Server, StartServer

TOPICS = "/api/v1/topics"


def ask(
    server: Server, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(server.host, server.admin_port, timeout=10)
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content


def metrics(server: Server) -> dict[str, float]:
    status, body = ask(server, "GET", "/metrics")
    assert status == 200
    lines = [line for line in body.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def publish(server: Server, count: int) -> mqtt.Client:
    """Publish and stay connected."""
    client = mqtt.Client(CallbackAPIVersion.VERSION2, reconnect_on_failure=False)
    client.connect(server.host, server.mqtt_port)
    client.loop_start()
    for number in range(count):
        client.publish("metered/x", str(number), qos=1).wait_for_publish(10)
    return client


def test_metrics_count_what_happens(server: Server) -> None:
    before = metrics(server)
    assert before["polymq_messages_stored_total"] == 0
    client = publish(server, 5)
    after = metrics(server)
    assert after["polymq_messages_stored_total"] == 5
    assert after["polymq_topics"] == 1
    assert after['polymq_connections{protocol="mqtt"}'] == 1
    assert after["polymq_log_flushed_bytes_total"] > before["polymq_log_flushed_bytes_total"]
    assert after["polymq_read_only"] == 0
    assert after["polymq_bugs_total"] == 0
    client.disconnect()
    client.loop_stop()


def test_metrics_count_what_http_clients_are_answered(server: Server) -> None:
    """Published, refused in words, and a request that is no HTTP."""
    for headers, status in (
        ({}, 204),
        ({"ce-id": "1"}, 400),
        (
            {
                "ce-specversion": "1.0",
                "ce-id": "1",
                "ce-source": "/s",
                "ce-type": "t",
                "ce-expirytime": "0000-01-01T00:00:00Z",
            },
            400,
        ),
        ({"ce-id": "x" * 9_000}, 431),
    ):
        connection = http.client.HTTPConnection(server.host, server.http_port, timeout=10)
        connection.request("POST", "/topics/counted", b"x", headers)
        assert connection.getresponse().status == status
        connection.close()
    found = metrics(server)
    assert found['polymq_http_responses_total{status="204"}'] == 1
    assert found['polymq_http_responses_total{status="400"}'] == 2
    assert found['polymq_http_responses_total{status="431"}'] == 1
    assert found['polymq_http_refused_total{reason="malformed"}'] == 1
    assert found['polymq_http_refused_total{reason="full"}'] == 0
    assert found["polymq_bugs_total"] == 0


def test_metrics_are_at_the_http_port_too(server: Server) -> None:
    connection = http.client.HTTPConnection(server.host, server.http_port, timeout=10)
    connection.request("GET", "/metrics")
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    assert answer.status == 200
    assert answer.headers["Content-Type"].startswith("text/plain")
    assert "polymq_topics 0.0" in body


def test_health(server: Server) -> None:
    status, body = ask(server, "GET", "/health")
    assert status == 200
    assert json.loads(body)["status"] == "ok"


def test_only_names_of_this_machine_are_let_in(server: Server) -> None:
    """A page that binds its own name to 127.0.0.1 comes with that name as the host."""
    for host in ("localhost", "127.0.0.1", "[::1]", "localhost:9464", "[::1]:9464"):
        assert ask(server, "GET", TOPICS, Host=host)[0] == 200, host
    for host in ("evil.example", "evil.example:9464", "127.0.0.1.evil.example", "", "[x"):
        status, body = ask(server, "GET", TOPICS, Host=host)
        assert status in (400, 403), host
        assert "items" not in body.decode()


def test_changes_need_what_pages_cannot_send(server: Server) -> None:
    """A page may send a form to another origin by POST; for all else a browser asks first, and is
    not answered."""
    clear = "/api/v1/mqtt/retained/clear"
    form = {"Content-Type": "text/plain"}
    for headers, expected in (
        ({}, 403),
        (form, 403),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 403),
        ({"X-PolyMQ-Admin": "test"}, 200),
        (form | {"X-PolyMQ-Admin": "test"}, 200),
        ({"Content-Type": "application/json"}, 200),
    ):
        status, body = ask(server, "POST", clear, b'{"filter": "#"}', **headers)
        assert status == expected, (headers, body)
    asking = {"Origin": "https://evil.example", "Access-Control-Request-Method": "PUT"}
    assert ask(server, "OPTIONS", f"{TOPICS}/t", None, **asking)[0] == 405
    assert ask(server, "PUT", f"{TOPICS}/t")[0] == 201
    assert ask(server, "PUT", f"{TOPICS}/t")[0] == 200


def test_a_senseless_number_of_queues_is_refused(server: Server) -> None:
    for count in (b"0", b"-1", b'"x"', b"100000", b"1.5", b"true"):
        status, body = ask(server, "PUT", f"{TOPICS}/t", b'{"queues": %s}' % count)
        assert status == 400, count
        assert "queues" in json.loads(body)["detail"]


def test_what_was_served_before_the_api_is_not_there(server: Server) -> None:
    for path in ("/topics", "/users", "/permissions", "/store", "/replication", "/mqtt/clients"):
        assert ask(server, "GET", path)[0] == 404, path


def test_the_listener_can_be_left_closed(start_server: StartServer) -> None:
    server = start_server(**{"admin.enabled": False, "amqp.enabled": False})
    assert server.admin_port == 0
    assert server.amqp_port == 0
    client = publish(server, 1)
    client.disconnect()
    client.loop_stop()


def test_what_is_no_request_is_answered_and_not_logged(server: Server) -> None:
    """Whoever types a name that is too long, or speaks another protocol, meets no bug of ours."""
    status, body = ask(server, "GET", f"{TOPICS}/" + 9_000 * "a")
    assert (status, json.loads(body)["detail"]) == (
        414,
        "the path and query, or a header, exceed 8190 bytes",
    )
    with socket.create_connection((server.host, server.admin_port), timeout=10) as connection:
        connection.sendall(b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00\r\n\r\n")
        assert b" 400 Bad Request" in connection.recv(100)
    assert metrics(server)["polymq_bugs_total"] == 0
    assert [event for event in server.log_events() if event["level"] == "error"] == []
