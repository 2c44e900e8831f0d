"""Users and permissions from outside: who is let in at each listener, what each may do there, and
what becomes of those who lose a right while they use it."""

from __future__ import annotations

import base64
import hmac
import json
import socket
import urllib.request
from collections.abc import Callable

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from interop_tests import mqtt_wire as wire
from interop_tests import remoting_wire as remoting
from interop_tests.conftest import Server, StartServer
from interop_tests.people import (
    NOT_AUTHORIZED,
    PASSWORD,
    REFUSED_FILTER,
    SECONDS,
    Admin,
    MqttClient,
    amqp,
    basic,
    house,
    http_ask,
    http_publish,
    people,
    polymq,
    server,
)

__all__ = ["house", "people", "server"]  # fixtures


# --- who is let in ----------------------------------------------------------------------------

WRONG = [
    (None, None),
    ("ann", ""),
    ("ann", "wrong"),
    ("ann", PASSWORD + "\0"),
    ("ann", "\0"),
    ("nobody", PASSWORD),
    ("", PASSWORD),
    ("anonymous", ""),
    ("guest", "guest"),
]


def mqtt_code(server: Server, user: str | None, password: str | None) -> int:
    """CONNACK's code, by bytes: paho sends no user without a name."""
    with socket.create_connection((server.host, server.mqtt_port), timeout=10) as connection:
        raw_user = None if user is None else user.encode()
        raw_password = None if password is None else password.encode()
        connection.sendall(wire.connect(client_id="c", user=raw_user, password=raw_password))
        answer = connection.recv(100)
        assert answer[:2] == b"\x20\x02", answer
        return answer[3]


def amqp_is_let_in(server: Server, user: str | None, password: str | None) -> bool:
    """A refusal has to be connection.close 403, as RabbitMQ's."""
    try:
        amqp(server, user or "", password or "").close()
    except pika.exceptions.ProbableAuthenticationError as error:
        return "403" not in str(error)
    return True


@pytest.mark.parametrize("listener", ["mqtt", "amqp", "http"])
def test_the_matrix_of_wrong_credentials(server: Server, people: Admin, listener: str) -> None:
    """Each listener times nine ways to be nobody: all refused, each in its protocol's words."""
    people.add(
        f"{listener}-ann"
    )  # a user for each listener: the sixth wrong password would have to wait
    people.allow(f"{listener}-ann", "publish,create", "#")
    for name, password in WRONG:
        user = f"{listener}-ann" if name == "ann" else name
        if listener == "mqtt":
            assert mqtt_code(server, user, password) == (5 if user is None else 4), (user, password)
        elif listener == "amqp":
            assert not amqp_is_let_in(server, user, password), (user, password)
        else:
            authorization = None if user is None else basic(user, password or "")
            status, headers, value = http_ask(
                server, "POST", "/topics/t", b"x", authorization, **{"Content-Type": "text/plain"}
            )
            assert status == 401, (user, password)
            assert headers["www-authenticate"].startswith("Basic")
            assert headers["content-type"] == "application/problem+json"
            assert value["status"] == 401
    assert [e for e in server.log_events() if e["event"] == "login failed"]


def test_the_rocketmq_listener_gives_nobody_nothing(server: Server, people: Admin) -> None:
    people.allow("ann", "publish,create", "t.#")
    assert http_publish(server, "t", "x", b"1", basic("ann")) == 204
    read = polymq(server, "message", "read", "t")
    assert read.returncode == 1
    assert "sign requests with an access key" in read.stderr


def signed(key: dict[str, str], body: bytes = b"", /, **fields: object) -> dict[str, str]:
    """The fields of a RocketMQ request, with its signature: written anew here, from the
    protocol's description."""
    found = {name: str(value) for name, value in fields.items()} | {"AccessKey": key["access_key"]}
    text = "".join(value for _, value in sorted(found.items())).encode() + body
    digest = hmac.new(key["secret_key"].encode(), text, "sha1").digest()
    return found | {"Signature": base64.b64encode(digest).decode()}


def pull_fields(topic: str, offset: int = 0, wait_ms: int = 0) -> dict[str, object]:
    return {
        "consumerGroup": "g", "topic": topic, "queueId": 0, "queueOffset": offset,
        "maxMsgNums": 32, "sysFlag": 2 if wait_ms else 0, "suspendTimeoutMillis": wait_ms,
    }  # fmt: skip


