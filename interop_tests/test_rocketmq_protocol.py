"""RocketMQ's listener, byte by byte: what clients rely on beyond sending and consuming."""

from __future__ import annotations

import json
import socket
import zlib
from collections.abc import Iterator

import pytest

from interop_tests.conftest import Server
from interop_tests.remoting_wire import Client, Frame, batch, consumer, messages_of

SUCCESS, SYSTEM_ERROR, NOT_SUPPORTED, ILLEGAL, NO_PERMISSION, NO_TOPIC = 0, 1, 3, 13, 16, 17
NOT_FOUND, NO_OFFSET, NO_GROUP, INVALID = 19, 22, 26, 29


@pytest.fixture
def server(shared_server: Server) -> Iterator[Server]:
    """One for all, left without topics and groups."""
    yield shared_server
    with Client(shared_server.host, shared_server.rocketmq_port) as made:
        for topic in json.loads(made.ask(21).body)["topicConfigTable"]:
            made.ask(215, topic=topic)
        for group in json.loads(made.ask(201).body)["subscriptionGroupTable"]:
            made.ask(207, groupName=group)


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.host, server.rocketmq_port) as made:
        yield made


def test_the_answer_to_a_send_says_where_the_message_is(client: Client) -> None:
    """Its id leads to it, its key, its offset, and its time."""
    sent = client.publish("orders", b"one", TAGS="paid", KEYS="k1 k2", colour="red")
    assert (sent.code, sent.fields["queueId"], sent.fields["queueOffset"]) == (SUCCESS, "0", "0")
    position = int(sent.fields["msgId"][16:], 16)
    _, (pulled,) = client.pull("orders")
    assert (pulled.position, pulled.body, pulled.topic) == (position, b"one", "orders")
    assert pulled.properties["TAGS"] == "paid"
    assert pulled.properties["KEYS"] == "k1 k2"
    assert pulled.properties["colour"] == "red"
    (viewed,) = messages_of(client.ask(33, offset=position).body)
    assert viewed == pulled
    span = {"beginTimestamp": 0, "endTimestamp": 2**53, "maxNum": 10}
    (queried,) = messages_of(client.ask(12, topic="orders", key="k2", **span).body)
    assert queried == pulled
    assert client.ask(12, topic="orders", key="k3", **span).code == NO_OFFSET
    queue = {"topic": "orders", "queueId": 0}
    assert client.ask(29, timestamp=0, **queue).fields["offset"] == "0"
    assert client.ask(29, timestamp=2**53, **queue).fields["offset"] == "1"
    assert int(client.ask(32, **queue).fields["timestamp"]) > 1_700_000_000_000


def test_the_answer_to_a_send_names_the_id_that_the_producer_gave(client: Client) -> None:
    """Java's producers of transactions look for it under this name."""
    assert client.publish("orders", b"x", UNIQ_KEY="U1").fields["transactionId"] == "U1"
    assert "transactionId" not in client.publish("orders", b"x").fields


def test_traces_of_messages_are_stored_and_found(client: Client) -> None:
    """In the topic that RocketMQ's clients have for them, which looks like one of the broker's."""
    topic = "RMQ_SYS_TRACE_TOPIC"
    assert client.publish(topic, b"Pub\x01...", KEYS="U1").code == SUCCESS
    assert client.ask(105, topic=topic).code == SUCCESS
    span = {"beginTimestamp": 0, "endTimestamp": 2**53, "maxNum": 10}
    (found,) = messages_of(client.ask(12, topic=topic, key="U1", **span).body)
    assert found.body == b"Pub\x01..."


def test_a_batch_has_consecutive_offsets_and_an_id_for_each(client: Client) -> None:
    body = batch(
        (b"1", {"TAGS": "a", "KEYS": "x"}), (b"2", {"TAGS": "a"}), (b"3", {"TAGS": "b", "n": "3"})
    )
    sent = client.publish("orders", body, code=320)
    assert (sent.code, sent.fields["queueOffset"]) == (SUCCESS, "0")
    _, pulled = client.pull("orders")
    assert [message.body for message in pulled] == [b"1", b"2", b"3"]
    assert [message.properties["TAGS"] for message in pulled] == ["a", "a", "b"]
    assert pulled[2].properties["n"] == "3"
    positions = [int(identity[16:], 16) for identity in sent.fields["msgId"].split(",")]
    assert positions == [message.position for message in pulled]


