"""The way of a read that holds many publishes: from rows to the engine, to returns and confirms.

Rules:

* Python runs once per run of equal messages: one lookup by the bytes of exchange and routing key,
  one `port.publish`. Per message it runs only for those that carry a user-id or an expiration.
* Within a read, publishes are taken before acks; an error on a channel leaves its later publishes
  and acks alone, but never its earlier ones.
* A message that is returned (312) was not stored. Returns leave before the confirm of the same
  message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

from polymq.broker.port import (
    APPENDED,
    FLUSHED,
    BrokerPort,
    Durability,
    Reason,
    Refused,
    Template,
)
from polymq.core_log.kernels.batch import Batch
from polymq.gateways.amqp import delays, direct_reply, mapping, reply_names, spec
from polymq.gateways.amqp.channel import Channel
from polymq.gateways.amqp.errors import Malformed, RemoteProtocolError, ReplyCode
from polymq.gateways.amqp.events import Run, Traffic
from polymq.gateways.amqp.kernels import codes
from polymq.gateways.amqp.kernels.codes import ADDRESS_AT
from polymq.gateways.amqp.kernels.fast_path import Kind
from polymq.gateways.amqp.long_properties import as_stored, check_size
from polymq.gateways.amqp.methods import content_frames, encode_method
from polymq.gateways.amqp.rewriting import Rewritten, rewrite
from polymq.gateways.amqp.rows import Rows, batch_of, content_of, is_long, properties_of
from polymq.gateways.amqp.templates import Templates
from polymq.net.message_counts import MessageCounts

CHECKED_AT_ONCE: Final = 64
"""Rows whose properties are looked at one by one, without a look at the clock."""
_NO_ROUTE: Final = "NO_ROUTE"


class BatchPath:
    """Publishes of one connection.

    Args:
        counts: what was taken is added there.
    """

    def __init__(self, *, port: BrokerPort, templates: Templates, counts: MessageCounts) -> None:
        self._port = port
        self._templates = templates
        self.position = 0
        """The highest position of what was published so far."""
        self.durability: Durability = FLUSHED
        """The strongest class of it."""
        self._counts = counts
        self.stored_with: Template | None = None
        """The template of what the last `publish` stored last."""

    def portions(self, channels: Mapping[int, Channel], traffic: Traffic) -> Iterator[Run]:
        """The runs, long ones in parts that may be stored at once."""
        for run in traffic.runs:
            rest = run
            while rest.first < run.last:
                channel = channels.get(run.channel)
                if channel is None:  # closed, maybe for what stands before
                    yield rest
                    break
                # The route is made here, also for a single row: what that takes counts for the
                # turn.
                last = rest.first + self.rows_at_once(channel, traffic.batch, rest)
                if last >= run.last:
                    yield rest
                    break
                yield Run(run.channel, run.flags, rest.first, last)
                rest = Run(run.channel, run.flags, last, run.last)

    def rows_at_once(self, channel: Channel, batch: Batch, run: Run) -> int:
        """How many rows of the run may be stored before others have their turn."""
        rows = _rows_of(channel, batch, run)
        count = rows.count
        if run.flags & codes.CHECKED:
            try:
                _, rewritten = self._check_row(channel, batch, run.first)
            except Refused:
                return 1  # it leaves nothing behind, and so no topic
            if rewritten.copies:
                return 1  # whether it may go there is asked of all its routing keys
            count = min(count, CHECKED_AT_ONCE)
            for row in range(run.first, run.first + count):
                if is_long(batch, row):  # a hundred times as much to look at
                    count = max(1, row - run.first)
                    break
        try:
            template = self._templates.find(rows)
        except (Refused, Malformed):
            return count  # all of it will be refused
        return count if template is None else min(count, template.rows_at_once)

    def publish(self, channel: Channel, batch: Batch, run: Run) -> None:
        """Store the rows of a run, or return them.

        Raises:
            RemoteProtocolError: what to close. Rows before the one at fault are stored.
        """
        self.stored_with = None
        try:
            self._publish(channel, batch, run)
        except Refused as error:
            raise mapping.refusal(error, spec.BasicPublish, channel.number) from error
        except Malformed as error:
            raise RemoteProtocolError(
                ReplyCode.FRAME_ERROR, str(error), class_id=60, method_id=40
            ) from error

    def kind_of(self, channel: Channel, traffic: Traffic) -> tuple[bytes, Kind] | None:
        """Of the only message of a read, which was published last: its method frame, and how the
        fast path stores messages with this frame. None if it may not take them."""
        template = self.stored_with
        flags = traffic.runs[0].flags
        if template is None or channel.transaction is not None:
            return None
        if flags & (codes.MANDATORY | codes.CHECKED):
            return None
        address, address_size, _, _, properties, size, _, flags = traffic.batch.row(0)
        buffer = traffic.batch.buffer
        kind = Kind(
            channel,
            template,
            bytes(buffer[properties : properties + size]),
            flags & (1 << codes.CHANNEL_SHIFT) - 1,
            flags,
        )
        return bytes(buffer[address - ADDRESS_AT : address + address_size + 2]), kind

    def _publish(self, channel: Channel, batch: Batch, run: Run) -> None:
        rows = _rows_of(channel, batch, run)
        if run.flags & codes.CHECKED:
            self._publish_checked(channel, rows)
        else:
            self._publish_alike(channel, rows)

    def _publish_checked(self, channel: Channel, rows: Rows) -> None:
        """Look at each row's properties, and store what stands before the first bad one: rows that
        live equally long together, and those whose properties change one by one."""
        batch = rows.batch
        first = last = rows.first
        ttl = b""
        fault: Refused | None = None
        while last < rows.last:
            try:
                wanted, rewritten = self._check_row(channel, batch, last)
            except Refused as error:
                fault = error
                break
            special = rewritten.copies or rewritten.changed
            alone = special or is_long(batch, last)
            if (alone or wanted != ttl) and last > first:
                self._publish_alike(channel, rows.part(first, last, ttl))
                first = last
            if alone:
                one = rows.part(last, last + 1, wanted)
                if special:
                    content = rewritten.properties, content_of(batch, last)[1]
                    one = one.over(batch_of(one.address, [content]))
                    one.copies = rewritten.copies
                self._publish_alike(channel, one)
                first = last + 1
            ttl = wanted
            last += 1
        if last > first:
            self._publish_alike(channel, rows.part(first, last, ttl))
        if fault is not None:
            raise fault

    def _check_row(self, channel: Channel, batch: Batch, row: int) -> tuple[bytes, Rewritten]:
        """How long a message lives, and its properties as they are stored. Raises Refused."""
        raw = properties_of(batch, row)
        if is_long(batch, row):
            check_size(batch, row, channel.link.limits)
        ttl = mapping.check_properties(raw, channel.link.user)
        return ttl, rewrite(raw, partial(direct_reply.reply_name, channel))

    def _publish_alike(self, channel: Channel, rows: Rows) -> None:
        if channel.transaction is not None:
            # Everything happens at the commit, but what is wrong is said now.
            self._templates.find(rows)
            channel.defer(rows)
            return
        try:
            template = self._templates.find(rows)
            if rows.copies and template is not None and self.delays(template):
                _check_not_delayed(rows)
        except Refused as error:
            self._refused(channel, rows, error)
            return
        self._store(channel, rows, template)

    def _store(self, channel: Channel, rows: Rows, template: Template | None) -> None:
        """Append the rows, or return them if they must and cannot be routed."""
        if rows.mandatory and template is not None and self._looks_at_each(template):
            for part, routed in self.by_routed(rows, template):
                self._store_any(channel, part, template if routed else None)
            return
        self._store_any(channel, rows, template)

    def _looks_at_each(self, template: Template) -> bool:
        """Whether each message has to be asked if it is routed. One that is delayed never is."""
        return template.route.by_headers and not self.delays(template)

    def by_routed(self, rows: Rows, template: Template) -> Iterator[tuple[Rows, bool]]:
        """Rows of a route that depends on headers, in stretches: whether they are routed."""
        start = rows.first
        before: bool | None = None
        exchanges = self._port.exchanges
        for row in range(rows.first, rows.last):
            routed = exchanges.is_routed(template, *as_stored(rows.batch, row, row + 1)[:2])
            if before is not None and routed is not before:
                yield rows.part(start, row), before
                start = row
            before = routed
        if before is not None:
            yield rows.part(start, rows.last), before

    def _store_any(self, channel: Channel, rows: Rows, template: Template | None) -> None:
        if template is not None and self.delays(template):
            for part, delay_ms in delays.split(rows):
                if delay_ms:
                    self._store_later(channel, part, template, delay_ms)
                else:
                    self._store_now(channel, part, template)
        else:
            self._store_now(channel, rows, template)

    def delays(self, template: Template) -> bool:
        """Whether messages of this template may ask for a delay."""
        delayed = self._templates.delayed
        return bool(delayed) and template.route.topic in delayed

    def _store_later(self, channel: Channel, rows: Rows, template: Template, delay_ms: int) -> None:
        """Keep the rows until they are due."""
        try:
            stored = as_stored(rows.batch, rows.first, rows.last)
            position = self._port.delays.publish_later(
                template, *stored, delay_ms=delay_ms, by_exchange=True
            )
        except Refused as error:
            self._refused(channel, rows, error)
            return
        self.stored(template, position, rows.count)
        channel.published(rows.count, position, template.durability)

    def _store_now(self, channel: Channel, rows: Rows, template: Template | None) -> None:
        if template is None or (rows.mandatory and not template.route.routed):
            if template is None and reply_names.is_answer(rows.address):
                self.give_answers(channel, rows)
            elif rows.mandatory:
                self.give_back(channel, rows)
            channel.published(rows.count, 0, APPENDED)
            return
        try:
            batch, first, last = as_stored(rows.batch, rows.first, rows.last)
            position = self._port.publish(template, batch, first, last)
        except Refused as error:
            if error.reason is Reason.TOO_LARGE and rows.count > 1:
                for row in range(rows.first, rows.last):  # those before it are stored
                    self._store_now(channel, rows.part(row, row + 1), template)
            else:
                self._refused(channel, rows, error)
            return
        self.stored_with = template
        self.stored(template, position, last - first)
        if template.overflowed and channel.confirming:
            for start, stop in template.refused:
                channel.published(start - first, position, template.durability)
                channel.not_published(stop - start)
                first = stop
        channel.published(last - first, position, template.durability)

    def follow(self, position: int) -> None:
        """What this client asks for next depends on what was appended up to there."""
        self.position = max(self.position, position)

    def stored(self, template: Template, position: int, count: int) -> None:
        """So many messages were stored with this template, up to the position."""
        if position > self.position:
            self.position = position
        if template.durability > self.durability:
            self.durability = template.durability
        self._counts.received += count

    def _refused(self, channel: Channel, rows: Rows, error: Refused) -> None:
        """Nack what failed for reasons of our own, if somebody listens; else it is an error."""
        if error.reason not in mapping.OUR_FAULT or not channel.confirming:
            raise error
        channel.not_published(rows.count)

    # --- for transactions -------------------------------------------------------------------

    def template(self, rows: Rows) -> Template | None:
        """As `Templates.find`, but None also for an exchange that is gone meanwhile."""
        try:
            return self._templates.find(rows)
        except Refused as error:
            if error.reason is not Reason.NOT_FOUND:
                raise
            return None

    def committed(self, count: int, position: int, durability: Durability) -> None:
        """A transaction stored so many messages."""
        self._counts.received += count
        self.position = max(self.position, position)
        self.durability = max(self.durability, durability)

    def give_answers(self, channel: Channel, rows: Rows) -> None:
        """Hand the rows to the consumer of answers that their routing key names. Return those that
        it does not take, if they are mandatory."""
        consumer = channel.link.replies.find(mapping.exchange_and_key_of(rows.address)[1])
        for row in range(rows.first, rows.last):
            taken = consumer is not None and consumer.deliver(*content_of(rows.batch, row))
            if rows.mandatory and not taken:
                self.give_back(channel, rows.part(row, row + 1))

    def give_back(self, channel: Channel, rows: Rows) -> None:
        """basic.return of the rows, with their contents."""
        exchange, routing_key = mapping.exchange_and_key_of(rows.address)
        method = encode_method(
            spec.BasicReturn(
                reply_code=ReplyCode.NO_ROUTE,
                reply_text=_NO_ROUTE,
                exchange=exchange,
                routing_key=routing_key,
            )
        )
        for content in rows.contents():
            frames = content_frames(channel.number, method, *content, channel.frame_max)
            channel.link.answer(frames)


def _rows_of(channel: Channel, batch: Batch, run: Run) -> Rows:
    """The rows of a run, and what they wait for, as far as their publisher says."""
    safe = run.flags & codes.PERSISTENT or channel.confirming or channel.transaction
    return Rows(batch, run.first, run.last, run.flags, FLUSHED if safe else APPENDED)


def _check_not_delayed(rows: Rows) -> None:
    """Raise Refused if a row asks for a delay: what is due has its own routing key only."""
    if any(delay_ms for _, delay_ms in delays.split(rows)):
        raise Refused(
            Reason.BAD_ARGUMENT, "a delayed message may not have the headers 'CC' and 'BCC'"
        )
