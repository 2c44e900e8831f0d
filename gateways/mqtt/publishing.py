"""One client's publishes that are not simply stored as a run: QoS 2, delays, and those that are
refused; and how these are answered.

Rules:

* A publish that the engine refuses is answered with the reason in MQTT 5. The older versions have
  no such answer, and an ack means that the message is stored: the connection is closed
  [MQTT-3.3.5-2]. At QoS 0 there is no ack that could lie, so the message is dropped and counted,
  unless it is too large. What is published to `$SYS/...` is dropped: MQTT 5 says that it is not
  authorized, and before that it is acknowledged, because bridges publish there.
* A request to administrate the server (`control.py`) is not stored either. It is acknowledged when
  it was taken, and refused like any publish.
* Messages of QoS 2 carry their packet ids into the log. Where one of a run was taken before, or one
  is refused, the run goes message by message.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from polymq.broker.port import Position, Reason, Refused, Template
from polymq.core_log.kernels.batch import (
    BODY_SIZE,
    BODY_START,
    COLUMNS,
    FLAGS,
    IDENTIFIER,
    Batch,
)
from polymq.gateways.mqtt.control import REQUESTS, ControlTopics
from polymq.gateways.mqtt.delays import delay_ms
from polymq.gateways.mqtt.explaining import REFUSALS_EXPLAINED, TEXTS, Explainer
from polymq.gateways.mqtt.kernels import codes
from polymq.gateways.mqtt.kernels.frames import encode_acks, refuse_payloads
from polymq.gateways.mqtt.loops import mark_looped, unmark_looped
from polymq.gateways.mqtt.mapping import PUBLISH_REASONS, is_ignored
from polymq.gateways.mqtt.packets import PacketType, encode_acknowledgement
from polymq.gateways.mqtt.reason_codes import ReasonCode

if TYPE_CHECKING:
    from polymq.gateways.mqtt.kernels.fast_path import FastPath
    from polymq.gateways.mqtt.shared import Shared

log = logging.getLogger(__name__)

FLAG_QOS: Final = codes.FLAG_QOS
ACKNOWLEDGEMENT_BYTES: Final = 5
"""Of a PUBACK or PUBREC with a reason code and no properties."""


class Publishing:
    """The part of a connection that stores these.

    Args:
        path: the connection's, which lets go of the connection when that ends.
        explainer: what the client may be told in words.
    """

    __slots__ = ("_checks_payloads", "_explainer", "_path", "_shared")

    def __init__(self, path: FastPath, shared: Shared, explainer: Explainer) -> None:
        self._path = path
        self._shared = shared
        self._explainer = explainer
        self._checks_payloads = shared.limits.features.payload_format_checked

    # --- storing ----------------------------------------------------------------------------

    def publish_special(
        self, template: Template, batch: Batch, first: int, last: int, topic: bytes
    ) -> Position:
        """Store a run that is published with QoS 2, or to a topic name that asks for a delay."""
        port = self._path.port
        delay = delay_ms(topic) if topic[0] == codes.DOLLAR else 0
        if batch.rows[first * COLUMNS + FLAGS] & FLAG_QOS == codes.EXACTLY_ONCE:
            return self._publish_once(template, batch, first, last, delay)
        if delay:
            return port.delays.publish_later(template, batch, first, last, delay_ms=delay)
        return port.publish(template, batch, first, last)

    def publish_singly(
        self, template: Template, batch: Batch, first: int, last: int, topic: bytes
    ) -> Position:
        """Store each message of a run by itself: of a run as a whole, one was too large. (MQTT 5,
        where messages of a run have properties of their own.)"""
        publish = self._path.publish
        stored = Position(0)
        for row in range(first, last):
            try:
                stored = publish(template, batch, row, row + 1)
            except Refused as error:
                self.refused(error, topic, batch, row, row + 1)
        return stored

    def publish_sound(
        self, template: Template, batch: Batch, first: int, last: int, topic: bytes
    ) -> Position:
        """Store those of a run whose payload is what it is said to be. (The kernel has marked the
        others.)"""
        stored = Position(0)
        for start, end, is_refused in _stretches(batch, first, last):
            if is_refused:
                self._marked(batch, start, end)
                continue
            try:
                stored = self.publish_special(template, batch, start, end, topic)
            except Refused as error:
                if error.reason is Reason.TOO_LARGE and end - start > 1:
                    stored = self.publish_singly(template, batch, start, end, topic)
                else:
                    self.refused(error, topic, batch, start, end)
        return stored

    def _publish_once(
        self, template: Template, batch: Batch, first: int, last: int, delay: int
    ) -> Position:
        """QoS 2: stored unless its packet id was taken and not yet released [MQTT-4.3.3-2]."""
        connection, shared = self._path.connection, self._shared
        session = None if connection is None else connection.session
        assert session is not None
        port = self._path.port
        publish = port.sessions.publish_once
        ids = batch.rows[first * COLUMNS + IDENTIFIER : last * COLUMNS : COLUMNS]
        if last - first > 1 and session.are_new(ids):
            try:
                shared.once_position = publish(
                    template, batch, first, last, session, ids, delay_ms=delay
                )
                return shared.once_position
            except Refused as error:  # of which message, is found out below
                if error.stored:
                    shared.once_position = port.storage.log_end()
        for row, packet_id in enumerate(ids, first):
            if session.is_duplicate(packet_id):
                continue
            try:
                shared.once_position = publish(
                    template, batch, row, row + 1, session, (packet_id,), delay_ms=delay
                )
            except Refused as error:
                self.refused(error, template.route.topic.encode(), batch, row, row + 1)
        # A duplicate is answered when its original is committed: it came at this server before,
        # maybe on another connection, so no later than the last of all.
        return shared.once_position

    # --- refusing ---------------------------------------------------------------------------

    def refuses(self, batch: Batch, first: int, last: int) -> bool:
        """Mark those of a run that are not to be stored: for their payload, or because they have
        been here before. Returns whether there are any. It is asked about runs with properties,
        where one of the two is looked at (`SharedPaths.checks_payloads`)."""
        shared, found = self._shared, 0
        if self._checks_payloads:
            found += refuse_payloads(batch, first, last)
        if shared.marker:
            found += mark_looped(batch, first, last, shared.marker)
        return found > 0

    def refused(self, error: Refused, topic: bytes, batch: Batch, first: int, last: int) -> bool:
        """Publishes [first, last) of the batch, a run, were not stored. Raises the error again
        where the connection has to be closed for it.

        Returns:
            Whether they are acknowledged nevertheless; in MQTT 5 with the reason.
        """
        control = self._shared.control
        if control is not None and topic == REQUESTS:
            return self._requested(control, batch, first, last)
        return self._refused(error, topic, batch, first, last)

    def _requested(self, control: ControlTopics, batch: Batch, first: int, last: int) -> bool:
        """Publishes [first, last) are requests to administrate the server. Returns and raises as
        `refused`."""
        path, rows = self._path, batch.rows
        assert path.connection is not None
        user, qos = path.connection.user, rows[first * COLUMNS + FLAGS] & FLAG_QOS
        for row in range(first, last):
            start = rows[row * COLUMNS + BODY_START]
            request = bytes(batch.buffer[start : start + rows[row * COLUMNS + BODY_SIZE]])
            try:
                control.take(
                    path, request, qos=qos >> codes.FLAG_QOS_SHIFT, user=user, port=path.port
                )
            except Refused as error:
                self._refused(error, REQUESTS, batch, row, row + 1)
        return qos > 0

    def _refused(self, error: Refused, topic: bytes, batch: Batch, first: int, last: int) -> bool:
        counters = self._shared.counted
        path = self._path
        qos = batch.rows[first * COLUMNS + FLAGS] & FLAG_QOS
        if is_ignored(topic) and not path.five:
            counters.publishes_ignored += last - first
            return qos > 0
        counters.publishes_refused += last - first
        if not path.five and (qos or error.reason is Reason.TOO_LARGE):
            raise error
        log.debug("QoS %d to %r refused: %s", qos >> 1, topic, error.text)
        if qos:
            self._close_once(batch, first, last, qos)
            code = PUBLISH_REASONS[error.reason]
            bits = code - codes.REFUSED_BASE << codes.REFUSED_SHIFT
            for at in range(first * COLUMNS + FLAGS, last * COLUMNS, COLUMNS):
                batch.rows[at] |= bits
            path.shared.refusals.append((first, last, code, error.text))
        return qos > 0

    def _marked(self, batch: Batch, first: int, last: int) -> None:
        """Publishes [first, last) are marked by `refuses`."""
        self._shared.counted.publishes_looped += unmark_looped(batch, first, last)
        for start, end, is_refused in _stretches(batch, first, last):
            if is_refused:
                self._refused_payloads(batch, start, end)

    def _refused_payloads(self, batch: Batch, first: int, last: int) -> None:
        """Publishes [first, last) are not the text that they are said to be."""
        self._shared.counted.publishes_refused += last - first
        qos = batch.rows[first * COLUMNS + FLAGS] & FLAG_QOS
        if qos:
            self._close_once(batch, first, last, qos)
            code = ReasonCode.PAYLOAD_FORMAT_INVALID
            self._path.shared.refusals.append((first, last, code, TEXTS[code]))

    def _close_once(self, batch: Batch, first: int, last: int, qos: int) -> None:
        """A PUBREC that refuses is the last answer of QoS 2."""
        quota = self._path.quota
        if qos == codes.EXACTLY_ONCE and quota is not None:
            quota.closed(batch, first, last)

    def answer(self, batch: Batch, first: int, last: int) -> bytes:
        """The acknowledgements of rows [first, last), of which some were refused: the first of each
        refusal says why, the others have the code alone."""
        paths = self._path.shared
        reasons = self._shared.counted.reasons
        out = []
        at = first
        for index, (start, end, code, text) in enumerate(paths.refusals):
            kind = PacketType.PUBACK
            if batch.rows[start * COLUMNS + FLAGS] & FLAG_QOS == codes.EXACTLY_ONCE:
                kind = PacketType.PUBREC
                paths.pubrecs_sent -= end - start
            else:
                paths.pubacks_sent -= end - start
            reasons.sent(kind, code, end - start)
            properties = self._explainer.explained(text, ACKNOWLEDGEMENT_BYTES)
            if properties and index < REFUSALS_EXPLAINED:
                packet_id = batch.rows[start * COLUMNS + IDENTIFIER]
                out.append(encode_acks(batch, at, start))
                out.append(encode_acknowledgement(kind, packet_id, code, properties))
                at = start + 1
        out.append(encode_acks(batch, at, last))
        return b"".join(out)


def _stretches(batch: Batch, first: int, last: int) -> Iterator[tuple[int, int, bool]]:
    """Rows [first, last) as stretches that were refused for their payload, or were not."""
    start = first
    while start < last:
        is_refused = _is_refused(batch, start)
        end = start + 1
        while end < last and _is_refused(batch, end) == is_refused:
            end += 1
        yield start, end, is_refused
        start = end


def _is_refused(batch: Batch, row: int) -> bool:
    return batch.rows[row * COLUMNS + FLAGS] >> codes.REFUSED_SHIFT != 0
