"""MQTT's sessions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Final, Protocol

from polymq.broker.messages.kernels.record_run import RecordRun
from polymq.broker.messages.runs import TakesApart
from polymq.broker.port.publishing import Template
from polymq.broker.port.values import Address, Position
from polymq.core_log.kernels.batch import Batch

PUBLISHER_PROPERTY: Final = "PMQ_FROM"
"""Constant property: the client id of the MQTT client that published a message, where it has a
subscription with No Local."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionOptions:
    """What a client wants of one subscription [MQTT-3.8.3.1].

    Attributes:
        qos: the highest one that its messages are sent with.
        no_local: what the client publishes itself is not sent to it. Its messages have to say who
            published them (`PUBLISHER_PROPERTY`).
        retain_as_published: messages have the RETAIN flag that they were published with.
        identifier: the Subscription Identifier; 0 if there is none.
        exclusive: no other session may have the filter exclusively at the same time.
    """

    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    identifier: int = 0
    exclusive: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Will:
    """What is published for a client that goes without saying goodbye.

    Attributes:
        topic, tag: where, as in `TopicPort.route`.
        properties: the property block of MQTT 5, as of a PUBLISH; empty for none.
        ttl_ms: the time to live of the message; None: it does not expire.
        delay_seconds: how long after the end of the connection, if the session lasts so long.
    """

    topic: str
    tag: str | None
    body: bytes
    qos: int
    retain: bool
    properties: bytes = b""
    ttl_ms: int | None = None
    delay_seconds: int = 0


class SessionLink(Protocol):
    """A client's connection as its session sees it. Implemented by the MQTT gateway."""

    takes_apart: TakesApart | None
    """Which runs it decodes message by message; None: none."""

    def credit(self) -> int:
        """How many more PUBLISH packets the transport takes now; 0 while paused."""

    def send_publishes(
        self,
        run: RecordRun,
        *,
        qos: int,
        first_packet_id: int,
        duplicate: bool,
        retain: bool,
        identifiers: tuple[int, ...] = (),
    ) -> None:
        """Send the run at `qos` (already the lower of publisher's and subscriber's).

        Packet ids count up from `first_packet_id`; after 65,535 comes 1. With QoS 0 they are 0.

        Args:
            retain: the flag as it is to be sent.
            identifiers: the Subscription Identifiers of all subscriptions that it is sent for, in
                ascending order, each once.
        """

    def send_pubrels(self, first_packet_id: int, count: int) -> None:
        """Send PUBREL for `count` consecutive packet ids (wrapping as above)."""

    def taken_over(self) -> None:
        """Another connection took the session [MQTT-3.1.4-2]: close this one."""

    def expelled(self, why: str) -> None:
        """The client may not have this session or what it subscribed to any more: close the
        connection. MQTT 3.1.1 has no other way to tell it."""


