"""Subscriptions that a server gives to every client that connects, as if the client had asked for
them: subject to its rights, and to be replaced and removed by the client like any other."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from polymq.broker.port import Refused, Session
from polymq.gateways.mqtt.features import Features
from polymq.gateways.mqtt.mapping import TopicMapping
from polymq.gateways.mqtt.rewriting import fill_in
from polymq.gateways.mqtt.subscribing import Outcome, add_subscription

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoSubscription:
    """One of them. The options are those of SUBSCRIBE (5.0 part 3.8.3.1).

    Attributes:
        filter: with `%c` for the client id, and `%u` for the user. A client whose id or user is
            empty, has a wildcard or more than one level does not get the subscription.
    """

    filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


def subscribe_client(
    subscriptions: Sequence[AutoSubscription],
    session: Session,
    mapping: TopicMapping,
    features: Features,
    client_id: str,
    user: str,
    noted_max: int = 0,
) -> Outcome | None:
    """Give a client that has connected its subscriptions; None if there are none."""
    outcome = Outcome(session.position, noted_max=noted_max)
    found = False
    for asked, name in filters_of(subscriptions, client_id, user):
        try:
            add_subscription(
                outcome,
                session,
                mapping,
                name,
                features,
                qos=asked.qos,
                no_local=asked.no_local,
                as_published=asked.retain_as_published,
                handling=asked.retain_handling,
            )
            found = True
        except Refused as error:
            log.info("%s: automatic subscription to %r refused: %s", client_id, name, error.text)
    return outcome if found else None


def filters_of(
    subscriptions: Sequence[AutoSubscription], client_id: str, user: str
) -> Iterator[tuple[AutoSubscription, str]]:
    """Those that a client gets, with their filters."""
    for asked in subscriptions:
        name = fill_in(asked.filter, (), client_id, user)
        if name is not None:
            yield asked, name
