"""Shared subscriptions with clients that are not ours, over kills, and from other protocols."""

from __future__ import annotations

import http.client
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from queue import SimpleQueue
from typing import Any

import pika
import pytest
from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from interop_tests.conftest import Server, StartServer
from interop_tests.ledger.ports import lasting_ports
from interop_tests.test_restart_state import read_topic

SECONDS_MAX = 30.0
VERSIONS = (mqtt.MQTTv31, mqtt.MQTTv311, mqtt.MQTTv5)


class Member:
    """A client of paho's in a thread, whose session stays; it connects again by itself."""

    def __init__(
        self,
        server: Server,
        name: str,
        version: int,
        *,
        seen: Callable[[str, mqtt.MQTTMessage], None],
        pattern: str,
        qos: int,
    ) -> None:
        self.subscribed: SimpleQueue[int] = SimpleQueue()
        five = version == mqtt.MQTTv5
        more: dict[str, Any] = {} if five else {"clean_session": False}
        self.paho = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            client_id=name,
            protocol=version,  # type: ignore[arg-type]
            **more,
        )
        self.paho.reconnect_delay_set(1, 1)
        self.paho.on_message = lambda _c, _u, message: seen(name, message)
        self.paho.on_subscribe = lambda _c, _u, _m, codes, _p: self.subscribed.put(codes[0].value)
        asked: dict[str, Any] = {}
        if five:
            stays = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            stays.SessionExpiryInterval = 1000
            asked = {"clean_start": False, "properties": stays}
        self.paho.on_connect = lambda client, *_: client.subscribe(pattern, qos)
        self.paho.connect(server.host, server.mqtt_port, **asked)
        self.paho.loop_start()
        assert self.subscribed.get(timeout=SECONDS_MAX) == qos

    def unsubscribe(self, pattern: str) -> None:
        """Returns once the server has said that it had this subscription."""
        answers: SimpleQueue[Any] = SimpleQueue()
        self.paho.on_unsubscribe = lambda _c, _u, _m, codes, _p: answers.put(codes)
        self.paho.unsubscribe(pattern)
        codes = answers.get(timeout=SECONDS_MAX)
        assert all(code.value == 0 for code in codes)

    def leave(self) -> None:
        self.paho.disconnect()
        self.paho.loop_stop()


class Book:
    """Who got what, from the threads of all members."""

    def __init__(self) -> None:
        self.got: list[tuple[str, bytes, int]] = []
        self._changed = threading.Condition()

    def note(self, name: str, message: mqtt.MQTTMessage) -> None:
        with self._changed:
            self.got.append((name, bytes(message.payload), message.qos))
            self._changed.notify_all()

    def wait_for(self, bodies: set[bytes]) -> None:
        """Until somebody has got each of these."""
        with self._changed:
            assert self._changed.wait_for(
                lambda: bodies <= {body for _, body, _ in self.got}, SECONDS_MAX
            ), f"missing: {sorted(bodies - {body for _, body, _ in self.got})[:20]}"


@contextmanager
def members(
    server: Server, book: Book, pattern: str, *asked: tuple[int, int]
) -> Iterator[list[Member]]:
    """A member for each version and QoS."""
    found = [
        Member(server, f"m{number}", version, seen=book.note, pattern=pattern, qos=qos)
        for number, (version, qos) in enumerate(asked)
    ]
    try:
        yield found
    finally:
        for member in found:
            member.leave()


def test_messages_of_all_protocols_go_to_one_member_each(server: Server) -> None:
    """Members speak three versions of MQTT; publishers MQTT, AMQP and HTTP."""
    book = Book()
    asked = [(version, 1) for version in VERSIONS]
    with members(server, book, "$share/work/jobs/#", *asked):
        publisher = mqtt.Client(CallbackAPIVersion.VERSION2)
        publisher.connect(server.host, server.mqtt_port)
        publisher.loop_start()
        for number in range(30):
            publisher.publish("jobs/a", b"mqtt %d" % number, qos=1).wait_for_publish(SECONDS_MAX)
        publisher.disconnect()
        publisher.loop_stop()
        connection = pika.BlockingConnection(
            pika.ConnectionParameters(server.host, server.amqp_port)
        )
        channel = connection.channel()
        channel.exchange_declare("jobs", "topic", durable=True)
        channel.confirm_delivery()
        for number in range(30):
            channel.basic_publish("jobs", "a", b"amqp %d" % number)
        connection.close()
        http_client = http.client.HTTPConnection(server.host, server.http_port)
        for number in range(30):
            event = {"ce-specversion": "1.0", "ce-source": "/t", "ce-type": "a"}
            event |= {"ce-id": str(number), "Content-Type": "text/plain"}
            http_client.request("POST", "/topics/jobs", b"http %d" % number, event)
            answer = http_client.getresponse()
            answer.read()
            assert answer.status in (200, 202, 204), answer.status
        http_client.close()
        bodies = {b"%s %d" % (of, n) for of in (b"mqtt", b"amqp", b"http") for n in range(30)}
        book.wait_for(bodies)
    assert len(book.got) == len(bodies)
    assert set(Counter(name for name, *_ in book.got).values()) == {30}


