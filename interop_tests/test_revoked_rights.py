"""What becomes of those who lose a right, or their name, while they use it: at each listener."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from interop_tests.conftest import Server, StartServer
from interop_tests.people import (
    BAD_CREDENTIALS,
    REFUSED_FILTER,
    Admin,
    MqttClient,
    amqp,
    basic,
    house,
    http_ask,
    http_publish,
    people,
    server,
)

__all__ = ["house", "people", "server"]  # fixtures


@pytest.mark.slow
def test_an_mqtt_subscriber_that_loses_its_right_is_closed(server: Server, people: Admin) -> None:
    """And gets nothing that came after; what it may still have waits for it."""
    people.add("root", "admin")
    people.allow("ann", "subscribe", "a.#")
    people.allow("ann", "subscribe", "b.#")
    client = MqttClient(server, "ann", client_id="c", clean=False)
    client.subscribe("a/#")
    client.subscribe("b/#")
    root = MqttClient(server, "root")
    root.publish("b/x", b"1")
    assert client.next() == ("b/x", b"1")
    people.deny("ann", "subscribe", "b.#")
    assert client.is_asked_to_go()
    client.close()
    root.publish("b/x", b"2")
    root.publish("a/x", b"3")
    again = MqttClient(server, "ann", client_id="c", clean=False)
    assert again.next() == ("a/x", b"3")
    assert again.subscribe("b/#") == REFUSED_FILTER
    root.publish("b/x", b"4")
    root.publish("a/x", b"5")
    assert again.next() == ("a/x", b"5")
    again.close()
    root.close()


def test_an_mqtt_publisher_that_loses_its_right_is_refused_at_once(
    server: Server, people: Admin
) -> None:
    people.allow("ann", "publish,create", "a.#")
    client = MqttClient(server, "ann")
    assert client.publish("a/x", b"1")
    people.deny("ann", "publish", "a.x")
    assert not client.publish("a/x", b"2")
    client.close()


def test_an_amqp_consumer_that_loses_its_right_is_cancelled(server: Server, people: Admin) -> None:
    """What it had got it may still acknowledge, or give back."""
    people.add("root", "admin")
    people.allow("ann", "subscribe,create", "work")
    connection = amqp(server)
    channel = connection.channel()
    channel.queue_declare("work", durable=True)
    got: list[bytes] = []
    tags: list[int] = []
    cancelled: list[str] = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))

    def on_message(
        _channel: BlockingChannel,
        method: pika.spec.Basic.Deliver,
        _properties: pika.BasicProperties,
        body: bytes,
    ) -> None:
        got.append(body)
        tags.append(method.delivery_tag)

    tag = channel.basic_consume("work", on_message)
    root = amqp(server, "root").channel()
    root.confirm_delivery()
    root.basic_publish("", "work", b"acknowledged")
    root.basic_publish("", "work", b"given back")
    while len(got) < 2:
        connection.process_data_events(10)
    people.deny("ann", "subscribe", "work")
    while not cancelled:
        connection.process_data_events(10)
    assert cancelled == [tag]
    channel.basic_ack(tags[0])
    channel.basic_reject(tags[1], requeue=True)
    root.basic_publish("", "work", b"2")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.basic_get("work")
    assert caught.value.reply_code == 403
    assert got == [b"acknowledged", b"given back"]
    assert [root.basic_get("work", auto_ack=True)[2] for _ in range(3)] == [
        b"given back",
        b"2",
        None,
    ]
    connection.close()
    root.connection.close()


def test_an_http_reader_that_loses_its_right_gets_403(server: Server, people: Admin) -> None:
    """Also while its long poll waits."""
    people.allow("ann", "subscribe,publish,create", "a.#")
    body = json.dumps({"topic": "a"}).encode()
    assert http_ask(server, "PUT", "/subscriptions/s", body, basic("ann"))[0] == 201
    receive = "/topics/a/subscriptions/s:receive?maxWaitTime={}"
    with socket.create_connection((server.host, server.http_port), timeout=20) as waiting:
        head = f"POST {receive.format(20)} HTTP/1.1\r\nHost: x\r\nAuthorization: {basic('ann')}\r\n"
        waiting.sendall(f"{head}Content-Length: 0\r\n\r\n".encode())
        # A second request, answered, says that the first was taken up.
        assert http_ask(server, "POST", receive.format(0), None, basic("ann"))[0] == 200
        people.deny("ann", "subscribe", "a.#")
        assert http_publish(server, "a", "x", b"secret", basic("ann")) == 204
        answer = waiting.recv(10_000)
    assert answer.startswith(b"HTTP/1.1 403"), answer
    assert b"secret" not in answer
    assert http_ask(server, "POST", receive.format(0), None, basic("ann"))[0] == 403


@pytest.mark.slow
def test_a_held_pull_that_loses_its_right_gets_no_permission(start_server: StartServer) -> None:
    """`message read --follow` reads by held pulls: it ends with the refusal, and prints nothing."""
    server = start_server(**{"rocketmq.user": "lake"})
    people = Admin(server)
    people.add("lake")
    people.add("root", "admin")
    people.allow("lake", "subscribe", "a.#")
    assert http_publish(server, "a", "x", b"1", basic("root")) == 204
    command = [
        sys.executable, "-m", "polymq", "message", "read", "a", "--follow", "--format", "body",
        "--data-directory", str(server.data_directory),
    ]  # fmt: skip
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdout.read(1) == b"1"
        people.deny("lake", "subscribe", "a.#")
        http_publish(server, "a", "x", b"2", basic("root"))
        rest, said = reader.communicate(timeout=30)
    assert rest == b""
    assert b"may not subscribe" in said
    assert reader.returncode == 1


@pytest.mark.parametrize("how", ["disable", "delete", "password"])
def test_connections_end_with_their_user(server: Server, people: Admin, how: str) -> None:
    people.allow("ann", "subscribe", "a.#")
    client = MqttClient(server, "ann", client_id="c")
    client.subscribe("a/#")
    connection = amqp(server)
    if how == "disable":
        people.change("ann", disabled=True)
    elif how == "delete":
        people.good("DELETE", "/api/v1/users/ann")
    else:
        people.change("ann", password="another")
    assert client.is_asked_to_go()
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        connection.process_data_events(10)
    assert MqttClient(server, "ann").code == BAD_CREDENTIALS
    client.close()
