"""What a name server knows of brokers, and when it forgets them."""

from __future__ import annotations

import msgspec
import pytest

from polymq.remoting.codes import RequestCode, ResponseCode
from polymq.remoting.headers import write_fields
from polymq.remoting.name_fields import BrokerFields, RegisterFields
from polymq.remoting.registration import (
    DataVersion,
    Registration,
    decode_data_version,
    encode_data_version,
    encode_registration,
)
from tests.namesrv.speaking import Speaker, table

A1, A2, B1 = "10.0.0.1:10911", "10.0.0.2:10911", "10.0.1.1:10911"


def test_a_route_names_all_brokers_of_a_topic_with_all_their_members() -> None:
    names = Speaker()
    names.register("t", "only-a", address=A1)
    names.register("t", "only-a", address=A2, broker_id=1)
    names.register("t", "only-b", name="broker-b", address=B1)
    assert names.addresses("t") == {"broker-a": {"0": A1, "1": A2}, "broker-b": {"0": B1}}
    assert names.addresses("only-b") == {"broker-b": {"0": B1}}
    answer = names.ask(RequestCode.GET_ROUTE, {"topic": "t"})
    assert b'"0":' in answer.body  # keys stand in quotes, or strict clients fail
    route = msgspec.json.decode(answer.body)
    assert set(route) == {"brokerDatas", "queueDatas", "filterServerTable", "orderTopicConf"}


def test_an_unknown_topic_is_answered_as_java_clients_expect() -> None:
    answer = Speaker().ask(RequestCode.GET_ROUTE, {"topic": "t"})
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert answer.remark == "No topic route info in name server for the topic: t"


def test_a_slave_is_told_its_master_and_does_not_bring_topics() -> None:
    names = Speaker()
    names.register("t", "u", address=A1, ha_server_addr="10.0.0.1:10912")
    answer = names.register("t", "of-the-slave", address=A2, broker_id=1)
    assert answer.fields == {"haServerAddr": "10.0.0.1:10912", "masterAddr": A1}
    assert names.route("of-the-slave") is None
    assert names.register("t", "u", address=A1).fields == {}


@pytest.mark.parametrize(("after", "there"), [(120.0, True), (120.5, False)])
def test_silence_takes_a_broker_out(after: float, there: bool) -> None:
    """Four registrations are missing; a little less is no reason."""
    names = Speaker()
    names.register("t", "u")
    names.requests.tables.evict_silent(after)
    assert bool(names.addresses("t")) is there


def test_a_broker_may_ask_for_another_patience_within_bounds() -> None:
    names = Speaker()
    names.register("t", "u", heartbeat_timeout_millis=20_000)
    names.register("v", "w", name="b", address=B1, heartbeat_timeout_millis=1, connection=2)
    assert [client.name for client, _ in names.requests.tables.evict_silent(0.9)] == []
    assert [client.name for client, _ in names.requests.tables.evict_silent(1.1)] == ["b"]
    assert [client.name for client, _ in names.requests.tables.evict_silent(21)] == ["broker-a"]


@pytest.mark.parametrize("code", [RequestCode.BROKER_HEARTBEAT, RequestCode.QUERY_DATA_VERSION])
def test_other_signs_of_life_count_and_move_a_broker_to_their_connection(code: int) -> None:
    """A broker that came back must not go when its old connection is found to be dead."""
    names = Speaker()
    names.register("t", "u", connection=1)
    names.now = 100.0
    header = BrokerFields(cluster_name="c", broker_name="broker-a", broker_addr=A1)
    body = encode_data_version(DataVersion(counter=1, timestamp=1000))
    assert names.ask(code, write_fields(header), body, connection=2).code == 0
    assert names.requests.tables.evict_silent(200.0) == []
    assert names.requests.connection_lost(1) == []
    assert names.addresses("t")
    assert [client.address for client in names.requests.connection_lost(2)] == [A1]
    assert names.route("t") is None


