"""What this log has that its new master lacks, and whether somebody may have been promised it.

A broker that comes back as a slave may have records behind the place up to which both logs are the
same. They have to go before it can follow. What nobody was promised may go without a word: records
that waited for a second disk, which never had them. Everything else is an operator's decision.

Rules:

* In doubt a record may have been acknowledged. So it is with all that a slave has on its disk,
  because it told its master so; with messages of topics that are gone or whose settings changed
  behind them; and with what was acknowledged from the page cache.
* Records that nobody waits for are nobody's promise: epochs, snapshots of the state, and acks and
  offsets of consumers, which may come again after any crash.
* It reads the log, and belongs into a worker's thread.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from polymq.broker.durability import IN_SYNC
from polymq.broker.messages.records import TAGS
from polymq.broker.names import encode_name
from polymq.broker.state.journal import OP_TAG, STATE_TOPIC, Op
from polymq.core_log.acknowledged import Acknowledged
from polymq.core_log.record import Record
from polymq.core_log.store import Store

LAZY_OPS: Final = frozenset({"acked", "acks", "committed", "drop", "replayed", "snapshot", "trim"})
"""Changes that gather and are written when it suits: no answer waits for them."""
TOPIC_OPS: Final = frozenset({"topic=", "topic-"})
"""Changes behind which it is not known what messages of the topic waited for before."""
_STATE: Final = STATE_TOPIC.encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """What one log has beyond another.

    Attributes:
        position, end: where it stands.
        messages: how many records there are messages, and `changes`, how many are changes of state.
        promised: how many of both may have been acknowledged.
        promised_from: the position of the first of those; -1 if there is none.
        first_ms, last_ms: when the first and the last message was stored; 0 if there is none.
    """

    position: int
    end: int
    messages: int = 0
    changes: int = 0
    promised: int = 0
    promised_from: int = -1
    first_ms: int = 0
    last_ms: int = 0


def diverged(
    store: Store,
    position: int,
    end: int,
    *,
    acknowledged: Acknowledged,
    disks: Mapping[bytes, int],
) -> Divergence:
    """Look at the log between two positions.

    Args:
        acknowledged: what this broker promised while it led.
        disks: of each topic, by its stored name: how many disks its messages wait for, 0 where it
            has no number of its own.

    Raises:
        CorruptRecord: it cannot be read.
    """
    messages = changes = promised = 0
    first_ms = last_ms = 0
    promised_from = -1
    unpromised: dict[bytes, tuple[int, int]] = {}  # by topic: the first one's place, how many
    for record in store.records(position, end):
        state = record.topic == _STATE
        if state:
            op = _op_of(record)
            if op is None or op["op"] in LAZY_OPS:
                continue
            changes += 1
            waited = acknowledged.disks
            if op["op"] in TOPIC_OPS:
                # What these messages waited for is not known: the topic was another one then.
                first, count = unpromised.pop(encode_name(op["name"]).encode(), (0, 0))
                promised += count
                if count and not 0 <= promised_from < first:
                    promised_from = first
        else:
            messages += 1
            first_ms, last_ms = first_ms or record.store_ms, record.store_ms
            own = disks.get(record.topic, 1)  # 1: the topic is gone
            waited = own or acknowledged.disks
        if record.position < acknowledged.position or waited < IN_SYNC:
            promised += 1
            if promised_from < 0:
                promised_from = record.position
        elif not state:
            first, count = unpromised.get(record.topic, (record.position, 0))
            unpromised[record.topic] = first, count + 1
    return Divergence(
        position=position,
        end=end,
        messages=messages,
        changes=changes,
        promised=promised,
        promised_from=promised_from,
        first_ms=first_ms,
        last_ms=last_ms,
    )


def _op_of(record: Record) -> Op | None:
    """The change of state that a record of the system topic says; None if it is another one."""
    if record.properties.get(TAGS) != OP_TAG:
        return None
    op: Op = json.loads(record.body.decode("utf-8", "surrogatepass"))
    return op
