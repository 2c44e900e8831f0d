"""MQTT sessions over lost connections, restarts and crashes of the server: nothing acked is lost,
nothing is delivered twice that must not be."""

from __future__ import annotations

import pytest

from interop_tests.conftest import Server
from interop_tests.exactly_once import FILTERS, receive_once
from interop_tests.mqtt_raw_client import RawClient
from interop_tests.mqtt_wire import (
    connack,
    connect,
    puback,
    pubcomp,
    publish,
    pubrec,
    pubrel,
    suback,
    subscribe,
    unsuback,
    unsubscribe,
)

RETAINED_COUNT = 100
"""More than the window of a new connection."""


def retain_many(port: int) -> None:
    """That many retained messages below `t`."""
    ids = range(1, RETAINED_COUNT + 1)
    with RawClient.connected(port, "publisher of retained") as publisher:
        for k in ids:
            publisher.send(publish(f"t/{k:03}", b"%d" % k, qos=1, packet_id=k, retain=True))
        publisher.expect(*map(puback, ids))
        publisher.disconnect()


def publish_all(port: int, topic: str, bodies: list[bytes], *, qos: int = 1) -> None:
    """Publish and wait until every message is acknowledged."""
    with RawClient.connected(port, "publisher of " + topic.replace("/", " ")) as publisher:
        ids = range(1, len(bodies) + 1)
        publisher.send(
            *(
                publish(topic, body, qos=qos, packet_id=k)
                for k, body in zip(ids, bodies, strict=True)
            )
        )
        if qos == 1:
            publisher.expect(*map(puback, ids))
        if qos == 2:
            publisher.expect(*map(pubrec, ids))
            publisher.send(*map(pubrel, ids))
            publisher.expect(*map(pubcomp, ids))
        publisher.disconnect()


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % k for k in range(first, last)]


def test_messages_wait_for_a_persistent_session(server: Server) -> None:
    """At QoS 1 and 2 all of them, in order, once; a clean session that follows starts empty."""
    port = server.mqtt_port
    client = RawClient.connected(port, "c", clean=False)
    client.subscribe(("t/+", 2))
    client.disconnect()
    publish_all(port, "t/1", numbers(0, 500))
    publish_all(port, "t/2", numbers(500, 600), qos=2)
    client = RawClient.connected(port, "c", clean=False, present=True)
    found = list(client.acknowledge(600))
    assert [m.body for m in found] == numbers(0, 600)
    assert [m.qos for m in found] == [1] * 500 + [2] * 100
    assert not any(m.duplicate or m.retain for m in found)
    client.expect_nothing_before_ping()
    client.disconnect()
    client = RawClient.connected(port, "c", clean=True)
    publish_all(port, "t/1", [b"x"])
    client.expect_nothing_before_ping()
    client.disconnect()
    client = RawClient.connected(port, "c", clean=False, present=False)
    client.expect_nothing_before_ping()
    client.disconnect()


def test_a_clean_session_leaves_nothing_behind(server: Server) -> None:
    """[MQTT-3.1.2-6]."""
    client = RawClient.connected(server.mqtt_port, "c")
    client.subscribe(("t", 1))
    client.disconnect()
    publish_all(server.mqtt_port, "t", [b"x"])
    client = RawClient.connected(server.mqtt_port, "c", clean=False, present=False)
    client.expect_nothing_before_ping()
    client.disconnect()


def test_what_was_not_acknowledged_comes_again(server: Server) -> None:
    """[MQTT-4.4.0-1]: same packet ids, DUP set, original order; what was acknowledged does not."""
    port = server.mqtt_port
    client = RawClient.connected(port, "c", clean=False)
    client.subscribe(("t", 1))
    publish_all(port, "t", numbers(0, 20))
    first = list(client.publishes(20))
    assert not any(m.duplicate for m in first)
    client.send(*(puback(m.packet_id) for m in first[:5]))
    client.expect_nothing_before_ping()  # the acks have been read
    client.vanish()
    client = RawClient.connected(port, "c", clean=False, present=True)
    again = list(client.publishes(15))
    assert [(m.packet_id, m.body) for m in again] == [(m.packet_id, m.body) for m in first[5:]]
    assert all(m.duplicate for m in again)
    client.send(*(puback(m.packet_id) for m in again))
    client.expect_nothing_before_ping()
    publish_all(port, "t", [b"new"])
    message = client.receive_publish()
    assert (message.body, message.duplicate) == (b"new", False)
    client.disconnect()


