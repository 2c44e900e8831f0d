"""RocketMQ's listener with Apache's own Java clients, unchanged from Maven Central.

One Java machine for each generation of clients. Those of 4.x ask the broker's listener for routes
and write JSON headers; those of 5.x ask a name server of its own and write binary ones, as
RocketMQ's benchmarks do.
"""

from __future__ import annotations

import base64
import itertools
import json
import queue
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import paho.mqtt.client as paho
import pika
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from interop_tests.java_side import SECONDS_MAX, Side, encoded, has_route, open_side
from interop_tests.name_server import wait_until
from interop_tests.people import Admin
from interop_tests.remoting_wire import Client

pytestmark = pytest.mark.java_clients

NO_PERMISSION = 16


@pytest.fixture
def side(machine: Side) -> Iterator[Side]:
    yield machine
    machine.close()


@pytest.fixture(scope="module", params=["4", "5"])
def machine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Side]:
    with open_side(request.param, tmp_path_factory.mktemp("java")) as made:
        yield made


def test_messages_go_and_come_in_every_way_to_send(side: Side) -> None:
    """They are found by key, by the id that the producer gave, and by that of their place."""
    send = side.producer()
    topic = side.make_topic("quick")
    consumer = side.consumer(topic)
    first = send(topic, b"sync", tag="t", keys="k1 k2", colour="red")
    assert (first["status"], first["broker"]) == ("SEND_OK", "broker-a")
    assert send(topic, b"async", way="async")["status"] == "SEND_OK"
    send(topic, b"oneway", way="oneway")
    side.until(lambda: len(side.received(consumer)) == 3)
    assert set(side.bodies(consumer)) == {b"sync", b"async", b"oneway"}
    (line,) = [line for line in side.received(consumer) if line.get("tag") == "t"]
    assert (line["keys"], line["id"], line["properties"]["colour"]) == ("k1 k2", first["id"], "red")
    for command, key in (("by_key", "k2"), ("by_id", first["id"]), ("by_id", first["place"])):
        assert send(topic, b"", command, key=key) == {"bodies": [encoded(b"sync")]}, key


def test_a_topic_is_made_by_sending_to_it(side: Side) -> None:
    """With as many queues as the client wants: four."""
    send = side.producer()
    sent = [send("new", b"%d" % number) for number in range(8)]
    assert {one["queue"] for one in sent} == {0, 1, 2, 3}


def test_a_consumer_of_tags_gets_those_of_a_batch(side: Side) -> None:
    send = side.producer()
    topic = side.make_topic("filtered")
    consumer = side.consumer(topic, tags="a || b")
    for tag in ("a", "b", "c"):
        bodies = [encoded(b"%s%d" % (tag.encode(), number)) for number in range(3)]
        assert send(topic, b"", "batch", bodies=bodies, tag=tag)["status"] == "SEND_OK"
    side.until(lambda: len(side.received(consumer)) == 6)
    assert {body[:1] for body in side.bodies(consumer)} == {b"a", b"b"}


def test_what_belongs_together_comes_in_order(side: Side) -> None:
    """Also where each message fails once before it is taken."""
    send = side.producer()
    topic = side.make_topic("steps")
    for number in range(12):
        send(topic, b"%d" % number, shard=number % 4)
    consumer = side.consumer(topic, orderly=True, fail=1)
    side.until(lambda: len(side.received(consumer)) == 24)
    for shard in range(4):
        lines = [line for line in side.received(consumer) if line["queue"] == shard]
        taken = [base64.b64decode(line["body"]) for line in lines if not line["failed"]]
        assert taken == [b"%d" % number for number in range(shard, 12, 4)]


def test_each_consumer_of_a_broadcast_gets_everything(side: Side) -> None:
    send = side.producer()
    topic = side.make_topic("news")
    group = side.name("group")
    readers = [side.consumer(topic, group, broadcast=True) for _ in range(2)]
    wanted = {b"%d" % number for number in range(8)}
    for body in wanted:
        send(topic, body)
    for reader in readers:

        def has_everything(reader: str = reader) -> bool:
            return set(side.bodies(reader)) == wanted

        side.until(has_everything)


def test_a_delayed_message_does_not_come_before_its_time(side: Side) -> None:
    send = side.producer()
    topic = side.make_topic("later")
    consumer = side.consumer(topic)
    assert send(topic, b"x", delay=1)["status"] == "SEND_OK"
    side.until(lambda: side.received(consumer))
    (line,) = side.received(consumer)
    assert line["now"] - line["born"] >= 1000


def test_transactions_are_committed_rolled_back_and_asked_about(side: Side) -> None:
    """The broker asks after six seconds."""
    send = side.producer()
    topic = side.make_topic("transfers")
    consumer = side.consumer(topic)
    for body in (b"later", b"rollback", b"commit"):
        assert send(topic, body, "transaction")["status"] == "SEND_OK"
    side.until(lambda: len(side.received(consumer)) == 2)
    assert side.bodies(consumer) == [b"commit", b"later"]
    assert [line["checked"] for line in side.driver.said if "checked" in line][-1] == "later"


