"""How many publishes of QoS 1 and 2 a client of MQTT 5 may leave open: the server's Receive Maximum
(5.0 part 4.9).

A publish is open from when it is read until it is answered for the last time: PUBACK, PUBCOMP, or a
PUBREC that refuses it. Each connection begins with none, whatever its session had before
[MQTT-4.9.0-1]. PUBREL closes a publish of QoS 2 here, though its PUBCOMP leaves later: a client is
closed for one too many, never for one too few.

Connections whose server sets no limit have no quota, and count nothing.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from polymq.core_log.kernels.batch import COLUMNS, FLAGS, IDENTIFIER
from polymq.gateways.mqtt.errors import RemoteProtocolError
from polymq.gateways.mqtt.kernels import codes
from polymq.gateways.mqtt.reason_codes import ReasonCode

if TYPE_CHECKING:
    from array import array

    from polymq.core_log.kernels.batch import Batch


class ReceiveQuota:
    """Of one connection.

    Args:
        maximum: publishes that may be open at a time.
    """

    __slots__ = ("_answers", "_maximum", "_once", "_open", "_since")

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._open = 0  # of QoS 1
        self._since = 0  # those of them that no answer holds yet
        self._answers: deque[int] = deque()  # how many each answer closes, in their order
        self._once: set[int] = set()  # packet ids of QoS 2

    def read(self, batch: Batch, first: int, last: int) -> None:
        """A client sent publishes [first, last), a run.

        Raises:
            RemoteProtocolError: they are too many (5.0 part 3.3.4).
        """
        rows = batch.rows
        qos = rows[first * COLUMNS + FLAGS] & codes.FLAG_QOS
        if qos == codes.EXACTLY_ONCE:
            self._once.update(rows[first * COLUMNS + IDENTIFIER : last * COLUMNS : COLUMNS])
        elif qos:
            self._open += last - first
            self._since += last - first
        if self._open + len(self._once) > self._maximum:
            raise RemoteProtocolError(
                "5.0 part 3.3.4",
                f"more than {self._maximum} publishes are not acknowledged yet",
                ReasonCode.RECEIVE_MAXIMUM_EXCEEDED,
            )

    def not_taken(self, batch: Batch, first: int, last: int) -> None:
        """Publishes [first, last) will be read again."""
        rows = batch.rows
        qos = rows[first * COLUMNS + FLAGS] & codes.FLAG_QOS
        if qos == codes.EXACTLY_ONCE:
            self.closed(batch, first, last)
        elif qos:
            self._open -= last - first
            self._since -= last - first

    def closed(self, batch: Batch, first: int, last: int) -> None:
        """Publishes [first, last) of QoS 2 are refused: their PUBREC is the last answer."""
        rows = batch.rows
        self._once.difference_update(rows[first * COLUMNS + IDENTIFIER : last * COLUMNS : COLUMNS])

    def released(self, acks: array[int], ack_count: int) -> None:
        """A client sent these acknowledgements, PUBREL among them (`kernels.parse`)."""
        for at in range(0, codes.ACK_COLUMNS * ack_count, codes.ACK_COLUMNS):
            if acks[at] & codes.ACK_TYPE == codes.TYPE_PUBREL:
                first, count = acks[at + 1], acks[at + 2]
                self._once.difference_update(
                    (first - 1 + index) % codes.IDENTIFIER_MAX + 1 for index in range(count)
                )

    def will_answer(self) -> None:
        """An answer to what was read since the last one waits for its commit."""
        self._answers.append(self._since)
        self._since = 0

    def answered(self) -> None:
        """The first answer that waits leaves."""
        self._open -= self._answers.popleft()
