"""The narrow waist between gateways and engine.

A gateway knows sockets and one protocol; the engine knows topics, queues and the log. This file,
with those that it puts into `BrokerPort` (`amqp_port.py`, `transaction_port.py`,
`group_port.py`), is all that they know of each other: the operations that gateways call
(`BrokerPort`, `Session`, `QueueConsumer`) and the events that they get back (`SessionLink`,
`Consumer`, callbacks).

Rules for both sides:

* Everything here runs on one thread, the loop's. Nothing blocks; what needs the disk answers
  through a callback.
* Operations that change state take effect in memory at once and return a `Position`. What the
  gateway answers waits for it: `when_committed(position, callback)`. Callbacks run in order of
  position, so answers on one connection keep their order if all go this way.
* A publish is a run of rows of a `Batch` with one `Template`. The buffer under the batch is only
  read during the call.
* A delivery is a run of commit-log records in memory (`RecordRun`), never an object per message.
  Its memory is valid during the call; who needs the bytes later copies them (encoding does).
* Offsets within one delivery are consecutive: message `k` of it has `first_offset + k`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NewType, Protocol

from polymq.broker.amqp_content import AMQP_PROPERTY, AmqpContent, read_amqp_content
from polymq.broker.amqp_port import AmqpPort
from polymq.broker.bounded_cache import BoundedCache
from polymq.broker.copies import COPIES_PROPERTY, Copies
from polymq.broker.durability import APPENDED, FLUSHED, IN_SYNC, Durability
from polymq.broker.errors import BrokerError, Reason, Refused, StorageFailed, WrongAcknowledgement
from polymq.broker.infos import ExchangeInfo, QueueInfo, TopicInfo
from polymq.broker.long_properties import LONG_CONSTANT, in_front, size_in_front, without_long
from polymq.broker.messages import Delivery, Message
from polymq.broker.names import (
    EXCHANGE_PROPERTY,
    ROOT_EXCHANGE,
    decode_name,
    display_name,
    encode_name,
    exchange_and_key,
    parse_display_name,
)
from polymq.broker.queues.deaths import DEATH_PROPERTY, History, history_of
from polymq.broker.queues.life import LIFE_PROPERTY, life_property
from polymq.broker.queues.unacked import Unacked
from polymq.broker.record_header import header_property
from polymq.broker.rocketmq_port import GroupInfo, Placed, RocketmqPort
from polymq.broker.runs import RecordRun, RunMeta, TakesApart
from polymq.broker.transaction_port import HalfMessage, Prepared, TransactionPort
from polymq.core_log.kernels.batch import EXTRA_NONE, Batch

__all__ = [
    "AMQP_PROPERTY",
    "APPENDED",
    "COPIES_PROPERTY",
    "DEATH_PROPERTY",
    "EXCHANGE_PROPERTY",
    "FLUSHED",
    "IN_SYNC",
    "LIFE_PROPERTY",
    "LONG_CONSTANT",
    "ONE_WORD",
    "REST",
    "ROOT_EXCHANGE",
    "AmqpContent",
    "BoundedCache",
    "BrokerError",
    "BrokerPort",
    "Consumer",
    "Copies",
    "Delivery",
    "Durability",
    "ExchangeInfo",
    "GroupInfo",
    "HalfMessage",
    "History",
    "Message",
    "Placed",
    "Position",
    "Prepared",
    "Publishing",
    "QueueConsumer",
    "QueueInfo",
    "Reason",
    "RecordRun",
    "Refused",
    "Route",
    "RunMeta",
    "Session",
    "SessionLink",
    "Settlement",
    "StorageFailed",
    "TakesApart",
    "Template",
    "TopicInfo",
    "Unacked",
    "Words",
    "WrongAcknowledgement",
    "decode_name",
    "display_name",
    "encode_name",
    "exchange_and_key",
    "header_property",
    "history_of",
    "in_front",
    "life_property",
    "parse_display_name",
    "read_amqp_content",
    "size_in_front",
    "without_long",
]

if TYPE_CHECKING:
    Position = NewType("Position", int)
else:
    Position = int  # to the same effect, and half the time of a NewType's call
"""A byte position in the commit log: the end of what has to be committed."""

Words = tuple[str, ...]
"""A subscription pattern: the topic and the words of the tag, with `ONE_WORD` and `REST`."""

ONE_WORD: Final = "\x00*"
"""Matches exactly one word (MQTT `+`, AMQP `*`)."""
REST: Final = "\x00#"
"""Matches any number of words, none included (MQTT `#` at the end, AMQP `#` anywhere)."""


class Route(Protocol):
    """Where messages of one (topic, tag) go. Lives as long as its topic; patched in place."""

    @property
    def topic(self) -> str:
        """The user's name of the topic (decoded)."""

    @property
    def tag(self) -> str | None:
        """In dot form; None where the message has none."""

    @property
    def routed(self) -> bool:
        """Whether a queue or a live subscriber would get a message now (AMQP `mandatory`). Where
        this depends on headers, whether one could: `is_routed` tells for each message."""

    @property
    def by_headers(self) -> bool:
        """Whether it depends on the headers of a message where it goes."""


