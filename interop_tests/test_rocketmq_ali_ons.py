"""RocketMQ's listener with an unmodified client: ali-ons, the library that Node programs use."""

from __future__ import annotations

import base64
import time
import urllib.request
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from interop_tests.conftest import Server, StartServer
from interop_tests.name_server import NameServer, wait_until
from interop_tests.node import NodeDriver, need_packages
from interop_tests.people import Admin
from interop_tests.remoting_wire import WAIT_SECONDS_MAX, Client

REBALANCE_SECONDS_MAX = 60.0
GATHER_SECONDS_MAX = 0.5
"""Far more than the 20 ms for which committed offsets gather before the log has them."""


@pytest.fixture
def drive_at(tmp_path: Path) -> Iterator[Callable[[str], NodeDriver]]:
    """Start a driver with clients that ask the name server at an address."""
    directory = need_packages("ali_ons")
    drivers: list[NodeDriver] = []
    with (tmp_path / "node.log").open("w") as log:

        def start(names: str) -> NodeDriver:
            driver = NodeDriver(directory, names, log=log)
            drivers.append(driver)
            return driver

        yield start
        for driver in drivers:
            driver.close()
    print((tmp_path / "node.log").read_text()[-4000:])


@pytest.fixture
def drive(drive_at: Callable[[str], NodeDriver]) -> Callable[[Server], NodeDriver]:
    """Start a driver with clients for a server, whose listener is a name server, too."""
    return lambda server: drive_at(f"{server.host}:{server.rocketmq_port}")