def test_a_long_batch_is_answered_and_stored_whole(client: Client) -> None:
    """More messages than one header has room for their ids."""
    sent = client.publish("orders", batch(*[(b"x", {})] * 20_000), code=320)
    assert (sent.code, sent.fields["queueOffset"]) == (SUCCESS, "0")
    assert client.ask(30, topic="orders", queueId=0).fields["offset"] == "20000"


def test_what_a_batch_cannot_be_is_refused_whole(client: Client) -> None:
    """A transaction, a delay, a retry: nothing of it is stored, and nothing was promised."""
    client.publish("orders", b"seed")
    two = batch((b"1", {}), (b"2", {}))
    late = batch((b"1", {}), (b"2", {"DELAY": "1"}))
    cases = [
        client.publish("orders", two, code=320, system_flag=PREPARED, PGROUP="producers"),
        client.publish("orders", late, code=320),
        client.publish("%RETRY%billing", two, code=320),
    ]
    for answer in cases:
        assert answer.code == ILLEGAL
        assert "one by one" in answer.header["remark"]
    assert [message.body for message in client.pull("orders")[1]] == [b"seed"]


def test_a_oneway_pull_has_no_effect(client: Client) -> None:
    client.publish("orders", b"x")
    client.send(
        11, b"", 2, consumerGroup="g", topic="orders", queueId=0, queueOffset=0, maxMsgNums=1
    )
    assert len(client.pull("orders")[1]) == 1


def test_bad_messages_are_refused_in_words_and_the_connection_goes_on(client: Client) -> None:
    cases = [
        (client.publish("orders", b"short", code=320), ILLEGAL),
        (client.publish("RMQ_SYS_POLYMQ_STATE", b"x"), NO_PERMISSION),
        (client.publish("or ders", b"x"), INVALID),
        (client.publish("orders", b"x", system_flag=0x1 | 0x400), ILLEGAL),
        (client.ask(310, b"x", b="orders"), INVALID),
        (client.ask(34, b"no json"), INVALID),
        (client.ask(9999), NOT_SUPPORTED),
    ]
    for answer, code in cases:
        assert answer.code == code, answer.header
        assert answer.header["remark"]
    assert client.publish("orders", b"good").code == SUCCESS


def test_a_client_cannot_forge_what_the_broker_writes(client: Client) -> None:
    client.publish("orders", b"x", PMQ_S="1.0", PMQ_RETAIN="1", stored="yes")
    _, (pulled,) = client.pull("orders")
    assert pulled.properties["stored"] == "yes"
    assert not {"PMQ_S", "PMQ_RETAIN"} & set(pulled.properties)


def test_a_compressed_body_reaches_rocketmq_as_it_was_sent(client: Client) -> None:
    body = zlib.compress(b"long " * 2000)
    client.publish("orders", body, system_flag=0x301)
    _, (pulled,) = client.pull("orders")
    assert (pulled.body, pulled.system_flag & 0x701) == (body, 0x301)


def test_offsets_of_a_group(client: Client) -> None:
    queue_fields = {"consumerGroup": "billing", "topic": "orders", "queueId": 0}
    client.publish("orders", b"x")
    assert client.ask(15, commitOffset=1, **queue_fields).code == NO_GROUP
    client.beat("c1", consumers=[consumer("billing", "orders")])
    assert client.ask(14, **queue_fields).fields["offset"] == "0"
    assert client.ask(14, setZeroIfNotFound="false", **queue_fields).code == NO_OFFSET
    assert client.ask(15, commitOffset=1, **queue_fields).code == SUCCESS
    assert client.ask(14, setZeroIfNotFound="false", **queue_fields).fields["offset"] == "1"
    stats = client.ask(208, consumerGroup="billing").body
    assert b'"brokerOffset":1,"consumerOffset":1' in stats


def test_members_see_each_other_and_are_told_of_changes(server: Server, client: Client) -> None:
    client.publish("orders", b"x")
    assert client.ask(38, consumerGroup="billing").code == SYSTEM_ERROR
    client.beat("c1", consumers=[consumer("billing", "orders")])
    with Client(server.host, server.rocketmq_port) as other:
        other.beat("c2", consumers=[consumer("billing", "orders")])
        client.asked.clear()
        members = json.loads(client.ask(38, consumerGroup="billing").body)["consumerIdList"]
        assert members == ["c1", "c2"]
    assert client.until_asked(40).fields == {"consumerGroup": "billing"}  # the other one is gone


