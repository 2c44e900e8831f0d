"""Typed headers and JSON bodies."""

from __future__ import annotations

import json

import pytest

from polymq.remoting.bodies import (
    BrokerData,
    QueueData,
    TopicList,
    TopicRoute,
    decode_route,
    decode_topic_list,
    encode_body,
    quote_keys,
)
from polymq.remoting.errors import BadFields
from polymq.remoting.headers import (
    OffsetAnswer,
    PullAnswer,
    PullFields,
    QueueFields,
    read_fields,
    write_fields,
)


def test_a_pull_question_as_java_sends_it() -> None:
    """All values are text; unknown names (`ns`, `bname`, `lo`) are ignored."""
    fields = read_fields(
        PullFields,
        {
            "consumerGroup": "g",
            "topic": "sensors",
            "queueId": "3",
            "queueOffset": "9007199254740993",
            "maxMsgNums": "32",
            "sysFlag": "6",
            "commitOffset": "0",
            "suspendTimeoutMillis": "15000",
            "subscription": "*",
            "subVersion": "1700000000000",
            "expressionType": "TAG",
            "bname": "broker-a",
            "lo": "",
        },
    )
    assert fields == PullFields(
        group="g",
        topic="sensors",
        queue_id=3,
        queue_offset=9_007_199_254_740_993,
        count_max=32,
        system_flag=6,
        suspend_ms=15_000,
        subscription="*",
        subscription_version=1_700_000_000_000,
        expression_type="TAG",
    )


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"topic": "t"}, "queueId"),
        ({"topic": "t", "queueId": "x"}, "queueId"),
        ({"topic": "t", "queueId": "2147483648"}, "queueId"),
        ({"queueId": "1"}, "topic"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, str], named: str) -> None:
    with pytest.raises(BadFields, match=named):
        read_fields(QueueFields, fields)


def test_the_four_numbers_of_a_pull_answer_are_always_written() -> None:
    """Zeros too: a Java client dies of a null pointer without them."""
    answer = PullAnswer(broker_id=0, next_offset=0, min_offset=0, max_offset=0)
    assert write_fields(answer) == {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": "0",
        "minOffset": "0",
        "maxOffset": "0",
    }


def test_a_header_is_read_back_as_it_was_written() -> None:
    answer = OffsetAnswer(offset=5, incarnation=2**40)
    assert read_fields(OffsetAnswer, write_fields(answer)) == answer


# --- bodies -----------------------------------------------------------------------------------

ROUTE = TopicRoute(
    broker_datas=[
        BrokerData(
            cluster="DefaultCluster",
            broker_name="broker-a",
            broker_addrs={"0": "10.0.0.1:10911", "1": "10.0.0.2:10911"},
        )
    ],
    queue_datas=[QueueData(broker_name="broker-a", read_queue_nums=8, write_queue_nums=8, perm=6)],
)


def test_a_route_has_every_key_that_clients_look_into_with_quotes_around_ids() -> None:
    assert json.loads(encode_body(ROUTE)) == {
        "brokerDatas": [
            {
                "brokerAddrs": {"0": "10.0.0.1:10911", "1": "10.0.0.2:10911"},
                "brokerName": "broker-a",
                "cluster": "DefaultCluster",
                "enableActingMaster": False,
            }
        ],
        "filterServerTable": {},
        "orderTopicConf": None,
        "queueDatas": [
            {
                "brokerName": "broker-a",
                "perm": 6,
                "readQueueNums": 8,
                "writeQueueNums": 8,
                "topicSysFlag": 0,
            }
        ],
    }


def test_a_java_name_server_s_route_has_numbers_as_keys() -> None:
    document = encode_body(ROUTE).replace(b'"0":', b"0:").replace(b'"1":', b" 1 :")
    assert decode_route(document) == ROUTE


@pytest.mark.parametrize("document", [b'{"a":"{0:1}"}', b'{"a":"\\"{0:1}"}', b'{"k":[1,2]}'])
def test_quoting_keys_leaves_strings_and_arrays_alone(document: bytes) -> None:
    assert quote_keys(document) == document


@pytest.mark.parametrize("document", [b"", b"{}", b"[]", b'{"queueDatas":[{}]}', b"\xff"])
def test_what_is_no_route_is_refused(document: bytes) -> None:
    with pytest.raises(BadFields):
        decode_route(document)


def test_a_topic_list_is_read_back() -> None:
    topics = TopicList(topic_list=["a", "%RETRY%g"])
    assert decode_topic_list(encode_body(topics)) == topics
    for body in (b"7", b'{"topicList":["a"],"pmqTopicList":[]}'):
        with pytest.raises(BadFields):
            decode_topic_list(body)
