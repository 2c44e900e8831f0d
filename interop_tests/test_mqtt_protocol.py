"""MQTT 3.1.1 packet by packet against a started server: bad input, qualities, wills, retained."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from interop_tests.conftest import Server, StartServer
from interop_tests.mqtt_raw_client import RawClient
from interop_tests.mqtt_wire import (
    DISCONNECT,
    PINGREQ,
    PINGRESP,
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

CASES = Path(__file__).resolve().parent.parent / "tests" / "wire_cases"


@pytest.fixture
def server(shared_server: Server) -> Server:
    """One for all; a test that stops or harms it starts its own."""
    return shared_server


def cases(name: str) -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = json.loads((CASES / name).read_text(encoding="utf-8"))
    return loaded


def ending(client: RawClient) -> list[bytes]:
    """All packets until the server closes."""
    packets = []
    while found := client.receive():
        packets.append(found)
    return packets


def test_bad_input_closes_and_the_server_lives_on(start_server: StartServer) -> None:
    """Every wire case with a broken rule: closed, with the answer that the standard has."""
    server = start_server()
    wrong = []
    for case in cases("mqtt_connect.json"):
        if "rule" in case and "packets" not in case:
            with RawClient(server.mqtt_port) as client:
                client.send(bytes.fromhex(case["hex"]))
                said = b"".join(ending(client))
            if said.hex() != case.get("answer", ""):
                wrong.append((case["name"], said.hex()))
    for case in cases("mqtt_session.json"):
        if "rule" in case and "packets" not in case:
            with RawClient.connected(server.mqtt_port, "fuzz") as client:
                client.send(bytes.fromhex(case["hex"]))
                said = b"".join(ending(client))
            if said:
                wrong.append((case["name"], said.hex()))
    assert wrong == []
    with RawClient.connected(server.mqtt_port, "after all that") as client:
        client.expect_nothing_before_ping()


def test_good_input_is_taken_in_any_pieces(start_server: StartServer) -> None:
    """Every wire case of legal packets, byte by byte, and the connection still answers."""
    server = start_server()
    for case in cases("mqtt_session.json"):
        data = bytes.fromhex(case["hex"])
        if "rule" in case or "rest" in case or b"\xe0\x00" in data or "refuses" in case["name"]:
            continue
        with RawClient.connected(server.mqtt_port, "pieces") as client:
            for at in range(len(data)):
                client.send(data[at : at + 1])
            client.send(PINGREQ)
            pings = data.count(PINGREQ) + 1
            while pings:
                found = client.receive()
                assert found, f"{case['name']}: closed"
                pings -= found == PINGRESP


def test_connack_codes(server: Server) -> None:
    for first, code in [
        (connect("", clean=False), 2),
        (connect("x" * 300), 2),
        (connect("c").replace(b"\x04MQTT\x04", b"\x04MQTT\x06"), 1),
        (connect("c", will=("$other/w", b"", 0, False)), 5),
    ]:
        with RawClient(server.mqtt_port) as client:
            client.send(first, publish("never/stored", b"x", retain=True))
            client.expect(connack(code))
            client.expect_closed()
    with RawClient.connected(server.mqtt_port, "c") as client:
        client.subscribe(("never/#", 0))
        client.expect_nothing_before_ping()


def test_packets_may_follow_connect_at_once(server: Server) -> None:
    """The client does not wait for CONNACK; the order of answers stays."""
    with RawClient(server.mqtt_port) as client:
        client.send(
            connect("eager", clean=False),
            subscribe(1, ("a/b", 1)),
            publish("a/b", b"x", qos=1, packet_id=2),
            PINGREQ,
        )
        client.expect(connack())
        rest = {client.receive() for _ in range(3)}
        assert {suback(1, 1), puback(2), PINGRESP} == rest
        message = client.receive_publish()
        assert (message.topic, message.body, message.qos) == ("a/b", b"x", 1)
        client.send(puback(message.packet_id))
        client.expect_nothing_before_ping()


@pytest.mark.parametrize("sent", [0, 1, 2])
def test_the_lower_quality_counts(server: Server, sent: int) -> None:
    """Each message goes at the lower of the publisher's and the subscriber's QoS (part 3.8.4)."""
    subscribers = [RawClient.connected(server.mqtt_port, f"s{qos}") for qos in range(3)]
    for qos, client in enumerate(subscribers):
        client.subscribe(("q/+", qos))
    with RawClient.connected(server.mqtt_port, "publisher") as publisher:
        publisher.send(publish("q/x", b"body", qos=sent, packet_id=1))
        if sent == 1:
            publisher.expect(puback(1))
        if sent == 2:
            publisher.expect(pubrec(1))
            publisher.send(pubrel(1))
            publisher.expect(pubcomp(1))
        publisher.expect_nothing_before_ping()
    for qos, client in enumerate(subscribers):
        message = client.receive_publish()
        assert (message.topic, message.body) == ("q/x", b"body")
        assert (message.qos, message.retain, message.duplicate) == (min(qos, sent), False, False)
        if message.qos == 1:
            client.send(puback(message.packet_id))
        if message.qos == 2:
            client.send(pubrec(message.packet_id))
            client.expect(pubrel(message.packet_id))
            client.send(pubcomp(message.packet_id))
        client.expect_nothing_before_ping()
        client.disconnect()


def test_exactly_once_although_everything_is_sent_twice(server: Server) -> None:
    with (
        RawClient.connected(server.mqtt_port, "s") as subscriber,
        RawClient.connected(server.mqtt_port, "p") as publisher,
    ):
        subscriber.subscribe(("t", 2))
        message = publish("t", b"1", qos=2, packet_id=9)
        again = publish("t", b"1", qos=2, packet_id=9, duplicate=True)
        publisher.send(message, again)
        publisher.expect(pubrec(9), pubrec(9))
        publisher.send(pubrel(9), pubrel(9))
        publisher.expect(pubcomp(9), pubcomp(9))
        publisher.send(publish("t", b"2", qos=2, packet_id=9))
        publisher.expect(pubrec(9))
        found = list(subscriber.publishes(2))
        assert [one.body for one in found] == [b"1", b"2"]
        for one in found:
            subscriber.send(pubrec(one.packet_id), pubrec(one.packet_id))
            subscriber.expect(pubrel(one.packet_id), pubrel(one.packet_id))
            subscriber.send(pubcomp(one.packet_id), pubcomp(one.packet_id))
        subscriber.expect_nothing_before_ping()


def test_filters(server: Server) -> None:
    """One copy of each message per client at the highest QoS of its filters, or one per filter."""
    with (
        RawClient.connected(server.mqtt_port, "s") as subscriber,
        RawClient.connected(server.mqtt_port, "p") as publisher,
    ):
        subscriber.subscribe(("sport/tennis/#", 0), ("+/+", 0), ("/finance", 0), ("a.b/c", 0))
        names = ["sport/tennis", "sport/tennis/player1/ranking", "/finance", "a/b.c", "a.b/c"]
        names += ["sport", "$SYS/x", "a/b/c", "Sport/tennis/x", "sport/tennis/"]
        publisher.send(*(publish(name, name.encode()) for name in names))
        publisher.expect_nothing_before_ping()
        publisher.send(publish("end/end", b"end"))
        found = []
        while (message := subscriber.receive_publish()).body != b"end":
            assert message.topic == message.body.decode()
            found.append(message.topic)
        assert set(found) == {
            "sport/tennis",
            "sport/tennis/player1/ranking",
            "/finance",
            "a/b.c",
            "a.b/c",
            "sport/tennis/",
        }


def test_unsubscribe_stops_and_subscribing_again_replaces(server: Server) -> None:
    with RawClient.connected(server.mqtt_port, "c") as client:
        client.subscribe(("t", 0))
        client.subscribe(("t", 1), packet_id=2)  # [MQTT-3.8.4-3]: one subscription, now QoS 1
        client.send(publish("t", b"1", qos=1, packet_id=5))
        first, second = sorted((client.receive(), client.receive()), key=lambda p: p[0] >> 4 == 4)
        assert second == puback(5)
        assert first[0] == 0x32
        client.send(puback(int.from_bytes(first[5:7], "big")))
        client.send(unsubscribe(3, "t", "never/there"))
        client.expect(unsuback(3))
        client.send(publish("t", b"2", qos=1, packet_id=6))
        client.expect(puback(6))
        client.expect_nothing_before_ping()


def test_what_the_broker_does_not_allow(server: Server) -> None:
    """A shared subscription has a name; `$` topics belong to the server. What is published below
    `$SYS` is acknowledged and dropped."""
    with RawClient.connected(server.mqtt_port, "c") as client:
        client.send(subscribe(1, ("$share//t", 1), ("$SYS/x", 0), ("t", 1)))
        client.expect(suback(1, 0x80, 0, 1))
        client.send(publish("$SYS/x", b"dropped"))
        client.expect_nothing_before_ping()
        client.send(publish("$SYS/x", b"dropped", qos=1, packet_id=1, retain=True))
        client.expect(puback(1))
        client.expect_nothing_before_ping()
        client.send(publish("$other/x", b"not acked", qos=1, packet_id=1))
        client.expect_closed()
    with RawClient.connected(server.mqtt_port, "c") as client:
        client.send(subscribe(1, ("RMQ_SYS_POLYMQ_STATE/#", 1), ("#", 0)))
        assert client.receive()[:4] in (suback(1, 0x80, 0)[:4], suback(1, 1, 0)[:4])
        client.expect_nothing_before_ping()
        client.send(publish("RMQ_SYS_POLYMQ_STATE", b"x", qos=1, packet_id=1))
        client.expect_closed()


# --- retained ----------------------------------------------------------------------------------


def test_retained_messages(server: Server) -> None:
    """[MQTT-3.3.1-5] to [MQTT-3.3.1-12]: the last one, after SUBACK, with RETAIN; live without."""
    with (
        RawClient.connected(server.mqtt_port, "p") as publisher,
        RawClient.connected(server.mqtt_port, "live") as live,
    ):
        live.subscribe(("room/+", 1))
        for number, body in enumerate([b"old", b"new"], 1):
            publisher.send(publish("room/a", body, qos=1, packet_id=number, retain=True))
            publisher.expect(puback(number))
        publisher.send(publish("room/b", b"qos 0", retain=True), publish("room/c", b"not kept"))
        publisher.expect_nothing_before_ping()
        for body in (b"old", b"new", b"qos 0", b"not kept"):
            message = live.receive_publish()
            assert (message.body, message.retain) == (body, False)
            if message.qos:
                live.send(puback(message.packet_id))

        with RawClient.connected(server.mqtt_port, "late") as late:
            late.subscribe(("room/#", 2))
            found = {}
            for message in late.publishes(2):
                assert message.retain
                found[message.topic] = (message.body, message.qos)
                if message.qos:
                    late.send(puback(message.packet_id))
            assert found == {"room/a": (b"new", 1), "room/b": (b"qos 0", 0)}
            late.expect_nothing_before_ping()
            late.subscribe(("room/a", 0), packet_id=2)
            again = late.receive_publish()
            assert (again.body, again.retain, again.qos) == (b"new", True, 0)

        publisher.send(publish("room/a", b"", retain=True), publish("room/b", b"", retain=True))
        publisher.expect_nothing_before_ping()
        assert [m.body for m in live.publishes(2)] == [b"", b""]
        with RawClient.connected(server.mqtt_port, "later") as later:
            later.subscribe(("room/#", 1))
            later.expect_nothing_before_ping()


# --- wills, keep alive, takeover -----------------------------------------------------------------


def test_a_will_is_published_unless_the_client_disconnects(server: Server) -> None:
    with RawClient.connected(server.mqtt_port, "watcher") as watcher:
        watcher.subscribe(("will/#", 2))
        good = RawClient.connected(server.mqtt_port, "good", will=("will/good", b"", 1, False))
        good.disconnect()
        lost = RawClient.connected(server.mqtt_port, "lost", will=("will/lost", b"gone", 1, True))
        lost.vanish()
        message = watcher.receive_publish()
        assert (message.topic, message.body, message.qos) == ("will/lost", b"gone", 1)
        watcher.send(puback(message.packet_id))
        rude = RawClient.connected(server.mqtt_port, "rude", will=("will/rude", b"x", 0, False))
        rude.send(b"\xff\xff")
        rude.expect_closed()
        assert watcher.receive_publish().topic == "will/rude"
        watcher.expect_nothing_before_ping()
    with RawClient.connected(server.mqtt_port, "late") as late:
        late.subscribe(("will/#", 0))
        stored = late.receive_publish()
        assert (stored.topic, stored.body, stored.retain) == ("will/lost", b"gone", True)
        late.expect_nothing_before_ping()
        late.send(publish("will/lost", b"", retain=True))  # other tests subscribe to everything
        assert late.receive_publish().body == b""


def test_a_silent_client_is_closed_with_its_will(server: Server) -> None:
    """[MQTT-3.1.2-24]: between 1.5 keep-alive periods and the second that follows."""
    with RawClient.connected(server.mqtt_port, "watcher", keep_alive=60) as watcher:
        watcher.subscribe(("will/t", 0))
        silent = RawClient.connected(
            server.mqtt_port, "silent", keep_alive=2, will=("will/t", b"silent", 0, False)
        )
        began = time.monotonic()
        silent.expect_closed()
        seconds = time.monotonic() - began
        assert 2.9 < seconds < 6.0
        assert watcher.receive_publish().body == b"silent"


def test_takeover(server: Server) -> None:
    """[MQTT-3.1.4-2]: the old connection is closed, its will published; the session goes on."""
    with RawClient.connected(server.mqtt_port, "watcher") as watcher:
        watcher.subscribe(("will/t", 0))
        old = RawClient.connected(
            server.mqtt_port, "c", clean=False, will=("will/t", b"taken", 0, False)
        )
        old.subscribe(("t/#", 1))
        new = RawClient.connected(server.mqtt_port, "c", clean=False, present=True)
        old.expect_closed()
        assert watcher.receive_publish().body == b"taken"
        new.send(publish("t/x", b"1", qos=1, packet_id=3))
        found = {new.receive()[0], new.receive()[0]}
        assert found == {0x40, 0x32}
        new.disconnect()


# --- sizes, order, back-pressure -----------------------------------------------------------------


def test_large_messages(server: Server) -> None:
    with RawClient.connected(server.mqtt_port, "c") as client:
        client.subscribe(("big", 1))
        for number, size in enumerate([200_000, 16 * 1024 * 1024], 1):
            body = (bytes(range(256)) * (size // 256 + 1))[:size]
            client.send(publish("big", body, qos=1, packet_id=number))
            packets = sorted((client.receive(), client.receive()), key=len)
            assert packets[0] == puback(number)
            assert packets[1].endswith(body)
            client.send(puback(int.from_bytes(packets[1][-size - 2 : -size], "big")))
        client.expect_nothing_before_ping()
    for too_large in [b"\x30\xff\xff\xff\x7f", publish("big", bytes(17 * 1024 * 1024))[:100]]:
        with RawClient.connected(server.mqtt_port, "c") as client:
            client.send(too_large)
            client.expect_closed()


def test_thousands_in_flight_stay_in_order(server: Server) -> None:
    """[MQTT-4.6.0-2], [MQTT-4.6.0-6]: 5,000 publishes sent without waiting for an ack."""
    count = 5000
    with (
        RawClient.connected(server.mqtt_port, "s") as subscriber,
        RawClient.connected(server.mqtt_port, "p") as publisher,
    ):
        subscriber.subscribe(("n/#", 1))
        publisher.send(
            *(publish(f"n/{k % 3}", b"%d" % k, qos=1, packet_id=k) for k in range(1, count + 1))
        )
        publisher.expect(*(puback(k) for k in range(1, count + 1)))
        for k in range(1, count + 1):
            message = subscriber.receive_publish()
            assert (message.topic, message.body) == (f"n/{k % 3}", b"%d" % k)
            subscriber.send(puback(message.packet_id))
        subscriber.expect_nothing_before_ping()


def test_a_subscriber_that_does_not_read_loses_nothing_at_qos_1(server: Server) -> None:
    """20 MB for a client that reads only later: the rest waits in the log, nobody is held up."""
    count, size = 2000, 10_000
    slow = RawClient(server.mqtt_port, receive_bytes=4096)
    slow.send(connect("slow", clean=False))
    slow.expect(connack())
    slow.subscribe(("data", 1))
    with (
        RawClient.connected(server.mqtt_port, "p") as publisher,
        RawClient.connected(server.mqtt_port, "fast") as fast,
    ):
        fast.subscribe(("data", 0))
        for start in range(1, count + 1, 100):
            ids = range(start, start + 100)
            publisher.send(
                *(
                    publish("data", k.to_bytes(4, "big") * (size // 4), qos=1, packet_id=k)
                    for k in ids
                )
            )
            publisher.expect(*(puback(k) for k in ids))
        for k, message in enumerate(fast.publishes(count), 1):
            assert message.body[:4] == k.to_bytes(4, "big")
    for k in range(1, count + 1):
        message = slow.receive_publish()
        assert message.body == k.to_bytes(4, "big") * (size // 4)
        slow.send(puback(message.packet_id))
    slow.expect_nothing_before_ping()
    slow.disconnect()


def test_disconnect_ends_everything_behind_it(server: Server) -> None:
    with RawClient.connected(server.mqtt_port, "s") as subscriber:
        subscriber.subscribe(("t", 0))
        with RawClient.connected(server.mqtt_port, "p") as publisher:
            publisher.send(publish("t", b"before"), DISCONNECT, publish("t", b"after"))
            publisher.expect_closed()
        assert subscriber.receive_publish().body == b"before"
        subscriber.expect_nothing_before_ping()


@pytest.mark.slow
def test_who_says_nothing_is_closed(server: Server) -> None:
    """Ten seconds for a CONNECT; half of one does not count."""
    with RawClient(server.mqtt_port) as mute, RawClient(server.mqtt_port) as slow:
        slow.send(connect("slow")[:10])
        began = time.monotonic()
        mute.expect_closed()
        assert 9.0 < time.monotonic() - began < 13.0
        slow._buffer.clear()
        slow.expect_closed()
