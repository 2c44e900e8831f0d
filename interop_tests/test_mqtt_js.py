"""MQTT.js in Node over TCP and TLS, with MQTT 3.1.1 and 5: sessions, wills, what is retained,
properties, and a server that is killed. (`test_mqtt_websocket.py` has it over WebSocket.)"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interop_tests.conftest import Server, StartServer
from interop_tests.node import NodeDriver, need_packages
from interop_tests.test_tls import FILES, TLS, ports_of

pytestmark = pytest.mark.slow(seconds=5)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeDriver]:
    with (tmp_path / "node.log").open("w") as log:
        driver = NodeDriver(need_packages("mqtt_js"), log=log)
        yield driver
        driver.close()
    print((tmp_path / "node.log").read_text()[-4000:])


class Clients:
    """Clients of one version, to one listener."""

    def __init__(self, node: NodeDriver, server: Server, version: int, *, tls: bool) -> None:
        self.node = node
        self._version = version
        listener = f"mqtts://localhost:{ports_of(server)['mqtts']}"
        self._url = listener if tls else f"mqtt://127.0.0.1:{server.mqtt_port}"
        self._options = {"ca": (FILES / "ca.pem").read_text()} if tls else {}

    def connect(self, name: str, *, lasting: bool = False, **options: Any) -> None:
        wanted = {**self._options, "protocolVersion": self._version, "clean": not lasting}
        if lasting and self._version == 5:
            wanted["properties"] = {"sessionExpiryInterval": 300}
        options = {**wanted, "reconnectPeriod": 0, **options}
        self.node.ask("connect", name=name, url=self._url, options=options)

    def publish(self, name: str, topic: str, text: bytes, qos: int = 1, **more: Any) -> None:
        body = base64.b64encode(text).decode()
        self.node.ask("publish", name=name, topic=topic, body=body, qos=qos, count=1, **more)

    def follow(self, name: str, pattern: str) -> None:
        assert self.node.ask("subscribe", name=name, filter=pattern, qos=2) == {"qos": 2}

    def expect(self, name: str, *texts: bytes) -> dict[bytes, list[dict[str, Any]]]:
        """These have come, and nothing else. MQTT.js gives a message of QoS 2 to the application
        when it is released, so not in the order of others."""

        def came() -> dict[bytes, list[dict[str, Any]]]:
            found: dict[bytes, list[dict[str, Any]]] = {}
            for line in self.node.said:
                if line.get("client") == name and "topic" in line:
                    found.setdefault(base64.b64decode(line["body"]), []).append(line)
            return found

        self.node.until(lambda: set(texts) <= set(came()))
        assert set(came()) == set(texts)
        return came()


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("version", [4, 5])
def test_sessions_wills_and_what_is_retained(
    start_server: StartServer, node: NodeDriver, version: int, tls: bool
) -> None:
    clients = Clients(node, start_server(**TLS), version, tls=tls)
    clients.connect("away", lasting=True)
    clients.follow("away", "js/#")
    node.ask("end", name="away")
    clients.connect("writer")
    clients.publish("writer", "js/kept", b"kept", retain=True)
    user = {"properties": {"userProperties": {"a": "b"}}} if version == 5 else {}
    clients.publish("writer", "js/live", b"live", 2, **user)
    will = {"topic": "js/will", "payload": "gone", "qos": 1, "retain": False}
    clients.connect("mortal", will=will)
    node.ask("cut", name="mortal")
    clients.connect("reader")
    clients.follow("reader", "js/kept")
    assert clients.expect("reader", b"kept")[b"kept"][0]["retain"]
    clients.connect("away", lasting=True)
    found = clients.expect("away", b"kept", b"live", b"gone")
    (retained,), (live,), (gone,) = (found[text] for text in (b"kept", b"live", b"gone"))
    assert [line["qos"] for line in (retained, live, gone)] == [1, 2, 1]
    assert not any(line["retain"] for line in (retained, live, gone))
    assert dict(live.get("userProperties") or {}) == ({"a": "b"} if version == 5 else {})


@pytest.mark.parametrize("version", [4, 5])
def test_clients_come_back_to_a_server_that_was_killed(
    start_server: StartServer, node: NodeDriver, version: int
) -> None:
    """By themselves, and to their sessions."""
    server = start_server(**TLS)
    clients = Clients(node, server, version, tls=False)
    for name in ("reader", "writer"):
        clients.connect(name, lasting=True, reconnectPeriod=100)
    clients.follow("reader", "kill")
    for number in range(20):
        clients.publish("writer", "kill", b"%d" % number, 1 + number % 2)
    clients.expect("reader", *(b"%d" % number for number in range(20)))
    server.kill()
    server.start()
    for name in ("reader", "writer"):
        node.until(lambda: {"client": name, "present": True} in node.said)  # noqa: B023
    clients.publish("writer", "kill", b"end", 2)
    found = clients.expect("reader", *(b"%d" % number for number in range(20)), b"end")
    assert all(len(lines) == 1 for lines in found.values() if lines[0]["qos"] == 2)