class Session(Protocol):
    """An MQTT session. All packet ids here are ranges: first id and count, wrapping at 65,535."""

    present: bool
    """Whether CONNACK says Session Present."""
    position: Position
    """CONNACK waits for it."""

    @property
    def expiry_seconds(self) -> int | None:
        """How long the session outlives its connection: what the client asked for, or what the
        operator allows if that is less. 0: not at all; None: for ever."""

    @property
    def subscriptions(self) -> Sized:
        """What it subscribed to, as far as its number goes."""

    def options(self) -> Iterator[tuple[Address, SubscriptionOptions]]:
        """Its subscriptions. If one of them is with No Local, its client's messages have to say who
        published them."""

    def set_will(self, will: Will) -> None:
        """CONNECT has a will; `position` waits for it, too. Published when the connection ends, or
        the server does and the client does not come back. Call before CONNACK, at most once.

        Raises:
            Refused: FORBIDDEN, TOO_LARGE, LIMIT, or the log takes nothing: refuse the CONNECT, and
                call `disconnect`.
        """

    def clear_will(self) -> None:
        """The client said DISCONNECT with reason 0: its will is not published [MQTT-3.14.4-3]."""

    def expire_after(self, seconds: int | None) -> None:
        """DISCONNECT says how long the session outlives its connection. Nothing changes if CONNECT
        said that it does not [MQTT-3.14.2-2]. Raises Refused."""

    def resume(self) -> None:
        """CONNACK is on its way: resend what is in flight, then deliver. Call exactly once."""

    def subscribe(
        self, address: Address, options: SubscriptionOptions, *, retained: bool = True
    ) -> Position:
        """Add one subscription, or replace all that was said of it [MQTT-3.8.4-3]. Raises Refused;
        LIMIT also where another session has an exclusive subscription to the filter, and this is to
        be one.

        Args:
            retained: the client wants the retained messages that match (`replay_retained`).
                Without that, one that is there already goes on getting those that it lacks.

        Returns:
            What SUBACK waits for. What is published later comes by itself.
        """

    def replay_retained(self, address: Address, since: Position) -> None:
        """After SUBACK: send the retained messages that match, in slices.

        Args:
            since: the position that `subscribe` returned.
        """

    def is_subscribed(self, address: Address) -> bool:
        """Whether there is a subscription with this filter."""

    def unsubscribe(self, address: Address) -> Position:
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

    def rejected(self, first_packet_id: int, count: int) -> None:
        """The client does not take messages, or cannot: they are done with, whatever their QoS is,
        and no PUBREL follows [MQTT-4.3.3-4], [MQTT-3.1.2-25]. Unknown ids are ignored."""

    def completed(self, first_packet_id: int, count: int, more: bool = False) -> None:
        """PUBCOMPs; `more` as in `acknowledged`. Raises WrongAcknowledgement: one is of a message
        without its PUBREC."""

    def resume_if_starved(self) -> None:
        """Send what waits for room in the window. After acknowledgements with `more`."""

    def send_singly(self, singly: bool) -> None:
        """Have one message of QoS 1 or 2 at a time in flight, also of those that are sent again; or
        as many as `connect` said. It holds for this connection."""

    def is_duplicate(self, packet_id: int) -> bool:
        """Whether an inbound QoS 2 PUBLISH with this id was taken already and not released."""

    def are_new(self, packet_ids: Sequence[int]) -> bool:
        """Whether inbound QoS 2 PUBLISHes with these ids are no duplicates, nor any of each
        other."""

    def released(self, first_packet_id: int, count: int) -> Position:
        """Inbound PUBRELs. PUBCOMPs wait for the position. Unknown ids are answered too."""

    def release_all(self) -> Position:
        """The peer has no session any more, so no inbound PUBLISH can be one that was taken before.
        What comes from now on is acknowledged behind the position. Raises Refused."""

    def ready(self) -> None:
        """The transport drained."""

    def disconnect(self) -> None:
        """The connection is gone (either way). The session ends or waits, as its expiry says; its
        will is published, now or after its delay, unless it was cleared or the server stops."""


class SessionPort(Protocol):
    """The operations on sessions."""

    def connect(
        self,
        client_id: str,
        *,
        clean: bool,
        expiry_seconds: int | None,
        link: SessionLink,
        principal: str,
        inflight_max: int | None = None,
        one_copy: bool = True,
    ) -> Session:
        """Open, resume or take over the session of a client id. Raises Refused.

        The old connection, if any, gets `taken_over()` during the call.

        Args:
            clean: a session that there is ends first (Clean Start).
            expiry_seconds: how long the session outlives its connection. 0: it ends with it; None:
                it does not expire. A clean session of MQTT 3.1.1 is (True, 0), another one (False,
                None).
            inflight_max: how many messages of QoS 1 and 2 may be unacknowledged at most; the engine
                begins with few and has a bound of its own.
            one_copy: a message that several filters match is sent once, for all of them; else once
                for each.
        """

    def publish_once(
        self,
        template: Template,
        batch: Batch,
        first: int,
        last: int,
        session: Session,
        packet_ids: Sequence[int],
        *,
        delay_ms: int = 0,
    ) -> Position:
        """Inbound QoS 2 messages, which are new: rows [first, last), each stored together with its
        (session, packet id). Raises Refused: as `BrokerPort.publish`; the first `Refused.stored`
        are taken."""