def test_a_queue_is_a_share_without_a_name(server: Server) -> None:
    """Members by both spellings and in all versions are of one group, beside other groups; what
    there was as retained comes to nobody. The operator sees the filter as it was written."""
    book, others = Book(), Book()
    publisher = mqtt.Client(CallbackAPIVersion.VERSION2)
    publisher.connect(server.host, server.mqtt_port)
    publisher.loop_start()
    publisher.publish("tasks/a", b"old", 1, retain=True).wait_for_publish(SECONDS_MAX)
    pattern = "$queue/tasks/#"
    with members(server, book, pattern, *((version, 1) for version in VERSIONS)) as queue:
        spelled, other = (
            Member(server, name, mqtt.MQTTv5, seen=seen, pattern=f"$share/{name}/tasks/#", qos=1)
            for name, seen in (("$queue", book.note), ("other", others.note))
        )
        for number in range(40):
            publisher.publish("tasks/a", b"%d" % number, qos=1).wait_for_publish(SECONDS_MAX)
        bodies = {b"%d" % number for number in range(40)}
        book.wait_for(bodies)
        others.wait_for(bodies)
        url = f"http://{server.host}:{server.admin_port}/api/v1/mqtt/sessions/%24queue"
        with urllib.request.urlopen(url, timeout=SECONDS_MAX) as answer:
            assert f'"{pattern}"' in answer.read().decode()
        for member in (*queue, spelled):
            member.unsubscribe(pattern)
        spelled.leave()
        other.leave()
    publisher.disconnect()
    publisher.loop_stop()
    assert sorted(body for _, body, _ in book.got) == sorted(bodies)
    assert set(Counter(name for name, *_ in book.got).values()) == {10}
    assert len(others.got) == 40


def test_a_library_without_shared_subscriptions_is_told(start_server: StartServer) -> None:
    server = start_server(**{"mqtt.shared_subscriptions": "false"})
    asked = [(mqtt.MQTTv311, 0x80), (mqtt.MQTTv5, 0x9E)]
    for (version, code), pattern in product(asked, ("$share/g/a", "$queue/a")):
        answers: SimpleQueue[int] = SimpleQueue()
        client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=version)
        client.on_connect = lambda found, *_, wanted=pattern: found.subscribe(wanted, 1)
        client.on_subscribe = lambda _c, _u, _m, codes, _p, put=answers.put: put(codes[0].value)
        client.connect(server.host, server.mqtt_port)
        client.loop_start()
        assert answers.get(timeout=SECONDS_MAX) == code
        client.disconnect()
        client.loop_stop()


@pytest.mark.slow(seconds=20)
def test_nothing_is_lost_over_kills_and_quality_2_comes_once(start_server: StartServer) -> None:
    """The server is killed while messages are published and acknowledged; all clients come back by
    themselves. What came with QoS 2 came to one member, once."""
    server = start_server(**lasting_ports())
    book = Book()
    asked = [(mqtt.MQTTv5, 2), (mqtt.MQTTv311, 2), (mqtt.MQTTv311, 1)]
    published = {b"%d" % number for number in range(1_500)}
    with members(server, book, "$share/work/jobs/#", *asked):
        publisher = mqtt.Client(
            CallbackAPIVersion.VERSION2, client_id="publisher", clean_session=False
        )
        publisher.reconnect_delay_set(1, 1)
        publisher.max_inflight_messages_set(50)
        publisher.connect(server.host, server.mqtt_port)
        publisher.loop_start()
        for part in range(3):
            for number in range(500 * part, 500 * part + 500):
                publisher.publish("jobs/a", b"%d" % number, qos=2)
            book.wait_for({b"%d" % (500 * part + number) for number in range(40)})
            server.kill()
            server.restart()
        book.wait_for(published)
        publisher.disconnect()
        publisher.loop_stop()
    once = Counter(body for _, body, qos in book.got if qos == 2)
    stored = Counter(body for _, body in read_topic(server, "jobs"))  # paho may publish one twice
    assert {body: count for body, count in once.items() if count > stored[body]} == {}
    assert {qos for _, _, qos in book.got} == {1, 2}
    assert len({name for name, *_ in book.got}) == len(asked)


def test_members_that_were_away_over_a_kill_share_what_waited(start_server: StartServer) -> None:
    """The share is there again, with its members and what nobody has acknowledged."""
    server = start_server(**lasting_ports())
    book = Book()
    asked = [(mqtt.MQTTv5, 1), (mqtt.MQTTv311, 1)]
    with members(server, book, "$share/work/jobs/+", *asked):
        pass
    publisher = mqtt.Client(CallbackAPIVersion.VERSION2)
    publisher.connect(server.host, server.mqtt_port)
    publisher.loop_start()
    for number in range(100):
        publisher.publish("jobs/a", b"%d" % number, qos=1).wait_for_publish(SECONDS_MAX)
    publisher.disconnect()
    publisher.loop_stop()
    server.kill()
    server.restart()
    with members(server, book, "$share/work/jobs/+", *asked):
        book.wait_for({b"%d" % number for number in range(100)})