def test_a_signature_opens_the_rocketmq_listener(start_server: StartServer) -> None:
    """And nothing else that looks like one; each answer says what is wrong. The log says so, too:
    of a server where nobody else failed, because it has few lines a minute for an address."""
    server = start_server()
    people = Admin(server)
    people.add("ann")
    key = people.good("POST", "/api/v1/users/ann/access-keys")
    people.allow("ann", "publish,create,subscribe", "fish.#")
    people.allow("ann", "subscribe", "%RETRY%.g.#")
    assert http_publish(server, "fish", "x", b"carp", basic("ann")) == 204
    wanted = pull_fields("fish")
    good = signed(key, **wanted)
    bare = {name: value for name, value in good.items() if name != "Signature"}
    with remoting.Client(server.host, server.rocketmq_port) as client:
        answer = client.ask(11, **good)
        assert (answer.code, answer.body.count(b"carp")) == (0, 1)
        for fields, texts in (
            (wanted, "sign requests with an access key"),
            (bare, "access key"),
            (good | {"queueOffset": "1"}, "access key"),
            (good | {"Signature": "x"}, "access key"),
            (good | {"AccessKey": "ann"}, "access key"),
            (signed({**key, "secret_key": PASSWORD}, **wanted), "access key"),
            (signed(key, **pull_fields("birds")), "'ann' may not subscribe birds"),
        ):
            answer = client.ask(11, **fields)
            assert (answer.code, answer.body) == (16, b""), fields
            assert texts in answer.header["remark"], answer.header
        assert client.ask(11, **good).code == 0
    failed = [e for e in server.log_events() if e["event"] == "login failed"]
    assert any(event.get("access_key") == key["access_key"] for event in failed)
    log = "\n".join(server.log_lines())
    assert key["secret_key"] not in log
    assert good["Signature"] not in log


def test_retry_topics_take_messages_from_members_of_their_group_alone(
    server: Server, people: Admin
) -> None:
    """As RocketMQ's clients send them where giving back fails. A right to publish everywhere does
    not count there, and other protocols have no way in, not even for members."""
    people.allow("ann", "publish,create", "#")
    people.add("member")
    people.allow("member", "subscribe,create", "%RETRY%g.#")
    keys = {
        name: people.good("POST", f"/api/v1/users/{name}/access-keys") for name in ("ann", "member")
    }
    sent = {
        "a": "CLIENT_INNER_PRODUCER", "b": "%RETRY%g", "c": "TBW102", "d": 1, "e": 0, "f": 0,
        "g": 1, "h": 0, "i": "RETRY_TOPIC\x01orders", "j": 1,
    }  # fmt: skip
    dead = {**sent, "b": "%DLQ%g"}
    with remoting.Client(server.host, server.rocketmq_port) as client:

        def send(user: str, fields: dict[str, object], body: bytes) -> int:
            return client.ask(310, body, **signed(keys[user], body, **fields)).code

        assert send("member", sent, b"returned") == 0
        people.allow("member", "publish,create", "#")
        assert send("ann", sent, b"forged") == 16
        for user in ("ann", "member"):
            assert send(user, dead, b"forged") == 16
            for topic in ("%RETRY%g", "%DLQ%g"):
                path = topic.replace("%", "%25")
                assert http_publish(server, path, "x", b"forged", basic(user)) == 403
                assert not MqttClient(server, user).publish(f"{topic}/x", b"forged")
                connection = amqp(server, user)
                channel = connection.channel()
                channel.confirm_delivery()
                with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="403"):
                    channel.basic_publish(topic, "x", b"forged")
                connection.close()
        pulled = client.ask(11, **signed(keys["member"], **pull_fields("%RETRY%g"))).body
        assert (pulled.count(b"returned"), pulled.count(b"forged")) == (1, 0)
        people.deny("member", "subscribe", "%RETRY%g.#")
        assert send("member", sent, b"forged") == 16