def test_a_queue_is_locked_for_one_member(server: Server, client: Client) -> None:
    client.publish("orders", b"1")
    queue = {"topic": "orders", "brokerName": "broker-a", "queueId": 0}

    def locked(peer: Client, name: str, code: int = 41) -> list[object]:
        body = {"consumerGroup": "billing", "clientId": name, "mqSet": [queue]}
        answer = peer.ask(code, json.dumps(body).encode())
        found: list[object] = json.loads(answer.body)["lockOKMQSet"] if code == 41 else []
        return found

    with Client(server.host, server.rocketmq_port) as other:
        assert locked(client, "c1") == [queue]
        assert locked(other, "c2") == []
        locked(client, "c1", code=42)
        assert locked(other, "c2") == [queue]


def test_a_message_that_is_given_back_comes_to_the_retry_topic_then_to_the_dead_letters(
    client: Client,
) -> None:
    client.publish("orders", b"hard", TAGS="t", KEYS="k")
    client.beat("c1", consumers=[consumer("billing", "orders")])
    _, (first,) = client.pull("orders")
    back = {"group": "billing", "originMsgId": "O1", "originTopic": "orders"}
    assert client.ask(36, offset=first.position, delayLevel=1, **back).code == SUCCESS
    frame, retried = client.pull("%RETRY%billing", wait_ms=20_000)  # a second later
    assert frame.code == SUCCESS
    (again,) = retried
    assert (again.body, again.times) == (b"hard", 1)
    assert again.properties["RETRY_TOPIC"] == "orders"
    assert again.properties["KEYS"] == "k"
    answer = client.ask(36, offset=again.position, maxReconsumeTimes=1, **back)
    assert answer.code == SUCCESS
    _, (dead,) = client.pull("%DLQ%billing")
    assert (dead.body, dead.properties["RETRY_TOPIC"]) == (b"hard", "orders")


def test_a_delayed_message_comes_when_it_is_due(client: Client) -> None:
    client.publish("orders", b"now")
    assert client.publish("orders", b"later", DELAY="1").code == SUCCESS
    _, pulled = client.pull("orders")
    assert [message.body for message in pulled] == [b"now"]
    _, pulled = client.pull("orders", 1, wait_ms=20_000)
    assert [message.body for message in pulled] == [b"later"]


def test_the_id_of_a_delayed_message_is_its_own(client: Client) -> None:
    """It names the record that waits, and not what happens to be stored behind it."""
    late, now = client.publish("orders", b"late", DELAY="3"), client.publish("orders", b"now")
    positions = [int(sent.fields["msgId"][16:], 16) for sent in (late, now)]
    assert positions[0] < positions[1]
    viewed = client.ask(33, offset=positions[1])
    assert (viewed.code, viewed.body.count(b"now")) == (SUCCESS, 1)
    assert b"now" not in client.ask(33, offset=positions[0]).body


PREPARED, COMMIT, ROLLBACK = 4, 8, 12


@pytest.mark.parametrize("decision", [COMMIT, ROLLBACK])
def test_a_transaction_is_committed_or_rolled_back_once(client: Client, decision: int) -> None:
    client.publish("orders", b"seed")
    half = client.publish(
        "orders", b"half", system_flag=PREPARED, TRAN_MSG="true", PGROUP="producers", TAGS="t"
    )
    assert half.code == SUCCESS
    assert len(client.pull("orders")[1]) == 1
    ending = {
        "tranStateTableOffset": half.fields["queueOffset"],
        "commitLogOffset": int(half.fields["msgId"][16:], 16),
        "msgId": half.fields["msgId"],
    }
    stranger = client.ask(37, producerGroup="others", commitOrRollback=COMMIT, **ending)
    assert stranger.code == NO_PERMISSION
    for again in (decision, decision, COMMIT, ROLLBACK):
        answer = client.ask(37, producerGroup="producers", commitOrRollback=again, **ending)
        assert answer.code == (SUCCESS if again == decision else INVALID)
    _, pulled = client.pull("orders")
    wanted = [b"seed", b"half"] if decision == COMMIT else [b"seed"]
    assert [message.body for message in pulled] == wanted


