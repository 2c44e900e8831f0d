"""Who may change what a name server knows. Pure.

A name server has no users. It can have one access key, whose secret its brokers and administrators
know, and then takes changes only from requests that are signed with it, as RocketMQ's clients sign
(`remoting.signing`). `mqadmin` and RocketMQ's brokers can do that, too.

Rules:

* Every request that changes something, or keeps a broker in the tables, is in `CHANGES`. A test
  holds all served codes to be in this table or in `READS`.
* Reads are open, because clients ask for routes before they know any broker, unless `reads` says
  that they are not. Where they are open, a signature of somebody else's is not looked at: clients
  sign for brokers.
* A signature does not cover the names of fields, so a signed request has no field that is unknown
  for its code (`remoting.signed_fields`).
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from polymq.namesrv.errors import NotAllowed, UnknownField
from polymq.remoting.codes import RequestCode
from polymq.remoting.frames import Command
from polymq.remoting.headers import Fields, TopicFields
from polymq.remoting.name_fields import (
    BrokerFields,
    BrokerNameFields,
    ClusterFields,
    DeleteTopicFields,
    GroupFields,
    HeartbeatFields,
    KeyFields,
    KeyValueFields,
    NamespaceFields,
    RegisterFields,
)
from polymq.remoting.signed_fields import unknown_field
from polymq.remoting.signing import Credentials, signature_of

CHANGES: Final = frozenset(
    {
        RequestCode.PUT_KV_CONFIG,
        RequestCode.DELETE_KV_CONFIG,
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.BROKER_HEARTBEAT,
        RequestCode.QUERY_DATA_VERSION,  # which is a broker's sign of life
        RequestCode.WIPE_WRITE_PERMISSION,
        RequestCode.ADD_WRITE_PERMISSION,
        RequestCode.DELETE_TOPIC_IN_NAME_SERVER,
    }
)
READS: Final[Mapping[int, str]] = {
    RequestCode.GET_KV_CONFIG: "a value of the configuration",
    RequestCode.GET_KV_LIST: "a part of the configuration",
    RequestCode.GET_ROUTE: "where a topic lives",
    RequestCode.GET_ALL_TOPICS: "the names of topics",
    RequestCode.GET_BROKER_CLUSTER_INFO: "the names and addresses of brokers",
    RequestCode.GET_BROKER_MEMBER_GROUP: "the addresses of a master and its slaves",
    RequestCode.GET_TOPICS_BY_CLUSTER: "the names of topics",
    RequestCode.GET_SYSTEM_TOPICS: "the names of clusters and brokers",
}
"""By code what is read."""
HEADERS: Final[Mapping[int, type[Fields]]] = {
    RequestCode.PUT_KV_CONFIG: KeyValueFields,
    RequestCode.GET_KV_CONFIG: KeyFields,
    RequestCode.DELETE_KV_CONFIG: KeyFields,
    RequestCode.GET_KV_LIST: NamespaceFields,
    RequestCode.REGISTER_BROKER: RegisterFields,
    RequestCode.UNREGISTER_BROKER: BrokerFields,
    RequestCode.BROKER_HEARTBEAT: HeartbeatFields,
    RequestCode.QUERY_DATA_VERSION: BrokerFields,
    RequestCode.GET_ROUTE: TopicFields,
    RequestCode.GET_BROKER_MEMBER_GROUP: GroupFields,
    RequestCode.WIPE_WRITE_PERMISSION: BrokerNameFields,
    RequestCode.ADD_WRITE_PERMISSION: BrokerNameFields,
    RequestCode.GET_TOPICS_BY_CLUSTER: ClusterFields,
    RequestCode.DELETE_TOPIC_IN_NAME_SERVER: DeleteTopicFields,
}
"""By code the fields of requests that have some."""
NAME_SHOWN_MAX: Final = 64
"""Characters of a field's name in an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """What requests have to be signed with.

    Attributes:
        reads: whether those that only read have to be, too.
    """

    credentials: Credentials
    reads: bool = False

    def check(self, command: Command) -> None:
        """Let a request in, or not.

        Raises:
            NotAllowed: it needs a signature, and has none that is right.
            UnknownField: it is signed, and has a field that nobody looks at.
        """
        if command.code in READS and not self.reads:
            return
        signature = signature_of(command)
        if signature is None:
            raise NotAllowed("this name server asks for an access key: sign the request with it")
        secret = self.credentials.secret_key.encode()
        right = hmac.compare_digest(
            hmac.digest(secret, signature.content, "sha1"), signature.digest
        )
        if not right or signature.access_key != self.credentials.access_key:
            raise NotAllowed("there is no such access key here, or the signature is wrong")
        kind = HEADERS.get(command.code, Fields)
        unknown = unknown_field(command.code, kind, command.fields)
        if unknown is not None:
            shown = unknown[:NAME_SHOWN_MAX]
            raise UnknownField(f"a signed request {command.code} has no field {shown!r}")
