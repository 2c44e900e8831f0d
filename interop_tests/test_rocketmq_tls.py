"""RocketMQ's clients over TLS: at the port that the configuration opens for it, and at the name
server's."""

from __future__ import annotations

import base64
import json
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interop_tests.conftest import Server, StartServer
from interop_tests.java import JavaDriver, need_clients
from interop_tests.java_side import SECONDS_MAX, encoded
from interop_tests.name_server import NameServer, wait_until
from interop_tests.remoting_wire import Client, consumer
from interop_tests.test_tls import FILES, client_context, logged_ports, ports_of

TLS = {
    "tls.certificate": FILES / "server.pem",
    "tls.key": FILES / "server.key",
    **{f"{name}.tls_port": 0 for name in ("mqtt", "amqp", "http", "rocketmq")},
}
JAVA = {
    "tls.enable": "true",
    "tls.test.mode.enable": "false",
    "tls.client.authServer": "true",
    "tls.client.trustCertPath": FILES / "ca.pem",
}
"""What users of the Java clients set (`-D`, or a file with the last three)."""


def address_in(route: bytes) -> str:
    (broker,) = json.loads(route)["brokerDatas"]
    address: str = broker["brokerAddrs"]["0"]
    return address


def test_both_ports_lead_to_the_same_topics_and_groups(start_server: StartServer) -> None:
    """Each client is told to come back to the port that it came to; members see each other."""
    server = start_server(**TLS)
    secure = ports_of(server)["rocketmqs"]
    with (
        Client(server.host, server.rocketmq_port) as plain,
        Client(server.host, secure, client_context()) as hidden,
    ):
        assert hidden.publish("orders", b"x" * 1_000_000).code == 0
        (message,) = plain.pull("orders")[1]
        assert message.body == b"x" * 1_000_000
        assert address_in(plain.ask(105, topic="orders").body).endswith(f":{server.rocketmq_port}")
        assert address_in(hidden.ask(105, topic="orders").body).endswith(f":{secure}")
        plain.beat("c1", consumers=[consumer("billing", "orders")])
        hidden.beat("c2", consumers=[consumer("billing", "orders")])
        members = json.loads(plain.ask(38, consumerGroup="billing").body)["consumerIdList"]
        assert sorted(members) == ["c1", "c2"]
    assert server.terminate() == 0


def test_with_tls_only_nobody_is_heard_without(start_server: StartServer) -> None:
    server = start_server(**TLS, **{"rocketmq.plain": False})
    ports = ports_of(server)
    assert logged_ports(server)["rocketmq"] is None
    with (
        Client(server.host, ports["rocketmqs"]) as client,
        pytest.raises((ConnectionError, struct.error)),
    ):
        client.ask(106)
    with Client(server.host, ports["rocketmqs"], client_context()) as client:
        assert client.publish("orders", b"x").code == 0


@pytest.mark.java_clients
@pytest.mark.parametrize("generation", ["4", "5"])
def test_java_clients_check_the_certificate_and_send_and_consume(
    start_server: StartServer, tmp_path: Path, generation: str
) -> None:
    class_path = need_clients(generation)
    server = start_server(**TLS, **{"rocketmq.plain": False})
    names = f"localhost:{ports_of(server)['rocketmqs']}"
    with (tmp_path / "java.log").open("w") as log:
        driver = JavaDriver(class_path, names, serialize="JSON", home=tmp_path, log=log, more=JAVA)
        try:
            driver.ask("producer", name="p", group="p")
            sent = driver.ask("send", name="p", topic="secret", body=encoded(b"hidden"))
            assert sent.get("status") == "SEND_OK", sent
            driver.ask("consumer", name="c", group="c", topic="secret")

            def received() -> list[Any]:
                return [line for line in driver.said if line.get("consumer") == "c"]

            driver.until(received, SECONDS_MAX)
            assert [base64.b64decode(line["body"]) for line in received()] == [b"hidden"]
        finally:
            driver.close()
    print((tmp_path / "java.log").read_text()[-6000:])


