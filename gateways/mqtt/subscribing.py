"""SUBSCRIBE and UNSUBSCRIBE in steps, a filter at a time: what is granted, and with which code.

A packet that breaks the protocol changes nothing: all its filters are looked at before the first of
them is carried out. A filter that is refused has its own code in the answer, and the others are
carried out [MQTT-3.8.4-6].

Shared subscriptions (`$share/...`) get no retained messages (5.0 part 4.8.2), and cannot be with No
Local: the member that published a message is as good as any other [MQTT-3.8.3-4].
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from dataclasses import dataclass, field

from polymq.broker.port import (
    Address,
    Position,
    Refused,
    Session,
    SubscriptionOptions,
    is_shared,
)
from polymq.gateways.mqtt.errors import RemoteProtocolError
from polymq.gateways.mqtt.mapping import (
    SUBSCRIBE_REASONS,
    TopicMapping,
    is_shared_filter,
    without_exclusive,
)
from polymq.gateways.mqtt.packets import MQTT_5, Subscribe, Unsubscribe
from polymq.gateways.mqtt.reason_codes import SUBSCRIBE_FAILURE, ReasonCode
from polymq.gateways.mqtt.sys_topics import SYS_TOPIC

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Outcome:
    """What became of the filters of one packet.

    Attributes:
        position: what the answer waits for.
        codes: a code for each filter, in their order.
        replayed: the subscriptions that get the retained messages, and from when on they get what
            is published. No more than a session may have, whatever is sent.
        of_server: those of `$SYS` topics, and whether they get the values that there are.
        ended: those of `$SYS` topics that ended.
        no_local: one of them is with No Local.
        refused: how many filters were.
    """

    position: Position
    codes: bytearray = field(default_factory=bytearray)
    replayed: dict[Address, Position] = field(default_factory=dict)
    of_server: dict[Address, tuple[SubscriptionOptions, bool]] = field(default_factory=dict)
    ended: list[Address] = field(default_factory=list)
    no_local: bool = False
    refused: int = 0


def subscribe(
    packet: Subscribe,
    session: Session,
    mapping: TopicMapping,
    client_id: str,
    *,
    shares: bool = True,
) -> Generator[None, None, Outcome]:
    """Add or replace the subscriptions of a packet. Raises RemoteProtocolError.

    Args:
        shares: whether subscriptions may be shared.
    """
    for asked in packet.filters():  # a packet that breaks the protocol changes nothing
        if asked.no_local and is_shared_filter(asked.pattern):
            raise RemoteProtocolError("MQTT-3.8.3-4", "a shared subscription with No Local")
        yield
    outcome = Outcome(session.position)
    refused = 0
    for pattern, qos, no_local, as_published, handling in packet.filters():
        if not shares and is_shared_filter(pattern):
            five = packet.level == MQTT_5
            not_shared = ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
            outcome.codes.append(not_shared if five else SUBSCRIBE_FAILURE)
            yield
            continue
        try:
            add_subscription(
                outcome,
                session,
                mapping,
                pattern,
                qos=qos,
                no_local=no_local,
                as_published=as_published,
                handling=handling,
                identifier=packet.identifier,
            )
        except Refused as error:
            refused += 1
            if refused == 1:  # one line: there may be a million
                log.info("%s: filter %r refused: %s", client_id, pattern, error.text)
            five = packet.level == MQTT_5
            code = SUBSCRIBE_REASONS[error.reason] if five else SUBSCRIBE_FAILURE
            outcome.codes.append(code)
        else:
            outcome.codes.append(qos)
        yield
    outcome.refused = refused
    if refused > 1:
        log.info("%s: %d filters of one SUBSCRIBE refused", client_id, refused)
    return outcome


def add_subscription(
    outcome: Outcome,
    session: Session,
    mapping: TopicMapping,
    pattern: str,
    *,
    qos: int,
    no_local: bool,
    as_published: bool,
    handling: int,
    identifier: int = 0,
) -> None:
    """Add or replace one subscription; the outcome has it then. Raises Refused."""
    address = mapping.address(pattern)
    options = SubscriptionOptions(
        qos=qos,
        no_local=no_local,
        retain_as_published=as_published,
        identifier=identifier,
        exclusive=without_exclusive(pattern)[1],
    )
    since, is_new = session.subscribe(address, options)
    outcome.position = max(outcome.position, since)
    outcome.no_local = outcome.no_local or no_local
    outcome.replayed.pop(address, None)
    # [MQTT-3.3.1-9] to [MQTT-3.3.1-11]
    replay = (handling == 0 or (handling == 1 and is_new)) and not is_shared(address)
    if address[0] == SYS_TOPIC:
        outcome.of_server[address] = options, replay
    elif replay:
        outcome.replayed[address] = since


def unsubscribe(
    packet: Unsubscribe, session: Session, mapping: TopicMapping, client_id: str
) -> Generator[None, None, Outcome]:
    """Remove the subscriptions of a packet. Raises RemoteProtocolError, and BrokerError where the
    log takes nothing: before MQTT 5, UNSUBACK cannot say no."""
    for _ in packet.filters():
        yield
    outcome = Outcome(session.position)
    for pattern in packet.filters():
        code = ReasonCode.NO_SUBSCRIPTION_EXISTED  # [MQTT-3.10.4-5]
        try:
            address = mapping.address(pattern)
        except Refused as error:  # a filter that nobody can have subscribed to
            log.debug("%s: filter %r: %s", client_id, pattern, error.text)
        else:
            if session.is_subscribed(address):
                code = ReasonCode.SUCCESS
            outcome.position = max(outcome.position, session.unsubscribe(address))
            if address[0] == SYS_TOPIC:
                outcome.ended.append(address)
        outcome.codes.append(code)
        yield
    return outcome
