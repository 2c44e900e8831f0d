"""MQTT over WebSocket with unmodified clients: paho-mqtt, amqtt's client and MQTT.js, over plain
sockets and TLS; a page in a browser; and what no library sends."""

from __future__ import annotations

import asyncio
import base64
import http.server
import json
import queue
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from amqtt.client import MQTTClient
from paho.mqtt.enums import CallbackAPIVersion

from interop_tests import mqtt_wire as wire
from interop_tests import websocket_wire as ws
from interop_tests.conftest import Server, StartServer
from interop_tests.node import NodeDriver, need_packages
from interop_tests.test_tls import FILES, TLS, client_context, ports_of

WAIT_SECONDS_MAX = 20.0
OPTIONS = {"mqtt.websocket": True, "mqtt.websocket_port": 0, "mqtt.websocket_tls_port": 0}
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture
def server(start_server: StartServer) -> Server:
    return start_server(**OPTIONS)


def ws_port(server: Server) -> int:
    return ports_of(server)["mqtt_ws"]


class PahoClient:
    """A paho client over WebSocket; what comes fills a queue."""

    def __init__(
        self,
        port: int,
        name: str,
        *,
        path: str = "/mqtt",
        clean: bool = True,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2, name, clean_session=clean, transport="websockets"
        )
        self.client.ws_set_options(path=path)
        if tls is not None:
            self.client.tls_set_context(tls)
        self.messages: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self.granted: queue.Queue[int] = queue.Queue()
        self.ended = threading.Event()
        self.acked: set[int] = set()
        self.client.on_message = lambda _c, _u, message: self.messages.put(message)
        self.client.on_subscribe = lambda *args: self.granted.put(args[3][0].value)
        self.client.on_disconnect = lambda *_: self.ended.set()
        self.client.on_publish = lambda _c, _u, number, *_: self.acked.add(number)
        self.client.max_inflight_messages_set(500)
        self.client.connect("localhost" if tls else "127.0.0.1", port)
        self.client.loop_start()

    def subscribe(self, pattern: str, qos: int) -> None:
        self.client.subscribe(pattern, qos)
        assert self.granted.get(timeout=WAIT_SECONDS_MAX) == qos

    def publish(self, topic: str, body: bytes, qos: int) -> None:
        self.client.publish(topic, body, qos).wait_for_publish(WAIT_SECONDS_MAX)

    def receive(self) -> paho.MQTTMessage:
        return self.messages.get(timeout=WAIT_SECONDS_MAX)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


def converse(port: int, *, path: str, tls: ssl.SSLContext | None = None) -> None:
    """Every QoS, a message of many frames, and thousands in flight."""
    reader = PahoClient(port, "reader", path=path, tls=tls)
    writer = PahoClient(port, "writer", path=path, tls=tls)
    reader.subscribe("talk/#", 2)
    large = bytes(range(256)) * 8192
    for qos in (0, 1, 2):
        writer.publish(f"talk/{qos}", large, qos)
        message = reader.receive()
        assert (message.topic, message.qos, message.payload) == (f"talk/{qos}", qos, large)
    for number in range(3000):
        writer.client.publish("talk/many", b"%d" % number, 1)
    assert [reader.receive().payload for _ in range(3000)] == [b"%d" % n for n in range(3000)]
    writer.close()
    reader.close()


@pytest.mark.parametrize("path", ["/mqtt", "/"])
def test_paho(server: Server, path: str) -> None:
    converse(ws_port(server), path=path)


def test_paho_over_tls(start_server: StartServer) -> None:
    server = start_server(**TLS, **OPTIONS)
    converse(ports_of(server)["mqtt_wss"], path="/mqtt", tls=client_context())


