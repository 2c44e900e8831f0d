"""From rows of publishes to the engine: templates, returns, confirms.

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
from weakref import WeakValueDictionary

from polymq.broker.port import (
    APPENDED,
    FLUSHED,
    BoundedCache,
    BrokerPort,
    Copies,
    Durability,
    Reason,
    Refused,
    Route,
    Template,
)
from polymq.core_log.kernels.batch import (
    BODY_SIZE,
    BODY_START,
    COLUMNS,
    EXTRA_BASE64,
    EXTRA_SIZE,
    EXTRA_START,
    Batch,
)
from polymq.gateways.amqp import delays, direct_reply, mapping, reply_names, spec
from polymq.gateways.amqp.channel import Channel
from polymq.gateways.amqp.errors import Malformed, RemoteProtocolError, ReplyCode
from polymq.gateways.amqp.events import Run, Traffic
from polymq.gateways.amqp.kernels import codes
from polymq.gateways.amqp.kernels.codes import PLACE_AT
from polymq.gateways.amqp.kernels.fast_path import Kind
from polymq.gateways.amqp.long_properties import as_stored, check_size, is_long
from polymq.gateways.amqp.methods import content_frames, encode_method
from polymq.gateways.amqp.rewriting import Rewritten, one_row, rewrite

CHECKED_AT_ONCE: Final = 64
"""Rows whose properties are looked at one by one, without a look at the clock."""
_NO_ROUTE: Final = "NO_ROUTE"
_LONG: Final = b"L"
"""At the end of the keys of templates for long properties."""
_NO_PROPERTIES: Final[Mapping[str, str]] = {}


def _durability(channel: Channel, run: Run) -> Durability:
    """What messages of the run wait for, as far as their publisher says."""
    safe = run.flags & codes.PERSISTENT or channel.confirming or channel.transaction
    return FLUSHED if safe else APPENDED


class Templates:
    """How messages of each place are stored. Shared by the connections of a listener.

    Args:
        count_max: places that are kept, a quarter of them for each kind of publish. Of more, the
            oldest are forgotten, and come back with use.
    """

    def __init__(self, *, port: BrokerPort, count_max: int) -> None:
        self._port = port
        self._count_max = count_max
        self.delayed: set[str] = set()
        """Exchanges that delay messages, among those that were published to."""
        self._others: WeakValueDictionary[BrokerPort, Templates] = WeakValueDictionary()
        # By durability and whether there may be message ids; then by place and life.
        self._templates: tuple[BoundedCache[bytes, Template], ...] = tuple(
            BoundedCache(max(1, count_max // 4)) for _ in range(4)
        )

    def of(self, port: BrokerPort) -> Templates:
        """Those of clients with another port, which may publish elsewhere: one table for each
        port, as long as somebody uses it."""
        if port is self._port:
            return self
        other = self._others.get(port)
        if other is None:
            other = self._others[port] = Templates(port=port, count_max=self._count_max)
        return other

    def get(
        self,
        place: bytes,
        durability: Durability,
        life: bytes = b"",
        *,
        keyed: bool = True,
        long: bool = False,
    ) -> Template | None:
        """The template of a place (two short strings), or None if it leads nowhere.

        Args:
            durability: what the messages wait for.
            life: how long the messages live (`port.life_property`), if not for ever.
            keyed: whether they may have message ids.
            long: their properties stand in front of their bodies (`long_properties.py`).

        Raises:
            Refused: there is no such exchange, or nobody may publish to it.
            Malformed: the exchange's name is not UTF-8.
        """
        known = self._templates[durability << 1 | keyed]
        # The life has 10 digits, and a place ends where its sizes say.
        key = place + life + _LONG if long else place + life
        template = known.get(key)
        if template is not None and template.valid:
            return template
        exchange, routing_key = mapping.place_of(place)
        route = None
        if exchange or not routing_key.startswith(reply_names.PREFIX):
            route = self._port.exchanges.route(exchange, routing_key)
        if route is None:
            known.pop(key, None)
            return None
        template = self._make(route, exchange, durability, life, keyed=keyed, long=long)
        known.add(key, template)
        return template

    def copying(
        self,
        place: bytes,
        copies: Copies,
        durability: Durability,
        life: bytes = b"",
        *,
        keyed: bool = True,
        long: bool = False,
    ) -> Template | None:
        """As `get`, for messages that go to what other routing keys lead to, as well. Not kept."""
        exchange, routing_key = mapping.place_of(place)
        route = self._port.exchanges.copying_route(exchange, routing_key, copies.keys)
        if route is None:
            return None
        more = copies.properties()
        return self._make(route, exchange, durability, life, more, keyed=keyed, long=long)

    def _make(
        self,
        route: Route,
        exchange: str,
        durability: Durability,
        life: bytes,
        more: Mapping[str, str] = _NO_PROPERTIES,
        *,
        keyed: bool,
        long: bool,
    ) -> Template:
        info = self._port.exchanges.info(exchange)
        if info is not None and info.type == delays.EXCHANGE_TYPE:
            self.delayed.add(exchange)
        else:
            self.delayed.discard(exchange)
        return self._port.topics.template(
            route,
            properties={
                **mapping.template_properties(route, exchange, life, long=long),
                **more,
            },
            extra_kind=EXTRA_BASE64,
            extra_name=mapping.EXTRA_NAME,
            extra_keyed=keyed,
            durability=durability,
        )


class BatchPath:
    """Publishes of one connection."""

    def __init__(self, *, port: BrokerPort, templates: Templates) -> None:
        self._port = port
        self._templates = templates
        self.position = 0
        """The highest position of what was published so far."""
        self.durability: Durability = FLUSHED
        """The strongest class of it."""
        self.count = 0
        """Messages that were taken (a metric)."""
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
        count = run.last - run.first
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
        place, keyed = batch.topic(run.first), bool(run.flags & codes.KEYED)
        try:
            template = self._templates.get(place, _durability(channel, run), keyed=keyed)
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
        place, place_size, _, _, properties, size, _, flags = traffic.batch.row(0)
        buffer = traffic.batch.buffer
        kind = Kind(
            channel,
            template,
            bytes(buffer[properties : properties + size]),
            flags & (1 << codes.CHANNEL_SHIFT) - 1,
            flags,
        )
        return bytes(buffer[place - PLACE_AT : place + place_size + 2]), kind

    def _publish(self, channel: Channel, batch: Batch, run: Run) -> None:
        durability = _durability(channel, run)
        if run.flags & codes.CHECKED:
            self._publish_checked(channel, batch, run, durability)
        else:
            self._publish_alike(channel, batch, run, run.first, run.last, durability)

    def _publish_checked(
        self, channel: Channel, batch: Batch, run: Run, durability: Durability
    ) -> None:
        """Look at each row's properties, and store what stands before the first bad one: rows that
        live equally long together, and those whose properties change one by one."""
        first = last = run.first
        life = b""
        fault: Refused | None = None
        while last < run.last:
            try:
                wanted, rewritten = self._check_row(channel, batch, last)
            except Refused as error:
                fault = error
                break
            special = rewritten.copies or rewritten.changed
            alone = special or is_long(batch, last)
            if (alone or wanted != life) and last > first:
                self._publish_alike(channel, batch, run, first, last, durability, life)
                first = last
            if special:
                one = one_row(batch.topic(last), rewritten.properties, batch, last)
                copies = rewritten.copies
                self._publish_alike(channel, one, run, 0, 1, durability, wanted, copies)
                first = last + 1
            elif alone:
                self._publish_alike(channel, batch, run, last, last + 1, durability, wanted)
                first = last + 1
            life = wanted
            last += 1
        if last > first:
            self._publish_alike(channel, batch, run, first, last, durability, life)
        if fault is not None:
            raise fault

    def _check_row(self, channel: Channel, batch: Batch, row: int) -> tuple[bytes, Rewritten]:
        """How long a message lives, and its properties as they are stored. Raises Refused."""
        at = row * COLUMNS
        start = batch.rows[at + EXTRA_START]
        raw = bytes(batch.buffer[start : start + batch.rows[at + EXTRA_SIZE]])
        if is_long(batch, row):
            check_size(batch, row, channel.link.limits)
        life = mapping.check_properties(raw, channel.link.user)
        return life, rewrite(raw, partial(direct_reply.reply_name, channel))

    def _publish_alike(
        self,
        channel: Channel,
        batch: Batch,
        run: Run,
        first: int,
        last: int,
        durability: Durability,
        life: bytes = b"",
        copies: Copies | None = None,
    ) -> None:
        """Rows of a run that are stored alike.

        Args:
            copies: routing keys besides their own.
        """
        place = batch.topic(first)
        if channel.transaction is not None:
            # Everything happens at the commit, but what is wrong is said now.
            self._template(place, copies, durability, life, long=is_long(batch, first))
            mandatory = bool(run.flags & codes.MANDATORY)
            channel.hold(batch, first, last, mandatory=mandatory, life=life, copies=copies)
            return
        try:
            keyed = bool(run.flags & codes.KEYED)
            long = is_long(batch, first)
            template = self._template(place, copies, durability, life, keyed=keyed, long=long)
            if copies and template is not None and self.delays(template):
                self._check_not_delayed(batch, first, last)
        except Refused as error:
            self._refused(channel, last - first, error)
            return
        self._store(channel, batch, first, last, run.flags, template)

    def _template(
        self,
        place: bytes,
        copies: Copies | None,
        durability: Durability,
        life: bytes,
        *,
        keyed: bool = True,
        long: bool,
    ) -> Template | None:
        templates = self._templates
        if copies:
            return templates.copying(place, copies, durability, life, keyed=keyed, long=long)
        return templates.get(place, durability, life, keyed=keyed, long=long)

    def _check_not_delayed(self, batch: Batch, first: int, last: int) -> None:
        """Raise Refused if a row asks for a delay: what is due has its own routing key only."""
        if any(delay_ms for _, delay_ms in delays.split(batch, first, last)):
            raise Refused(
                Reason.BAD_ARGUMENT, "a delayed message may not have the headers 'CC' and 'BCC'"
            )

    def _store(
        self,
        channel: Channel,
        batch: Batch,
        first: int,
        last: int,
        flags: int,
        template: Template | None,
    ) -> None:
        """Append rows [first, last), or return them if they must and cannot be routed."""
        if flags & codes.MANDATORY and template is not None and self._looks_at_each(template):
            for start, stop, routed in self.by_routed(template, batch, first, last):
                part = template if routed else None
                self._store_any(channel, batch, start, stop, flags, part)
            return
        self._store_any(channel, batch, first, last, flags, template)

    def _looks_at_each(self, template: Template) -> bool:
        """Whether each message has to be asked if it is routed. One that is delayed never is."""
        return template.route.by_headers and not self.delays(template)

    def by_routed(
        self, template: Template, batch: Batch, first: int, last: int
    ) -> Iterator[tuple[int, int, bool]]:
        """Rows of a route that depends on headers, in stretches: whether they are routed."""
        start = first
        before: bool | None = None
        exchanges = self._port.exchanges
        for row in range(first, last):
            routed = exchanges.is_routed(template, *as_stored(batch, row, row + 1)[:2])
            if before is not None and routed is not before:
                yield start, row, before
                start = row
            before = routed
        if before is not None:
            yield start, last, before

    def _store_any(
        self,
        channel: Channel,
        batch: Batch,
        first: int,
        last: int,
        flags: int,
        template: Template | None,
    ) -> None:
        if template is not None and self.delays(template):
            for part, delay_ms in delays.split(batch, first, last):
                if delay_ms:
                    self._store_later(channel, part, template, delay_ms)
                else:
                    self._store_now(channel, part, 0, part.count, flags, template)
        else:
            self._store_now(channel, batch, first, last, flags, template)

    def delays(self, template: Template) -> bool:
        """Whether messages of this template may ask for a delay."""
        delayed = self._templates.delayed
        return bool(delayed) and template.route.topic in delayed

    def _store_later(
        self, channel: Channel, batch: Batch, template: Template, delay_ms: int
    ) -> None:
        """Keep all rows of a batch until they are due."""
        count = batch.count
        try:
            rows = as_stored(batch, 0, count)
            position = self._port.delays.publish_later(
                template, *rows, delay_ms=delay_ms, by_exchange=True
            )
        except Refused as error:
            self._refused(channel, count, error)
            return
        self.position = max(self.position, position)
        self.durability = max(self.durability, template.durability)
        self.count += count
        channel.published(count, position, template.durability)

    def _store_now(
        self,
        channel: Channel,
        batch: Batch,
        first: int,
        last: int,
        flags: int,
        template: Template | None,
    ) -> None:
        if template is None or (flags & codes.MANDATORY and not template.route.routed):
            mandatory = bool(flags & codes.MANDATORY)
            if template is None and reply_names.is_answer(batch.topic(first)):
                self.give_answers(channel, batch, first, last, mandatory=mandatory)
            elif mandatory:
                self.give_back(channel, batch, first, last)
            channel.published(last - first, 0, APPENDED)
            return
        try:
            batch, first, last = as_stored(batch, first, last)
            position = self._port.publish(template, batch, first, last)
        except Refused as error:
            if error.reason is Reason.TOO_LARGE and last - first > 1:
                self._store_one_by_one(channel, batch, first, last, template)
            else:
                self._refused(channel, last - first, error)
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
        self.count += count

    def _store_one_by_one(
        self, channel: Channel, batch: Batch, first: int, last: int, template: Template
    ) -> None:
        """One row of the run is too large: store those before it."""
        for row in range(first, last):
            self._store_now(channel, batch, row, row + 1, 0, template)

    def _refused(self, channel: Channel, count: int, error: Refused) -> None:
        """Nack what failed for reasons of our own, if somebody listens; else it is an error."""
        if error.reason not in mapping.OUR_FAULT or not channel.confirming:
            raise error
        channel.not_published(count)

    # --- for transactions -------------------------------------------------------------------

    def template(
        self,
        place: bytes,
        durability: Durability,
        life: bytes,
        copies: Copies | None = None,
        *,
        long: bool = False,
    ) -> Template | None:
        """As `Templates.get` or `copying`, but None also for an exchange that is gone meanwhile."""
        try:
            return self._template(place, copies, durability, life, long=long)
        except Refused as error:
            if error.reason is not Reason.NOT_FOUND:
                raise
            return None

    def committed(self, count: int, position: int, durability: Durability) -> None:
        """A transaction stored so many messages."""
        self.count += count
        self.position = max(self.position, position)
        self.durability = max(self.durability, durability)

    def give_answers(
        self, channel: Channel, batch: Batch, first: int, last: int, *, mandatory: bool
    ) -> None:
        """Hand rows [first, last) to the consumer of answers that their routing key names. Return
        those that it does not take, if they are mandatory."""
        consumer = channel.link.replies.find(mapping.place_of(batch.topic(first))[1])
        for row in range(first, last):
            taken = consumer is not None and consumer.deliver(*_content(batch, row))
            if mandatory and not taken:
                self.give_back(channel, batch, row, row + 1)

    def give_back(self, channel: Channel, batch: Batch, first: int, last: int) -> None:
        """basic.return of rows [first, last), with their contents."""
        exchange, routing_key = mapping.place_of(batch.topic(first))
        method = encode_method(
            spec.BasicReturn(
                reply_code=ReplyCode.NO_ROUTE,
                reply_text=_NO_ROUTE,
                exchange=exchange,
                routing_key=routing_key,
            )
        )
        for row in range(first, last):
            frames = content_frames(
                channel.number, method, *_content(batch, row), channel.frame_max
            )
            channel.link.answer(frames)


def _content(batch: Batch, row: int) -> tuple[bytes, bytes]:
    """Properties and body of a row."""
    at = row * COLUMNS
    extra, body = batch.rows[at + EXTRA_START], batch.rows[at + BODY_START]
    return (
        bytes(batch.buffer[extra : extra + batch.rows[at + EXTRA_SIZE]]),
        bytes(batch.buffer[body : body + batch.rows[at + BODY_SIZE]]),
    )