class Template(Protocol):
    """How one kind of message on one route is stored. Built once, used for many runs."""

    @property
    def route(self) -> Route:
        """The route that it was built for."""

    @property
    def durability(self) -> Durability:
        """What its messages wait for, and so their acks: what was asked for, or less where
        `page_cache` was chosen for the topic or the broker, or more where `min_in_sync` was."""

    @property
    def valid(self) -> bool:
        """False once its topic or exchange was deleted, or the topic's settings were changed:
        build a new one."""

    @property
    def rows_at_once(self) -> int:
        """How many rows one call of `publish` should have, so that it does not stop the loop: few
        where each message goes to many queues."""

    @property
    def queues(self) -> Sequence[object]:
        """The queues that took the run that was just published."""

    @property
    def overflowed(self) -> int:
        """How many messages of the run that was just published a full queue did not take
        (`x-overflow`). They are stored, and in all other queues."""

    @property
    def refused(self) -> Sequence[tuple[int, int]]:
        """Which: rows [first, last) of the batch, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publishing:
    """Rows [first, last) of a batch, to be stored as `template` says: a part of a transaction.

    Attributes:
        delay_ms: how long after the commit they are due. What waits until then goes with the
            exchange of the topic's name, as with `by_exchange` of `publish_later`.
    """

    template: Template
    batch: Batch
    first: int
    last: int
    delay_ms: int = 0


class Consumer(Protocol):
    """What the engine delivers a queue's messages to. Implemented by gateways."""

    def credit(self) -> int:
        """How many more messages it takes now; 0 while its transport is paused."""

    def deliver(self, delivery: Delivery) -> None:
        """Take the messages (at most `credit()` of them). Settle or requeue them later."""

    def cancelled(self) -> None:
        """The queue is gone; nothing more comes."""


class QueueConsumer(Protocol):
    """A consumer's hold on a queue, as `BrokerPort.consume` returns it."""

    def settle(self, first_offset: int, count: int) -> None:
        """These are done with; they never come again."""

    def requeue(self, first_offset: int, count: int) -> None:
        """Back to their old places, flagged redelivered."""

    def reject(self, first_offset: int, count: int) -> None:
        """The consumer does not want them: dead letters where the queue has a place for them,
        else as `settle`."""

    def ready(self) -> None:
        """Credit has grown: look for messages."""

    def cancel(self) -> None:
        """No more deliveries. What is not settled stays with the caller: settle or requeue it."""


Settlement = tuple[QueueConsumer, int, int]
"""A holder, and the first offset and the count of what is settled in its queue."""