@pytest.mark.parametrize("how", ["remove", "disable", "delete", "password"])
def test_who_may_not_sign_any_more_is_cut_off(server: Server, people: Admin, how: str) -> None:
    """With a pull that waits: its client gets nothing that comes later, and has to connect anew.
    Another password ends its connections, too, and the key goes on."""
    key = people.good("POST", "/api/v1/users/ann/access-keys")
    people.allow("ann", "publish,create,subscribe", "birds.#")
    people.allow("ann", "subscribe", "%RETRY%.g.#")
    people.add("root", "admin")
    assert http_publish(server, "birds", "x", b"tit", basic("ann")) == 204
    with remoting.Client(server.host, server.rocketmq_port) as client:
        offset = int(client.ask(30, **signed(key, topic="birds", queueId=0)).fields["offset"])
        client.send(11, **signed(key, **pull_fields("birds", offset, wait_ms=20_000)))
        assert client.ask(31, **signed(key, topic="birds", queueId=0)).code == 0
        if how == "remove":
            people.good("DELETE", f"/api/v1/users/ann/access-keys/{key['access_key']}")
        elif how == "disable":
            people.change("ann", disabled=True)
        elif how == "delete":
            people.good("DELETE", "/api/v1/users/ann")
        else:
            people.change("ann", password="another")
        assert http_publish(server, "birds", "x", b"robin", basic("root")) == 204
        assert client.socket.recv(10_000) == b""
    with remoting.Client(server.host, server.rocketmq_port) as client:
        code = client.ask(11, **signed(key, **pull_fields("birds"))).code
        assert code == (0 if how == "password" else 16)


def test_the_right_password_opens_every_listener(server: Server, people: Admin) -> None:
    people.allow("ann", "publish,create,subscribe", "#")
    assert mqtt_code(server, "ann", PASSWORD) == 0
    amqp(server).close()
    assert http_publish(server, "t", "x", b"1", basic("ann")) == 204
    raw = basic("ann").removeprefix("Basic ")
    assert http_publish(server, "t", "x", b"1", f"Bearer {raw}") == 204
    assert http_publish(server, f"t?access_token={raw}", "x", b"1") == 204


def test_a_client_that_sends_ahead_of_its_login_is_served_in_order(
    server: Server, people: Admin
) -> None:
    """All in one packet: nothing is lost, and nothing is answered before CONNACK."""
    people.allow("ann", "publish,create,subscribe", "#")
    with socket.create_connection((server.host, server.mqtt_port), timeout=10) as connection:
        connection.sendall(
            wire.connect(client_id="c", user=b"ann", password=PASSWORD.encode())
            + wire.subscribe(1, ("a/b", 0))
            + wire.publish("a/b", b"body", qos=1, packet_id=2)
        )
        data = b""
        while len(data) < 4 + 5 + 4 + 11:
            data += connection.recv(100)
    assert data[:9] == b"\x20\x02\x00\x00" + b"\x90\x03\x00\x01\x00"
    assert b"\x40\x02\x00\x02" in data
    assert b"\x00\x03a/bbody" in data


def test_a_rule_for_anonymous_lets_clients_without_a_name_in(server: Server, people: Admin) -> None:
    people.allow("role:anonymous", "publish,create", "news.#")
    assert mqtt_code(server, None, None) == 0
    assert http_publish(server, "news", "x", b"1") == 204
    assert http_publish(server, "orders", "x", b"1") == 403


def test_the_first_user_ends_the_connections_of_those_who_did_not_log_in(
    start_server: StartServer,
) -> None:
    server = start_server()
    client = MqttClient(server)
    assert client.code == 0
    connection = amqp(server, "guest", "guest")
    Admin(server).add("ann")
    assert client.is_asked_to_go()
    with pytest.raises(pika.exceptions.AMQPConnectionError) as caught:
        connection.process_data_events(10)
    assert "320" in str(caught.value)
    client.close()


@pytest.mark.slow
def test_a_server_that_others_can_reach_lets_nobody_in_before_its_first_user(
    start_server: StartServer,
) -> None:
    server = start_server(**{"server.host": "0.0.0.0"})
    server.host = "127.0.0.1"
    assert mqtt_code(server, None, None) == 5
    assert not amqp_is_let_in(server, "guest", "guest")
    assert http_publish(server, "t", "x", b"1") == 401
    said = " ".join(server.log_lines())
    assert "no client is accepted before" in said
    assert "unencrypted" in said
    assert polymq(server, "user", "add", "ann", "--role", "admin", text=f"{PASSWORD}\n").stdout == (
        "User ann added.\n"
    )
    assert http_publish(server, "t", "x", b"1", basic("ann")) == 204


# --- what they may do -------------------------------------------------------------------------


def test_mqtt_says_no_in_its_own_way(server: Server, people: Admin) -> None:
    """SUBACK 0x80; a refused PUBLISH with QoS closes, one without is dropped."""
    people.allow("ann", "publish,create,subscribe", "a.#")
    client = MqttClient(server, "ann")
    assert client.subscribe("a/#") == 1
    assert client.subscribe("b/#") == REFUSED_FILTER
    assert client.subscribe("#") == REFUSED_FILTER
    client.publish("b/x", b"unseen", qos=0)
    assert client.publish("a/x", b"seen")
    assert client.next() == ("a/x", b"seen")
    assert not client.publish("b/x", b"refused")
    assert client.is_asked_to_go()
    client.close()