def test_pull_consumers_read_everything(side: Side) -> None:
    send = side.producer()
    topic = side.make_topic("read")
    wanted = {b"%d" % number for number in range(20)}
    for body in wanted:
        send(topic, body)
    puller = side.name("puller")
    assert side.driver.ask("pull", name=puller, group=puller, topic=topic) == {"count": 20}
    assert set(side.bodies(puller)) == wanted
    lite = side.consumer(topic, kind="lite")
    side.until(lambda: set(side.bodies(lite)) == wanted)


def test_what_fails_too_often_becomes_a_dead_letter(side: Side) -> None:
    send = side.producer()
    topic = side.make_topic("hard")
    consumer = side.consumer(topic, tries=1, fail=9)
    send(topic, b"hard", keys="k")
    side.until(lambda: len(side.received(consumer)) == 2)
    assert [line["times"] for line in side.received(consumer)] == [0, 1]
    assert {line["topic"] for line in side.received(consumer)} == {topic}
    wait_until(lambda: has_route(side.names, f"%DLQ%{consumer}"))  # as in `make_topic`
    dead = side.consumer(f"%DLQ%{consumer}")
    side.until(lambda: side.received(dead))
    assert side.bodies(dead) == [b"hard"]


def test_a_filter_in_sql_is_refused_in_words(side: Side) -> None:
    topic = side.make_topic("sql")
    name = side.name("consumer")
    refused = side.driver.ask("consumer", name=name, group=name, topic=topic, sql="a > 1")
    assert "filters by tags only" in refused["error"]


def test_a_compressed_body_is_plain_for_the_others(side: Side) -> None:
    """Java compresses what is larger than 4 KiB."""
    check_compressed(side, 0x301)


@pytest.mark.parametrize(("kind", "flag"), [("LZ4", 0x101), ("ZSTD", 0x201)])
def test_so_is_one_that_was_compressed_otherwise(tmp_path: Path, kind: str, flag: int) -> None:
    with open_side("5", tmp_path, {"rocketmq.message.compressType": kind}) as side:
        check_compressed(side, flag)


def check_compressed(side: Side, flag: int) -> None:
    """Readers in all protocols get the text; the log has it with this system flag."""
    text = b"a long story, " * 1000
    topic = side.make_topic("stories")
    host = side.server.host
    listeners = f"http://{host}:{side.server.http_port}"
    mqtt: queue.Queue[bytes] = queue.Queue()
    ready = threading.Event()
    device = paho.Client(CallbackAPIVersion.VERSION2, side.name("device"))
    device.on_connect = lambda client, *_: client.subscribe(f"{topic}/#", qos=1)
    device.on_subscribe = lambda *_: ready.set()
    device.on_message = lambda _c, _u, message: mqtt.put(bytes(message.payload))
    device.connect(host, side.server.mqtt_port)
    device.loop_start()
    with pika.BlockingConnection(pika.ConnectionParameters(host, side.server.amqp_port)) as amqp:
        channel = amqp.channel()
        channel.exchange_declare(topic, "topic", durable=True)
        channel.queue_declare(topic)
        channel.queue_bind(topic, topic, "#")
        http("PUT", f"{listeners}/subscriptions/all", json.dumps({"topic": topic}).encode())
        assert ready.wait(SECONDS_MAX)
        side.producer()(topic, text, tag="t")
        assert mqtt.get(timeout=SECONDS_MAX) == text
        _, _, body = next(iter(channel.consume(topic, inactivity_timeout=SECONDS_MAX)))
        assert body == text
    receive = f"{listeners}/topics/{topic}/subscriptions/all:receive?maxWaitTime=20"
    event = http("POST", receive)["value"][0]["event"]
    assert (event.get("data") or base64.b64decode(event["data_base64"]).decode()) == text.decode()
    device.loop_stop()
    device.disconnect()
    consumer = side.consumer(topic)
    side.until(lambda: side.bodies(consumer) == [text])
    with Client(host, side.server.rocketmq_port) as reader:
        found = [
            message for queue_id in range(4) for message in reader.pull(topic, queue_id=queue_id)[1]
        ]
    assert [message.system_flag & 0x701 for message in found] == [flag]


