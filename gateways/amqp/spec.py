"""AMQP's methods as values: AMQP 0-9-1 with RabbitMQ's extensions.

Each class is one line of the specification's table: the numbers of its class and of itself, who
sends it, and its fields in wire order with their wire types. `METHODS` finds a class by its
numbers. Codec: `methods.py`.

Type checkers see data classes with keyword arguments. At run time the base class does what is
needed of that: making data classes of as many takes a twentieth of a server's start.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Final, dataclass_transform

NO_TABLE: Final[Mapping[str, Any]] = MappingProxyType({})

SHORT_STRING_MAX: Final = 255
"""Bytes of a short string: its size is one byte."""

CLIENT: Final = 1
SERVER: Final = 2
BOTH: Final = CLIENT | SERVER

ShortString = str
"""At most 255 bytes of UTF-8."""
Key = str
"""A short string of any octets, as routing keys are; those that are not UTF-8 as surrogates."""
LongString = bytes
Table = Mapping[str, Any]
U8 = int
U16 = int
U32 = int
U64 = int
Bit = bool
"""Bits that follow each other share octets."""

METHODS: Final[dict[tuple[int, int], type[Method]]] = {}


@dataclass_transform(kw_only_default=True, eq_default=False)
class Method:
    """Base of all methods. Two are equal if they are of one kind and their fields are equal.
    Nothing changes a field.

    Attributes:
        NAME: as the specification writes it, `queue.declare-ok`.
        FIELDS: name and wire type of each, in wire order.
        HAS_CONTENT: whether a header and a body follow.
    """

    NAME: ClassVar[str]
    CLASS_ID: ClassVar[int]
    METHOD_ID: ClassVar[int]
    FROM_CLIENT: ClassVar[bool]
    FROM_SERVER: ClassVar[bool]
    HAS_CONTENT: ClassVar[bool]
    FIELDS: ClassVar[tuple[tuple[str, str], ...]]

    def __init_subclass__(
        cls, *, name: str, number: tuple[int, int], sender: int, has_content: bool = False
    ) -> None:
        cls.NAME = name
        cls.CLASS_ID, cls.METHOD_ID = number
        cls.FROM_CLIENT = bool(sender & CLIENT)
        cls.FROM_SERVER = bool(sender & SERVER)
        cls.HAS_CONTENT = has_content
        cls.FIELDS = tuple(vars(cls).get("__annotations__", {}).items())
        METHODS[number] = cls

    def __init__(self, **fields: Any) -> None:
        for name in fields:
            if name not in self.__annotations__:
                raise TypeError(f"{self.NAME} has no field {name!r}")
        vars(self).update(fields)  # what is not given has the default of the class

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name, _ in self.FIELDS)

    __hash__ = None  # type: ignore[assignment]  # a table has none

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name, _ in self.FIELDS)
        return f"{type(self).__name__}({fields})"


class ConnectionStart(Method, name="connection.start", number=(10, 10), sender=SERVER):
    version_major: U8 = 0
    version_minor: U8 = 0
    server_properties: Table = NO_TABLE
    mechanisms: LongString = b""
    locales: LongString = b""


class ConnectionStartOk(Method, name="connection.start-ok", number=(10, 11), sender=CLIENT):
    client_properties: Table = NO_TABLE
    mechanism: ShortString = ""
    response: LongString = b""
    locale: ShortString = ""


class ConnectionSecure(Method, name="connection.secure", number=(10, 20), sender=SERVER):
    challenge: LongString = b""


class ConnectionSecureOk(Method, name="connection.secure-ok", number=(10, 21), sender=CLIENT):
    response: LongString = b""


class ConnectionTune(Method, name="connection.tune", number=(10, 30), sender=SERVER):
    channel_max: U16 = 0
    frame_max: U32 = 0
    heartbeat: U16 = 0


class ConnectionTuneOk(Method, name="connection.tune-ok", number=(10, 31), sender=CLIENT):
    channel_max: U16 = 0
    frame_max: U32 = 0
    heartbeat: U16 = 0


class ConnectionOpen(Method, name="connection.open", number=(10, 40), sender=CLIENT):
    virtual_host: ShortString = ""
    capabilities: ShortString = ""
    insist: Bit = False


class ConnectionOpenOk(Method, name="connection.open-ok", number=(10, 41), sender=SERVER):
    known_hosts: ShortString = ""


class ConnectionClose(Method, name="connection.close", number=(10, 50), sender=BOTH):
    reply_code: U16 = 0
    reply_text: ShortString = ""
    class_id: U16 = 0
    method_id: U16 = 0


class ConnectionCloseOk(Method, name="connection.close-ok", number=(10, 51), sender=BOTH):
    pass


class ConnectionBlocked(Method, name="connection.blocked", number=(10, 60), sender=SERVER):
    reason: ShortString = ""


class ConnectionUnblocked(Method, name="connection.unblocked", number=(10, 61), sender=SERVER):
    pass


class ConnectionUpdateSecret(
    Method, name="connection.update-secret", number=(10, 70), sender=CLIENT
):
    new_secret: LongString = b""
    reason: ShortString = ""


class ConnectionUpdateSecretOk(
    Method, name="connection.update-secret-ok", number=(10, 71), sender=SERVER
):
    pass


class ChannelOpen(Method, name="channel.open", number=(20, 10), sender=CLIENT):
    out_of_band: ShortString = ""


class ChannelOpenOk(Method, name="channel.open-ok", number=(20, 11), sender=SERVER):
    channel_id: LongString = b""


class ChannelFlow(Method, name="channel.flow", number=(20, 20), sender=BOTH):
    active: Bit = False


class ChannelFlowOk(Method, name="channel.flow-ok", number=(20, 21), sender=BOTH):
    active: Bit = False


class ChannelClose(Method, name="channel.close", number=(20, 40), sender=BOTH):
    reply_code: U16 = 0
    reply_text: ShortString = ""
    class_id: U16 = 0
    method_id: U16 = 0


class ChannelCloseOk(Method, name="channel.close-ok", number=(20, 41), sender=BOTH):
    pass


class AccessRequest(Method, name="access.request", number=(30, 10), sender=CLIENT):
    realm: ShortString = ""
    exclusive: Bit = False
    passive: Bit = False
    active: Bit = False
    write: Bit = False
    read: Bit = False


class AccessRequestOk(Method, name="access.request-ok", number=(30, 11), sender=SERVER):
    ticket: U16 = 0


class ExchangeDeclare(Method, name="exchange.declare", number=(40, 10), sender=CLIENT):
    ticket: U16 = 0
    exchange: ShortString = ""
    type: ShortString = ""
    passive: Bit = False
    durable: Bit = False
    auto_delete: Bit = False
    internal: Bit = False
    nowait: Bit = False
    arguments: Table = NO_TABLE


class ExchangeDeclareOk(Method, name="exchange.declare-ok", number=(40, 11), sender=SERVER):
    pass


class ExchangeDelete(Method, name="exchange.delete", number=(40, 20), sender=CLIENT):
    ticket: U16 = 0
    exchange: ShortString = ""
    if_unused: Bit = False
    nowait: Bit = False


class ExchangeDeleteOk(Method, name="exchange.delete-ok", number=(40, 21), sender=SERVER):
    pass


class ExchangeBind(Method, name="exchange.bind", number=(40, 30), sender=CLIENT):
    ticket: U16 = 0
    destination: ShortString = ""
    source: ShortString = ""
    routing_key: Key = ""
    nowait: Bit = False
    arguments: Table = NO_TABLE


class ExchangeBindOk(Method, name="exchange.bind-ok", number=(40, 31), sender=SERVER):
    pass


class ExchangeUnbind(Method, name="exchange.unbind", number=(40, 40), sender=CLIENT):
    ticket: U16 = 0
    destination: ShortString = ""
    source: ShortString = ""
    routing_key: Key = ""
    nowait: Bit = False
    arguments: Table = NO_TABLE


class ExchangeUnbindOk(Method, name="exchange.unbind-ok", number=(40, 51), sender=SERVER):
    pass


class QueueDeclare(Method, name="queue.declare", number=(50, 10), sender=CLIENT):
    ticket: U16 = 0
    queue: ShortString = ""
    passive: Bit = False
    durable: Bit = False
    exclusive: Bit = False
    auto_delete: Bit = False
    nowait: Bit = False
    arguments: Table = NO_TABLE


class QueueDeclareOk(Method, name="queue.declare-ok", number=(50, 11), sender=SERVER):
    queue: ShortString = ""
    message_count: U32 = 0
    consumer_count: U32 = 0


class QueueBind(Method, name="queue.bind", number=(50, 20), sender=CLIENT):
    ticket: U16 = 0
    queue: ShortString = ""
    exchange: ShortString = ""
    routing_key: Key = ""
    nowait: Bit = False
    arguments: Table = NO_TABLE


class QueueBindOk(Method, name="queue.bind-ok", number=(50, 21), sender=SERVER):
    pass


class QueuePurge(Method, name="queue.purge", number=(50, 30), sender=CLIENT):
    ticket: U16 = 0
    queue: ShortString = ""
    nowait: Bit = False


class QueuePurgeOk(Method, name="queue.purge-ok", number=(50, 31), sender=SERVER):
    message_count: U32 = 0


class QueueDelete(Method, name="queue.delete", number=(50, 40), sender=CLIENT):
    ticket: U16 = 0
    queue: ShortString = ""
    if_unused: Bit = False
    if_empty: Bit = False
    nowait: Bit = False


class QueueDeleteOk(Method, name="queue.delete-ok", number=(50, 41), sender=SERVER):
    message_count: U32 = 0


class QueueUnbind(Method, name="queue.unbind", number=(50, 50), sender=CLIENT):
    ticket: U16 = 0
    queue: ShortString = ""
    exchange: ShortString = ""
    routing_key: Key = ""
    arguments: Table = NO_TABLE


class QueueUnbindOk(Method, name="queue.unbind-ok", number=(50, 51), sender=SERVER):
    pass


class BasicQos(Method, name="basic.qos", number=(60, 10), sender=CLIENT):
    prefetch_size: U32 = 0
    prefetch_count: U16 = 0
    global_: Bit = False


class BasicQosOk(Method, name="basic.qos-ok", number=(60, 11), sender=SERVER):
    pass


class BasicConsume(Method, name="basic.consume", number=(60, 20), sender=CLIENT):
    ticket: U16 = 0
    queue: ShortString = ""
    consumer_tag: ShortString = ""
    no_local: Bit = False
    no_ack: Bit = False
    exclusive: Bit = False
    nowait: Bit = False
    arguments: Table = NO_TABLE


class BasicConsumeOk(Method, name="basic.consume-ok", number=(60, 21), sender=SERVER):
    consumer_tag: ShortString = ""


class BasicCancel(Method, name="basic.cancel", number=(60, 30), sender=BOTH):
    consumer_tag: ShortString = ""
    nowait: Bit = False


class BasicCancelOk(Method, name="basic.cancel-ok", number=(60, 31), sender=BOTH):
    consumer_tag: ShortString = ""


class BasicPublish(Method, name="basic.publish", number=(60, 40), sender=CLIENT, has_content=True):
    ticket: U16 = 0
    exchange: ShortString = ""
    routing_key: Key = ""
    mandatory: Bit = False
    immediate: Bit = False


class BasicReturn(Method, name="basic.return", number=(60, 50), sender=SERVER, has_content=True):
    reply_code: U16 = 0
    reply_text: ShortString = ""
    exchange: ShortString = ""
    routing_key: Key = ""


class BasicDeliver(Method, name="basic.deliver", number=(60, 60), sender=SERVER, has_content=True):
    consumer_tag: ShortString = ""
    delivery_tag: U64 = 0
    redelivered: Bit = False
    exchange: ShortString = ""
    routing_key: Key = ""


class BasicGet(Method, name="basic.get", number=(60, 70), sender=CLIENT):
    ticket: U16 = 0
    queue: ShortString = ""
    no_ack: Bit = False


class BasicGetOk(Method, name="basic.get-ok", number=(60, 71), sender=SERVER, has_content=True):
    delivery_tag: U64 = 0
    redelivered: Bit = False
    exchange: ShortString = ""
    routing_key: Key = ""
    message_count: U32 = 0


class BasicGetEmpty(Method, name="basic.get-empty", number=(60, 72), sender=SERVER):
    cluster_id: ShortString = ""


class BasicAck(Method, name="basic.ack", number=(60, 80), sender=BOTH):
    delivery_tag: U64 = 0
    multiple: Bit = False


class BasicReject(Method, name="basic.reject", number=(60, 90), sender=CLIENT):
    delivery_tag: U64 = 0
    requeue: Bit = False


class BasicRecoverAsync(Method, name="basic.recover-async", number=(60, 100), sender=CLIENT):
    requeue: Bit = False


class BasicRecover(Method, name="basic.recover", number=(60, 110), sender=CLIENT):
    requeue: Bit = False


class BasicRecoverOk(Method, name="basic.recover-ok", number=(60, 111), sender=SERVER):
    pass


class BasicNack(Method, name="basic.nack", number=(60, 120), sender=BOTH):
    delivery_tag: U64 = 0
    multiple: Bit = False
    requeue: Bit = False


class ConfirmSelect(Method, name="confirm.select", number=(85, 10), sender=CLIENT):
    nowait: Bit = False


class ConfirmSelectOk(Method, name="confirm.select-ok", number=(85, 11), sender=SERVER):
    pass


class TxSelect(Method, name="tx.select", number=(90, 10), sender=CLIENT):
    pass


class TxSelectOk(Method, name="tx.select-ok", number=(90, 11), sender=SERVER):
    pass


class TxCommit(Method, name="tx.commit", number=(90, 20), sender=CLIENT):
    pass


class TxCommitOk(Method, name="tx.commit-ok", number=(90, 21), sender=SERVER):
    pass


class TxRollback(Method, name="tx.rollback", number=(90, 30), sender=CLIENT):
    pass


class TxRollbackOk(Method, name="tx.rollback-ok", number=(90, 31), sender=SERVER):
    pass
