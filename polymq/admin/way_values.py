"""What the admin API says of a message's way: where it came from, where it is, what happened."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from polymq.admin.operations import Given, Value

LOG_BYTES_DEFAULT: Final = 64 * 1024 * 1024
LOG_BYTES_MAX: Final = 1024 * 1024 * 1024

DestinationKind = Literal[
    "topic", "queue", "subscription", "session", "share", "group", "delayed", "prepared", "unknown"
]
DestinationState = Literal[
    "kept",
    "removed",
    "pending",
    "waiting",
    "left out",
    "unacknowledged",
    "settled",
    "not routed",
    "unknown",
]
What = Literal[
    "delivered",
    "returned",
    "settled",
    "dropped",
    "dead-lettered",
    "redriven",
    "set aside",
    "released",
    "moved",
    "copied",
    "replaced",
    "cleared",
    "removed",
]


class WayQuery(Given):
    """How much of the log is read for what happened.

    Attributes:
        from_position: begin there, with `looked_until` of the answer before; by default behind the
            message.
        log_bytes: read so many bytes of the log, up to 1 GiB. An answer may end earlier.
    """

    from_position: Annotated[int, msgspec.Meta(ge=0)] | None = None
    log_bytes: Annotated[int, msgspec.Meta(ge=0, le=LOG_BYTES_MAX)] = LOG_BYTES_DEFAULT


class Death(Value):
    """Why a queue gave the message up before it came here.

    Attributes:
        queue: the queue.
        reason: `rejected`, `expired`, `maxlen` or `delivery_limit`.
        count: how often.
        time_ms: when, the last time, to the second.
        exchange: where it had been published.
        routing_key: with which key.
    """

    queue: str
    reason: str
    count: int
    time_ms: int
    exchange: str
    routing_key: str


class Origin(Value):
    """The message that this one takes the place of.

    Attributes:
        what: what happened to that message; `moved` if the record does not say more.
        reason: why; empty: that is not known.
        position: of that message in the log; null: that is not known.
        destination: the id of the destination that it left; null: that is not known.
    """

    what: What
    reason: str
    position: int | None
    destination: str | None


class MessageHolder(Value):
    """Who has a message and has not acknowledged it.

    Attributes:
        name: consumer tag of AMQP, client identifier of MQTT.
        connection: the id of its connection; empty: that is not known, or there is none.
        user: who it is; empty for nobody.
    """

    name: str
    connection: str
    user: str


class Destination(Value):
    """A queue or reader that the message went to, and how it is there now.

    Attributes:
        id: its kind, a colon and its name; of a session, with the topic filter behind it. Events
            name destinations by it.
        kind: `topic`, where it was published; a reader of the kinds of `/consumers`; `delayed` or
            `prepared` for messages that are published later; `unknown`: a queue that is gone.
        name: of the topic, queue, subscription, client, filter or group; the number of a queue that
            is gone.
        filter: the topic filter of a subscription of a session; null: it has none.
        offset: of the message in the queue of this destination.
        state: `kept`: readers by offset find it. `removed`: retention took it. `pending`: it waits
            for the disk or for replicas. `waiting`. `left out`: the session was full.
            `unacknowledged`: it was delivered, and its consumer has not settled it. `settled`:
            the destination is done with it; the events say how, as far as the log does. `not
            routed`: the reader began after the message. `unknown`.
        redelivered: whether a consumer has had it and gave it back; null: that is not known.
        returned: how often it was given back; null: this destination does not count that.
        expires_ms: when it expires, if it has come to the head of its queue then; null: never.
        holder: who has it; null: nobody, or that is not known.
    """

    id: str
    kind: DestinationKind
    name: str
    offset: int
    state: DestinationState
    filter: str | None = None
    redelivered: bool | None = None
    returned: int | None = None
    expires_ms: int | None = None
    holder: MessageHolder | None = None


class Event(Value):
    """Something that happened to the message, as a record of the log says it.

    Attributes:
        position: of that record.
        time_ms: when it was stored: at most 0.3 seconds after what it says of deliveries and
            acknowledgements.
        what: `delivered`: it was delivered for the first time, or had been before. `returned`: a
            consumer gave it back. `settled`: acknowledged, unless there is a reason. `dropped`: by
            a limit. `dead-lettered`, `redriven`, `set aside`, `released` (it was delayed, or
            prepared), `moved`, `copied`: a new record took its place. `replaced`, `cleared`: it is
            not the retained message of its topic any more. `removed`: retention took it, or the
            topic was deleted.
        reason: why; empty: the record does not say.
        destination: the id of the destination; null: it concerns the message as a whole.
        times: how often it had been given back by then; null: that does not apply.
        to_position: of the record that took its place, whose way can be asked for; null: none.
        to_topic: the topic of that record, as clients write it; null: none.
    """

    position: int
    time_ms: int
    what: What
    reason: str = ""
    destination: str | None = None
    times: int | None = None
    to_position: int | None = None
    to_topic: str | None = None


class Way(Value):
    """The way of a message. What the log does not have is not here: messages of QoS 0, live
    subscribers without a persistent session, and each single attempt of a delivery.

    Attributes:
        position: of the message.
        size: bytes of its record.
        topic: where it was published, as clients write it.
        tag: null: it has none.
        exchange: the exchange of AMQP that it was published to; the topic, for other protocols.
        routing_key: with which key.
        key: by which it can be found; null: it has none, or it is in AMQP's properties.
        protocol: by which it came; empty: that is not known.
        sender: address and port of its sender; empty: that is not known.
        user: who published it; null: the record does not say.
        born_ms: when its sender made it, in milliseconds since the epoch.
        store_ms: when it was stored.
        body_bytes: the size of its body.
        due_ms: when it is delivered, of a message that comes later; null: it is none.
        retained: whether it is the retained message of its topic; null: it was not published as
            one.
        origin: the message that this one takes the place of; null: none.
        deaths: why queues gave it up before, the latest first.
        destinations: where it went, at most 1,000.
        destinations_total: how many destinations there are.
        events: what happened, in the order of the log.
        looked_from: where the search in the log began.
        looked_until: where it ended: `from_position` of the next request.
        complete: the search has come to the end of the log.
    """

    position: int
    size: int
    topic: str
    tag: str | None
    exchange: str
    routing_key: str
    key: str | None
    protocol: str
    sender: str
    user: str | None
    born_ms: int
    store_ms: int
    body_bytes: int
    due_ms: int | None
    retained: bool | None
    origin: Origin | None
    deaths: list[Death]
    destinations: list[Destination]
    destinations_total: int
    events: list[Event]
    looked_from: int
    looked_until: int
    complete: bool