@pytest.mark.slow
def test_a_producer_that_forgot_is_asked(client: Client) -> None:
    client.beat("p1", producers=[{"groupName": "producers"}])
    half = client.publish(
        "orders", b"half", system_flag=PREPARED, TRAN_MSG="true", PGROUP="producers"
    )
    asked = client.until_asked(39)  # six seconds later
    assert asked.fields["tranStateTableOffset"] == half.fields["queueOffset"]
    (message,) = messages_of(asked.body)
    assert (message.topic, message.body) == ("orders", b"half")
    answer = client.ask(
        37,
        producerGroup="producers",
        tranStateTableOffset=asked.fields["tranStateTableOffset"],
        commitLogOffset=asked.fields["commitLogOffset"],
        commitOrRollback=COMMIT,
        fromTransactionCheck="true",
    )
    assert answer.code == SUCCESS
    assert [message.body for message in client.pull("orders")[1]] == [b"half"]


def test_administration_of_topics_and_groups(client: Client) -> None:
    make = {"readQueueNums": 3, "writeQueueNums": 3, "perm": 6}
    assert client.ask(17, topic="orders", **make).code == SUCCESS
    assert client.ask(17, topic="orders", **make).code == SUCCESS
    other = {**make, "writeQueueNums": 5, "readQueueNums": 5}
    assert client.ask(17, topic="orders", **other).code == INVALID
    table = json.loads(client.ask(21).body)["topicConfigTable"]
    assert table["orders"]["writeQueueNums"] == 3
    stats = client.ask(202, topic="orders").body
    assert stats.count(b'"maxOffset":0') == 3
    group = {"groupName": "billing", "retryMaxTimes": 2}
    assert client.ask(200, json.dumps(group).encode()).code == SUCCESS
    table = json.loads(client.ask(201).body)["subscriptionGroupTable"]
    assert table["billing"]["retryMaxTimes"] == 2
    assert client.ask(207, groupName="billing").code == SUCCESS
    assert json.loads(client.ask(201).body)["subscriptionGroupTable"] == {}
    assert json.loads(client.ask(28).body)["table"]["brokerActive"] == "true"
    brokers = json.loads(client.ask(106).body)["brokerAddrTable"]
    assert list(brokers) == ["broker-a"]
    assert client.ask(215, topic="orders").code == SUCCESS
    assert client.ask(202, topic="orders").code == NO_TOPIC


def test_a_reader_of_some_tags_gets_only_those(client: Client) -> None:
    """Its next offset is behind what was passed over; tags with one hash are told apart."""
    for number, tag in enumerate(("Aa", "BB", "paid", "Aa", "sent")):
        client.publish("orders", b"%d" % number, TAGS=tag)
    frame, pulled = client.pull("orders", tags="Aa || paid")
    assert [message.body for message in pulled] == [b"0", b"2", b"3"]
    assert frame.fields["nextBeginOffset"] == "5"
    frame, pulled = client.pull("orders", tags="none")
    assert (pulled, frame.fields["nextBeginOffset"]) == ([], "5")
    assert len(client.pull("orders", tags="*")[1]) == 5


def test_the_id_of_a_message_names_the_listener(server: Server, client: Client) -> None:
    """Java's clients connect to the address in it: the record and the answer say the same."""
    sent = client.publish("orders", b"x")
    host = bytes.fromhex(sent.fields["msgId"][:16])
    assert host == socket.inet_aton(server.host) + server.rocketmq_port.to_bytes(4)
    assert host in client.pull("orders")[0].body


def test_a_consumer_asks_before_it_begins_whether_its_filter_is_understood(client: Client) -> None:
    def check(kind: str, expression: str) -> Frame:
        subscription = {"topic": "orders", "subString": expression, "expressionType": kind}
        body = {"clientId": "c1", "group": "billing", "subscriptionData": subscription}
        return client.ask(46, json.dumps(body).encode())

    assert check("TAG", "a || b").code == SUCCESS
    refused = check("SQL92", "a > 1")
    assert refused.code == INVALID
    assert "filters by tags only" in refused.header["remark"]
    assert client.ask(46, b"{}").code == INVALID


def test_who_is_connected_and_with_which_library(client: Client) -> None:
    client.beat("c1", consumers=[consumer("billing", "orders")], producers=[{"groupName": "shop"}])
    for code, group in ((203, {"consumerGroup": "billing"}), (204, {"producerGroup": "shop"})):
        (found,) = json.loads(client.ask(code, **group).body)["connectionSet"]
        assert (found["clientId"], found["language"], found["version"]) == ("c1", "OTHER", 479)
        assert found["clientAddr"].startswith("127.0.0.1:")
    assert client.ask(204, producerGroup="none").code == SYSTEM_ERROR