class SessionLink(Protocol):
    """A client's connection as its session sees it. Implemented by the MQTT gateway."""

    def credit(self) -> int:
        """How many more PUBLISH packets the transport takes now; 0 while paused."""

    def send_publishes(
        self, run: RecordRun, *, qos: int, first_packet_id: int, duplicate: bool, retain: bool
    ) -> None:
        """Send the run at `qos` (already the lower of publisher's and subscriber's).

        Packet ids count up from `first_packet_id`; after 65,535 comes 1. With QoS 0 they are 0.
        """

    def send_pubrels(self, first_packet_id: int, count: int) -> None:
        """Send PUBREL for `count` consecutive packet ids (wrapping as above)."""

    def taken_over(self) -> None:
        """Another connection took the session [MQTT-3.1.4-2]: close this one, send its will."""

    def expelled(self, why: str) -> None:
        """The client may not have this session or what it subscribed to any more: close the
        connection. MQTT 3.1.1 has no other way to tell it."""


class Session(Protocol):
    """An MQTT session. All packet ids here are ranges: first id and count, wrapping at 65,535."""

    present: bool
    """Whether CONNACK says Session Present."""
    position: Position
    """CONNACK waits for it."""

    def resume(self) -> None:
        """CONNACK is on its way: resend what is in flight, then deliver. Call exactly once."""

    def subscribe(self, words: Words, qos: int) -> Position:
        """Add or replace one subscription. SUBACK waits for the position. Raises Refused."""

    def replay_retained(self, words: Words, since: Position) -> None:
        """After SUBACK: send the retained messages that match, in slices.

        Args:
            since: what `subscribe` returned. What was published later comes by itself.
        """

    def unsubscribe(self, words: Words) -> Position:
        """Remove one subscription; no error if there is none. UNSUBACK waits for the position."""

    def acknowledged(self, first_packet_id: int, count: int, more: bool = False) -> None:
        """PUBACKs. Unknown ids are ignored.

        Args:
            more: others follow at once, then `resume_if_starved`. Nothing is sent before that:
                one delivery fills the whole window, instead of one for each acknowledgement.

        Raises:
            WrongAcknowledgement: one is of a message that was sent with QoS 2.
        """

    def received(self, first_packet_id: int, count: int) -> None:
        """PUBRECs: the PUBRELs go out through the link once the state is committed. Raises
        WrongAcknowledgement: one is of a message that was sent with QoS 1."""

    def completed(self, first_packet_id: int, count: int, more: bool = False) -> None:
        """PUBCOMPs; `more` as in `acknowledged`. Raises WrongAcknowledgement: one is of a message
        without its PUBREC."""

    def resume_if_starved(self) -> None:
        """Send what waits for room in the window. After acknowledgements with `more`."""

    def is_duplicate(self, packet_id: int) -> bool:
        """Whether an inbound QoS 2 PUBLISH with this id was taken already and not released."""

    def released(self, packet_id: int) -> Position:
        """Inbound PUBREL. PUBCOMP waits for the position. Unknown ids are answered too."""

    def ready(self) -> None:
        """The transport drained."""

    def disconnect(self) -> None:
        """The connection is gone (either way). A clean session ends; a persistent one waits."""


