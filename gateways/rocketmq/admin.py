"""What RocketMQ's administration asks of a broker: topics, groups, who consumes, figures.

Rules:

* Changing something needs the right `admin` (a topic: `create`); looking needs the right to read
  what is looked at.
* Bodies are JSON as RocketMQ's tools read it. Statistics have objects as keys there, which is no
  JSON: Java's tools write and want it so, and others read both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from polymq.broker.port import REST, GroupInfo, TopicInfo, encode_name
from polymq.gateways.rocketmq import mapping
from polymq.gateways.rocketmq.mapping import RETRY_PREFIX, Answer
from polymq.gateways.rocketmq.protocol import Request
from polymq.gateways.rocketmq.resets import reset_offsets
from polymq.remoting.broker_fields import (
    CreateTopicFields,
    DeleteGroupFields,
    GroupConfigFields,
    GroupFields,
    GroupTopicFields,
    ProducerGroupFields,
)
from polymq.remoting.codes import (
    OUR_VERSION,
    PERMISSION_READ,
    PERMISSION_WRITE,
    RequestCode,
    ResponseCode,
)
from polymq.remoting.errors import BadFields
from polymq.remoting.group_bodies import decode_object, encode_json
from polymq.remoting.headers import TopicFields

if TYPE_CHECKING:
    from polymq.gateways.rocketmq.connection import Connection

READ_WRITE: Final = PERMISSION_READ | PERMISSION_WRITE
QUEUES_MAX: Final = 1_024
"""Of a topic that is made on demand: far more than anybody spreads a topic over one broker."""
SETTINGS_BYTES_MAX: Final = 16 * 1024
"""Of a group, as JSON."""
ROLE: Final = "SYNC_MASTER"
"""An answer means that the message is on the disk."""
DATA_VERSION: Final = {"counter": 1, "stateVersion": 0, "timestamp": 0}


def create_topic(client: Connection, request: Request) -> Answer | None:
    """17: make a topic. One that is there keeps its number of queues."""
    fields = request.fields
    assert isinstance(fields, CreateTopicFields)
    count = fields.write_queue_nums
    if not 1 <= count <= QUEUES_MAX or fields.read_queue_nums != count:
        raise BadFields(f"a topic has 1 to {QUEUES_MAX} queues, as many to read as to write")
    if fields.perm != READ_WRITE:
        raise BadFields("perm has to be 6: users and permissions say who may read or write")
    name = mapping.user_name(fields.topic)
    info = client.port.topics.info(name)
    if info is not None:
        if len(info.max_offsets) == count:
            return mapping.success()
        raise BadFields(
            f"the topic has {len(info.max_offsets)} queues, and their number cannot change"
        )
    position = client.port.topics.create(name, count)
    client.answer_when(position, client.port.state_durability, request, mapping.success())
    return None


def delete_topic(client: Connection, request: Request) -> Answer | None:
    """215: delete a topic; no error if there is none."""
    fields = request.fields
    assert isinstance(fields, TopicFields)
    info = client.port.topics.info(mapping.user_name(fields.topic))
    if info is None:
        return mapping.success()
    position = client.port.topics.delete(info.name)
    client.answer_when(position, client.port.state_durability, request, mapping.success())
    return None


def topic_configs(client: Connection, request: Request) -> Answer:
    """21: all topics and how many queues they have."""
    table = {encode_name(info.name): _config(info) for info in client.port.topics.infos()}
    answer = _json({"topicConfigTable": table, "dataVersion": DATA_VERSION})
    answer.fields["totalTopicNum"] = str(len(table))
    return answer


def topic_config(client: Connection, request: Request) -> Answer:
    """351: one topic, as among all of them."""
    fields = request.fields
    assert isinstance(fields, TopicFields)
    return _json(_config(mapping.need_topic(client.port, fields.topic)))


def _config(info: TopicInfo) -> dict[str, object]:
    return {
        "topicName": encode_name(info.name),
        "readQueueNums": len(info.max_offsets),
        "writeQueueNums": len(info.max_offsets),
        "perm": READ_WRITE,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
        "attributes": {},
    }


def forget_topic(_client: Connection, _request: Request) -> Answer:
    """216, which `mqadmin` asks of name servers once the broker has deleted a topic: the routes
    that this listener gives are of the topics that there are."""
    return mapping.success()


def create_group(client: Connection, request: Request) -> Answer | None:
    """200: make a consumer group, or change its settings."""
    if len(request.body) > SETTINGS_BYTES_MAX:
        raise BadFields(f"the settings of a group have at most {SETTINGS_BYTES_MAX} bytes")
    settings = decode_object(request.body)
    name = settings.pop("groupName", None)
    if not isinstance(name, str):
        raise BadFields("settings of a group: groupName is missing")
    mapping.check_group(name)
    client.port.principal.check_admin((REST,))
    position = client.port.groups.put(name, settings)
    client.answer_when(position, client.port.state_durability, request, mapping.success())
    return None


def group_configs(client: Connection, request: Request) -> Answer:
    """201: all groups and their settings; what is not set has RocketMQ's default."""
    table = {group.name: _settings(group) for group in client.port.groups.infos()}
    answer = _json({"subscriptionGroupTable": table, "dataVersion": DATA_VERSION})
    answer.fields["totalGroupNum"] = str(len(table))
    return answer


