"""The protocol of the RocketMQ listener: bytes in, typed requests out.

Rules of this file:

* `REQUESTS` names every code that this listener serves and the header that goes with it. A code
  that is not in it becomes `Unsupported`; a header that does not fit becomes `Malformed`, and so
  does a signed one with a field that is unknown (`remoting.signed_fields`). Both leave the
  connection usable: the frame's limits were right.
* Every request gets one answer through `answer`, a oneway request none.
* The listener asks its clients, too, whether a transaction is committed, and tells them that their
  group changed. What they answer is of no use: who knows better says so by a request of its own.

Frames, serialize types and the bookkeeping of open requests are `remoting.connection`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from polymq.remoting.broker_fields import (
    CommitFields,
    CreateTopicFields,
    DeleteGroupFields,
    EndTransactionFields,
    GroupConfigFields,
    GroupFields,
    GroupOffsetFields,
    GroupTopicFields,
    ProducerGroupFields,
    QueryFields,
    ResetFields,
    SendBackFields,
    SendFields,
    UnregisterFields,
    ViewFields,
    long_names,
)
from polymq.remoting.codes import RequestCode
from polymq.remoting.connection import Connection, RequestReceived
from polymq.remoting.errors import BadFields
from polymq.remoting.frames import ANSWER_BYTES_MAX, FRAME_BYTES_MAX, Command
from polymq.remoting.headers import (
    Fields,
    PullFields,
    QueueFields,
    SearchFields,
    TopicFields,
    read_fields,
)
from polymq.remoting.signed_fields import unknown_field
from polymq.remoting.signing import Signature, signature_of

REQUESTS: Final[Mapping[int, type[Fields]]] = {
    RequestCode.SEND_MESSAGE: SendFields,
    RequestCode.SEND_MESSAGE_V2: SendFields,
    RequestCode.SEND_BATCH_MESSAGE: SendFields,
    RequestCode.CONSUMER_SEND_BACK: SendBackFields,
    RequestCode.END_TRANSACTION: EndTransactionFields,
    RequestCode.PULL_MESSAGE: PullFields,
    RequestCode.LITE_PULL_MESSAGE: PullFields,
    RequestCode.QUERY_MESSAGE: QueryFields,
    RequestCode.VIEW_MESSAGE: ViewFields,
    RequestCode.QUERY_CONSUMER_OFFSET: GroupOffsetFields,
    RequestCode.UPDATE_CONSUMER_OFFSET: CommitFields,
    RequestCode.SEARCH_OFFSET: SearchFields,
    RequestCode.GET_MAX_OFFSET: QueueFields,
    RequestCode.GET_MIN_OFFSET: QueueFields,
    RequestCode.GET_EARLIEST_TIME: QueueFields,
    RequestCode.HEART_BEAT: Fields,
    RequestCode.UNREGISTER_CLIENT: UnregisterFields,
    RequestCode.GET_CONSUMER_LIST: GroupFields,
    RequestCode.LOCK_BATCH_MQ: Fields,
    RequestCode.UNLOCK_BATCH_MQ: Fields,
    RequestCode.CHECK_CLIENT_CONFIG: Fields,
    RequestCode.CREATE_TOPIC: CreateTopicFields,
    RequestCode.DELETE_TOPIC: TopicFields,
    RequestCode.GET_TOPIC_CONFIGS: Fields,
    RequestCode.CREATE_GROUP: Fields,
    RequestCode.GET_GROUP_CONFIGS: Fields,
    RequestCode.DELETE_GROUP: DeleteGroupFields,
    RequestCode.GET_TOPIC_STATS: TopicFields,
    RequestCode.GET_CONSUMER_CONNECTIONS: GroupFields,
    RequestCode.GET_PRODUCER_CONNECTIONS: ProducerGroupFields,
    RequestCode.GET_CONSUME_STATS: GroupTopicFields,
    RequestCode.GET_BROKER_RUNTIME: Fields,
    RequestCode.GET_BROKER_CONFIG: Fields,
    RequestCode.GET_TOPIC_CONFIG: TopicFields,
    RequestCode.GET_GROUP_CONFIG: GroupConfigFields,
    RequestCode.GET_GROUPS_OF_TOPIC: TopicFields,
    RequestCode.GET_TOPICS_OF_GROUP: GroupConfigFields,
    RequestCode.RESET_OFFSETS: ResetFields,
    RequestCode.DELETE_TOPIC_IN_NAME_SERVER: TopicFields,
    RequestCode.GET_ROUTE: TopicFields,
    RequestCode.GET_BROKER_CLUSTER_INFO: Fields,
    RequestCode.GET_ALL_TOPICS: Fields,
}
SHORT_NAMED: Final = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
NAME_SHOWN_MAX: Final = 100
"""Characters of a field's name in an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request that this listener serves.

    Attributes:
        serial: names it in the answer.
        fields: of the type that `REQUESTS` has for the code.
        oneway: it gets no answer.
        signature: who sent it, if it says so.
        asked: what its body says, for those whose body the gate reads (`rights.BODIES`).
    """

    serial: int
    code: int
    fields: Fields
    body: bytes
    signature: Signature | None
    oneway: bool
    version: int
    language: str
    asked: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsupported:
    """A code that this listener does not serve."""

    serial: int
    code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Malformed:
    """A header lacks a field or has one of the wrong kind."""

    serial: int
    reason: str


Event = Request | Unsupported | Malformed


class Protocol:
    """One client's connection."""

    def __init__(self) -> None:
        self._frames = Connection()

    @property
    def open_count(self) -> int:
        """Requests without an answer."""
        return self._frames.open_count

    def receive(self, buffer: bytes | bytearray, start: int, end: int) -> tuple[list[Event], int]:
        """Take all whole requests: the events, and up to which index the bytes are used.

        Raises:
            RemoteProtocolError: close the connection.
        """
        received, used = self._frames.receive(buffer, start, end)
        events = [
            _event(item.serial, item.command)
            for item in received
            if isinstance(item, RequestReceived)
        ]
        return [event for event in events if event is not None], used

    def answer(
        self,
        serial: int,
        code: int,
        fields: Mapping[str, str] | None = None,
        *,
        remark: str | None = None,
        body_size: int = 0,
        has_records: bool = False,
    ) -> bytes:
        """The head of the answer; `body_size` bytes of body follow it: with records more than
        otherwise, because one record goes as a whole."""
        return self._frames.answer(
            serial,
            code,
            fields,
            remark=remark,
            body_size=body_size,
            bytes_max=ANSWER_BYTES_MAX if has_records else FRAME_BYTES_MAX,
        )

    def tell(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> bytes:
        """A oneway request to the client."""
        _, data = self._frames.request(code, fields, body, oneway=True)
        return data


def _event(serial: int, command: Command) -> Event | None:
    oneway = command.is_oneway
    kind = REQUESTS.get(command.code)
    if kind is None:
        return None if oneway else Unsupported(serial=serial, code=command.code)
    signature = signature_of(command)
    if signature is not None:
        unknown = unknown_field(command.code, kind, command.fields)
        if unknown is not None:
            reason = f"a signed request {command.code} has no field {unknown[:NAME_SHOWN_MAX]!r}"
            return None if oneway else Malformed(serial=serial, reason=reason)
    sent = long_names(command.fields) if command.code in SHORT_NAMED else command.fields
    try:
        fields = read_fields(kind, sent)
    except BadFields as error:
        return None if oneway else Malformed(serial=serial, reason=str(error))
    return Request(
        serial=serial,
        code=command.code,
        fields=fields,
        body=command.body,
        signature=signature,
        oneway=oneway,
        version=command.version,
        language=command.language,
    )