@pytest.mark.slow
def test_a_will_is_checked_when_it_is_left_and_when_it_is_sent(
    server: Server, people: Admin
) -> None:
    people.allow("ann", "subscribe,publish,create", "wills.#")
    assert MqttClient(server, "ann", will="orders/x").code == NOT_AUTHORIZED
    watcher = MqttClient(server, "ann", client_id="watcher")
    watcher.subscribe("wills/#")
    for expected in (True, False):
        client = MqttClient(server, "ann", will=f"wills/{expected}")
        assert client.code == 0
        if not expected:
            people.deny("ann", "publish", "wills.False")
        connection = client.client.socket()
        assert isinstance(connection, socket.socket)
        connection.shutdown(socket.SHUT_RDWR)  # without DISCONNECT
        client.client.loop_stop()
    assert watcher.next() == ("wills/True", b"gone")
    assert watcher.publish("wills/last", b"")
    assert watcher.next() == ("wills/last", b"")
    watcher.close()


def test_amqp_says_no_with_403_on_the_channel(server: Server, people: Admin) -> None:
    people.allow("ann", "create,subscribe,publish", "mine")
    connection = amqp(server)
    operations: tuple[Callable[[BlockingChannel], object], ...] = (
        lambda channel: channel.queue_declare("theirs"),
        lambda channel: channel.exchange_declare("theirs", "topic"),
        lambda channel: channel.queue_bind("mine", "amq.topic", "orders.#"),
        lambda channel: channel.basic_get("theirs"),
        lambda channel: channel.queue_delete("theirs"),
    )
    for operation in operations:
        channel = connection.channel()
        channel.queue_declare("mine")
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
            operation(channel)
        assert caught.value.reply_code == 403
        assert "'ann' may not" in caught.value.reply_text
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_publish("", "mine", b"1")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.basic_publish("amq.topic", "orders.eu", b"2")
    assert caught.value.reply_code == 403
    channel = connection.channel()
    assert channel.basic_get("mine", auto_ack=True)[2] == b"1"
    connection.close()


def test_dead_letters_and_links_end_with_the_rights_of_who_made_them(
    server: Server, people: Admin
) -> None:
    """ann's queue lets messages expire to others' queues, by their own keys; her exchange gets
    copies of a topic of others. Neither goes beyond her rights, or outlives them."""
    people.add("vic")
    people.allow("vic", "create,subscribe,publish", "victim")
    people.allow("vic", "create,publish", "orders.#")
    people.allow("ann", "create,subscribe,publish", "ann.#")
    people.allow("ann", "subscribe", "orders.#")
    connections = [amqp(server, "vic"), amqp(server)]
    theirs, channel = (connection.channel() for connection in connections)
    theirs.queue_declare("victim", durable=True)
    theirs.exchange_declare("orders", "topic", durable=True)
    channel.confirm_delivery()
    channel.exchange_declare("ann", "topic", durable=True)
    channel.exchange_bind("ann", "orders", "#")
    channel.queue_declare("ann.copies", durable=True)
    channel.queue_bind("ann.copies", "ann", "eu.#")
    arguments = {"x-dead-letter-exchange": "", "x-message-ttl": 0}
    channel.queue_declare("ann.forger", durable=True, arguments=arguments)
    channel.queue_bind("ann.forger", "ann", "victim")
    channel.basic_publish("ann", "victim", b"forged")
    theirs.confirm_delivery()
    theirs.basic_publish("orders", "eu.1", b"copied")
    assert channel.basic_get("ann.copies", auto_ack=True)[2] == b"copied"
    people.good("DELETE", "/api/v1/users/ann")
    theirs.basic_publish("orders", "eu.2", b"not copied")
    people.add("root", "admin")
    connections.append(amqp(server, "root"))
    channel = connections[-1].channel()
    assert channel.basic_get("ann.copies", auto_ack=True)[0] is None
    assert channel.queue_declare("ann.forger", passive=True).method.message_count == 0
    assert channel.basic_get("victim", auto_ack=True)[0] is None
    url = f"http://{server.host}:{server.admin_port}/metrics"
    with urllib.request.urlopen(url, timeout=20) as answer:
        metrics = answer.read().decode()
    assert 'polymq_dead_letters_forbidden_total{reason="expired"} 1.0' in metrics
    assert "polymq_exchange_links_stopped 1.0" in metrics
    with pytest.raises(pika.exceptions.AMQPConnectionError):  # it ended with its user
        connections[1].process_data_events(time_limit=SECONDS)
    connections[0].close()
    connections[2].close()


