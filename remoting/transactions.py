"""Transactions of a producer: a half message, the user's own work, and the decision. Pure.

    sent, decision = driver.run(transactions.send(Message(topic="orders", body=b"...")))

Rules:

* The half message is stored first and seen by nobody. Then the listener does the user's work and
  decides; the decision goes to the broker without waiting for an answer (37), as RocketMQ's
  producers send it.
* A listener that raises has not decided. Neither has one whose decision was lost on its way, nor
  one whose program ended. The broker then asks (39) any producer of the group, and the listener's
  `check` decides; until it does, the broker asks again, and at last gives the message up.
* A half message that is stored less safely than the broker was asked to is rolled back, and the
  work is not done.
* Questions wait in a queue for `keep_checking`, because the way on which they come may not wait.
  Those that find it full are passed over: the broker asks again.
"""

from __future__ import annotations

import enum
import traceback
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Never, Protocol

from polymq.remoting.broker_fields import CheckFields, EndTransactionFields
from polymq.remoting.codes import RequestCode, ResponseCode
from polymq.remoting.compression import Decompressors
from polymq.remoting.errors import BadBody, BadFields, CallFailed, RemoteProtocolError
from polymq.remoting.frames import Command
from polymq.remoting.headers import read_fields, write_fields
from polymq.remoting.link import Reply
from polymq.remoting.messages import Message
from polymq.remoting.producer import Producer, Sent
from polymq.remoting.records import Record, decompressed, iterate_records, message_name
from polymq.remoting.routes import master_of
from polymq.remoting.steps import Address, Call, Invoke, Pause, Signal, Steps

CHECKS_COUNT_MAX: Final = 1_000
"""Questions that wait. RocketMQ's producers keep 2,000."""
_POSITION_DIGITS: Final = 16
"""Of an offset message id: the last ones, which are the place in the log."""
_IDLE_SECONDS: Final = 3600.0


class Decision(enum.IntEnum):
    """What becomes of a half message; the values are those of 37 END_TRANSACTION."""

    UNKNOWN = 0
    """Not yet known: the broker will ask."""
    COMMIT = 8
    ROLLBACK = 12


class Listener(Protocol):
    """What a user of transactions writes. The methods may be coroutine functions, but not for
    `driver_threads`."""

    def execute(self, message: Message, sent: Sent) -> Decision | Awaitable[Decision]:
        """Do the work that belongs to a message, now that its half is stored."""

    def check(self, record: Record) -> Decision | Awaitable[Decision]:
        """Say what became of the work that belongs to a message. The program that did it may have
        been another one."""


@dataclass(slots=True)
class Transactions:
    """The transactions of one producer.

    Args:
        report: gets what went wrong, in words.
        decompressors: for the bodies of messages that brokers ask about.
    """

    producer: Producer
    listener: Listener
    report: Callable[[str], None] = lambda _text: None
    decompressors: Decompressors = field(default_factory=dict)
    _checks: deque[tuple[Address, Command]] = field(default_factory=deque)
    _asked: Signal = field(default_factory=Signal)

    def send(self, message: Message) -> Steps[tuple[Sent, Decision]]:
        """Send a half message, do the work, and tell the broker what was decided.

        Raises as `Producer.send`, before any work is done. What the work raises is told in words,
        and the decision is UNKNOWN.
        """
        sent = yield from self.producer.send_half(message)
        if sent.code == ResponseCode.SUCCESS:
            execute = self.listener.execute
            decision = yield from self._decide(
                execute, (message, sent), f"message {sent.message_id}"
            )
        else:
            decision = Decision.ROLLBACK
        route = yield from self.producer.route(message.topic)
        address = master_of(route, sent.queue.broker_name)
        fields = EndTransactionFields(
            producer_group=self.producer.group,
            tran_state_table_offset=sent.queue_offset,
            commit_log_offset=_position_of(sent.offset_message_id),
            commit_or_rollback=decision,
            msg_id=sent.message_id,
            transaction_id=sent.message_id,
        )
        if address is not None:
            yield from self._end(address, fields)
        return sent, decision

    def asked(self, broker: Address, command: Command) -> Reply | None:
        """A `link.Handler`: what brokers ask of a producer."""
        if command.code != RequestCode.CHECK_TRANSACTION_STATE:
            return None
        if len(self._checks) < CHECKS_COUNT_MAX:
            self._checks.append((broker, command))
            self._asked.give()
        return Reply()

    def keep_checking(self) -> Steps[Never]:
        """Answer the questions of brokers, one after the other."""
        while True:
            seen = self._asked.count
            while self._checks:
                yield from self._check(*self._checks.popleft())
            yield Pause(seconds=_IDLE_SECONDS, signal=self._asked, seen=seen)

    def _check(self, broker: Address, command: Command) -> Steps[None]:
        try:
            question = read_fields(CheckFields, command.fields)
            (raw,) = iterate_records(command.body)
            record = decompressed(raw, self.decompressors)
        except (BadFields, BadBody, RemoteProtocolError, ValueError) as error:
            self.report(f"{broker} asks about a transaction in a way that makes no sense: {error}")
            return
        decision = yield from self._decide(self.listener.check, (record,), message_name(record))
        fields = EndTransactionFields(
            producer_group=self.producer.group,
            tran_state_table_offset=question.tran_state_table_offset,
            commit_log_offset=question.commit_log_offset,
            commit_or_rollback=decision,
            from_transaction_check=True,
            msg_id=question.msg_id,
            transaction_id=question.transaction_id,
        )
        yield from self._end(broker, fields)

    def _decide(
        self, function: Callable[..., object], arguments: tuple[object, ...], message: str
    ) -> Steps[Decision]:
        invoke = Invoke(function, arguments)
        yield invoke
        if invoke.failure is not None:
            trace = "".join(traceback.format_exception(invoke.failure))
            self.report(
                f"the transaction of {message} is not decided: its listener raised\n{trace}"
            )
            return Decision.UNKNOWN
        if not isinstance(invoke.result, Decision):
            self.report(
                f"the transaction of {message} is not decided: {invoke.result!r} is not a Decision"
            )
            return Decision.UNKNOWN
        return invoke.result

    def _end(self, broker: Address, fields: EndTransactionFields) -> Steps[None]:
        try:
            yield Call(
                address=broker,
                code=RequestCode.END_TRANSACTION,
                fields=write_fields(fields),
                seconds=self.producer.settings.send_seconds,
                oneway=True,
            )
        except CallFailed as error:
            self.report(
                f"transaction of message {fields.msg_id}: {error}; the broker will ask again"
            )


def _position_of(offset_message_id: str) -> int:
    """The place in the log that an offset message id ends with. Raises BadFields."""
    try:
        return int(offset_message_id[-_POSITION_DIGITS:], 16)
    except ValueError as error:
        raise BadFields(f"{offset_message_id!r} is not an offset message id") from error