def test_exactly_once_delivery_over_a_lost_connection(server: Server) -> None:
    """After PUBREC only the PUBREL comes again, never the message [MQTT-4.3.3-1]."""
    port = server.mqtt_port
    client = RawClient.connected(port, "c", clean=False)
    client.subscribe(("t", 2))
    publish_all(port, "t", [b"1", b"2"], qos=2)
    one, two = client.publishes(2)
    client.send(pubrec(one.packet_id))
    client.expect(pubrel(one.packet_id))
    client.vanish()
    client = RawClient(port)
    client.send(connect("c", clean=False))
    client.expect(connack(present=True))
    packets = [client.receive(), client.receive()]
    assert pubrel(one.packet_id) in packets
    assert publish("t", b"2", qos=2, packet_id=two.packet_id, duplicate=True) in packets
    client.send(pubcomp(one.packet_id), pubrec(two.packet_id))
    client.expect(pubrel(two.packet_id))
    client.send(pubcomp(two.packet_id))
    client.expect_nothing_before_ping()
    client.vanish()
    client = RawClient.connected(port, "c", clean=False, present=True)
    client.expect_nothing_before_ping()
    client.disconnect()


@pytest.mark.parametrize("crash", [True, False], ids=["kill", "SIGTERM"])
def test_what_was_acknowledged_survives_the_server(server: Server, crash: bool) -> None:
    """PUBACK, SUBACK and CONNACK mean that it is on the disk."""
    client = RawClient.connected(server.mqtt_port, "c", clean=False)
    client.subscribe(("t/#", 1), ("other", 0))
    client.disconnect()
    publish_all(server.mqtt_port, "t/a", numbers(0, 300))
    with RawClient.connected(server.mqtt_port, "p") as publisher:
        publisher.send(publish("t/kept", b"retained", qos=1, packet_id=1, retain=True))
        publisher.expect(puback(1))
        if crash:
            server.kill()
    server.restart()
    client = RawClient.connected(server.mqtt_port, "c", clean=False, present=True)
    found = list(client.acknowledge(301))
    assert [m.body for m in found] == [*numbers(0, 300), b"retained"]
    publish_all(server.mqtt_port, "t/b", [b"after"])
    assert client.receive_publish().body == b"after"
    client.disconnect()
    with RawClient.connected(server.mqtt_port, "late") as late:
        late.subscribe(("t/kept", 1))
        message = late.receive_publish()
        assert (message.body, message.retain) == (b"retained", True)


@pytest.mark.slow
def test_a_crash_between_publish_and_release_does_not_double_a_message(server: Server) -> None:
    """The packet id of a QoS 2 message is stored in the message's own record."""
    watcher = RawClient.connected(server.mqtt_port, "watcher", clean=False)
    watcher.subscribe(("t", 1))
    watcher.disconnect()
    publisher = RawClient.connected(server.mqtt_port, "p", clean=False)
    publisher.send(publish("t", b"once", qos=2, packet_id=7))
    publisher.expect(pubrec(7))
    server.kill()
    publisher.socket.close()
    server.restart()
    publisher = RawClient.connected(server.mqtt_port, "p", clean=False, present=True)
    publisher.send(publish("t", b"once", qos=2, packet_id=7, duplicate=True))
    publisher.expect(pubrec(7))
    publisher.send(pubrel(7))
    publisher.expect(pubcomp(7))
    server.kill()
    publisher.socket.close()
    server.restart()
    publisher = RawClient.connected(server.mqtt_port, "p", clean=False, present=True)
    publisher.send(pubrel(7))
    publisher.expect(pubcomp(7))
    publisher.send(publish("t", b"twice", qos=2, packet_id=7))
    publisher.expect(pubrec(7))
    publisher.disconnect()
    watcher = RawClient.connected(server.mqtt_port, "watcher", clean=False, present=True)
    found = list(watcher.publishes(2))
    assert [m.body for m in found] == [b"once", b"twice"]
    watcher.send(*(puback(m.packet_id) for m in found))
    watcher.expect_nothing_before_ping()
    watcher.disconnect()


