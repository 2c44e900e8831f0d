"""The typed headers of what a name server is asked, and of its answers.

They work as those of `headers.py`; they stand apart because only brokers, name servers and their
administrators need them. Names on the wire are camel case throughout.

PolyMQ's own, which other name servers ignore: `pmqComplete` in a registration says that the table
holds all topics of the broker, so those that it lacks are gone. RocketMQ's brokers also register
single topics, so that without it nothing may be concluded from a topic's absence.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from polymq.remoting.headers import Fields, Int, Long

BrokerId = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class BrokerFields(Fields, frozen=True, kw_only=True, rename="camel"):
    """Which broker: 104 UNREGISTER_BROKER, 322 QUERY_DATA_VERSION."""

    cluster_name: str
    broker_name: str
    broker_addr: str
    broker_id: BrokerId = 0


class RegisterFields(BrokerFields, frozen=True, kw_only=True, rename="camel"):
    """103 REGISTER_BROKER; the body is a `registration.Registration`."""

    ha_server_addr: str = ""
    heartbeat_timeout_millis: Long | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: Long = 0
    """0: unchecked."""
    pmq_complete: bool = False


class RegisterAnswer(Fields, frozen=True, kw_only=True, rename="camel"):
    """What 103 tells a slave: where its master is."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class HeartbeatFields(Fields, frozen=True, kw_only=True, rename="camel"):
    """904 BROKER_HEARTBEAT."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: BrokerId | None = None


class DataVersionAnswer(Fields, frozen=True, kw_only=True, rename="camel"):
    """What 322 is answered with; the known version is the body."""

    changed: bool


class GroupFields(Fields, frozen=True, kw_only=True, rename="camel"):
    """901 GET_BROKER_MEMBER_GROUP."""

    cluster_name: str
    broker_name: str


class BrokerNameFields(Fields, frozen=True, kw_only=True, rename="camel"):
    """205 WIPE_WRITE_PERMISSION, 327 ADD_WRITE_PERMISSION."""

    broker_name: str


class WipeAnswer(Fields, frozen=True, kw_only=True, rename="camel"):
    """How many topics 205 closed for writing."""

    wipe_topic_count: Int


class RestoreAnswer(Fields, frozen=True, kw_only=True, rename="camel"):
    """How many topics 327 opened for writing again."""

    add_topic_count: Int


class ClusterFields(Fields, frozen=True, kw_only=True, rename="camel"):
    """224 GET_TOPICS_BY_CLUSTER."""

    cluster: str


class DeleteTopicFields(Fields, frozen=True, kw_only=True, rename="camel"):
    """216 DELETE_TOPIC_IN_NAME_SERVER; without a cluster in all of them."""

    topic: str
    cluster_name: str | None = None


class KeyFields(Fields, frozen=True, kw_only=True, rename="camel"):
    """101 GET_KV_CONFIG, 102 DELETE_KV_CONFIG."""

    namespace: str
    key: str


class KeyValueFields(KeyFields, frozen=True, kw_only=True, rename="camel"):
    """100 PUT_KV_CONFIG."""

    value: str


class ValueAnswer(Fields, frozen=True, kw_only=True, rename="camel"):
    """What 101 is answered with."""

    value: str


class NamespaceFields(Fields, frozen=True, kw_only=True, rename="camel"):
    """219 GET_KV_LIST."""

    namespace: str
