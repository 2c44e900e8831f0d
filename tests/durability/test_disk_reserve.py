"""Publishers are refused while there is still a reserve; acks go into it, and it ends by itself."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

from tests.durability import mqtt_packets as mqtt
from tests.durability.clients import HOST, AmqpWire, HttpWire, MqttWire, post, pull
from tests.durability.running import SECONDS_MAX, Running, running
from tests.durability.test_disk_full import health, prepare, wait_for_room

spec = pika.spec
RESOURCE_ERROR = 506
ATTEMPTS_MAX = 10_000
METRICS_MAX = 1_000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    """A server that looks at its disk all the time."""
    with running(tmp_path / "data", storage__disk_check_seconds=0.01) as made:
        yield made


def run_short(server: Running) -> None:
    """No space is left but the reserve, and the server has noticed."""
    server.disk.leave_free(1 << 20)
    for _ in range(ATTEMPTS_MAX):
        if "nearly full" in health(server):
            return
    raise AssertionError("the server did not notice")


def metric(server: Running, name: str) -> float:
    assert server.ports.admin is not None
    connection = http.client.HTTPConnection(HOST, server.ports.admin, timeout=SECONDS_MAX)
    try:
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
    finally:
        connection.close()
    (value,) = [line.rpartition(" ")[2] for line in lines if line.startswith(name)]
    return float(value)


def test_each_protocol_says_no_and_later_yes(server: Running) -> None:
    prepare(server)
    assert server.ports.mqtt is not None
    assert server.ports.amqp is not None
    assert server.ports.http is not None
    with (
        AmqpWire(server.ports.amqp, confirms=True) as channel,
        HttpWire(server.ports.http) as web,
    ):
        run_short(server)
        with MqttWire.connected(server.ports.mqtt, "new") as client:
            client.send(mqtt.publish("t/k", b"refused", qos=1, packet_id=1))
            assert client.came_before_close() == []
        channel.publish("t", "k", b"refused")
        channel.expect(spec.Basic.Nack)
        post(web, "t", "k", b"refused")
        status, answer = web.answer()
        assert status == 507
        assert "nearly full" in json.dumps(answer)
        with AmqpWire(server.ports.amqp) as unconfirmed:
            unconfirmed.publish("t", "k", b"refused")
            (close,) = unconfirmed.came_before_close()
            assert close.reply_code == RESOURCE_ERROR
        assert metric(server, "polymq_disk_full ") == 1
        server.disk.leave_free(None)
        wait_for_room(server)
        channel.publish("t", "k", b"later")
        channel.expect(spec.Basic.Ack)
        with MqttWire.connected(server.ports.mqtt, "new") as client:
            client.send(mqtt.publish("t/k", b"latest", qos=1, packet_id=1))
            client.expect(mqtt.puback(1))
    assert pull(server.ports, "t") == [b"old", b"later", b"latest"]


def test_amqp_clients_are_told_when_it_begins_and_ends(server: Running) -> None:
    """connection.blocked and unblocked, to who knows them; also to who connects meanwhile."""
    assert server.ports.amqp is not None
    with (
        AmqpWire(server.ports.amqp, wants_blocked=True) as reported,
        AmqpWire(server.ports.amqp) as untold,
    ):
        run_short(server)
        assert "nearly full" in reported.expect(spec.Connection.Blocked).reason
        late = pika.BlockingConnection(
            pika.ConnectionParameters(
                HOST, server.ports.amqp, blocked_connection_timeout=SECONDS_MAX
            )
        )
        began: list[str] = []
        ended: list[object] = []
        late.add_on_connection_blocked_callback(lambda _, frame: began.append(frame.method.reason))
        late.add_on_connection_unblocked_callback(lambda _, frame: ended.append(frame))
        server.disk.leave_free(None)
        reported.expect(spec.Connection.Unblocked)
        while not ended:
            late.process_data_events(time_limit=SECONDS_MAX)
        late.close()
        untold.ask(spec.Queue.Declare(queue="q"), spec.Queue.DeclareOk)


def test_acks_are_stored_in_the_reserve(server: Running) -> None:
    """What consumers let go of is what makes room again; a kill must not bring it back."""
    prepare(server)
    assert server.ports.amqp is not None
    run_short(server)
    with AmqpWire(server.ports.amqp) as channel:
        channel.consume("kept")
        message = channel.message()
        assert message.body == b"old"
        before = server.appended()
        channel.send(spec.Basic.Ack(delivery_tag=message.method.delivery_tag))
        server.wait_appended(before)
    with AmqpWire(server.ports.amqp) as channel:
        passive = spec.Queue.Declare(queue="kept", passive=True)
        assert channel.ask(passive, spec.Queue.DeclareOk).message_count == 0
        channel.ask(spec.Queue.Delete(queue="kept"), spec.Queue.DeleteOk)


def test_room_is_lent_to_a_saving_that_has_none_and_taken_back(server: Running) -> None:
    """What was set aside is given up where less is free than saving needs, and afterwards as much
    of it is held again as there is."""

    def is_set_aside(expected: int) -> bool:
        return any(
            metric(server, "polymq_disk_ballast_bytes") == expected for _ in range(METRICS_MAX)
        )

    assert is_set_aside(4 << 20), "nothing is set aside"
    server.disk.leave_free(100_000)
    assert is_set_aside(100_000), "it was not lent, or not taken back"
    server.disk.leave_free(None)
    assert is_set_aside(4 << 20), "it does not grow again"
    assert health(server) == "ok"