def test_exactly_once_delivery_over_a_crash(server: Server) -> None:
    """PUBREC of the client is stored before PUBREL answers it, so the message never comes again."""
    client = RawClient.connected(server.mqtt_port, "c", clean=False)
    client.subscribe(("t", 2))
    publish_all(server.mqtt_port, "t", [b"1", b"2"], qos=2)
    one, two = client.publishes(2)
    client.send(pubrec(one.packet_id))
    client.expect(pubrel(one.packet_id))
    server.kill()
    client.socket.close()
    server.restart()
    client = RawClient(server.mqtt_port)
    client.send(connect("c", clean=False))
    client.expect(connack(present=True))
    packets = [client.receive(), client.receive()]
    assert pubrel(one.packet_id) in packets
    assert publish("t", b"2", qos=2, packet_id=two.packet_id, duplicate=True) in packets
    client.send(pubcomp(one.packet_id), pubrec(two.packet_id))
    client.expect(pubrel(two.packet_id))
    client.send(pubcomp(two.packet_id))
    client.expect_nothing_before_ping()
    client.disconnect()


def test_overlapping_filters_over_kills(server: Server) -> None:
    """What waits in the queues of two filters comes once with QoS 2, however often the server is
    killed between, and in order."""
    count = 80
    client = RawClient.connected(server.mqtt_port, "c", clean=False)
    client.subscribe(*FILTERS)
    client.disconnect()
    publish_all(server.mqtt_port, "t/1", numbers(0, count), qos=2)

    def interrupt() -> None:
        server.kill()
        server.restart()

    assert receive_once(lambda: server.mqtt_port, count, interrupt) == numbers(0, count)


def come_back(server: Server, client: RawClient, way: str) -> RawClient:
    """The client's connection ends this way; returns its next one."""
    if way == "kill":
        server.kill()
    client.vanish()
    if way != "reconnect":
        server.restart()
    return RawClient.connected(server.mqtt_port, "c", clean=False, present=True)


WAYS = ["reconnect", "kill", "SIGTERM"]
"""How a connection ends."""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.slow
def test_a_retained_message_in_flight_comes_again(server: Server, way: str, qos: int) -> None:
    """With its packet id and its QoS, which no new message gets meanwhile."""
    port = server.mqtt_port
    with RawClient.connected(port, "p") as publisher:
        publisher.send(publish("t/a", b"kept", qos=1, packet_id=1, retain=True))
        publisher.send(publish("t/b", b"kept, too", qos=2, packet_id=2, retain=True))
        publisher.expect(puback(1), pubrec(2))
    client = RawClient.connected(port, "c", clean=False)
    client.subscribe(("t/b" if qos == 2 else "t/a", 2))
    first = client.receive_publish()
    assert (first.qos, first.packet_id, first.retain, first.duplicate) == (qos, 1, True, False)
    client = come_back(server, client, way)
    again = client.receive_publish()
    assert (again.body, again.topic) == (first.body, first.topic)
    assert (again.qos, again.packet_id, again.retain, again.duplicate) == (qos, 1, True, True)
    publish_all(server.mqtt_port, first.topic, [b"new"], qos=qos)
    new = client.receive_publish()
    assert (new.body, new.packet_id, new.duplicate, new.retain) == (b"new", 2, False, False)
    for message in (again, new):
        if qos == 1:
            client.send(puback(message.packet_id))
        else:
            client.send(pubrec(message.packet_id))
            client.expect(pubrel(message.packet_id))
            client.send(pubcomp(message.packet_id))
    client.expect_nothing_before_ping()
    client = come_back(server, client, "reconnect")
    client.expect_nothing_before_ping()
    client.disconnect()


