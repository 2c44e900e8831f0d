"""Publishing to routes that have queues which may refuse a message.

A queue with `x-overflow` = `reject-publish` has a gate, which says how many rows of a batch it
takes. Rows that it does not take are published all the same, without that queue: they are in their
topic and in their other queues. Who published them learns how many there were, from
`Template.overflowed`, and which, from `Template.refused`, and says so in its protocol (AMQP:
basic.nack).

A queue fills up from the front of a batch, so each gate cuts the batch in two, and all gates
together into a few runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from polymq.broker.errors import Refused
from polymq.broker.port.values import Position
from polymq.core_log.kernels.batch import Batch
from polymq.core_log.record import RecordTemplate

if TYPE_CHECKING:
    from polymq.broker.topics.topic import TopicTemplate
    from polymq.broker.topics.topics import Topics


def publish_gated(
    topics: Topics,
    template: TopicTemplate,
    batch: Batch,
    first: int,
    last: int,
    record: RecordTemplate | None,
    born_ms: int | None,
) -> Position:
    """`Topics.publish` for a template whose route has gates. Raises Refused: then runs before the
    one at fault are stored (`Refused.stored`)."""
    cuts = {queue: first + gate.admit(batch, first, last) for queue, gate in template.gates}
    refused = min(cuts.values())
    template.set_refused([(refused, last)] if refused < last else [])
    position = Position(0)
    at = first
    try:
        for end in sorted({*cuts.values(), last}):
            if end == at:
                continue
            full = frozenset(queue for queue, cut in cuts.items() if cut <= at)
            used = topics.without(template, full) if full else template
            position = topics.append(used, batch, at, end, record, born_ms)
            at = end
    except Refused as error:
        error.stored = at - first
        raise
    finally:
        for queue, gate in template.gates:
            if cuts[queue] < at:
                gate.refused(template, batch, cuts[queue], at)
    return position
