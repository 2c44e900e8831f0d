"""Users of a started server, made by its commands; and clients of all listeners that log in."""

from __future__ import annotations

import base64
import http.client
import json
import queue
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import paho.mqtt.client as mqtt
import pika
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from interop_tests.conftest import Server

PASSWORD = "pass-4-ann-9351"
BAD_CREDENTIALS, NOT_AUTHORIZED, REFUSED_FILTER = 134, 135, 128
"""Of MQTT."""
SECONDS = 10
COMMAND_SECONDS = 60


def polymq(
    server: Server, *arguments: str, text: str | None = None
) -> subprocess.CompletedProcess[str]:
    """A command for the server's data directory."""
    return subprocess.run(
        [
            sys.executable, "-m", "polymq", *arguments,
            "--data-directory", str(server.data_directory),
        ],
        input=text,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )  # fmt: skip


class Admin:
    """The operator's listener, by its token: what the commands use, without starting a program."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.authorization = ""

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Status and JSON value of an answer; its bytes if it is a record of the log."""
        token = self.authorization
        if not token:
            file = Path(self.server.data_directory) / "admin.token"
            token = f"Bearer {file.read_text(encoding='ascii').strip()}"
        connection = http.client.HTTPConnection("127.0.0.1", self.server.admin_port, timeout=30)
        headers = {"X-PolyMQ-Admin": "test", "Authorization": token}
        connection.request(
            method, path, body=None if body is None else json.dumps(body), headers=headers
        )
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        if answer.headers.get_content_type() in ("application/json", "application/problem+json"):
            return answer.status, json.loads(content)
        return answer.status, content or None

    def content(self, method: str, path: str, body: object = None) -> bytes:
        """The content of a good answer that is not JSON."""
        status, content = self.ask(method, path, body)
        assert status == 200, content
        return content or b""

    @staticmethod
    def path(*parts: str) -> str:
        """The path of an object of the API, by its names."""
        return "/api/v1" + "".join(f"/{quote(part, safe='')}" for part in parts)

    def good(self, method: str, path: str, body: object = None) -> Any:
        status, value = self.ask(method, path, body)
        assert status < 300, value
        return value

    def add(self, name: str, *roles: str, password: str = PASSWORD) -> None:
        self.good(
            "PUT", f"/api/v1/users/{quote(name)}", {"password": password, "roles": list(roles)}
        )

    def change(self, name: str, **changes: object) -> None:
        self.good("PATCH", f"/api/v1/users/{name}", changes)

    def allow(self, subject: str, actions: str, topic: str, effect: str = "allow") -> None:
        body = {"effect": effect, "subject": subject, "actions": actions.split(","), "topic": topic}
        self.good("POST", "/api/v1/permissions", body)

    def forget(self, rule: Mapping[str, str]) -> None:
        """Remove rules of both effects."""
        query = {"subject": rule["subject"], "actions": rule["action"], "topic": rule["topic"]}
        self.good("DELETE", f"/api/v1/permissions?{urlencode(query)}")

    def deny(self, subject: str, actions: str, topic: str) -> None:
        self.allow(subject, actions, topic, "deny")


# --- MQTT ------------------------------------------------------------------------------------


