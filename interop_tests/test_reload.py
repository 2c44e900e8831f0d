"""The configuration is reloaded under load: no connection and no message is lost."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pika
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from interop_tests.authority import Authority
from interop_tests.conftest import Server, StartServer
from interop_tests.listener_clients import client_tls, connect_code, until
from interop_tests.people import polymq

SECONDS = 60
RELOADS = 12


class Configuration:
    """The file of a server, and the certificate that it names."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "polymq.toml"
        self.authority = Authority(directory / "ca")
        self.certificate, self.key = directory / "server.pem", directory / "server.key"
        self.values: dict[str, Any] = {
            "tls.certificate": str(self.certificate),
            "tls.key": str(self.key),
            "tls.check_files_seconds": 0,
            "mqtt.tls_port": 0,
            "amqp.tls_port": 0,
            "http.tls_port": 0,
            "rocketmq.tls_port": 0,
        }
        self.renew(0)
        self.write()

    def renew(self, number: int) -> str:
        """Put another certificate there. Returns what it is known by."""
        certificate, key = self.authority.issue(f"s{number}", "/CN=localhost", "DNS:localhost")
        shutil.copy(key, self.key)
        shutil.copy(certificate, self.certificate)
        self.key.chmod(0o600)
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate.read_text())).hexdigest()

    def write(self, **values: Any) -> None:
        """Write the file, with other values."""
        self.values |= values
        lines = (f"{name} = {_toml(value)}" for name, value in self.values.items())
        self.path.write_text("\n".join(lines) + "\n")

    def start(self, start_server: StartServer, **more: object) -> Server:
        return start_server(environment={"POLYMQ_CONFIG": str(self.path)}, **more)


def _toml(value: Any) -> str:
    if isinstance(value, list):
        tables = (
            "{" + ", ".join(f"{key} = {json.dumps(one)}" for key, one in table.items()) + "}"
            for table in value
        )
        return "[" + ", ".join(tables) + "]"
    return json.dumps(value)


@pytest.fixture
def configuration(tmp_path: Path) -> Configuration:
    return Configuration(tmp_path)


def tls_ports(server: Server) -> dict[str, int]:
    found: dict[str, int] = json.loads((server.data_directory / "server.json").read_text())
    return found


def shown_certificate(port: int, authority: Path) -> str:
    """What a client that connects now is shown."""
    context = client_tls(authority)
    with (
        socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        return hashlib.sha256(secure.getpeercert(binary_form=True) or b"").hexdigest()


def count(server: Server, event: str) -> int:
    return sum(line.get("event") == event for line in server.log_events())


class MqttLoad:
    """A publisher and a subscriber of QoS 1 over TLS, which notice if their connection ends."""

    def __init__(self, port: int, authority: Path) -> None:
        self.received: list[bytes] = []
        self.sent = 0
        self.lost: list[str] = []
        self._subscribed = threading.Event()
        self._stopping = threading.Event()
        self._reader = self._client(port, authority, "reader")
        self._reader.on_message = lambda _c, _u, message: self.received.append(
            bytes(message.payload)
        )
        self._reader.on_subscribe = lambda *_: self._subscribed.set()
        self._reader.subscribe("load/#", 1)
        assert self._subscribed.wait(SECONDS)
        self._writer = self._client(port, authority, "writer")
        self._thread = threading.Thread(target=self._publish)
        self._thread.start()

    def _client(self, port: int, authority: Path, name: str) -> paho.Client:
        client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id=name, reconnect_on_failure=False
        )
        client.tls_set_context(client_tls(authority))
        client.on_disconnect = lambda *_: self._gone(name)
        client.connect("localhost", port)
        client.loop_start()
        return client

    def _gone(self, name: str) -> None:
        if not self._stopping.is_set():
            self.lost.append(name)

    def _publish(self) -> None:
        while not self._stopping.is_set() and not self.lost:
            self._writer.publish("load/t", b"%d" % self.sent, 1).wait_for_publish(SECONDS)
            self.sent += 1

    def stop(self, server: Server) -> None:
        """End, when everything has arrived."""
        self._stopping.set()
        self._thread.join(SECONDS)
        until(server, lambda: len(self.received) >= self.sent)
        for client in (self._writer, self._reader):
            client.disconnect()
            client.loop_stop()