def group_config(client: Connection, request: Request) -> Answer:
    """352: one group, as among all of them."""
    fields = request.fields
    assert isinstance(fields, GroupConfigFields)
    group = client.port.groups.info(fields.group)
    if group is None:
        remark = f"there is no consumer group {fields.group!r}"
        return mapping.failed(ResponseCode.GROUP_NOT_EXIST, remark)
    return _json(_settings(group))


def _settings(group: GroupInfo) -> dict[str, object]:
    return {**GROUP_DEFAULTS, **group.settings, "groupName": group.name}


def groups_of_topic(client: Connection, request: Request) -> Answer:
    """300: the groups that read a topic, or did."""
    fields = request.fields
    assert isinstance(fields, TopicFields)
    name = mapping.need_topic(client.port, fields.topic).name
    groups = [group.name for group in client.port.groups.infos()]
    return _json({"groupList": sorted(one for one in groups if name in _topics(client, one))})


def topics_of_group(client: Connection, request: Request) -> Answer:
    """343: the topics that a group reads, or did."""
    fields = request.fields
    assert isinstance(fields, GroupConfigFields)
    topics = sorted(encode_name(topic) for topic in _topics(client, fields.group))
    return _json({"topicList": topics, "brokerAddr": None})


def _topics(client: Connection, group: str) -> set[str]:
    return {topic for topic, _ in client.port.groups.offsets(group)}


GROUP_DEFAULTS: Final[Mapping[str, object]] = {
    "consumeEnable": True,
    "consumeFromMinEnable": True,
    "consumeBroadcastEnable": True,
    "consumeMessageOrderly": False,
    "retryQueueNums": 1,
    "retryMaxTimes": 16,
    "brokerId": 0,
    "whichBrokerWhenConsumeSlowly": 1,
    "notifyConsumerIdsChangedEnable": True,
    "groupSysFlag": 0,
    "consumeTimeoutMinute": 15,
    "attributes": {},
}


def delete_group(client: Connection, request: Request) -> Answer | None:
    """207: delete a group with its offsets; no error if there is none."""
    fields = request.fields
    assert isinstance(fields, DeleteGroupFields)
    if client.port.groups.info(fields.group_name) is None:
        return mapping.success()
    position = client.port.groups.delete(fields.group_name)
    client.answer_when(position, client.port.state_durability, request, mapping.success())
    return None


def topic_stats(client: Connection, request: Request) -> Answer:
    """202: the bounds of a topic's queues."""
    fields = request.fields
    assert isinstance(fields, TopicFields)
    info = mapping.need_topic(client.port, fields.topic)
    entries = _by_queue(
        client,
        [info],
        lambda at, queue: {
            "lastUpdateTimestamp": 0,
            "maxOffset": at.max_offsets[queue],
            "minOffset": at.min_offsets[queue],
        },
    )
    return mapping.success(body=b'{"offsetTable":{%b},"topicPutTps":0.0}' % entries)


def consume_stats(client: Connection, request: Request) -> Answer:
    """208: how far a group is behind."""
    fields = request.fields
    assert isinstance(fields, GroupTopicFields)
    port, group = client.port, fields.consumer_group
    offsets = port.groups.offsets(group)
    names = {topic for topic, _ in offsets}
    if fields.topic:
        names &= {mapping.user_name(fields.topic)}
    infos = [info for name in sorted(names) if (info := port.topics.info(name)) is not None]
    entries = _by_queue(
        client,
        infos,
        lambda at, queue: {
            "brokerOffset": at.max_offsets[queue],
            "consumerOffset": offsets.get((at.name, queue), at.min_offsets[queue]),
            "pullOffset": offsets.get((at.name, queue), at.min_offsets[queue]),
            "lastTimestamp": 0,
        },
    )
    return mapping.success(body=b'{"offsetTable":{%b},"consumeTps":0.0}' % entries)


def _by_queue(
    client: Connection,
    infos: Iterable[TopicInfo],
    value: Callable[[TopicInfo, int], Mapping[str, int]],
) -> bytes:
    broker = client.shared.identity.broker_name
    return b",".join(
        encode_json({"brokerName": broker, "queueId": queue, "topic": encode_name(info.name)})
        + b":"
        + encode_json(value(info, queue))
        for info in infos
        for queue in range(len(info.max_offsets))
    )