def test_http_says_no_with_403_and_shows_what_may_be_seen(server: Server, people: Admin) -> None:
    people.add("bob")
    people.allow("ann", "publish,create,subscribe", "seen.#")
    people.allow("bob", "subscribe", "seen.#")
    people.allow("bob", "subscribe", "unseen.#")
    assert http_publish(server, "seen", "x", b"1", basic("ann")) == 204
    assert http_publish(server, "unseen", "x", b"1", basic("ann")) == 403

    def put(user: str, name: str, topic: str, **config: object) -> int:
        body = json.dumps({"topic": topic, "config": config}).encode()
        return http_ask(server, "PUT", f"/subscriptions/{name}", body, basic(user))[0]

    assert put("ann", "s1", "seen") == 201
    assert put("ann", "s2", "unseen") == 403
    assert put("ann", "s3", "seen", deadLetterTopic="unseen") == 403
    assert put("bob", "sb", "unseen") == 201
    # What bob may read he may see, and what is ann's he may not change.
    assert put("bob", "s1", "seen") == 403
    assert http_ask(server, "DELETE", "/subscriptions/s1", None, basic("bob"))[0] == 403
    listed = {
        user: [one["id"] for one in http_ask(server, "GET", "/subscriptions", None, basic(user))[2]]
        for user in ("ann", "bob")
    }
    assert listed == {"ann": ["s1"], "bob": ["s1", "sb"]}
    assert http_ask(server, "GET", "/subscriptions/sb", None, basic("ann"))[0] == 403
    receive = "/topics/unseen/subscriptions/sb:receive?maxWaitTime=0"
    assert http_ask(server, "POST", receive, None, basic("ann"))[0] == 403
    assert http_ask(server, "POST", receive, None, basic("bob"))[0] == 200


@pytest.mark.slow
def test_readers_by_offset_have_the_rights_of_the_configured_user(
    start_server: StartServer,
) -> None:
    server = start_server(**{"rocketmq.user": "lake"})
    people = Admin(server)
    people.add("lake")
    people.add("ann")
    people.allow("ann", "publish,create", "#")
    people.allow("lake", "subscribe", "open.#")
    for topic in ("open", "closed"):
        assert http_publish(server, topic, "x", b"body", basic("ann")) == 204
    read = polymq(server, "message", "read", "open", "--format", "body")
    assert read.stdout == "body"
    read = polymq(server, "message", "read", "closed")
    assert read.returncode == 1
    assert "may not subscribe closed.#" in read.stderr


# --- the rest ---------------------------------------------------------------------------------


def test_a_session_cannot_be_taken_over_by_another_user(server: Server, people: Admin) -> None:
    people.add("bob")
    people.allow("ann", "subscribe,publish,create", "a.#")
    client = MqttClient(server, "ann", client_id="c", clean=False)
    client.subscribe("a/#")
    assert MqttClient(server, "bob", client_id="c", clean=False).code == NOT_AUTHORIZED
    assert MqttClient(server, "bob", client_id="c", clean=True).code == NOT_AUTHORIZED
    assert client.publish("a/x", b"still here")
    assert client.next() == ("a/x", b"still here")
    again = MqttClient(server, "ann", client_id="c", clean=False)  # its own user may
    assert again.code == 0
    assert client.is_asked_to_go()
    again.close()
    client.close()


@pytest.mark.slow
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_users_and_rules_are_there_after_a_restart(start_server: StartServer, end: str) -> None:
    server = start_server()
    people = Admin(server)
    people.add("ann")
    people.allow("ann", "publish,create", "a.#")
    people.deny("ann", "publish", "a.x")
    if end == "kill":
        server.kill()
    server.restart()
    assert http_publish(server, "a", "y", b"1", basic("ann")) == 204
    assert http_publish(server, "a", "x", b"1", basic("ann")) == 403
    assert http_publish(server, "a", "y", b"1") == 401