def test_the_data_version_tells_whether_a_broker_has_to_register() -> None:
    names = Speaker()
    header = write_fields(BrokerFields(cluster_name="c", broker_name="broker-a", broker_addr=A1))
    same = encode_data_version(DataVersion(counter=1, timestamp=1000))
    other = encode_data_version(DataVersion(counter=2, timestamp=1000))
    unknown = names.ask(RequestCode.QUERY_DATA_VERSION, header, same)
    assert (unknown.fields, unknown.body) == ({"changed": "true"}, b"")
    names.register("t", "u")
    known = names.ask(RequestCode.QUERY_DATA_VERSION, header, same)
    assert known.fields == {"changed": "false"}
    assert decode_data_version(known.body) == DataVersion(counter=1, timestamp=1000)
    names.now = 119.0
    assert names.ask(RequestCode.QUERY_DATA_VERSION, header, other).fields == {"changed": "true"}
    assert names.requests.tables.evict_silent(121.0)  # a changed version is no sign of life


def test_topics_change_only_with_the_data_version() -> None:
    names = Speaker()
    names.register("t", "u")
    names.register("t", "u", "v")  # the same version: not looked at
    assert names.route("v") is None
    names.register("t", "v", counter=2)
    assert names.route("v") is not None
    assert names.route("u") is not None, "RocketMQ's brokers also register single topics"
    names.register("t", "v", counter=3, pmq_complete=True)
    assert names.route("u") is None


def test_a_connection_takes_its_brokers_with_it_and_topics_go_with_their_last() -> None:
    names = Speaker()
    names.register("t", "u", address=A1, connection=1)
    names.register("t", "v", name="broker-b", address=B1, connection=2)
    names.requests.connection_lost(1)
    assert names.addresses("t") == {"broker-b": {"0": B1}}
    assert names.requests.tables.topics() == ["t", "v"]
    assert names.requests.tables.clusters() == {"c": ["broker-b"]}
    names.requests.connection_lost(2)
    assert names.requests.tables.topics() == []
    assert names.requests.tables.clusters() == {}


def test_a_registration_over_a_new_connection_outlives_the_old_one() -> None:
    names = Speaker()
    names.register("t", "u", connection=1)
    names.register("t", "u", connection=2)
    assert names.requests.connection_lost(1) == []
    assert names.addresses("t")


def test_a_slave_that_becomes_master_leaves_its_old_place() -> None:
    names = Speaker()
    names.register("t", "u", address=A1, connection=1)
    names.register("t", "u", address=A2, broker_id=1, connection=2)
    names.requests.connection_lost(1)
    names.register("t", "u", address=A2, broker_id=0, state=1, connection=2)
    assert names.addresses("t") == {"broker-a": {"0": A2}}


def test_a_master_of_old_is_refused() -> None:
    """It came back with an old state, and clients would write to it."""
    names = Speaker()
    names.register("t", "u", address=A2, state=2, connection=2)
    answer = names.register("t", "u", address=A1, state=1, connection=1)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "newer" in (answer.remark or "")
    assert names.addresses("t") == {"broker-a": {"0": A2}}


def test_who_lost_its_place_to_another_machine_does_not_take_it_along() -> None:
    names = Speaker()
    names.register("t", "u", address=A1, connection=1)
    names.register("t", "u", address=A2, connection=2)
    names.requests.connection_lost(1)
    assert names.addresses("t") == {"broker-a": {"0": A2}}
    assert names.unregister(address=A1).code == 0
    assert names.addresses("t") == {"broker-a": {"0": A2}}
    names.unregister(address=A2)
    assert names.route("t") is None


def test_an_address_with_another_name_is_another_broker() -> None:
    names = Speaker()
    names.register("t", "u", name="old", connection=1)
    names.register("t", "u", name="new", connection=2)
    assert names.addresses("t") == {"new": {"0": A1}}
    assert names.requests.connection_lost(1) == []


def test_a_slave_acts_as_master_for_readers_where_its_group_wants_that() -> None:
    names = Speaker()
    names.register("t", "u", address=A1, connection=1, enable_acting_master=True)
    for address, broker_id in ((A2, 1), (B1, 2)):
        names.register(
            "t", "u", address=address, broker_id=broker_id, connection=2, enable_acting_master=True
        )
    assert names.permissions("t") == [6]
    names.requests.connection_lost(1)
    assert names.addresses("t") == {"broker-a": {"0": A2, "2": B1}}
    assert names.permissions("t") == [4]
    names.register("t", "u", address=A1, connection=1, enable_acting_master=True)
    assert names.addresses("t") == {"broker-a": {"0": A1, "1": A2, "2": B1}}
    assert names.permissions("t") == [6]