def test_messages_cross_between_websocket_and_tcp(server: Server) -> None:
    """One session, first over the one and then over the other; and a will."""
    reader = PahoClient(ws_port(server), "roamer", clean=False)
    reader.subscribe("cross/#", 1)
    reader.close()
    tcp = paho.Client(CallbackAPIVersion.VERSION2, "tcp")
    tcp.connect("127.0.0.1", server.mqtt_port)
    tcp.loop_start()
    tcp.publish("cross/a", b"while away", 1).wait_for_publish(WAIT_SECONDS_MAX)
    tcp.disconnect()
    tcp.loop_stop()
    reader = PahoClient(ws_port(server), "roamer", clean=False)
    assert reader.receive().payload == b"while away"
    with Raw(ws_port(server)) as raw:
        raw.open()
        raw.send(ws.frame(wire.connect("mortal", will=("cross/will", b"gone", 1, False))))
        raw.expect(ws.BINARY, wire.connack())
        raw.send(ws.close(1001))
        raw.expect(ws.CLOSE, b"\x03\xe9")
    assert reader.receive().payload == b"gone"
    reader.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_amqtts_client(server: Server) -> None:
    """Its websockets library takes frames of one MiB at most, and gets more than that at once."""

    async def run() -> None:
        url = f"ws://127.0.0.1:{ws_port(server)}/mqtt"
        reader = MQTTClient(config={"auto_reconnect": False})
        await reader.connect(url)
        await reader.subscribe([("big/#", 1)])
        writer = MQTTClient(config={"auto_reconnect": False})
        await writer.connect(url)
        bodies = [bytes([number]) * 200_000 for number in range(10)]
        for body in bodies:
            await writer.publish("big/one", body, qos=1)
        for body in bodies:
            message = await asyncio.wait_for(reader.deliver_message(), WAIT_SECONDS_MAX)
            assert message is not None
            assert bytes(message.publish_packet.data or b"") == body
        await writer.disconnect()
        await reader.disconnect()

    asyncio.run(run())


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeDriver]:
    directory = need_packages("mqtt_js")
    with (tmp_path / "node.log").open("w") as log:
        driver = NodeDriver(directory, log=log)
        yield driver
        driver.close()
    print((tmp_path / "node.log").read_text()[-4000:])