def test_one_topic_one_group_and_who_reads_whom(client: Client) -> None:
    """What `mqadmin` of 5.x asks one by one."""
    client.publish("orders", b"x")
    client.beat("c1", consumers=[consumer("billing", "orders")])
    client.ask(15, consumerGroup="billing", topic="orders", queueId=0, commitOffset=1)
    topic = json.loads(client.ask(351, topic="orders").body)
    assert topic == json.loads(client.ask(21).body)["topicConfigTable"]["orders"]
    group = json.loads(client.ask(352, group="billing").body)
    assert group == json.loads(client.ask(201).body)["subscriptionGroupTable"]["billing"]
    assert json.loads(client.ask(300, topic="orders").body) == {"groupList": ["billing"]}
    assert json.loads(client.ask(343, group="billing").body)["topicList"] == ["orders"]
    assert client.ask(351, topic="none").code == NO_TOPIC
    assert client.ask(352, group="none").code == NO_GROUP
    assert b"\nbrokerName=broker-a\n" in client.ask(26).body
    assert client.ask(216, topic="orders").code == SUCCESS


OFFSET_MOVED = 21


def test_a_group_is_set_back_and_forward(client: Client) -> None:
    """One that is not there goes on at its new offset. One that runs is told by its next pull."""
    client.ask(17, topic="orders", readQueueNums=1, writeQueueNums=1, perm=6)
    for number in range(4):
        client.publish("orders", b"%d" % number)
    queue_fields = {"consumerGroup": "billing", "topic": "orders", "queueId": 0}
    where = {"group": "billing", "topic": "orders"}
    client.ask(200, json.dumps({"groupName": "billing"}).encode())

    def offset() -> str:
        return client.ask(14, **queue_fields).fields["offset"]

    def reset(**more: object) -> Frame:
        return client.ask(222, **where, **{"timestamp": 0, "isForce": "false", **more})

    client.ask(15, commitOffset=3, **queue_fields)
    answer = reset()
    assert (answer.code, offset()) == (SUCCESS, "0")
    mq = b'{"brokerName":"broker-a","queueId":0,"topic":"orders"}'
    assert answer.body == b'{"offsetTable":{%b:0}}' % mq
    reset(timestamp=-1)
    assert offset() == "0"  # forward only by force
    reset(timestamp=-1, isForce="true")
    assert offset() == "4"
    reset(queueId=0, offset=2)
    assert offset() == "2"
    assert client.pull("orders", 2, group="billing")[0].code == SUCCESS
    assert reset(queueId=0, offset=9).code == INVALID
    assert reset(queueId=1).code == INVALID
    assert client.ask(222, group="none", topic="orders", timestamp=0).code == NO_GROUP
    assert client.ask(222, group="billing", topic="none", timestamp=0).code == NO_TOPIC

    client.beat("c1", consumers=[consumer("billing", "orders")])
    reset(queueId=0, offset=1)
    assert client.pull("orders", 4)[0].code == NOT_FOUND  # of another group
    moved, _ = client.pull("orders", 4, group="billing")
    assert (moved.code, moved.fields["nextBeginOffset"]) == (OFFSET_MOVED, "1")
    assert client.pull("orders", 4, group="billing")[0].code == NOT_FOUND  # told once


def test_a_pull_that_waits_is_answered_when_its_group_is_set_back(
    server: Server, client: Client
) -> None:
    client.publish("orders", b"x")
    client.beat("c1", consumers=[consumer("billing", "orders")])
    with Client(server.host, server.rocketmq_port) as other:
        client.send(
            11, consumerGroup="billing", topic="orders", queueId=0, queueOffset=1, maxMsgNums=1,
            sysFlag=2, commitOffset=0, suspendTimeoutMillis=50_000, subVersion=0,
        )  # fmt: skip
        client.ask(38, consumerGroup="billing")
        assert other.ask(222, group="billing", topic="orders", timestamp=0).code == SUCCESS
    assert client.read().code == NOT_FOUND
    assert client.pull("orders", 1, group="billing")[0].fields["nextBeginOffset"] == "0"
