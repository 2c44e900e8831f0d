"""Name servers as processes: brokers register, readers find topics, and servers come and go."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import urllib.request
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from interop_tests.conftest import Server, StartServer
from interop_tests.name_server import SECONDS_MAX, MakeNameServer, NameServer, wait_until

CERTIFICATES = Path(__file__).parent / "certificates"

pytestmark = pytest.mark.skipif(find_spec("trio") is None, reason="the name server needs trio")

ROUTE, TOPICS, CLUSTER_INFO = 105, 206, 106
TOPIC_NOT_EXIST = 17


@pytest.fixture
def name_servers(tmp_path: Path) -> Iterator[MakeNameServer]:
    """Makes name servers that are gone after the test."""
    made: list[NameServer] = []

    def make(port: int = 0) -> NameServer:
        made.append(NameServer(tmp_path / f"names-{len(made)}", port))
        return made[-1]

    yield make
    for server in made:
        if hasattr(server, "process") and server.process.poll() is None:
            server.kill()


def ask(port: int, code: int, **fields: str) -> tuple[dict[str, Any], bytes]:
    """One request of RocketMQ's protocol: the header and the body of the answer."""
    header = {"code": code, "opaque": 7, "flag": 0, "language": "JAVA", "version": 479,
              "extFields": fields}  # fmt: skip
    head = json.dumps(header).encode()
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(struct.pack(">iI", 4 + len(head), len(head)) + head)
        stream = connection.makefile("rb")
        length, marked = struct.unpack(">iI", stream.read(8))
        rest = stream.read(length - 4)
    size = marked & 0xFFFFFF
    return json.loads(rest[:size]), rest[size:]


def brokers_of(port: int, topic: str) -> dict[str, str]:
    """Broker name -> its master's address, from the route of a topic."""
    header, body = ask(port, ROUTE, topic=topic)
    if header["code"] == TOPIC_NOT_EXIST:
        return {}
    assert header["code"] == 0, header
    datas = json.loads(body)["brokerDatas"]
    return {data["brokerName"]: data["brokerAddrs"]["0"] for data in datas}


def publish(server: Server, topic: str, body: bytes = b"x") -> None:
    url = f"http://{server.host}:{server.http_port}/topics/{topic}"
    headers = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "t"}
    request = urllib.request.Request(url, body, headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status < 300


def read_first(address: str, topic: str) -> bytes:
    """The records that a pull from the beginning gives."""
    port = int(address.rpartition(":")[2])
    header, body = ask(
        port, 11, consumerGroup="g", topic=topic, queueId="0", queueOffset="0", maxMsgNums="32",
        sysFlag="0", commitOffset="0", suspendTimeoutMillis="0", subVersion="0",
    )  # fmt: skip
    assert header["code"] == 0, header
    return body


def test_a_standalone_server_has_a_name_server_beside_it(start_server: StartServer) -> None:
    """A reader that knows port 9876 only finds a topic as soon as it is made, and none when the
    server has stopped."""
    server = start_server(**{"names.enabled": True, "names.port": 0, "names.broker": "b-1"})
    names = json.loads((server.data_directory / "server.json").read_text())["names"]
    publish(server, "made", b"the body")
    wait_until(lambda: brokers_of(names, "made"))
    found = brokers_of(names, "made")
    assert found == {"b-1": f"127.0.0.1:{server.rocketmq_port}"}
    assert b"the body" in read_first(found["b-1"], "made")
    info = json.loads(ask(names, CLUSTER_INFO)[1])
    assert info["clusterAddrTable"] == {"DefaultCluster": ["b-1"]}
    assert server.terminate() == 0
    with pytest.raises(ConnectionRefusedError):
        ask(names, TOPICS)
    assert not [event for event in server.log_events() if event["level"] != "info"]


@pytest.mark.slow
def test_registration_and_reading_go_on_while_name_servers_come_and_go(
    start_server: StartServer, name_servers: MakeNameServer
) -> None:
    """Two of them: one is killed and started again, then both are gone for a while."""
    first, second = name_servers(), name_servers()
    first.start()
    second.start()
    servers = json.dumps([f"127.0.0.1:{first.port}", f"127.0.0.1:{second.port}"])
    server = start_server(**{"names.servers": servers})
    publish(server, "one")
    for names in (first, second):
        wait_until(partial(brokers_of, names.port, "one"))

    first.kill()
    publish(server, "two")
    wait_until(lambda: brokers_of(second.port, "two"))  # the other one is told all the same
    first.start()
    wait_until(lambda: brokers_of(first.port, "two"))  # and this one of all, when it is back

    address = brokers_of(second.port, "two")["broker-a"]
    first.kill()
    second.kill()
    publish(server, "two", b"while they are gone")
    assert b"while they are gone" in read_first(address, "two")
    first.start()
    second.start()
    for names in (first, second):
        wait_until(partial(brokers_of, names.port, "one"))

    assert server.terminate() == 0  # it takes its leave: no route names it any more
    for names in (first, second):
        assert brokers_of(names.port, "one") == {}


@pytest.mark.slow
def test_a_killed_broker_is_out_of_the_routes_at_once(
    start_server: StartServer, name_servers: MakeNameServer
) -> None:
    names = name_servers()
    names.start()
    server = start_server(**{"names.servers": json.dumps([f"127.0.0.1:{names.port}"])})
    publish(server, "t")
    wait_until(lambda: brokers_of(names.port, "t"))
    server.kill()
    wait_until(lambda: not brokers_of(names.port, "t"))
    server.restart()
    wait_until(lambda: brokers_of(names.port, "t"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_a_name_server_in_order(
    name_servers: MakeNameServer, number: signal.Signals
) -> None:
    names = name_servers()
    names.start()
    os.kill(names.process.pid, number)
    assert names.process.wait(SECONDS_MAX) == 0
    assert "Traceback" not in names.log_path.read_text()
    assert json.loads(names.log_path.read_text().splitlines()[-1])["event"] == "stopped"


def test_a_taken_port_is_named(name_servers: MakeNameServer, start_server: StartServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        names = name_servers(port)
        names.launch()
        server = start_server(ready=False, **{"names.enabled": True, "names.port": port})
        assert names.process.wait(SECONDS_MAX) == 71
        assert server.process.wait(SECONDS_MAX) == 71
    for log in (names.log_path, server.log_path):
        assert f"polymq: names: port {port} on 127.0.0.1 is taken" in log.read_text()


def test_a_taken_port_for_tls_is_named(name_servers: MakeNameServer, tmp_path: Path) -> None:
    """It is that port which somebody else has, and not the plain one beside it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        names = name_servers()
        configuration = tmp_path / "tls.toml"
        configuration.write_text(
            f'[tls]\ncertificate = "{CERTIFICATES / "server.pem"}"\n'
            f'key = "{CERTIFICATES / "server.key"}"\n[names]\ntls_port = {port}\n'
        )
        names.launch("--config", str(configuration))
        assert names.process.wait(SECONDS_MAX) == 71
    text = names.log_path.read_text()
    assert f"polymq: names: port {port} on 127.0.0.1 is taken" in text


def test_a_directory_has_one_name_server(name_servers: MakeNameServer, tmp_path: Path) -> None:
    """The second would overwrite what administrators told the first."""
    names = name_servers()
    names.start()
    second = NameServer(tmp_path / "names-0")
    second.launch()
    assert second.process.wait(SECONDS_MAX) == 75
    assert "in use by another name server" in second.log_path.read_text()
    assert names.process.poll() is None