class MqttClient:
    """A paho client that keeps what happens to it."""

    def __init__(
        self,
        server: Server,
        user: str | None = None,
        password: str | None = PASSWORD,
        *,
        client_id: str = "",
        clean: bool = True,
        will: str | None = None,
        port: int | None = None,
    ) -> None:
        self.connected: queue.Queue[int] = queue.Queue()
        self.messages: queue.Queue[tuple[str, bytes]] = queue.Queue()
        self.gone: queue.Queue[int] = queue.Queue()
        self.fates: queue.Queue[int | None] = queue.Queue()
        """Packet ids that were acknowledged, then None when the connection is gone."""
        self.granted: queue.Queue[list[int]] = queue.Queue()
        self.client = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            clean_session=clean,
            reconnect_on_failure=False,
        )
        self.client.on_connect = lambda _c, _u, _f, code, _p: self.connected.put(code.value)
        self.client.on_message = lambda _c, _u, found: self.messages.put(
            (found.topic, bytes(found.payload))
        )
        self.client.on_publish = lambda _c, _u, packet_id, _r, _p: self.fates.put(packet_id)
        self.client.on_disconnect = self._disconnected
        self.client.on_subscribe = lambda _c, _u, _m, codes, _p: self.granted.put(
            [code.value for code in codes]
        )
        if user is not None:
            self.client.username_pw_set(user, password)
        if will is not None:
            self.client.will_set(will, b"gone", qos=1)
        self.client.connect(server.host, port or server.mqtt_port)
        self.client.loop_start()
        self.code = self.connected.get(timeout=SECONDS)
        """CONNACK's, as MQTT 5 numbers it: 0, 134 bad credentials, 135 not authorized."""

    def _disconnected(
        self,
        _client: mqtt.Client,
        _data: object,
        _flags: mqtt.DisconnectFlags,
        code: ReasonCode,
        _properties: Properties | None,
    ) -> None:
        self.gone.put(code.value)
        self.fates.put(None)

    def subscribe(self, pattern: str, qos: int = 1) -> int:
        self.client.subscribe(pattern, qos)
        return self.granted.get(timeout=SECONDS)[0]

    def publish(self, topic: str, body: bytes, qos: int = 1, *, retain: bool = False) -> bool:
        """Whether it was acknowledged, rather than the connection closed."""
        sent = self.client.publish(topic, body, qos, retain=retain)
        while (packet_id := self.fates.get(timeout=SECONDS)) is not None:
            if packet_id == sent.mid:
                return True
        return False

    def next(self) -> tuple[str, bytes]:
        return self.messages.get(timeout=SECONDS)

    def is_asked_to_go(self) -> bool:
        self.gone.get(timeout=SECONDS)
        return True

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


# --- AMQP ------------------------------------------------------------------------------------


def amqp(server: Server, user: str = "ann", password: str = PASSWORD) -> pika.BlockingConnection:
    """A pika connection; raises what pika raises when it is refused."""
    return pika.BlockingConnection(
        pika.ConnectionParameters(
            server.host,
            server.amqp_port,
            credentials=pika.PlainCredentials(user, password),
            socket_timeout=SECONDS,
            blocked_connection_timeout=SECONDS,
        )
    )


# --- HTTP ------------------------------------------------------------------------------------


def basic(user: str, password: str = PASSWORD) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def http_ask(
    server: Server,
    method: str,
    path: str,
    body: bytes | None = None,
    authorization: str | None = None,
    **headers: str,
) -> tuple[int, dict[str, str], Any]:
    """Status, headers and JSON value."""
    connection = http.client.HTTPConnection(server.host, server.http_port, timeout=30)
    if authorization is not None:
        headers["Authorization"] = authorization
    connection.request(method, path, body=body, headers=headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    value = json.loads(content) if content else None
    return answer.status, {k.lower(): v for k, v in answer.getheaders()}, value


def http_publish(
    server: Server, topic: str, tag: str, body: bytes, authorization: str | None = None
) -> int:
    headers = {"PolyMQ-Tag": tag, "Content-Type": "text/plain"}
    return http_ask(server, "POST", f"/topics/{topic}", body, authorization, **headers)[0]


# --- fixtures ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests that do not need one of their own."""
    directory = tmp_path_factory.mktemp("house")
    made = Server(directory, {}, {}, (sys.executable, "-m", "polymq"))
    made.start()
    Admin(made).add("keeper")  # so that there is always a user
    yield made
    made.close(sys.stdout)


@pytest.fixture
def server(house: Server) -> Server:
    """The house, with nobody in it but its keeper."""
    admin = Admin(house)
    for user in admin.good("GET", "/api/v1/users")["items"]:
        if user["name"] != "keeper":
            admin.good("DELETE", f"/api/v1/users/{user['name']}")
    for rule in admin.good("GET", "/api/v1/permissions")["items"]:
        admin.forget(rule)
    return house


@pytest.fixture
def people(server: Server) -> Admin:
    """The operator of the house, with the user ann, who has no rights yet."""
    admin = Admin(server)
    admin.add("ann")
    return admin