@pytest.mark.parametrize("version", [4, 5])
def test_mqtt_js(start_server: StartServer, node: NodeDriver, version: int) -> None:
    """Over WebSocket without and with TLS; MQTT 3.1.1 and 5. Topics get aliases from the server,
    which the library turns into names again, but for messages of QoS 2: it keeps those by their
    packet until PUBREL, and gives the application the empty name of the packet."""
    server = start_server(**TLS, **OPTIONS)
    ports = ports_of(server)
    authority = (FILES / "ca.pem").read_text()
    body = base64.b64encode(b"from a page" * 100).decode()
    options: dict[str, Any] = {"options": {"protocolVersion": version}}
    properties = {"userProperties": {"a": ["1", "2"]}} if version == 5 else {}
    if version == 5:
        options["options"]["properties"] = {"topicAliasMaximum": 2}
    node.ask("connect", name="reader", url=f"ws://127.0.0.1:{ports['mqtt_ws']}/mqtt", **options)
    options["options"]["ca"] = authority
    node.ask("connect", name="writer", url=f"wss://localhost:{ports['mqtt_wss']}/mqtt", **options)
    assert node.ask("subscribe", name="reader", filter="js/#", qos=2) == {"qos": 2}
    sent = {"properties": properties} if properties else {}
    for qos in (0, 1, 2):
        node.ask("publish", name="writer", topic=f"js/{qos}", body=body, qos=qos, count=200, **sent)
    node.until(lambda: len([line for line in node.said if "topic" in line]) == 600)
    said = [line for line in node.said if "topic" in line]
    assert [line["qos"] for line in said] == [0] * 200 + [1] * 200 + [2] * 200
    names = [line["topic"] for line in said if version == 4 or line["qos"] < 2]
    assert names == [f"js/{qos}" for qos in range(len(names) // 200) for _ in range(200)]
    assert len(names) == (600 if version == 4 else 400)
    assert {line["body"] for line in said} == {body}
    assert all(line.get("userProperties") == properties.get("userProperties") for line in said)
    node.ask("end", name="writer")
    node.ask("end", name="reader")
    assert not [line for line in node.said if "failed" in line]


PAGE = """<!doctype html><title>waiting</title><script>
const port = Number(new URLSearchParams(location.search).get('port'));
const socket = new WebSocket(`ws://127.0.0.1:${port}/mqtt`, ['mqtt']);
socket.binaryType = 'arraybuffer';
const got = [];
const connect = [16, 13, 0, 4, 77, 81, 84, 84, 4, 2, 0, 0, 0, 1, 98];
socket.onopen = () => socket.send(new Uint8Array(connect));
socket.onmessage = ({ data }) => {
  got.push(...new Uint8Array(data));
  if (got.length === 4) socket.send(new Uint8Array([50, 8, 0, 1, 98, 0, 7, 111, 107, 33]));
  if (got.length === 8) socket.send(new Uint8Array([224, 0]));
};
socket.onclose = ({ code, wasClean }) => {
  const report = { got, code, wasClean, protocol: socket.protocol };
  fetch('/', { method: 'POST', body: JSON.stringify(report) });
};
</script>"""


class Pages(http.server.BaseHTTPRequestHandler):
    """Serves the page, and takes what it reports."""

    def __init__(self, reports: queue.Queue[dict[str, Any]], *args: Any) -> None:
        self.reports = reports
        super().__init__(*args)

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(PAGE.encode())

    def do_POST(self) -> None:
        self.reports.put(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""


@pytest.mark.slow
def test_a_page_in_a_browser(server: Server, tmp_path: Path) -> None:
    """It connects, publishes, disconnects, and its WebSocket is closed in order."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        pytest.skip("there is no Chromium on this machine")
    reports: queue.Queue[dict[str, Any]] = queue.Queue()
    pages = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Pages, reports))
    thread = threading.Thread(target=pages.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{pages.server_port}/?port={ws_port(server)}"
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"]
    process = subprocess.Popen([browser, *options, url], stderr=subprocess.DEVNULL)
    try:
        report = reports.get(timeout=3 * WAIT_SECONDS_MAX)
    finally:
        process.kill()
        process.wait()
        pages.shutdown()
        thread.join()
        pages.server_close()
    assert report == {
        "got": [*wire.connack(), *wire.puback(7)],
        "code": 1000,
        "wasClean": True,
        "protocol": "mqtt",
    }


class Raw:
    """A socket that reads frames."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), WAIT_SECONDS_MAX)
        self._data = bytearray()

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *data: bytes) -> None:
        self.socket.sendall(b"".join(data))

    def open(self) -> None:
        self.send(ws.request())
        answer = ws.accepted()
        while len(self._data) < len(answer):
            self._more()
        assert self._data[: len(answer)] == answer
        del self._data[: len(answer)]

    def expect(self, opcode: int, data: bytes) -> None:
        while (taken := ws.take_frame(self._data)) is None:
            self._more()
        assert (taken[0], taken[1][: len(data)]) == (opcode, data)
        del self._data[: taken[2]]

    def rest(self) -> bytes:
        """All that comes until the end."""
        while self._more(may_end=True):
            pass
        return bytes(self._data)

    def _more(self, *, may_end: bool = False) -> bool:
        try:
            data = self.socket.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        assert data or may_end, "the server closed"
        self._data += data
        return bool(data)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (ws.frame(b"{}", opcode=ws.TEXT), 1003),
        (ws.frame(wire.PINGREQ, mask=None), 1002),
        (ws.frame(wire.PINGREQ, reserved=4), 1002),
        (ws.frame(b"x", opcode=ws.CONTINUATION), 1002),
        (ws.frame(b"x" * 126, opcode=ws.PING), 1002),
        (b"\x82\xff" + (1 << 40).to_bytes(8, "big") + b"mask", 1009),
    ],
)
def test_what_may_not_be_sent(shared_server_ws: Server, sent: bytes, code: int) -> None:
    with Raw(ws_port(shared_server_ws)) as raw:
        raw.open()
        raw.send(ws.frame(wire.connect(f"broken-{code}")))
        raw.expect(ws.BINARY, wire.connack())
        raw.send(sent)
        raw.expect(ws.CLOSE, code.to_bytes(2, "big"))
        assert raw.rest() == b""