class BrokerPort(AmqpPort, TransactionPort, RocketmqPort, Protocol):
    """The operations that gateways call."""

    @property
    def state_durability(self) -> Durability:
        """What the answer to a change of state waits for (declare, bind, SUBSCRIBE, documents):
        FLUSHED, or IN_SYNC where the broker itself asks for replicas. Never changes."""

    # --- publishing -----------------------------------------------------------------------

    def route(self, topic: str, tag: str | None) -> Route:
        """Where (topic, tag) goes; creates the topic on first use. Raises Refused."""

    def exchange_route(self, exchange: str, routing_key: str) -> Route | None:
        """The same by AMQP's names (part 7 of ARCHITECTURE.md).

        Returns:
            The route, or None when the message has nowhere to go at all (default exchange, no
            such queue, no such topic): it is dropped, or returned if mandatory.

        Raises:
            Refused: NOT_FOUND for an unknown exchange; FORBIDDEN for an internal one.
        """

    def template(
        self,
        route: Route,
        *,
        properties: Mapping[str, str],
        extra_kind: int = EXTRA_NONE,
        extra_name: str = "",
        extra_keyed: bool = True,
        durability: Durability = Durability.FLUSHED,
        retain: bool = False,
        sharding: str = "",
        queue_id: int | None = None,
    ) -> Template:
        """How to store messages of one kind.

        Args:
            durability: what the messages should wait for. FLUSHED means: as safe as an ack has to
                be here, which is APPENDED where `page_cache` was chosen, and IN_SYNC where replicas
                have to have it (`Template.durability`).
            properties: constant properties by RocketMQ's names. `TAGS` is added by the engine.
                A time to live and a priority are one of them: `life_property`.
                Values may hold any character but 0x01 and 0x02.
            extra_kind, extra_name: how each row's extra bytes are stored
                (`core_log.kernels.batch`); `PMQ_AMQP` with EXTRA_BASE64 for AMQP's properties.
            extra_keyed: whether a row's extra bytes may have a key (AMQP's message id). What
                surely has none is nothing for the key index to look at.
            retain: the last message of each run replaces the topic's retained message; an empty
                body removes it.
            sharding: messages with the same value go to the same queue of the topic, in order.
            queue_id: which of the topic's queues; None: as `sharding` says. Raises Refused:
                BAD_ARGUMENT if there is no such queue.
        """

    def publish(self, template: Template, batch: Batch, first: int, last: int) -> Position:
        """Append rows [first, last) of the batch: all or none.

        Returns:
            The position that their ack waits for (with the template's durability).

        Raises:
            Refused: TOO_LARGE (a body or its properties), LIMIT, READ_ONLY, STORAGE_FULL. Nothing
                was stored and no offset was taken.
        """

    def publish_later(
        self,
        template: Template,
        batch: Batch,
        first: int,
        last: int,
        *,
        delay_ms: int = 0,
        deliver_ms: int = 0,
        by_exchange: bool = False,
    ) -> Position:
        """As `publish`, but nobody sees the messages before they are due.

        They are stored and acknowledged now, and routed when they are due. A time that has passed
        means at once.

        Args:
            delay_ms: so long from now; or
            deliver_ms: at this time, in milliseconds since the epoch.
            by_exchange: whether an exchange of the topic's name delays them: if that ends before
                they are due, they are dropped.

        Raises:
            Refused: as `publish`; BAD_ARGUMENT also for a time more than a year ahead, LIMIT for
                too many messages that wait.
        """

    def deliver_ms(self, properties: Mapping[str, str]) -> int | None:
        """When a message that has these properties of RocketMQ's (`DELAY`, `TIMER_DELAY_SEC`,
        `TIMER_DELAY_MS`, `TIMER_DELIVER_MS`) is to be delivered; None for at once. Raises Refused:
        BAD_ARGUMENT for a value that is no number."""

    def publish_once(
        self,
        template: Template,
        batch: Batch,
        row: int,
        session: Session,
        packet_id: int,
        *,
        delay_ms: int = 0,
    ) -> Position:
        """One inbound QoS 2 message: stored together with (session, packet id)."""

    def publish_settling(
        self, template: Template, batch: Batch, row: int, consumer: QueueConsumer, offset: int
    ) -> Position:
        """One message that replaces another (dead letter): stored together with the settlement of
        `offset` in the consumer's queue, so that a crash keeps exactly one of the two."""

    def when_committed(
        self,
        position: Position,
        durability: Durability,
        callback: Callable[..., None],
        *args: object,
    ) -> None:
        """Call back once `position` is committed; at once if it is already.

        After a storage failure, callbacks of uncommitted positions never run.
        """

    def committed(self, position: Position, durability: Durability) -> bool:
        """Whether `when_committed` would call back at once."""

    def appended(self) -> Position:
        """The end of the log: what was done so far is visible when this position is committed."""

    def overloaded(self, resume: Callable[[], None]) -> bool:
        """Whether the disk is behind, so that a publisher's socket should not be read for now.

        If so, `resume` is called once it has caught up. Ask after each read that published.
        """

    def when_storage_blocks(self, callback: Callable[[str], None]) -> None:
        """Call back whenever publishers begin to be refused because the disk is (nearly) full, with
        the reason, and with an empty text when they are taken again."""

    def when_storage_fails(self, callback: Callable[[StorageFailed], None]) -> None:
        """Call back once if the log directory fails. The broker is read-only from then on."""

    # --- MQTT -----------------------------------------------------------------------------

    def connect_session(
        self,
        client_id: str,
        *,
        clean: bool,
        link: SessionLink,
        principal: str,
        inflight_max: int | None = None,
    ) -> Session:
        """Open, resume or take over the session of a client id. Raises Refused.

        The old connection, if any, gets `taken_over()` during the call.

        Args:
            inflight_max: how many messages of QoS 1 and 2 may be unacknowledged at most; the engine
                begins with few and has a bound of its own.
        """

    # --- documents: a gateway's own durable settings ----------------------------------------

    def put_document(self, kind: str, key: str, value: Mapping[str, Any] | None) -> Position:
        """Store a JSON value (None deletes). Survives restarts; followed by replicas."""

    def documents(self, kind: str) -> Mapping[str, Mapping[str, Any]]:
        """All documents of a kind by key."""

    # --- reading by offset (RocketMQ, Spark) ------------------------------------------------

    def topics(self) -> Sequence[TopicInfo]:
        """All user topics."""

    def topic(self, name: str) -> TopicInfo | None:
        """One topic by the user's name."""

    def create_topic(
        self, name: str, queue_count: int, settings: Mapping[str, str] | None = None
    ) -> Position:
        """Make a topic with a chosen number of queues, and settings by name where they are not
        the broker's defaults. Raises Refused: DIFFERENT (it exists), BAD_NAME, FORBIDDEN, LIMIT,
        BAD_ARGUMENT (a setting)."""

    def set_topic(self, name: str, settings: Mapping[str, str]) -> Position:
        """Change settings of a topic; `default` as a value goes back to the broker's default.
        Raises Refused: NOT_FOUND, BAD_ARGUMENT."""

    def delete_topic(self, name: str) -> Position:
        """Delete a topic with its messages' offsets. Raises Refused: NOT_FOUND."""

    def pull(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        count_max: int,
        bytes_max: int,
        callback: Callable[[bytes, int], None],
        tags: frozenset[str] | None = None,
    ) -> None:
        """Records from `offset` on as they stand in the log: `callback(records, next_offset)`.

        At least one record if there is any, then as many as fit. Stops at the flushed point, or
        at the in-sync point if the topic asks for replicas.

        Args:
            tags: only messages with one of these tags. The others are passed over by their index
                entries; no records and a `next_offset` beyond `offset` mean that none of those
                looked at has one.

        Raises:
            Refused: NOT_FOUND (topic or queue id), BAD_ARGUMENT (offset below the minimum).
        """

    def query_by_key(
        self,
        topic: str,
        key: str,
        *,
        count_max: int,
        begin_ms: int,
        end_ms: int,
        callback: Callable[[bytes | None], None],
    ) -> None:
        """Messages that have the key (a word of `KEYS`, `UNIQ_KEY`, AMQP's message id) and were
        stored in [begin_ms, end_ms]: `callback(records)`, newest first, as they stand in the log;
        None if the disk could not be read. All that was flushed at the call is looked at.

        Args:
            count_max: at most so many; the broker's own limits hold too.

        Raises:
            Refused: NOT_FOUND (topic), BAD_ARGUMENT (no key, or one with a space).
        """

    def message_by_position(self, position: int, callback: Callable[[str, bytes], None]) -> None:
        """The message at a position of the log (the last 16 digits of RocketMQ's message id):
        `callback(topic, record)`; empty if no message stands there that may be read."""

    def offset_by_time(
        self, topic: str, queue_id: int, time_ms: int, callback: Callable[[int | None], None]
    ) -> None:
        """The first offset whose message was stored at or after a time, else the queue's end:
        `callback(offset)`; None if the disk could not be read.

        Raises:
            Refused: NOT_FOUND (topic or queue id).
        """

    # --- users ----------------------------------------------------------------------------

    def authenticate(
        self,
        user: str | None,
        password: bytes | None,
        address: str,
        answer: Callable[[str | Refused], None],
    ) -> Callable[[], None]:
        """Who is it? `answer` is called once with the principal, or with Refused:
        NOT_AUTHENTICATED, LIMIT (come again). At once or later, for passwords are checked in
        threads and guesses wait: take nothing from the client meanwhile.

        Args:
            user, password: None where the client named none.
            address: the client's address without its port.

        Returns:
            Call this when the client has gone before the answer: its password is not checked any
            more, and `answer` is not called. After the answer it does nothing.
        """

    def check_signature(self, access_key: str, content: bytes, digest: bytes, address: str) -> str:
        """The principal whose access key signed the content of a request. Answers at once, so it
        is asked for each request.

        Args:
            digest: HMAC-SHA1 of the content, as the client gave it.
            address: the client's address without its port.

        Raises:
            Refused: NOT_AUTHENTICATED.
        """

    def listener_principal(self, user: str) -> str:
        """The principal of who does not log in at a listener: the user that the configuration
        names for it, or nobody (an empty name)."""

    def for_principal(self, principal: str, client_id: str | None = None) -> BrokerPort:
        """The port that a client uses from its login on: its operations are those that it may do,
        and raise Refused: FORBIDDEN otherwise. Ask for it in the call that authenticated.

        Args:
            client_id: of an MQTT client; rules may name it.
        """

    @property
    def as_owner(self) -> str:
        """How this port's principal is named by what it leaves behind. Who gets the name after
        the user was deleted is another owner. Empty while there are no users."""

    def for_owner(self, owner: str) -> BrokerPort:
        """The same for what outlives its client's connection (an HTTP subscription): it goes on
        to be right when the first user comes or the last one goes.

        Args:
            owner: as `as_owner` gave it, or the name of a principal.
        """

    def enter(
        self,
        expelled: Callable[[str], None],
        *,
        access_key: str | None = None,
        address: str = "",
    ) -> Callable[[], None]:
        """A connection of this port's principal is there. Call what is returned when it is gone.

        Args:
            expelled: called, maybe within another operation, when the connection has to end.
            access_key: what it signs with; it has to end when this is removed.
            address: the client's without its port, for the audit log; with an access key.

        Raises:
            Refused: LIMIT, the user has too many connections.
        """

    def check_publish(self, topic: str, tag: str | None, *, every_tag: bool = False) -> None:
        """For what is published later, such as a will, or dead letters, which keep whatever tag
        they have (`every_tag`). Raises Refused: FORBIDDEN."""

    def check_read(self, words: Words) -> None:
        """Whether all that the filter matches may be read. Raises Refused: FORBIDDEN."""

    def check_known(self, topic: str) -> None:
        """Whether the client may know that a topic is there, and where: who may read or publish
        anything in it. Raises Refused: FORBIDDEN, for topics that are not there, too."""

    def check_admin(self, words: Words) -> None:
        """Whether everything may be administered that the filter matches. Raises Refused:
        FORBIDDEN."""

    def check_admitted(self) -> None:
        """Whether the principal may do anything at all: nobody, where no rule lets nobody in, may
        not. Raises Refused: NOT_AUTHENTICATED, FORBIDDEN (a user without a rule)."""