def http(method: str, url: str, body: bytes | None = None) -> Any:
    request = urllib.request.Request(
        url, body, method=method, headers={"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=SECONDS_MAX) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def test_two_consumers_share_the_queues_and_one_takes_all_over(side: Side) -> None:
    send = side.producer()
    topic = side.make_topic("shared")
    group = side.name("group")
    first, second = side.consumer(topic, group), side.consumer(topic, group)
    sent = itertools.count()

    def send_and_wait(count: int) -> None:
        wanted = {b"%d" % next(sent) for _ in range(count)}
        for body in wanted:
            send(topic, body)
        side.until(lambda: wanted <= set(side.bodies(first, second)))

    deadline = time.monotonic() + SECONDS_MAX
    while not (side.received(first) and side.received(second)):
        assert time.monotonic() < deadline
        send_and_wait(8)
    side.close(second)
    count = len(side.received(second))
    send_and_wait(8)
    assert len(side.received(second)) == count


def test_clients_log_in_with_access_keys(side: Side) -> None:
    """Apache's own signatures, with JSON and with binary headers. A producer that may only publish
    finds its topic; a key that is removed is worth nothing to who uses it at that moment."""
    topic = side.make_topic("signed")
    other = side.make_topic("unsigned")
    people = Admin(side.server)
    people.add("shop")
    people.allow("shop", "publish", f"{topic}.paid")
    shop = people.good("POST", "/api/v1/users/shop/access-keys")
    people.add("billing")
    people.allow("billing", "subscribe", f"{topic}.#")
    people.allow("billing", "subscribe,create", "%RETRY%signers.#")
    billing = people.good("POST", "/api/v1/users/billing/access-keys")
    try:
        send = side.producer(**shop)
        assert send(topic, b"right", tag="paid")["status"] == "SEND_OK"
        assert send(topic, b"x", tag="unpaid")["code"] == NO_PERMISSION
        assert "error" in send(other, b"x", tag="paid")
        wrong = side.producer(access_key=shop["access_key"], secret_key="0" * 64)
        assert "error" in wrong(topic, b"x", tag="paid")
        assert "error" in side.producer()(topic, b"x", tag="paid")
        reader = side.consumer(topic, "signers", **billing)
        side.until(lambda: side.bodies(reader) == [b"right"])
        people.good("DELETE", f"/api/v1/users/shop/access-keys/{shop['access_key']}")
        assert send(topic, b"x", tag="paid")["code"] == NO_PERMISSION
        again = side.producer(**people.good("POST", "/api/v1/users/shop/access-keys"))
        assert again(topic, b"again", tag="paid")["status"] == "SEND_OK"
        side.until(lambda: side.bodies(reader) == [b"right", b"again"])
    finally:
        for user in ("shop", "billing"):  # without users everybody may do everything again
            people.good("DELETE", f"/api/v1/users/{user}")


def test_what_fails_comes_again_with_users_too(side: Side) -> None:
    """The server itself puts into the retry topic what a member of the group gives back, and then
    among the dead letters; whoever is not a member reads nothing and joins nothing."""
    topic = side.make_topic("guarded")
    people = Admin(side.server)
    people.add("shop")
    people.allow("shop", "publish", f"{topic}.#")
    people.add("billing")
    people.allow("billing", "subscribe", f"{topic}.#")
    people.allow("billing", "subscribe,create", "%RETRY%.billing.#")
    people.allow("billing", "subscribe", "%DLQ%.billing.#")
    people.add("root", "admin")
    keys = {
        name: people.good("POST", f"/api/v1/users/{name}/access-keys")
        for name in ("shop", "billing")
    }
    try:
        send = side.producer(**keys["shop"])
        reader = side.consumer(topic, "billing", tries=1, fail=9, **keys["billing"])
        stranger = side.consumer(topic, "billing", **keys["shop"])
        assert send(topic, b"hard")["status"] == "SEND_OK"
        side.until(lambda: len(side.received(reader)) == 2)
        assert [line["times"] for line in side.received(reader)] == [0, 1]
        dead = f"/api/v1/topics/{quote('%DLQ%billing')}"
        side.until(lambda: people.ask("GET", dead)[0] == 200)
        assert side.bodies(stranger) == []
    finally:
        for user in ("shop", "billing", "root"):
            people.good("DELETE", f"/api/v1/users/{user}")


def test_clients_outlive_the_broker_and_nothing_acked_is_lost(side: Side) -> None:
    """A restart for those of 4.x, a crash for those of 5.x. After a crash a new consumer looks: one
    that was there may take half a minute, the time limit of its waiting pull, to notice it."""
    send = side.producer()
    topic = side.make_topic("kept-" + side.name("x"))
    consumer = side.consumer(topic)
    acked: set[bytes] = set()

    def send_until(count: int) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while len(acked) < count:
            assert time.monotonic() < deadline
            body = b"%d" % len(acked)
            if send(topic, body).get("status") == "SEND_OK":
                acked.add(body)

    send_until(20)
    if side.generation == "5":
        side.server.kill()
        side.server.start()
        consumer = side.consumer(topic)
    else:
        side.server.restart()
    send_until(40)
    side.until(lambda: acked <= set(side.bodies(consumer)))