def consumer_connections(client: Connection, request: Request) -> Answer:
    """203: who is in a group, and what the group subscribes to."""
    fields = request.fields
    assert isinstance(fields, GroupFields)
    group = client.shared.members.consumers.get(fields.consumer_group)
    if group is None:
        remark = f"the consumer group[{fields.consumer_group}] not online"
        return mapping.failed(ResponseCode.CONSUMER_NOT_ONLINE, remark)
    first = next(iter(group.members.values())).data
    return _json(
        {
            "connectionSet": [
                _connection(member.client_id, member.channel) for member in group.members.values()
            ],
            "subscriptionTable": group.subscriptions,
            "consumeType": first.consume_type,
            "messageModel": first.message_model,
            "consumeFromWhere": first.consume_from_where,
        }
    )


def producer_connections(client: Connection, request: Request) -> Answer:
    """204: who can be asked about a producer group's transactions."""
    fields = request.fields
    assert isinstance(fields, ProducerGroupFields)
    producers = client.shared.members.producers.get(fields.producer_group)
    if producers is None:
        remark = f"the producer group[{fields.producer_group}] not exist"
        return mapping.failed(ResponseCode.SYSTEM_ERROR, remark)
    found = [_connection(one.client_id, channel) for channel, one in producers.items()]
    return _json({"connectionSet": found})


def _connection(client_id: str, channel: Connection) -> dict[str, object]:
    return {
        "clientId": client_id,
        "clientAddr": channel.peer,
        "language": channel.language,
        "version": channel.version,
    }


def runtime(client: Connection, request: Request) -> Answer:
    """28: what `clusterList` shows of a broker."""
    rates = ("putTps", "getTransferredTps", "getTransferedTps", "getFoundTps", "getMissTps")
    figures = {
        "brokerVersionDesc": "PolyMQ",
        "brokerVersion": str(OUR_VERSION),
        "brokerActive": "true",
        "brokerRole": ROLE,
        "pageCacheLockTimeMills": "0",
        "earliestMessageTimeStamp": "",
        "commitLogDiskRatio": "",
        "topics": str(sum(not t.name.startswith(RETRY_PREFIX) for t in client.port.topics.infos())),
        **dict.fromkeys(rates, "0.0 0.0 0.0"),
    }
    for kind in ("send", "pull", "ack"):
        figures[f"{kind}ThreadPoolQueueSize"] = "0"
        figures[f"{kind}ThreadPoolQueueHeadWaitTimeMills"] = "0"
    return _json({"table": figures})


def configuration(client: Connection, _request: Request) -> Answer:
    """26: what RocketMQ's tools look for in a broker's configuration, as Java properties."""
    identity = client.shared.identity
    host, _, port = client.own_address.rpartition(":")
    lines = {
        "brokerClusterName": identity.cluster,
        "brokerName": identity.broker_name,
        "brokerId": "0",
        "brokerIP1": host,
        "listenPort": port,
        "brokerRole": ROLE,
        "autoCreateTopicEnable": "true",
        "enablePropertyFilter": "false",
    }
    body = "".join([f"{name}={value}\n" for name, value in lines.items()]).encode()
    return Answer(
        code=ResponseCode.SUCCESS,
        fields={"version": encode_json(DATA_VERSION).decode()},
        body=body,
    )


def cluster(client: Connection, request: Request) -> Answer:
    """106: this broker, as a cluster of one."""
    identity = client.shared.identity
    broker = {
        "cluster": identity.cluster,
        "brokerName": identity.broker_name,
        "brokerAddrs": {"0": client.own_address},
        "enableActingMaster": False,
    }
    return _json(
        {
            "brokerAddrTable": {identity.broker_name: broker},
            "clusterAddrTable": {identity.cluster: [identity.broker_name]},
        }
    )


def _json(value: object) -> Answer:
    return mapping.success(body=encode_json(value))


HANDLERS: Final[Mapping[RequestCode, Callable[[Connection, Request], Answer | None]]] = {
    RequestCode.CREATE_TOPIC: create_topic,
    RequestCode.DELETE_TOPIC: delete_topic,
    RequestCode.GET_TOPIC_CONFIGS: topic_configs,
    RequestCode.CREATE_GROUP: create_group,
    RequestCode.GET_GROUP_CONFIGS: group_configs,
    RequestCode.DELETE_GROUP: delete_group,
    RequestCode.GET_TOPIC_STATS: topic_stats,
    RequestCode.GET_CONSUME_STATS: consume_stats,
    RequestCode.GET_CONSUMER_CONNECTIONS: consumer_connections,
    RequestCode.GET_PRODUCER_CONNECTIONS: producer_connections,
    RequestCode.GET_BROKER_RUNTIME: runtime,
    RequestCode.GET_BROKER_CLUSTER_INFO: cluster,
    RequestCode.GET_BROKER_CONFIG: configuration,
    RequestCode.GET_TOPIC_CONFIG: topic_config,
    RequestCode.GET_GROUP_CONFIG: group_config,
    RequestCode.GET_GROUPS_OF_TOPIC: groups_of_topic,
    RequestCode.GET_TOPICS_OF_GROUP: topics_of_group,
    RequestCode.DELETE_TOPIC_IN_NAME_SERVER: forget_topic,
    RequestCode.RESET_OFFSETS: reset_offsets,
}