class AmqpLoad:
    """A publisher with confirms and a consumer, each with a connection of its own."""

    def __init__(self, port: int, authority: Path) -> None:
        self.sent = 0
        self.received: list[bytes] = []
        self.lost: list[str] = []
        self._stopping = threading.Event()
        self._parameters = pika.ConnectionParameters(
            host="localhost",
            port=port,
            ssl_options=pika.SSLOptions(client_tls(authority), "localhost"),
            heartbeat=10,
        )
        with self._channel() as channel:
            channel.queue_declare("work", durable=True)
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,))
            for work in (self._publish, self._consume)
        ]
        for thread in self._threads:
            thread.start()

    @contextmanager
    def _channel(self) -> Iterator[Any]:
        with pika.BlockingConnection(self._parameters) as connection:
            yield connection.channel()

    def _guarded(self, work: Any) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001  (it is what the test looks for)
            self.lost.append(repr(error))

    def _publish(self) -> None:
        with self._channel() as channel:
            channel.confirm_delivery()
            while not self._stopping.is_set():
                channel.basic_publish("", "work", b"%d" % self.sent)
                self.sent += 1

    def _consume(self) -> None:
        with self._channel() as channel:
            for method, _, body in channel.consume("work", inactivity_timeout=0.1):
                if method is not None:
                    self.received.append(body)
                    channel.basic_ack(method.delivery_tag)
                elif self._stopping.is_set() and len(self.received) >= self.sent:
                    return

    def stop(self) -> None:
        """End, when everything has arrived."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(SECONDS)


@pytest.mark.slow
def test_many_reloads_under_load_lose_nothing(
    start_server: StartServer, configuration: Configuration
) -> None:
    """Certificates, the log and limits change again and again, by the signal and by the command.
    Clients of MQTT and AMQP keep their connections and their messages; those that come after a
    reload see its certificate."""
    server = configuration.start(start_server)
    ports, authority = tls_ports(server), configuration.authority.certificate
    mqtt, amqp = MqttLoad(ports["mqtts"], authority), AmqpLoad(ports["amqps"], authority)
    for number in range(1, RELOADS + 1):
        before = mqtt.sent, amqp.sent
        known_by = configuration.renew(number)
        configuration.write(
            **{
                "log.level": "debug" if number % 2 else "info",
                "mqtt.inflight_max": 100 + number,
                "mqtt.retained_max": 1000 + number,
                "mqtt.connections_max": 50 + number,
                "amqp.connections_max": 60 + number,
                "storage.log_bytes_max": (10 + number) * 2**30,
                "topics.retention_seconds": 3600 + number,
            }
        )
        if number % 3:
            server.process.send_signal(signal.SIGHUP)
        else:
            done = polymq(server, "reload")
            assert (done.returncode, done.stderr) == (0, "")
            assert f"mqtt.connections_max: {49 + number} -> {50 + number}\n" in done.stdout
        until(server, lambda: count(server, "reloaded") == number)  # noqa: B023
        for name in ("mqtts", "amqps", "https", "rocketmqs"):
            assert shown_certificate(ports[name], authority) == known_by
        until(server, lambda: mqtt.sent > before[0] + 5 and amqp.sent > before[1] + 5)  # noqa: B023
    mqtt.stop(server)
    amqp.stop()
    assert (mqtt.lost, amqp.lost) == ([], [])
    assert mqtt.received == [b"%d" % number for number in range(mqtt.sent)]
    assert amqp.received == [b"%d" % number for number in range(amqp.sent)]


def test_limits_hold_from_a_reload_on(
    start_server: StartServer, configuration: Configuration
) -> None:
    """A lower limit of connections closes none that is there, and refuses the next one; a higher
    one lets it in."""
    server = configuration.start(start_server)
    client = paho.Client(CallbackAPIVersion.VERSION2, reconnect_on_failure=False)
    came, gone = threading.Event(), threading.Event()
    client.on_connect = lambda *_: came.set()
    client.on_disconnect = lambda *_: gone.set()
    client.connect(server.host, server.mqtt_port)
    client.loop_start()
    assert came.wait(SECONDS)
    configuration.write(**{"mqtt.connections_max": 1})
    assert polymq(server, "reload").stdout == "mqtt.connections_max: 10000 -> 1\n"
    with socket.create_connection((server.host, server.mqtt_port), timeout=SECONDS) as second:
        assert second.recv(1) == b""
    configuration.write(**{"mqtt.connections_max": 2})
    assert polymq(server, "reload").returncode == 0
    assert connect_code(server.mqtt_port) == "Success"
    assert not gone.is_set()
    client.disconnect()
    client.loop_stop()


def test_a_wrong_file_changes_nothing_and_says_why(
    start_server: StartServer, configuration: Configuration
) -> None:
    """One line on stderr, and an exit code; the same in the log. What needs a restart is named."""
    server = configuration.start(start_server)
    configuration.write(**{"mqtt.qos_max": 3, "mqtt.inflight_max": 7})
    done = polymq(server, "reload")
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"polymq: nothing was changed: {configuration.path}: mqtt.qos_max: ")
    server.process.send_signal(signal.SIGHUP)
    until(server, lambda: count(server, "reload failed, and nothing was changed") == 2)
    configuration.write(**{"mqtt.qos_max": 1, "amqp.tls_port": 5999})
    done = polymq(server, "reload", "--json")
    found = json.loads(done.stdout)
    assert {one["name"]: one["new"] for one in found["applied"]} == {
        "mqtt.inflight_max": "7",
        "mqtt.qos_max": "1",
    }
    assert [one["name"] for one in found["restart"]] == ["amqp.tls_port"]


def test_half_of_a_certificate_is_not_taken(
    start_server: StartServer, configuration: Configuration
) -> None:
    """Files that change while nobody reloads: a certificate without its key yet changes nothing,
    is said once and counted; the whole pair goes into force by itself."""
    configuration.write(**{"tls.check_files_seconds": 0.05})
    server = configuration.start(start_server)
    port, authority = tls_ports(server)["mqtts"], configuration.authority.certificate
    first = shown_certificate(port, authority)
    certificate, key = configuration.authority.issue("next", "/CN=localhost", "DNS:localhost")
    shutil.copy(certificate, configuration.certificate)
    until(server, lambda: count(server, "TLS goes on with the former files") == 1)
    assert shown_certificate(port, authority) == first
    shutil.copy(key, configuration.key)
    until(server, lambda: shown_certificate(port, authority) != first)
    assert count(server, "TLS goes on with the former files") == 1


def test_a_name_server_shows_its_new_certificate(
    tmp_path: Path, configuration: Configuration
) -> None:
    """A name server of its own reloads its TLS at SIGHUP, too."""
    ready = tmp_path / "ready.json"
    arguments = ["--config", str(configuration.path), "--ready-file", str(ready), "--port", "0"]
    data = ["--data-directory", str(tmp_path / "names")]
    configuration.write(**{"names.tls_port": 0})
    process = subprocess.Popen(
        [sys.executable, "-m", "polymq", "namesrv", *arguments, *data],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if '"ready"' in line or " ready" in line:
                break
        port = json.loads(ready.read_text())["names_tls"]
        authority = configuration.authority.certificate
        known_by = configuration.renew(1)
        assert shown_certificate(port, authority) != known_by
        process.send_signal(signal.SIGHUP)
        for line in process.stderr:
            if "reloaded" in line:
                break
        assert shown_certificate(port, authority) == known_by
    finally:
        process.terminate()
        process.stderr.read()
        process.stderr.close()
        assert process.wait(SECONDS) == 0


def test_open_connections_keep_what_they_were_told(
    start_server: StartServer, configuration: Configuration
) -> None:
    """A client that was told it may publish with QoS 2 and large packets goes on with that. A new
    one is told the new limits, and closed if it does not keep to them."""
    configuration.write(**{"mqtt.listeners": [{"name": "own"}]})
    server = configuration.start(start_server)
    port = json.loads((server.data_directory / "server.json").read_text())["mqtt_listeners"]["own"]
    large = b"x" * 100_000
    with Mqtt5(port, "old") as old:
        assert old.properties.get("MaximumQoS") is None
        old.publish("t/before", large)
        listener = {"name": "own", "packet_bytes_max": 50_000}
        configuration.write(**{"mqtt.qos_max": 1, "mqtt.listeners": [listener]})
        assert polymq(server, "reload").returncode == 0
        for topic in ("t/before", "t/after"):  # known to the server, and new to it
            old.publish(topic, large)
        with Mqtt5(port, "new") as new:
            assert new.properties["MaximumQoS"] == 1
            assert new.properties["MaximumPacketSize"] == 50_000
            new.paho.publish("t/new", b"x", 2)
            assert new.gone.wait(SECONDS)
        with Mqtt5(port, "larger") as larger:
            larger.paho.publish("t/new", large, 1)
            assert larger.gone.wait(SECONDS)
        assert not old.gone.is_set()


class Mqtt5:
    """A client of MQTT 5.

    Attributes:
        properties: those of CONNACK.
        gone: its connection has ended.
    """

    def __init__(self, port: int, name: str) -> None:
        self.paho = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=name,
            protocol=paho.MQTTv5,
            reconnect_on_failure=False,
        )
        self.properties: dict[str, Any] = {}
        self.gone, came = threading.Event(), threading.Event()

        def connected(_c: Any, _u: Any, _f: Any, _code: Any, properties: Any) -> None:
            self.properties = properties.json()
            came.set()

        self.paho.on_connect = connected
        self.paho.on_disconnect = lambda *_: self.gone.set()
        self.paho.connect("127.0.0.1", port)
        self.paho.loop_start()
        assert came.wait(SECONDS)

    def publish(self, topic: str, body: bytes) -> None:
        """With QoS 2, to its end."""
        sent = self.paho.publish(topic, body, 2)
        sent.wait_for_publish(SECONDS)
        assert sent.is_published()

    def __enter__(self) -> Mqtt5:
        return self

    def __exit__(self, *_: object) -> None:
        self.paho.disconnect()
        self.paho.loop_stop()