def test_what_is_no_handshake_gets_an_answer_in_plain_words(shared_server_ws: Server) -> None:
    for sent, status, text in (
        (ws.request(subprotocols=("graphql-ws",)), b"400", b"mqtt and mqttv3.1"),
        (ws.request("/chat"), b"404", b"/mqtt"),
        (b"GET /mqtt HTTP/1.1\r\nHost: x\r\n\r\n", b"426", b"MQTT over WebSocket"),
        (wire.connect("astray"), b"400", b"MQTT over WebSocket"),
    ):
        with Raw(ws_port(shared_server_ws)) as raw:
            raw.send(sent)
            answer = raw.rest()
        assert answer.startswith(b"HTTP/1.1 " + status)
        assert text in answer


@pytest.fixture(scope="module")
def shared_server_ws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for the tests that only need a port."""
    made = Server(tmp_path_factory.mktemp("ws"), OPTIONS, {}, (sys.executable, "-m", "polymq"))
    made.start()
    yield made
    made.close(sys.stdout)


def test_pages_of_other_origins_get_nowhere(start_server: StartServer) -> None:
    server = start_server(**OPTIONS, **{"mqtt.websocket_origins": '["https://app.example"]'})
    with Raw(ws_port(server)) as raw:
        raw.send(ws.request(origin="https://evil.example"))
        assert raw.rest().startswith(b"HTTP/1.1 403")
    with Raw(ws_port(server)) as raw:
        raw.send(ws.request(origin="https://app.example"))
        assert raw._more()
        assert bytes(raw._data).startswith(b"HTTP/1.1 101")


def test_the_listener_is_named_and_counted_like_the_others(server: Server) -> None:
    (ready,) = (event for event in server.log_events() if event["event"] == "ready")
    assert ready["mqtt_ws"] == ws_port(server)
    client = PahoClient(ws_port(server), "counted")
    client.publish("a", b"x", 1)
    url = f"http://127.0.0.1:{server.admin_port}/metrics"
    with urllib.request.urlopen(url, timeout=WAIT_SECONDS_MAX) as answer:
        text = answer.read().decode()
    assert 'polymq_connections{protocol="mqtt_ws"} 1.0' in text
    assert 'polymq_mqtt_publishes_total{direction="received"} 1.0' in text
    client.close()


def test_a_server_that_stops_closes_in_order(server: Server) -> None:
    with Raw(ws_port(server)) as raw:
        raw.open()
        raw.send(ws.frame(wire.connect("left")))
        raw.expect(ws.BINARY, wire.connack())
        assert server.terminate() == 0
        raw.expect(ws.CLOSE, b"\x03\xe9")
        assert raw.rest() == b""


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        threading.Event().wait(0.005)


@pytest.mark.slow
def test_a_kill_loses_nothing_that_was_acknowledged(server: Server) -> None:
    """A session that nobody reads meanwhile has all of it, in order, three kills later."""
    reader = PahoClient(ws_port(server), "auditor", clean=False)
    reader.subscribe("ledger", 1)
    reader.close()
    port = ws_port(server)
    acked: list[int] = []
    number = 0
    for _ in range(3):
        writer = PahoClient(port, "publisher")
        sent: dict[int, int] = {}
        while len(writer.acked) < 500:
            for _ in range(100):
                sent[writer.client.publish("ledger", b"%d" % number, 1).mid] = number
                number += 1
            until(lambda: len(sent) - len(writer.acked) < 400)  # noqa: B023
        server.kill()
        assert writer.ended.wait(WAIT_SECONDS_MAX)
        writer.client.loop_stop()
        acked += [sent[mid] for mid in writer.acked]
        server.configure(**{"mqtt.websocket_port": port})
        server.start()
    last = PahoClient(port, "publisher")
    last.publish("ledger", b"end", 1)
    last.close()
    reader = PahoClient(port, "auditor", clean=False)
    found: list[int] = []
    while (body := reader.receive().payload) != b"end":
        found.append(int(body))
    reader.close()
    assert len(acked) >= 1500
    assert set(acked) <= set(found)
    assert list(dict.fromkeys(found)) == sorted(set(found))