def test_without_that_a_lost_master_stays_lost() -> None:
    names = Speaker()
    names.register("t", "u", address=A1, connection=1)
    names.register("t", "u", address=A2, broker_id=1, connection=2)
    names.requests.connection_lost(1)
    assert names.addresses("t") == {"broker-a": {"1": A2}}


def test_wiping_the_write_permission_outlives_a_change_of_topics() -> None:
    """An administrator wipes before maintenance; a topic made meanwhile must not undo it."""
    names = Speaker()
    names.register("t", "u")
    names.register("t", "u", name="broker-b", address=B1)
    broker = {"brokerName": "broker-a"}
    assert names.ask(RequestCode.WIPE_WRITE_PERMISSION, broker).fields == {"wipeTopicCount": "2"}
    assert names.permissions("t") == [4, 6]
    assert names.ask(RequestCode.WIPE_WRITE_PERMISSION, broker).fields == {"wipeTopicCount": "0"}
    names.register("t", "u", "v", counter=2)
    assert names.permissions("v") == [4]
    assert names.ask(RequestCode.ADD_WRITE_PERMISSION, broker).fields == {"addTopicCount": "3"}
    assert names.permissions("t") == [6, 6]
    names.ask(RequestCode.WIPE_WRITE_PERMISSION, broker)
    names.unregister()
    names.register("t", "u")
    assert names.permissions("t") == [6, 6]  # it came back: the maintenance is over
    unknown = names.ask(RequestCode.WIPE_WRITE_PERMISSION, {"brokerName": "x"})
    assert unknown.fields == {"wipeTopicCount": "0"}


@pytest.mark.parametrize(
    ("limits", "second"),
    [
        ({"brokers_max": 1}, {"name": "broker-b", "address": B1}),
        ({"topics_max": 2}, {"name": "broker-b", "address": B1, "topics": ("t", "x")}),
        ({"topics_of_broker_max": 2}, {"topics": ("t", "u", "v"), "counter": 2}),
        ({"name_characters_max": 14}, {"topics": ("t" * 15, "u"), "counter": 2}),
        ({"name_characters_max": 14}, {"name": "b" * 15, "address": B1}),
        ({"filter_servers_max": 0}, {"name": "", "address": B1}),
        ({}, {"cluster": "another", "address": B1}),
    ],
)
def test_a_refused_registration_changes_nothing(
    limits: dict[str, float], second: dict[str, object]
) -> None:
    names = Speaker(**limits)
    names.register("t", "u")
    before = names.addresses("t"), names.requests.tables.topics(), names.requests.tables.clusters()
    topics = second.pop("topics", ("t", "u"))
    assert isinstance(topics, tuple)
    answer = names.register(*topics, **second)  # type: ignore[arg-type]
    assert answer.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY)
    after = names.addresses("t"), names.requests.tables.topics(), names.requests.tables.clusters()
    assert after == before
    assert names.requests.refused_count == 1


def test_a_damaged_registration_is_refused() -> None:
    """The header has the checksum of the body that was sent."""
    names = Speaker()
    body, crc = encode_registration(Registration(topics=table("t", "u")))
    header = RegisterFields(cluster_name="c", broker_name="b", broker_addr=A1, body_crc32=crc)
    damaged = body.replace(b'"t"', b'"x"')
    answer = names.ask(RequestCode.REGISTER_BROKER, write_fields(header), damaged)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "crc32 not match" in (answer.remark or "")
    assert names.requests.tables.broker_count == 0


def test_a_broker_that_registers_too_often_is_told_so() -> None:
    names = Speaker(registrations_burst=3, registrations_per_second=1.0)
    codes = [names.register("t", "u").code for _ in range(5)]
    assert codes == [0, 0, 0, ResponseCode.SYSTEM_BUSY, ResponseCode.SYSTEM_BUSY]
    assert names.register("t", "u", connection=2).code == 0, "others are not its fault"
    names.now += 1.0
    assert [names.register("t", "u").code for _ in range(2)] == [0, ResponseCode.SYSTEM_BUSY]
    names.now += 100.0
    assert [names.register("t", "u").code for _ in range(4)] == [0, 0, 0, ResponseCode.SYSTEM_BUSY]


