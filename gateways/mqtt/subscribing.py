"""SUBSCRIBE and UNSUBSCRIBE in steps, a filter at a time: what is granted, and with which code.

A packet that breaks the protocol changes nothing: all its filters are looked at before the first of
them is carried out. A filter that is refused has its own code in the answer, and the others are
carried out [MQTT-3.8.4-6].

Shared subscriptions (`$share/...`, `$queue/...`) get no retained messages (5.0 part 4.8.2), and
cannot be with No Local: the member that published a message is as good as any other
[MQTT-3.8.3-4].
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from polymq.broker.port import (
    SERVER_TOPICS,
    Address,
    Position,
    Refused,
    Session,
    SubscriptionOptions,
    is_shared,
    pattern_of,
)
from polymq.gateways.mqtt.client_events import Subscribed
from polymq.gateways.mqtt.errors import RemoteProtocolError
from polymq.gateways.mqtt.features import Features, NotOffered
from polymq.gateways.mqtt.mapping import (
    SUBSCRIBE_REASONS,
    TopicMapping,
    without_exclusive,
)
from polymq.gateways.mqtt.packets import MQTT_5, Subscribe, Unsubscribe
from polymq.gateways.mqtt.reason_codes import SUBSCRIBE_FAILURE, ReasonCode
from polymq.gateways.mqtt.topic_filters import is_shared_filter
from polymq.net.turns import WAITS

log = logging.getLogger(__name__)

ALL_FEATURES: Final = Features()
ASKED_AHEAD: Final = 64
"""Filters of one packet about which a service is asked together."""
_SHOWN_MAX: Final = 100  # characters of a filter; what is wrong with it has to fit as well


@dataclass(slots=True)
class Outcome:
    """What became of the filters of one packet.

    Attributes:
        position: what the answer waits for.
        codes: a code for each filter, in their order.
        replayed: the subscriptions that get the retained messages, and from when on they get what
            is published. No more than a session may have, whatever is sent.
        of_server: those of the server's topics, and whether they get the values that there are.
        ended: those of the server's topics that ended.
        no_local: one of them is with No Local.
        refused: how many filters were.
        refusal: why the first of them was, in words; empty: none was.
        noted: the first of the filters that were added or removed, `noted_max` at most.
    """

    position: Position
    codes: bytearray = field(default_factory=bytearray)
    replayed: dict[Address, Position] = field(default_factory=dict)
    of_server: dict[Address, tuple[SubscriptionOptions, bool]] = field(default_factory=dict)
    ended: list[Address] = field(default_factory=list)
    no_local: bool = False
    refused: int = 0
    refusal: str = ""
    noted_max: int = 0
    noted: list[Subscribed] = field(default_factory=list)

    @property
    def done_count(self) -> int:
        """How many filters were added or removed."""
        missing = self.codes.count(ReasonCode.NO_SUBSCRIPTION_EXISTED)
        return len(self.codes) - self.refused - missing

    def note(self, filter_: Subscribed) -> None:
        """One more filter was added or removed."""
        if len(self.noted) < self.noted_max:
            self.noted.append(filter_)

    def refuse(self, pattern: str, error: Refused) -> None:
        """One more filter is refused."""
        self.refused += 1
        if not self.refusal:
            shown = pattern if len(pattern) <= _SHOWN_MAX else f"{pattern[:_SHOWN_MAX]}…"
            self.refusal = f"{shown}: {error.text}"


def subscribe(
    packet: Subscribe,
    session: Session,
    mapping: TopicMapping,
    client_id: str,
    features: Features = ALL_FEATURES,
    ask: Callable[[Sequence[str]], bool] | None = None,
    noted_max: int = 0,
) -> Generator[object, None, Outcome]:
    """Add or replace the subscriptions of a packet. Raises RemoteProtocolError.

    Args:
        ask: asks a service about filters, and returns whether that has to be waited for (`WAITS`);
            None: nobody is asked.
    """
    if packet.identifier and not features.subscription_identifiers:
        raise RemoteProtocolError(
            "5.0 part 3.2.2.3.12",
            "a SUBSCRIBE has a Subscription Identifier, and the server has none",
            ReasonCode.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED,
        )
    for asked in packet.filters():  # a packet that breaks the protocol changes nothing
        if asked.no_local and is_shared_filter(asked.pattern):
            raise RemoteProtocolError("MQTT-3.8.3-4", "a shared subscription with No Local")
        if not features.wildcards and packet.level == MQTT_5 and has_wildcard(asked.pattern):
            raise RemoteProtocolError(
                "5.0 part 3.2.2.3.11",
                "a topic filter has a wildcard, which the server does not have",
                ReasonCode.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED,
            )
        yield None
    outcome = Outcome(session.position, noted_max=noted_max)
    ahead = packet.filters()  # of those that are asked about: before they are carried out
    for pattern, qos, no_local, as_published, handling in packet.filters():
        if ask is not None and len(outcome.codes) % ASKED_AHEAD == 0:
            if ask([one.pattern for one in islice(ahead, ASKED_AHEAD)]):
                yield WAITS
        try:
            if not features.wildcards and has_wildcard(pattern):
                raise NotOffered(
                    ReasonCode.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED, "wildcards are not available"
                )
            if not features.shared_subscriptions and is_shared_filter(pattern):
                raise NotOffered(
                    ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED,
                    "shared subscriptions are not available",
                )
            granted = add_subscription(
                outcome,
                session,
                mapping,
                pattern,
                features,
                qos=qos,
                no_local=no_local,
                as_published=as_published,
                handling=handling,
                identifier=packet.identifier,
            )
        except Refused as error:
            if not outcome.refused:  # one line: there may be a million
                log.info("%s: filter %r refused: %s", client_id, pattern, error.text)
            outcome.refuse(pattern, error)
            outcome.codes.append(_code_of(error) if packet.level == MQTT_5 else SUBSCRIBE_FAILURE)
        else:
            outcome.codes.append(granted)
        yield None
    if outcome.refused > 1:
        log.info("%s: %d filters of one SUBSCRIBE refused", client_id, outcome.refused)
    return outcome


def _code_of(error: Refused) -> ReasonCode:
    return error.code if isinstance(error, NotOffered) else SUBSCRIBE_REASONS[error.reason]


def add_subscription(
    outcome: Outcome,
    session: Session,
    mapping: TopicMapping,
    pattern: str,
    features: Features,
    *,
    qos: int,
    no_local: bool,
    as_published: bool,
    handling: int,
    identifier: int = 0,
) -> int:
    """Add or replace one subscription; the outcome has it then. Raises Refused.

    Returns:
        The QoS that is granted.
    """
    address = mapping.address(pattern)
    if is_shared(address) and pattern_of(address)[0] in SERVER_TOPICS:
        raise NotOffered(
            ReasonCode.TOPIC_FILTER_INVALID,
            "topics of $SYS and $CONTROL cannot be shared: subscribe to them without $share and "
            "$queue",
        )
    granted = min(qos, features.qos_max)  # [MQTT-3.2.2-10]
    options = SubscriptionOptions(
        qos=granted,
        no_local=no_local,
        retain_as_published=as_published,
        identifier=identifier,
        exclusive=without_exclusive(pattern)[1],
    )
    # [MQTT-3.3.1-9] to [MQTT-3.3.1-11]
    wanted = handling == 0 or (handling == 1 and not session.is_subscribed(address))
    replay = wanted and features.retain and not is_shared(address)
    since = session.subscribe(address, options, retained=replay)
    outcome.position = max(outcome.position, since)
    outcome.no_local = outcome.no_local or no_local
    outcome.replayed.pop(address, None)
    if address[0] in SERVER_TOPICS:
        outcome.of_server[address] = options, replay
    elif replay:
        outcome.replayed[address] = since
    outcome.note(Subscribed(pattern, options, handling))
    return granted


def has_wildcard(pattern: str) -> bool:
    """Whether a topic filter matches more than one topic name."""
    return "+" in pattern or "#" in pattern


def unsubscribe(
    packet: Unsubscribe,
    session: Session,
    mapping: TopicMapping,
    client_id: str,
    noted_max: int = 0,
) -> Generator[None, None, Outcome]:
    """Remove the subscriptions of a packet. Raises RemoteProtocolError, and BrokerError where the
    log takes nothing: before MQTT 5, UNSUBACK cannot say no."""
    for _ in packet.filters():
        yield
    outcome = Outcome(session.position, noted_max=noted_max)
    for pattern in packet.filters():
        code = ReasonCode.NO_SUBSCRIPTION_EXISTED  # [MQTT-3.10.4-5]
        try:
            address = mapping.address(pattern)
        except Refused as error:  # a filter that nobody can have subscribed to
            log.debug("%s: filter %r: %s", client_id, pattern, error.text)
            outcome.refuse(pattern, error)
        else:
            if session.is_subscribed(address):
                code = ReasonCode.SUCCESS
                outcome.note(Subscribed(pattern))
            outcome.position = max(outcome.position, session.unsubscribe(address))
            if address[0] in SERVER_TOPICS:
                outcome.ended.append(address)
        outcome.codes.append(code)
        yield
    return outcome