@pytest.mark.parametrize("clean", [True, False])
def test_a_retained_message_beside_a_subscribe_comes_once(server: Server, clean: bool) -> None:
    """Both stand in one segment, in either order; the SUBACK waits for the disk meanwhile."""
    for n in range(20):
        topic = f"race/{n}"
        client = RawClient.connected(server.mqtt_port, f"c{n}", clean=clean)
        packets = [
            subscribe(1, (topic, 2)),
            publish(topic, b"x", qos=1, packet_id=2, retain=True),
        ]
        client.send(*(packets if n % 2 else reversed(packets)))
        came = {client.receive()[:1] for _ in range(3)}
        assert {suback(1, 2)[:1], puback(2)[:1]} < came
        client.expect_nothing_before_ping()
        client.disconnect()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.slow
def test_unsubscribing_does_not_end_a_delivery(server: Server, way: str, qos: int) -> None:
    """[MQTT-3.10.4-3]: what has begun is done to its end; nothing new begins."""
    port = server.mqtt_port
    client = RawClient.connected(port, "c", clean=False)
    client.subscribe(("t", 2))
    publish_all(port, "t", [b"1", b"2"], qos=qos)
    first, second = client.publishes(2)
    client.send(puback(first.packet_id) if qos == 1 else pubrec(first.packet_id))
    if qos == 2:
        client.expect(pubrel(first.packet_id))
        client.send(pubcomp(first.packet_id))
    client.expect_nothing_before_ping()
    client.send(unsubscribe(2, "t"))
    client.expect(unsuback(2))
    publish_all(port, "t", [b"3"], qos=qos)
    client.expect_nothing_before_ping()
    if way != "reconnect":
        publish_all(port, "elsewhere", [b"x"])  # a flush behind what the client acknowledged
    client = come_back(server, client, way)
    again = [client.receive_publish()]
    if again[0].packet_id == first.packet_id:  # its acknowledgement was not on the disk yet
        assert way == "kill"
        assert qos == 1
        again = [client.receive_publish()]
    assert [(m.body, m.qos, m.packet_id, m.duplicate) for m in again] == [
        (b"2", qos, second.packet_id, True)
    ]
    client.expect_nothing_before_ping()
    client.disconnect()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("granted", [0, 1])
@pytest.mark.slow
def test_subscribing_again_changes_nothing_that_was_sent(
    server: Server, way: str, granted: int
) -> None:
    """[MQTT-3.8.4-3]: neither what is in flight, nor its QoS."""
    port = server.mqtt_port
    client = RawClient.connected(port, "c", clean=False)
    client.subscribe(("t", 2))
    publish_all(port, "t", [b"1"], qos=2)
    first = client.receive_publish()
    client.subscribe(("t", granted), packet_id=2)
    client = come_back(server, client, way)
    again = client.receive_publish()
    assert (again.body, again.qos, again.packet_id) == (b"1", 2, first.packet_id)
    assert again.duplicate
    publish_all(server.mqtt_port, "t", [b"2"], qos=2)
    message = client.receive_publish()
    assert (message.body, message.qos, message.duplicate) == (b"2", granted, False)
    client.disconnect()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("interruptions", [1, 4])
@pytest.mark.slow
def test_retained_messages_that_a_connection_did_not_get_come_to_the_next(
    server: Server, way: str, interruptions: int
) -> None:
    """[MQTT-3.3.1-6]: the session is present, so its client does not subscribe again. All come
    though the connection ends early, and new ones at the same topics come as live ones."""
    retain_many(server.mqtt_port)
    client = RawClient.connected(server.mqtt_port, "c", clean=False)
    client.subscribe(("t/#", 1))
    expected = {(b"%d" % k, True) for k in range(1, RETAINED_COUNT)}
    seen: set[tuple[bytes, bool]] = set()
    first_times = 0
    for number in range(interruptions + 1):
        while seen != expected if number == interruptions else len(seen) < 15 * (number + 1):
            (message,) = client.acknowledge(1)
            seen.add((message.body, message.retain))
            first_times += not message.duplicate
        if number < interruptions:
            client = come_back(server, client, way)
            with RawClient.connected(server.mqtt_port, "p") as publisher:
                for topic in (f"t/{RETAINED_COUNT}", "t/new"):
                    body = f"{topic}, {number}".encode()
                    publisher.send(publish(topic, body, qos=1, packet_id=1, retain=True))
                    publisher.expect(puback(1))
                    expected.add((body, False))
                publisher.disconnect()
    assert first_times <= len(expected), "what was sent before comes again with DUP"
    client.expect_nothing_before_ping()
    client.disconnect()
    client = RawClient.connected(server.mqtt_port, "c", clean=False, present=True)
    client.expect_nothing_before_ping()
    client.disconnect()


