"""What pull subscriptions and webhooks share: messages taken from a queue, and dead letters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from polymq.broker.port import BrokerPort, Delivery, Message, Position, QueueConsumer, RunMeta
from polymq.core_log.kernels.batch import EXTRA_VERBATIM
from polymq.gateways.http_cloudevents.codec import Event
from polymq.gateways.http_cloudevents.filters import Predicate
from polymq.gateways.http_cloudevents.mapping import (
    DeadLetter,
    dead_letter_constant,
    dead_letter_extra,
    event_of,
    row_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A message that was delivered to us and is not settled.

    Attributes:
        message: as stored.
        constant: which of its properties were constant in its template.
        event: the CloudEvent that it is, or is wrapped in.
    """

    message: Message
    constant: Mapping[str, str]
    event: Event

    @property
    def offset(self) -> int:
        """In the subscription's queue."""
        return self.message.consumer_offset

    @property
    def size(self) -> int:
        """Bytes of its data."""
        return len(self.message.body)


def every_kind(_meta: RunMeta) -> bool:
    """See `broker.port.TakesApart`: an event is made of each message."""
    return True


def take(
    delivery: Delivery, predicate: Predicate, *, broker_name: str
) -> tuple[list[Held], list[int]]:
    """The messages of a delivery that pass the filters, and the offsets of the others."""
    held: list[Held] = []
    skipped: list[int] = []
    messages = iter(delivery.messages())
    for run in delivery.runs:
        for _ in range(run.count):
            message = next(messages)
            event = event_of(message, broker_name=broker_name)
            if predicate(event.attributes):
                held.append(Held(message=message, constant=run.meta.properties, event=event))
            else:
                skipped.append(message.consumer_offset)
    return held, skipped


class DeadLetters:
    """Moves messages that are given up."""

    def __init__(self, port: BrokerPort, *, broker_name: str) -> None:
        self._port = port
        self._broker_name = broker_name
        self.count = 0
        """Moved since the start."""

    def move(self, held: Held, topic: str, letter: DeadLetter, consumer: QueueConsumer) -> Position:
        """Store the message in the dead-letter topic, and settle it, in one record.

        The message keeps its tag, its properties and its data; why it was given up is added.
        Raises Refused, then it is still held.
        """
        constant = dead_letter_constant(held.constant)
        template = self._port.topics.template(
            self._port.topics.route(topic, held.message.tag),
            properties=constant,
            extra_kind=EXTRA_VERBATIM,
        )
        extra = dead_letter_extra(held.message, constant, letter, broker_name=self._broker_name)
        batch = row_of(extra, held.message.body)
        position = self._port.transactions.publish_settling(
            template, batch, 0, consumer, held.offset, position=held.message.position
        )
        self.count += 1
        return position