def post(server: Server, topic: str, body: bytes) -> None:
    """Publish over HTTP; that makes the topic, too."""
    request = urllib.request.Request(
        f"http://{server.host}:{server.http_port}/topics/{topic}",
        data=body,
        headers={"content-type": "text/plain"},
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.status == 204


def until_committed(server: Server, group: str, topic: str, offset: int) -> None:
    """The broker knows that the group has come so far in the topic's first queue."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    with Client(server.host, server.rocketmq_port) as client:
        while True:
            answer = client.ask(14, consumerGroup=group, topic=topic, queueId=0)
            if answer.fields.get("offset") == str(offset):
                return
            assert time.monotonic() < deadline, answer


def kill_and_start(server: Server) -> None:
    """A crash, once the log has what was committed: an operation that follows it is durable."""
    gathered = time.monotonic() + GATHER_SECONDS_MAX
    while time.monotonic() < gathered:  # the answer to the last one comes behind the commits
        post(server, "other", b"x")
    server.kill()
    server.start()


def encoded(body: bytes) -> str:
    return base64.b64encode(body).decode()


def received(driver: NodeDriver, *names: str) -> list[dict[str, Any]]:
    return [line for line in driver.said if line.get("consumer") in names]


def bodies(driver: NodeDriver, *names: str) -> list[bytes]:
    return [base64.b64decode(line["body"]) for line in received(driver, *names)]


def test_messages_are_sent_and_consumed_with_tag_keys_and_properties(
    server: Server, drive: Callable[[Server], NodeDriver]
) -> None:
    post(server, "orders", b"seed")
    driver = drive(server)
    driver.ask("producer", name="p", group="shop")
    sent = [
        driver.ask(
            "send",
            name="p",
            topic="orders",
            tag="paid",
            keys=[f"k{n}"],
            body=encoded(b"order %d" % n),
            properties={"colour": "red", "n": str(n)},
        )
        for n in range(10)
    ]
    assert [one["status"] for one in sent] == ["SEND_OK"] * 10
    assert [one["offset"] for one in sent] == list(range(1, 11))
    driver.ask("consumer", name="c", group="billing", topic="orders")
    driver.until(lambda: len(received(driver, "c")) == 11)
    assert bodies(driver, "c") == [b"seed"] + [b"order %d" % n for n in range(10)]
    for line, one, n in zip(received(driver, "c")[1:], sent, range(10), strict=True):
        assert (line["tag"], line["keys"], line["id"]) == ("paid", f"k{n}", one["id"])
        assert line["properties"]["colour"] == "red"
        assert line["properties"]["n"] == str(n)


@pytest.mark.parametrize("end", [Server.restart, kill_and_start])
@pytest.mark.slow
def test_a_group_goes_on_where_it_was(
    server: Server, drive: Callable[[Server], NodeDriver], end: Callable[[Server], None]
) -> None:
    post(server, "orders", b"1")
    first = drive(server)
    first.ask("consumer", name="c", group="billing", topic="orders")
    first.until(lambda: bodies(first, "c") == [b"1"])
    first.ask("close", name="c")  # it commits its offsets, and awaits no answer
    until_committed(server, "billing", "orders", 1)
    end(server)
    post(server, "orders", b"2")
    second = drive(server)
    second.ask("consumer", name="c", group="billing", topic="orders")
    second.until(lambda: b"2" in bodies(second, "c"))
    assert bodies(second, "c") == [b"2"]


@pytest.mark.slow
def test_what_could_not_be_consumed_comes_again(
    server: Server, drive: Callable[[Server], NodeDriver]
) -> None:
    post(server, "orders", b"hard")
    driver = drive(server)
    driver.ask("consumer", name="c", group="billing", topic="orders", fail=1)
    driver.until(lambda: len(received(driver, "c")) == 2)  # 10 seconds: RocketMQ's first retry
    again = received(driver, "c")[1]
    assert (again["times"], again["topic"], again["failed"]) == (1, "orders", False)
    assert bodies(driver, "c") == [b"hard", b"hard"]


@pytest.mark.slow
def test_two_consumers_of_a_group_share_the_queues_and_one_takes_all_over(
    server: Server, drive: Callable[[Server], NodeDriver]
) -> None:
    """Each has messages, and what the one that left would have had still comes."""
    driver, other = drive(server), drive(server)
    create_topic(server, "orders", queues=4)
    driver.ask("producer", name="p", group="shop")
    driver.ask("consumer", name="a", group="billing", topic="orders")
    other.ask("consumer", name="b", group="billing", topic="orders")

    def send_and_wait(count: int) -> None:
        wanted = {b"%d-%d" % (len(driver.said), n) for n in range(count)}
        for body in sorted(wanted):
            driver.ask("send", name="p", topic="orders", body=encoded(body))
        driver.until(lambda: other.take_news() and wanted <= set(got()), REBALANCE_SECONDS_MAX)

    def got() -> list[bytes]:
        return bodies(driver, "a") + bodies(other, "b")

    for _ in range(20):  # until the two have shared out
        send_and_wait(8)
        if received(driver, "a") and received(other, "b"):
            break
    assert received(driver, "a")
    assert received(other, "b")
    other.ask("close", name="b")
    send_and_wait(8)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("trio") is None, reason="the name server needs trio")
def test_clients_that_ask_a_name_server_outlive_a_restart_of_the_broker(
    start_server: StartServer, drive_at: Callable[[str], NodeDriver], tmp_path: Path
) -> None:
    """What is sent after it reaches the group, in which one consumer has meanwhile gone."""
    names = NameServer(tmp_path / "names")
    names.start()
    try:
        server = start_server(**{"names.servers": f'["127.0.0.1:{names.port}"]'})
        create_topic(server, "orders", queues=4)
        wait_until(lambda: has_route(names, "orders"))
        drivers = [drive_at(f"127.0.0.1:{names.port}") for _ in range(2)]
        for driver, name in zip(drivers, "ab", strict=True):
            driver.ask("consumer", name=name, group="billing", topic="orders")
        drivers[0].ask("producer", name="p", group="shop")

        def send_and_wait(bodies_: list[bytes]) -> None:
            for body in bodies_:
                drivers[0].ask("send", name="p", topic="orders", body=encoded(body))
            drivers[0].until(
                lambda: drivers[1].take_news() and set(bodies_) <= set(got()),
                REBALANCE_SECONDS_MAX,
            )

        def got() -> list[bytes]:
            return bodies(drivers[0], "a") + bodies(drivers[1], "b")

        send_and_wait([b"before %d" % number for number in range(8)])
        server.restart()
        wait_until(lambda: has_route(names, "orders"))
        drivers[1].ask("close", name="b")
        send_and_wait([b"after %d" % number for number in range(8)])
    finally:
        names.kill()


def has_route(names: NameServer, topic: str) -> bool:
    """Whether the name server knows the topic."""
    with Client("127.0.0.1", names.port) as client:
        return client.ask(105, topic=topic).code == 0


def test_each_consumer_of_a_broadcast_gets_everything(
    server: Server, drive: Callable[[Server], NodeDriver]
) -> None:
    post(server, "news", b"seed")
    driver = drive(server)
    for name in ("a", "b"):
        driver.ask("consumer", name=name, group="readers", topic="news", broadcast=True)
    post(server, "news", b"extra")
    for name in ("a", "b"):

        def has_extra(name: str = name) -> bool:
            return b"extra" in bodies(driver, name)

        driver.until(has_extra)


def test_mqtt_and_rocketmq_read_each_other(
    server: Server, drive: Callable[[Server], NodeDriver]
) -> None:
    got: list[tuple[str, bytes]] = []
    client = paho.Client(CallbackAPIVersion.VERSION2, "reader")
    client.on_message = lambda _c, _u, message: got.append((message.topic, bytes(message.payload)))
    client.connect(server.host, server.mqtt_port)
    client.loop_start()
    try:
        client.subscribe("sensors/#", qos=1)
        client.publish("sensors/room1/temp", b"21.5", qos=1).wait_for_publish(20)
        driver = drive(server)
        driver.ask("consumer", name="c", group="g", topic="sensors")
        driver.until(lambda: received(driver, "c"))
        (line,) = received(driver, "c")
        assert (base64.b64decode(line["body"]), line["tag"]) == (b"21.5", "room1.temp")
        driver.ask("producer", name="p", group="shop")
        driver.ask("send", name="p", topic="sensors", tag="room2.temp", body=encoded(b"19"))
        driver.until(lambda: len(received(driver, "c")) == 2 and len(got) == 2)
    finally:
        client.loop_stop()
        client.disconnect()
    assert got == [("sensors/room1/temp", b"21.5"), ("sensors/room2/temp", b"19")]


def create_topic(server: Server, name: str, queues: int) -> None:
    """Make a topic with several queues."""
    request = urllib.request.Request(
        f"http://{server.host}:{server.admin_port}/api/v1/topics/{name}",
        data=b'{"queues": %d}' % queues,
        method="PUT",
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.status == 201


def test_clients_sign_with_their_access_keys(
    server: Server, drive: Callable[[Server], NodeDriver]
) -> None:
    """ali-ons writes numbers and booleans where others write text, and signs all the same."""
    post(server, "orders", b"seed")
    people = Admin(server)
    people.add("shop")
    people.allow("shop", "publish,subscribe", "orders.#")
    people.allow("shop", "subscribe,create", "%RETRY%billing.#")
    made = people.good("POST", "/api/v1/users/shop/access-keys")
    key = {"accessKey": made["access_key"], "secretKey": made["secret_key"]}
    driver = drive(server)
    driver.ask("consumer", name="c", group="billing", topic="orders", **key)
    driver.ask("producer", name="p", group="shop", **key)
    sent = driver.ask("send", name="p", topic="orders", tag="paid", body=encoded(b"signed"))
    assert sent["status"] == "SEND_OK"
    driver.until(lambda: {b"seed", b"signed"} <= set(bodies(driver, "c")), REBALANCE_SECONDS_MAX)
    driver.ask("producer", name="wrong", group="shop", accessKey="unknown", secretKey="x")
    with pytest.raises(AssertionError, match=r"there is no such access key.*'code': 16"):
        driver.ask("send", name="wrong", topic="orders", tag="paid", body=encoded(b"x"))
