"""A flood of wrong logins from one address, while others log in from another."""

from __future__ import annotations

import http.client
import re
import socket
import urllib.request

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from interop_tests import mqtt_wire as wire
from interop_tests.conftest import Server
from interop_tests.people import PASSWORD, SECONDS, Admin, basic

FLOOD = 400
HONEST = "127.0.0.9"


@pytest.fixture
def peopled(server: Server) -> Server:
    """A server with some users, none of whom has logged in."""
    admin = Admin(server)
    for number in range(5):
        admin.add(f"user{number}")
        admin.allow(f"user{number}", "publish,create", "news.#")
    return server


def metric(server: Server, name: str) -> float:
    url = f"http://{server.host}:{server.admin_port}/metrics"
    with urllib.request.urlopen(url, timeout=30) as answer:
        found = re.search(rf"^{name} (\S+)$", answer.read().decode(), re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def mqtt_code(server: Server, user: str) -> int:
    """CONNACK's code for the right password, from the honest address."""
    codes: list[int] = []
    client = mqtt.Client(CallbackAPIVersion.VERSION2, reconnect_on_failure=False)
    client.on_connect = lambda _c, _u, _f, code, _p: codes.append(code.value)
    client.username_pw_set(user, PASSWORD)
    client.connect(server.host, server.mqtt_port, bind_address=HONEST)
    while not codes:
        assert client.loop(SECONDS) == 0
    client.disconnect()
    return codes[0]


def http_status(server: Server, user: str) -> int:
    connection = http.client.HTTPConnection(
        server.host, server.http_port, timeout=SECONDS, source_address=(HONEST, 0)
    )
    headers = {"Authorization": basic(user), "Content-Type": "text/plain"}
    connection.request("POST", "/topics/news", body=b"x", headers=headers)
    status = connection.getresponse().status
    connection.close()
    return status


@pytest.mark.slow
def test_a_flood_of_wrong_logins_keeps_no_other_address_out(peopled: Server) -> None:
    """Right logins from another address are let in while hundreds wait, over MQTT and HTTP. What
    does not fit is refused at once, in the protocol's way."""
    server = peopled
    flood = []
    for number in range(FLOOD):
        one = socket.create_connection((server.host, server.mqtt_port), timeout=SECONDS)
        one.sendall(wire.connect(client_id=f"f{number}", user=f"nobody{number}", password=b"x"))
        flood.append(one)
    refused = flood[-1].recv(4)
    assert refused == b"\x20\x02\x00\x03"  # server unavailable
    assert [mqtt_code(server, f"user{number}") for number in range(3)] == [0, 0, 0]
    assert [http_status(server, f"user{number}") for number in (3, 4)] == [204, 204]
    # Not because the flood was over.
    assert metric(server, "polymq_logins_waiting") > 20
    assert metric(server, "polymq_logins_refused_total") >= 100
    for one in flood:
        one.close()


def test_logins_of_connections_that_have_gone_are_not_checked(peopled: Server) -> None:
    """The line is empty as soon as the sockets are closed, and few of the logins are failures."""
    server, count = peopled, 250
    flood = []
    for number in range(count):
        one = socket.create_connection((server.host, server.mqtt_port), timeout=SECONDS)
        one.sendall(wire.connect(client_id=f"f{number}", user=f"nobody{number}", password=b"x"))
        flood.append(one)
    for one in flood:
        one.close()
    while metric(server, "polymq_logins_waiting"):
        pass
    assert metric(server, "polymq_login_failures_total") < count / 2
    assert metric(server, "polymq_logins_refused_total") == 0
    assert mqtt_code(server, "user0") == 0