def test_administrators_see_clusters_groups_and_topics() -> None:
    names = Speaker()
    names.register("t", "u", address=A1)
    names.register("t", "u", address=A2, broker_id=1)
    names.register("v", "w", name="x", cluster="d", address=B1)
    info = msgspec.json.decode(names.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body)
    assert info["clusterAddrTable"] == {"c": ["broker-a"], "d": ["x"]}
    assert info["brokerAddrTable"]["broker-a"]["brokerAddrs"] == {"0": A1, "1": A2}

    def topics(code: int, **fields: str) -> list[str]:
        listed: list[str] = msgspec.json.decode(names.ask(code, fields).body)["topicList"]
        return listed

    assert topics(RequestCode.GET_ALL_TOPICS) == ["t", "u", "v", "w"]
    assert topics(RequestCode.GET_TOPICS_BY_CLUSTER, cluster="d") == ["v", "w"]
    assert topics(RequestCode.GET_TOPICS_BY_CLUSTER, cluster="e") == []
    assert topics(RequestCode.GET_SYSTEM_TOPICS) == ["c", "broker-a", "d", "x"]
    group = {"clusterName": "c", "brokerName": "broker-a"}
    members = msgspec.json.decode(names.ask(RequestCode.GET_BROKER_MEMBER_GROUP, group).body)
    assert members["brokerMemberGroup"]["brokerAddrs"] == {"0": A1, "1": A2}
    names.ask(RequestCode.DELETE_TOPIC_IN_NAME_SERVER, {"topic": "t", "clusterName": "d"})
    assert names.route("t") is not None
    names.ask(RequestCode.DELETE_TOPIC_IN_NAME_SERVER, {"topic": "t"})
    assert topics(RequestCode.GET_ALL_TOPICS) == ["u", "v", "w"]


def test_the_order_of_queues_comes_from_the_configuration() -> None:
    names = Speaker()
    names.register("t", "u")
    order = {"namespace": "ORDER_TOPIC_CONFIG", "key": "t", "value": "broker-a:4"}
    assert names.ask(RequestCode.PUT_KV_CONFIG, order).code == 0
    route = names.route("t")
    assert route is not None
    assert route.order_topic_conf == "broker-a:4"
    table = msgspec.json.decode(names.register("t", "u").body)
    assert table == {"table": {"t": "broker-a:4"}}


def test_keys_are_put_read_listed_and_deleted() -> None:
    names = Speaker()
    key = {"namespace": "n", "key": "k"}
    assert names.ask(RequestCode.GET_KV_CONFIG, key).code == ResponseCode.QUERY_NOT_FOUND
    assert names.ask(RequestCode.DELETE_KV_CONFIG, key).code == 0
    names.ask(RequestCode.PUT_KV_CONFIG, {**key, "value": "v"})
    assert names.ask(RequestCode.GET_KV_CONFIG, key).fields == {"value": "v"}
    listed = names.ask(RequestCode.GET_KV_LIST, {"namespace": "n"})
    assert msgspec.json.decode(listed.body) == {"table": {"k": "v"}}
    assert names.ask(RequestCode.DELETE_KV_CONFIG, key).code == 0
    empty = names.ask(RequestCode.GET_KV_LIST, {"namespace": "n"})
    assert empty.code == ResponseCode.QUERY_NOT_FOUND


@pytest.mark.parametrize(
    ("limits", "value"), [({"keys_max": 1}, "v"), ({"value_bytes_max": 3}, "v" * 4)]
)
def test_the_configuration_is_bounded(limits: dict[str, float], value: str) -> None:
    names = Speaker(**limits)
    names.ask(RequestCode.PUT_KV_CONFIG, {"namespace": "n", "key": "k", "value": "v"})
    more = {"namespace": "n", "key": "l", "value": value}
    assert names.ask(RequestCode.PUT_KV_CONFIG, more).code != 0
    again = {"namespace": "n", "key": "k", "value": "w"}
    assert names.ask(RequestCode.PUT_KV_CONFIG, again).code == 0


def test_what_is_not_served_or_lacks_a_field_says_so() -> None:
    names = Speaker()
    answer = names.ask(4711)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert answer.remark == " request type 4711 not supported"
    answer = names.ask(RequestCode.GET_ROUTE, {})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "topic" in (answer.remark or "")