@pytest.fixture
def names(tmp_path: Path) -> Iterator[int]:
    """The port with TLS of a name server of its own."""
    server = NameServer(tmp_path / "names")
    configuration = tmp_path / "names.toml"
    configuration.write_text(
        f"[tls]\ncertificate = '{FILES / 'server.pem'}'\nkey = '{FILES / 'server.key'}'\n"
        "[names]\ntls_port = 0\n"
    )
    server.launch("--config", str(configuration))
    ready = tmp_path / "names" / "ready.json"
    wait_until(lambda: ready.exists() or server.process.poll() is not None)
    assert server.process.poll() is None, server.log_path.read_text()
    yield json.loads(ready.read_text())["names_tls"]
    server.kill()


def registering(names: int, authority: str) -> dict[str, object]:
    """A broker without plain ports that registers with TLS."""
    return {
        **TLS,
        "rocketmq.plain": False,
        "names.servers": f'["localhost:{names}"]',
        "names.tls": True,
        "names.tls_ca": FILES / authority,
    }


def test_a_broker_registers_with_tls_and_is_found_and_read_with_tls(
    start_server: StartServer, names: int, tmp_path: Path
) -> None:
    """The name server leads to the broker's port with TLS, as clients with TLS want it."""
    server = start_server(**registering(names, "ca.pem"))
    secure = ports_of(server)["rocketmqs"]
    with Client(server.host, secure, client_context()) as client:
        assert client.publish("orders", b"hidden").code == 0

    def route() -> str | None:
        with Client("127.0.0.1", names, client_context()) as client:
            answer = client.ask(105, topic="orders")
        return address_in(answer.body) if answer.code == 0 else None

    wait_until(lambda: route() == f"{server.host}:{secure}")
    done = polymq("message", "read", "orders", "--format", "body", *of(server, tmp_path))
    assert (done.returncode, done.stdout) == (0, b"hidden"), done.stderr


def test_a_broker_does_not_register_where_the_certificate_is_strange(
    start_server: StartServer, names: int
) -> None:
    server = start_server(**registering(names, "expired.pem"))
    wait_until(lambda: "does not accept this broker" in "".join(server.log_lines()))
    assert "CERTIFICATE_VERIFY_FAILED" in "".join(server.log_lines())
    with Client("127.0.0.1", names, client_context()) as client:
        assert client.ask(105, topic="TBW102").code == 17


@pytest.mark.spark
@pytest.mark.slow(seconds=40)
def test_the_parquet_sink_reads_over_tls(start_server: StartServer, tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    server = start_server(**TLS, **{"rocketmq.plain": False})
    secure = ports_of(server)["rocketmqs"]
    with Client(server.host, secure, client_context()) as client:
        assert client.publish("orders", b"hidden").code == 0
    output = tmp_path / "lake"
    done = polymq(*sink(tmp_path, secure, "ca.pem"))
    assert done.returncode == 0, done.stderr
    pq = pytest.importorskip("pyarrow.parquet")
    (file,) = output.glob("topic=orders/**/*.parquet")
    assert pq.ParquetFile(file).read().column("body").to_pylist() == [b"hidden"]


@pytest.mark.slow
def test_the_parquet_sink_does_not_read_where_the_certificate_is_strange(
    start_server: StartServer, tmp_path: Path
) -> None:
    """It finds out before it starts Spark."""
    pytest.importorskip("pyspark")
    server = start_server(**TLS, **{"rocketmq.plain": False})
    done = polymq(*sink(tmp_path, ports_of(server)["rocketmqs"], "expired.pem"))
    assert done.returncode != 0
    assert "CERTIFICATE_VERIFY_FAILED" in done.stderr.decode()


def sink(directory: Path, port: int, authority: str) -> list[str]:
    """One run of the sink, which connects as if the server were elsewhere."""
    return [
        *("sink", "--once", "--topic", "orders"),
        *("--broker", f"localhost:{port}", "--tls-ca", str(FILES / authority)),
        *("--output", str(directory / "lake"), "--checkpoint", str(directory / "checkpoint")),
    ]


def of(server: Server, directory: Path) -> list[str]:
    """The options that name a server on this machine, and its certificate."""
    configuration = directory / "polymq.toml"
    configuration.write_text(
        f"[server]\ndata_directory = '{server.data_directory}'\n"
        f"[tls]\ncertificate = '{FILES / 'server.pem'}'\n"
    )
    return ["--config", str(configuration)]


def polymq(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "polymq", *arguments], capture_output=True, check=False, timeout=600
    )
