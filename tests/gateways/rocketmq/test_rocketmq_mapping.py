"""RocketMQ's words for what the engine says."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import cast

import pytest

from polymq.broker.port import REST, BrokerPort, Reason, TopicInfo, encode_name
from polymq.gateways.rocketmq import mapping
from polymq.gateways.rocketmq.limits import Limits as RocketmqLimits
from polymq.gateways.rocketmq.mapping import Identity
from polymq.gateways.rocketmq.protocol import Request
from polymq.gateways.rocketmq.rights import admit
from polymq.remoting.codes import RequestCode, ResponseCode
from polymq.remoting.headers import PullFields, QueueFields, TopicFields
from tests.gateways.rocketmq.rocketmq_spy_port import SpyPort

ME = Identity(cluster="DefaultCluster", broker_name="broker-a")
LONG = "device/" * 40


def some_port() -> SpyPort:
    spy = SpyPort()
    spy.create("sensors", queues=2, incarnation=9)
    spy.create("a/b")
    spy.create(LONG)
    return spy


@pytest.mark.parametrize(
    ("low", "high", "offset", "code", "next_offset"),
    [
        (0, 0, 0, 19, 0),  # an empty queue, from its start
        (0, 0, 5, 21, 0),  # an empty queue, from somewhere: start again
        (3, 9, 3, 0, None),
        (3, 9, 8, 0, None),
        (3, 9, 9, 19, 9),  # the end: nothing new
        (3, 9, 10, 21, 9),  # beyond the end: the reader knows what we do not have
        (3, 9, 2, 21, 3),  # retention took it
        (3, 9, -1, 21, 3),
        (7, 7, 7, 19, 7),  # everything expired
        (7, 7, 0, 21, 7),
    ],
)
def test_where_an_offset_lies_decides_the_answer(
    low: int, high: int, offset: int, code: int, next_offset: int | None
) -> None:
    info = TopicInfo(name="t", min_offsets=(low,), max_offsets=(high,), incarnation=1)
    fields = PullFields(topic="t", queue_id=0, queue_offset=offset, count_max=1)
    assert mapping.pull_code(info, 0, offset) == code
    if next_offset is not None:
        answer = mapping.pull_answer(info, fields, ResponseCode(code))
        assert answer.fields == {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(next_offset),
            "minOffset": str(low),
            "maxOffset": str(high),
            "pmqIncarnation": "1",
        }


@pytest.mark.parametrize("name", ["sensors", "a/b", LONG])
def test_a_topic_is_found_by_its_stored_name_and_by_its_user_s(name: str) -> None:
    """A hashed name too, although it cannot be decoded."""
    port = some_port().as_port()
    by_stored = mapping.find_topic(port, encode_name(name), None)
    by_user = mapping.find_topic(port, "ignored", name)
    assert by_stored is not None
    assert by_stored.name == name
    assert by_user == by_stored


def test_the_user_s_name_is_not_decoded() -> None:
    """`a|2fb` as a user's name is another topic than `a/b`."""
    assert mapping.find_topic(some_port().as_port(), "a|2fb", "a|2fb") is None


@pytest.mark.parametrize("name", ["other", "|", "|zz", "|hfff", ""])
def test_a_topic_that_does_not_exist(name: str) -> None:
    assert mapping.find_topic(some_port().as_port(), name, None) is None
    answer = mapping.route(some_port().as_port(), TopicFields(topic=name), ME, "h:1")
    assert answer.code == 17


def test_a_route_names_this_broker() -> None:
    answer = mapping.route(
        some_port().as_port(), TopicFields(topic="sensors"), ME, "10.0.0.7:10911"
    )
    route = json.loads(answer.body)
    assert answer.code == 0
    assert answer.fields == {"pmqIncarnation": "9"}
    assert route["brokerDatas"][0]["brokerAddrs"] == {"0": "10.0.0.7:10911"}
    (queues,) = route["queueDatas"]
    assert (queues["readQueueNums"], queues["perm"]) == (2, 6)


def test_the_offsets_of_a_queue() -> None:
    spy = some_port()
    spy.append("sensors", b"1", b"2", b"3", queue_id=1)
    spy.expire("sensors", 1, queue_id=1)
    fields = QueueFields(topic="sensors", queue_id=1)
    assert mapping.offset(spy.as_port(), 30, fields).fields == {
        "offset": "3",
        "pmqIncarnation": "9",
    }
    assert mapping.offset(spy.as_port(), 31, fields).fields == {
        "offset": "1",
        "pmqIncarnation": "9",
    }
    for queue_id in (-1, 2):
        wrong = QueueFields(topic="sensors", queue_id=queue_id)
        assert mapping.offset(spy.as_port(), 30, wrong).code == 29
    assert mapping.offset(spy.as_port(), 30, QueueFields(topic="x", queue_id=0)).code == 17


def test_the_topic_list_has_stored_names_and_the_users() -> None:
    spy = some_port()
    spy.create("\udcff")  # bytes that are no text, as AMQP allows
    listed = json.loads(mapping.topic_list(spy.as_port()).body)
    assert listed["topicList"] == ["sensors", "a|2fb", encode_name(LONG), "|ff"]
    assert listed["pmqTopicList"] == ["sensors", "a/b", LONG, None]


def test_the_topic_without_a_name_is_listed_and_found_by_the_name_that_tools_show() -> None:
    """A topic whose name is really that one is another."""
    spy = some_port()
    spy.create("")
    spy.create("||")
    port = spy.as_port()
    assert json.loads(mapping.topic_list(port).body)["pmqTopicList"][-2:] == ["||", "|||"]
    for stored, user, name in (("||", None, ""), ("x", "||", ""), ("x", "|||", "||")):
        found = mapping.find_topic(port, stored, user)
        assert found is not None
        assert found.name == name


def test_every_reason_has_a_code() -> None:
    assert set(mapping.CODES) == set(Reason)


def test_the_gate_asks_for_the_topic_that_is_then_read() -> None:
    """By its display name, the right has to be for the topic that this stands for."""
    asked: list[tuple[str, ...]] = []
    principal = SimpleNamespace(
        check_admitted=lambda: None,
        check_read=asked.append,
        check_known=lambda name: asked.append((name,)),
    )
    port = SimpleNamespace(principal=principal)
    for shown in ("||", "|||"):
        for code, fields in (
            (RequestCode.GET_ROUTE, TopicFields(topic="x", user_topic=shown)),
            (RequestCode.GET_MAX_OFFSET, QueueFields(topic="x", user_topic=shown, queue_id=0)),
        ):
            request = SimpleNamespace(code=code, fields=fields, body=b"")
            admit(cast(BrokerPort, port), cast(Request, request), RocketmqLimits())
    assert asked == [("",), ("", REST), ("||",), ("||", REST)]
