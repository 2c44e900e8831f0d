"""Transactions: tx.select, tx.commit, tx.rollback (AMQP 1.9), and what a channel holds for them.

On a transactional channel publishes and acknowledgements take effect at the commit, which makes
them one atomic batch of the log (`TransactionPort.commit`): after a crash all of them count or
none. RabbitMQ promises that for one queue only; here it holds for all that a commit names.

Rules:

* commit-ok leaves when the batch is flushed. The returns of mandatory messages without a route
  leave before it. Routes are looked up at the commit; an exchange that is missing when a message is
  published is an error at once.
* A held acknowledgement gives no credit before the commit. A rollback drops the publishes and makes
  the deliveries unacknowledged again, under the same tags: they are not delivered again.
* Acks are part of the batch. Negative acknowledgements are carried out after it: a requeue has no
  place in the log, and a dead letter is a record of its own.
* A commit that is refused closes the channel, which rolls back. So does whatever else closes it.
* Confirms and transactions exclude each other on a channel (RabbitMQ's rule).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from polymq.broker.port import Publishing, Reason, Refused, Settlement, Template
from polymq.core_log.kernels.batch import BODY_SIZE, COLUMNS, EXTRA_SIZE
from polymq.gateways.amqp import delays, reply_names, spec
from polymq.gateways.amqp.kernels import codes
from polymq.gateways.amqp.long_properties import as_stored
from polymq.gateways.amqp.rows import Rows

if TYPE_CHECKING:
    from polymq.gateways.amqp.channel import Channel
    from polymq.gateways.amqp.consumer import Holder
    from polymq.gateways.amqp.limits import Limits

HELD_OVERHEAD_BYTES: Final = 512
"""What a held run costs beyond its bytes, roughly: the batch with its rows."""


@dataclass(slots=True)
class HeldSettlement:
    """Acknowledgements of consecutive tags and offsets, in one manner (`bits`, see
    `kernels.codes`)."""

    bits: int
    first_tag: int
    holder: Holder
    first_offset: int
    count: int


class Transaction:
    """What one transactional channel holds since its last commit or rollback."""

    __slots__ = ("_count", "_limits", "bytes", "runs", "settlements")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._count = 0
        self.bytes = 0
        """Memory that the publishes take, roughly."""
        self.runs: list[Rows] = []
        self.settlements: list[HeldSettlement] = []

    @property
    def count(self) -> int:
        """Publishes that are held."""
        return self._count

    def defer(self, rows: Rows, *, room: int) -> None:
        """Keep rows of a read, which go to one address.

        Args:
            room: bytes that the channels of the connection may still hold.

        Raises:
            Refused: LIMIT; nothing of it is held.
        """
        limits = self._limits
        if self._count + rows.count > limits.transaction_count_max:
            raise Refused(
                Reason.LIMIT,
                f"a transaction has at most {limits.transaction_count_max} messages: "
                "commit more often",
            )
        table = rows.batch.rows
        size = HELD_OVERHEAD_BYTES + sum(
            table[row * COLUMNS + BODY_SIZE] + table[row * COLUMNS + EXTRA_SIZE]
            for row in range(rows.first, rows.last)
        )
        if size > room:
            raise Refused(
                Reason.LIMIT,
                f"the transactions of a connection hold at most {limits.transaction_bytes_max} "
                "bytes: commit more often",
            )
        self._count += rows.count
        self.bytes += size
        self.runs.append(rows.copied())

    def defer_settlement(
        self, bits: int, first_tag: int, holder: Holder, first_offset: int, count: int
    ) -> None:
        """Keep acknowledgements of consecutive tags and offsets; in order they become one."""
        if self.settlements:
            last = self.settlements[-1]
            if (last.bits, last.holder) == (bits, holder) and (
                (last.first_tag + last.count, last.first_offset + last.count)
                == (first_tag, first_offset)
            ):
                last.count += count
                return
        self.settlements.append(HeldSettlement(bits, first_tag, holder, first_offset, count))

    def clear(self) -> None:
        """Forget everything."""
        self._count = 0
        self.bytes = 0
        self.runs = []
        self.settlements = []


# --- the methods -----------------------------------------------------------------------------


def select(channel: Channel, method: spec.TxSelect) -> None:
    """tx.select. Twice is once."""
    if channel.confirming:
        raise Refused(Reason.BAD_ARGUMENT, "cannot switch from confirm to tx mode")
    if channel.transaction is None:
        channel.transaction = Transaction(channel.link.limits)
    channel.link.reply(channel.number, spec.TxSelectOk())


def commit(channel: Channel, method: spec.TxCommit) -> None:
    """tx.commit: everything that is held takes effect, or the channel closes."""
    transaction = _transaction(channel)
    link = channel.link
    publishes: list[Publishing] = []
    returned: list[Rows] = []
    answers: list[Rows] = []
    for rows in transaction.runs:
        template = link.publisher.template(rows)
        if template is not None and link.publisher.delays(template):
            parts = delays.split(rows)
            publishes += [_publishing(template, part, delay_ms) for part, delay_ms in parts]
        elif template is not None and rows.mandatory and template.route.by_headers:
            for part, routed in link.publisher.by_routed(rows, template):
                if routed:
                    publishes.append(_publishing(template, part))
                else:
                    returned.append(part)
        elif template is not None and (template.route.routed or not rows.mandatory):
            publishes.append(_publishing(template, rows))
        elif template is None and reply_names.is_answer(rows.address):
            answers.append(rows)
        elif rows.mandatory:
            returned.append(rows)
    acks = [held for held in transaction.settlements if not held.bits & codes.NEGATIVE]
    others = [held for held in transaction.settlements if held.bits & codes.NEGATIVE]
    position = link.port.transactions.commit(publishes, _settlements(acks))
    channel.forget_transaction()
    for rows in returned:
        link.publisher.give_back(channel, rows)
    for rows in answers:
        link.publisher.give_answers(channel, rows)
    for held in acks:
        held.holder.returned(held.count)
    for held in others:
        channel.give_back([(held.holder, held.first_offset, held.count)], held.bits)
    durability = link.port.state_durability
    for publishing in publishes:
        durability = max(durability, publishing.template.durability)
    link.publisher.committed(
        sum(part.last - part.first for part in publishes), position, durability
    )
    link.reply(channel.number, spec.TxCommitOk(), position, durability=durability)
    channel.credit_grew()


def _publishing(template: Template, rows: Rows, delay_ms: int = 0) -> Publishing:
    batch, first, last = as_stored(rows.batch, rows.first, rows.last)
    return Publishing(template=template, batch=batch, first=first, last=last, delay_ms=delay_ms)


def _settlements(acks: Sequence[HeldSettlement]) -> list[Settlement]:
    settlements: list[Settlement] = []
    for held in acks:
        handle = held.holder.handle
        assert handle is not None  # it has delivered
        settlements.append((handle, held.first_offset, held.count))
    return settlements


def rollback(channel: Channel, method: spec.TxRollback) -> None:
    """tx.rollback: the publishes are dropped, the deliveries are unacknowledged again."""
    _transaction(channel)
    channel.roll_back()
    channel.link.reply(channel.number, spec.TxRollbackOk())


def _transaction(channel: Channel) -> Transaction:
    if channel.transaction is None:
        raise Refused(Reason.BAD_ARGUMENT, "channel is not transactional")
    return channel.transaction


HANDLERS: Final[Mapping[type[spec.Method], Any]] = {
    spec.TxSelect: select,
    spec.TxCommit: commit,
    spec.TxRollback: rollback,
}