def test_a_rate_slows_its_user_down_and_loses_nothing(server: Server, people: Admin) -> None:
    """300 messages at 200 in a second, the first 200 for nothing: half a second at least."""
    people.allow("ann", "publish,create,subscribe", "a.#")
    people.change("ann", quotas={"messages_per_second": 200, "connections": 2})
    reader, writer = MqttClient(server, "ann"), MqttClient(server, "ann")
    assert MqttClient(server, "ann").code == 136  # server unavailable: a quota
    reader.subscribe("a/#")
    sent = [writer.client.publish("a/x", b"%d" % number, qos=1) for number in range(300)]
    for one in sent:
        one.wait_for_publish(30)
    assert [int(reader.next()[1]) for _ in range(300)] == list(range(300))
    reader.close()
    writer.close()


@pytest.mark.slow
def test_no_secret_is_in_the_logs(start_server: StartServer) -> None:
    """Planted: passwords right and wrong, at every listener, at the most talkative level."""
    server = start_server(**{"log.level": "debug"})
    people = Admin(server)
    secrets = [f"planted-secret-{number}" for number in range(6)]
    polymq(server, "user", "add", "ann", text=secrets[0] + "\n")
    polymq(server, "user", "password", "ann", text=secrets[1] + "\n")
    people.allow("ann", "publish,create", "a.#")
    mqtt_code(server, "ann", secrets[2])
    amqp_is_let_in(server, "ann", secrets[3])
    http_publish(server, "a", "x", b"1", basic("ann", secrets[4]))
    http_publish(server, f"a?access_token={basic('ann', secrets[5])[6:]}", "x", b"1")
    http_publish(server, "a", "x", b"1", basic("ann", secrets[1]))
    people.ask("PUT", "/api/v1/users/bob", {"password": secrets[0] + "\0"})
    token = (server.data_directory / "admin.token").read_text(encoding="ascii").strip()
    encoded = [basic("ann", secret).removeprefix("Basic ") for secret in secrets]
    assert server.terminate() == 0
    said = "\n".join(server.log_lines())
    assert "login failed" in said
    for secret in (*secrets, *encoded, token, "scrypt$"):
        assert secret not in said


def test_the_operators_listener_asks_who_it_is(server: Server, people: Admin) -> None:
    people.add("root", "admin")
    people.add("admin-ann")  # others have guessed at ann's password, who would have to wait
    people.allow("admin-ann", "admin", "ops")
    for name in ("topics", "users", "permissions", "permissions/check", "nothing"):
        path = f"/api/v1/{name}"
        for authorization, expected in (
            ("", 401),
            ("Bearer wrong", 401),
            (basic("admin-ann", "wrong"), 401),
            (basic("stranger"), 401),
            (basic("admin-ann"), 404 if name == "nothing" else 403),
        ):
            people.authorization = authorization or "None x"
            assert people.ask("GET", path)[0] == expected, (path, authorization)
    people.authorization = basic("admin-ann")
    assert people.ask("PUT", "/api/v1/topics/ops")[0] == 201
    # To administer a topic is not to read it.
    assert people.ask("GET", "/api/v1/topics/ops/records?key=k")[0] == 403
    assert people.ask("GET", "/api/v1/records/0")[0] == 403
    assert people.ask("PUT", "/api/v1/topics/others")[0] == 403
    assert people.ask("PUT", "/api/v1/users/eve", {"password": "x"})[0] == 403
    assert people.ask("GET", "/health")[0] == 200
    people.authorization = basic("root")
    assert people.ask("GET", "/api/v1/topics")[0] == 200


@pytest.mark.slow
def test_the_commands(start_server: StartServer) -> None:
    """The way that the documentation shows: a user, a rule, and what came of it."""
    server = start_server()

    def run(*arguments: str, text: str | None = None) -> tuple[int, str]:
        ended = polymq(server, *arguments, text=text)
        assert "Traceback" not in ended.stderr
        return ended.returncode, ended.stdout + ended.stderr

    assert run("user", "add", "dev", text=PASSWORD + "\n") == (0, "User dev added.\n")
    allow = ("permission", "allow", "dev", "publish,create", "devices.{user}.#")
    assert run(*allow)[1] == (
        "allow  dev  publish  devices.{user}.#\nallow  dev  create  devices.{user}.#\n"
    )
    check = ("permission", "check", "dev", "publish")
    assert run(*check, "devices/dev/temp")[0] == 0
    assert run(*check, "orders") == (1, "not allowed: no rule allows it\n")
    assert http_publish(server, "devices", "dev.temp", b"1", basic("dev")) == 204