@pytest.mark.parametrize("way", ["none", "reconnect", "kill"])
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.slow
def test_subscribing_with_qos_0_keeps_what_waits(server: Server, way: str, qos: int) -> None:
    """[MQTT-3.8.4-3]: also what is beyond the window, and with the QoS it was queued under."""
    client = RawClient.connected(server.mqtt_port, "c", clean=False)
    client.subscribe(("t", qos))
    client.disconnect()
    bodies = numbers(0, 100)
    publish_all(server.mqtt_port, "t", bodies, qos=2)
    client = RawClient.connected(server.mqtt_port, "c", clean=False, present=True)
    found = list(client.publishes(32))  # the window of a new connection
    client.subscribe(("t", 0), packet_id=2)
    if way != "none":
        client = come_back(server, client, way)
        assert all(message.duplicate for message in client.publishes(32))
        client.subscribe(("t", 0), packet_id=3)
    acknowledgement = puback if qos == 1 else pubrec
    client.send(*(acknowledgement(message.packet_id) for message in found))
    if qos == 2:
        client.expect(*(pubrel(message.packet_id) for message in found))
        client.send(*(pubcomp(message.packet_id) for message in found))
    found += client.acknowledge(len(bodies) - len(found))
    assert [(message.body, message.qos) for message in found] == [(body, qos) for body in bodies]
    publish_all(server.mqtt_port, "t", [b"new"], qos=2)
    assert client.receive_publish().qos == 0
    client.expect_nothing_before_ping()
    client.disconnect()


def test_sigterm_lets_acks_leave_and_publishes_no_will(server: Server) -> None:
    """Every publish that the server took is acknowledged before it closes, or not stored at all."""
    with RawClient.connected(server.mqtt_port, "watcher", clean=False) as watcher:
        watcher.subscribe(("t", 1), ("will", 1))
        publisher = RawClient.connected(server.mqtt_port, "p", will=("will", b"x", 1, True))
        publisher.send(*(publish("t", b"%d" % k, qos=1, packet_id=k) for k in range(1, 2001)))
        acked = [publisher.receive()]
        assert server.terminate() == 0
        while found := publisher.receive():
            acked.append(found)
        publisher.socket.close()
    assert acked == [puback(k) for k in range(1, len(acked) + 1)]
    server.restart()
    client = RawClient.connected(server.mqtt_port, "watcher", clean=False, present=True)
    bodies = {message.body for message in client.acknowledge(len(acked))}
    assert {b"%d" % k for k in range(1, len(acked) + 1)} <= bodies
    with RawClient.connected(server.mqtt_port, "late") as late:
        late.subscribe(("will", 0))
        late.expect_nothing_before_ping()
    client.disconnect()


@pytest.mark.slow
def test_sigterm_closes_every_kind_of_connection(server: Server) -> None:
    """Idle, unconnected, in the middle of a packet, not reading: the server ends in time."""
    idle = RawClient.connected(server.mqtt_port, "idle")
    stranger = RawClient(server.mqtt_port)
    halfway = RawClient.connected(server.mqtt_port, "halfway")
    halfway.send(publish("t", b"x" * 1000)[:500])
    deaf = RawClient(server.mqtt_port, receive_bytes=4096)
    deaf.send(connect("deaf"))
    deaf.expect(connack())
    deaf.subscribe(("flood", 0))
    publish_all(server.mqtt_port, "flood", [bytes(100_000)] * 60)
    assert server.terminate() == 0
    for client in (idle, stranger, halfway):
        client.expect_closed()
    deaf.socket.close()
