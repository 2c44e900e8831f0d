"""RocketMQ's clients over TLS: at the port that the configuration opens for it, and at the name
server's."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from interop_tests.conftest import Server
from interop_tests.java import JavaDriver, need_clients
from interop_tests.java_side import SECONDS_MAX, encoded
from interop_tests.remoting_wire import Client, consumer
from interop_tests.test_tls import FILES, client_context, ports_of

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
Start = Callable[..., Server]


def address_in(route: bytes) -> str:
    (broker,) = json.loads(route)["brokerDatas"]
    address: str = broker["brokerAddrs"]["0"]
    return address


def test_both_ports_lead_to_the_same_topics_and_groups(start_server: Start) -> None:
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


def test_with_tls_only_nobody_is_heard_without(start_server: Start) -> None:
    server = start_server(**TLS, **{"rocketmq.plain": False})
    ports = ports_of(server)
    assert ports["rocketmq"] is None
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
    start_server: Start, tmp_path: Path, generation: str
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
