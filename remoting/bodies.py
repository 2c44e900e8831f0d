"""Bodies that are JSON: routes, lists of topics, what administrators ask name servers for.

We always write object keys in quotes. RocketMQ's own name server writes numbers as keys without
(`{0:"10.0.0.1:10911"}`), so `decode_route` takes both.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from polymq.remoting.errors import BadFields


class QueueData(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How many queues of a topic one broker group has."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0


class BrokerData(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The members of a broker group by id; id 0 is the master."""

    cluster: str = ""
    broker_name: str
    broker_addrs: dict[str, str]
    enable_acting_master: bool = False


class TopicRoute(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Where a topic lives. All keys are always written: clients do not ask whether they exist."""

    broker_datas: list[BrokerData]
    queue_datas: list[QueueData]
    filter_server_table: dict[str, list[str]] = {}
    order_topic_conf: str | None = None


class TopicList(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Answer to GET_ALL_TOPICS.

    `pmq_topic_list` is PolyMQ's own: for each of `topic_list` the name as its user writes it, or
    None where that is no Unicode text.
    """

    topic_list: list[str]
    broker_addr: str | None = None
    pmq_topic_list: list[str | None] | None = None


class ClusterInfo(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Answer to GET_BROKER_CLUSTER_INFO: all broker groups, and their names by cluster."""

    broker_addr_table: dict[str, BrokerData]
    cluster_addr_table: dict[str, list[str]]


class KeyValues(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Answer to REGISTER_BROKER and GET_KV_LIST."""

    table: dict[str, str]


class BrokerMembers(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One broker group."""

    cluster: str
    broker_name: str
    broker_addrs: dict[str, str]


class MemberGroup(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Answer to GET_BROKER_MEMBER_GROUP."""

    broker_member_group: BrokerMembers


Body = TopicRoute | TopicList | ClusterInfo | KeyValues | MemberGroup

_BARE_KEY: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|([{,]\s*)(-?\d+)(\s*:)')


def quote_keys(document: bytes) -> bytes:
    """The JSON document with quotes around object keys that are bare numbers."""

    def quoted(match: re.Match[bytes]) -> bytes:
        if match[2] is None:
            return match[0]  # a string: what it holds is not ours to change
        return match[1] + b'"' + match[2] + b'"' + match[3]

    return _BARE_KEY.sub(quoted, document)


def encode_body(body: Body) -> bytes:
    """The body as JSON."""
    return msgspec.json.encode(body)


def decode_route(body: bytes) -> TopicRoute:
    """A route from any name server. Raises BadFields."""
    try:
        return msgspec.json.decode(quote_keys(body), type=TopicRoute)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadFields(f"route: {error}") from error


def decode_topic_list(body: bytes) -> TopicList:
    """A list of topics. Raises BadFields."""
    try:
        topics = msgspec.json.decode(body, type=TopicList)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadFields(f"topic list: {error}") from error
    if topics.pmq_topic_list is not None and len(topics.pmq_topic_list) != len(topics.topic_list):
        raise BadFields("topic list: the two lists of names differ in length")
    return topics
