"""What a service has to be asked before a client may do what it wants (`PrincipalPort.ask`): about
filters, publishes and wills, in MQTT's words.

What the client may not do whatever the service says is not asked about; it is refused in its turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

from polymq.broker.port import Refused, pattern_of
from polymq.broker.port.principals import PrincipalPort
from polymq.core_log.kernels.batch import COLUMNS, FLAGS
from polymq.gateways.mqtt.errors import RemoteProtocolError
from polymq.gateways.mqtt.kernels.codes import ALIAS_SHIFT, FLAGS_PLAIN
from polymq.gateways.mqtt.mapping import TopicMapping, is_ignored
from polymq.gateways.mqtt.packets import Will
from polymq.gateways.mqtt.protocol import Inbox

RUNS_AHEAD: Final = 64
"""Runs of publishes behind one that waits, whose topics are asked about with it."""


def about_filters(
    patterns: Iterable[str], mapping: TopicMapping, principal: PrincipalPort
) -> Iterator[object]:
    """Before a client subscribes to these filters."""
    for pattern in patterns:
        with suppress(Refused):
            wanted = principal.wanted_read(pattern_of(mapping.address(pattern)))
            if wanted is not None:
                yield wanted


def about_will(
    will: Will | None, mapping: TopicMapping, principal: PrincipalPort
) -> Iterator[object]:
    """Before a client may leave its will."""
    if will is not None and not is_ignored(will.topic.encode()):
        with suppress(Refused):
            topic = mapping.topic_and_tag(mapping.publishable(will.topic))
            wanted = principal.wanted_publish(*topic)
            if wanted is not None:
                yield wanted


def about_runs(
    inbox: Inbox,
    first_run: int,
    run_count: int,
    aliases: dict[int, bytes],
    mapping: TopicMapping,
    principal: PrincipalPort,
) -> Iterator[object]:
    """Before runs of publishes are stored, from this one on: some of them."""
    batch = inbox.batch
    for index in range(first_run, min(run_count, first_run + RUNS_AHEAD)):
        row = inbox.runs[index]
        topic = batch.topic(row)
        flags = batch.rows[row * COLUMNS + FLAGS]
        if flags > FLAGS_PLAIN:
            topic = topic or aliases.get(flags >> ALIAS_SHIFT & 0xFFFF, b"")
        if topic:
            with suppress(Refused, RemoteProtocolError):
                wanted = principal.wanted_publish(*mapping.published_to(topic))
                if wanted is not None:
                    yield wanted
