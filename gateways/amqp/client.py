"""One client: what its protocol events mean to the engine, and what it is answered.

Between the core (`protocol.py`: bytes and states) and the socket (`connection.py`) stands this: it
keeps the client's channels, hands publishes and acks on, and decides what closes. Who the client is
finds `login.py` out.

Rules:

* All answers go through `Answers`, so they leave in the order of the questions and not before what
  they depend on is committed.
* A question whose answer depends on messages (get, counts of a queue) first waits until what this
  connection published is visible. Meanwhile the connection takes no more frames (`pause`), so that
  nothing overtakes; what was read is kept in `_rest`, and reading stops. The same happens to a
  client that asks more than it reads of the answers.
* What takes thousands of steps takes some of them in each turn of the connection (`work`), before
  anything that the client asks behind it. A connection that is lost takes all that are left.
* What closes a channel takes it out of `channels` at once: whatever comes behind it is dropped.
* Closing, from whatever side, gives unacknowledged messages back and deletes exclusive queues
  before close-ok leaves. The socket is the client's to close: until then, within bounds, what it
  sends is read and dropped (`_linger`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from polymq.broker.port import BrokerPort, Durability, Position, Refused
from polymq.gateways.amqp import basic, mapping, spec, topology, transactions
from polymq.gateways.amqp.ack_errors import AckErrors
from polymq.gateways.amqp.answers import Answers
from polymq.gateways.amqp.batch_path import BatchPath
from polymq.gateways.amqp.channel import Channel
from polymq.gateways.amqp.direct_reply import Replies
from polymq.gateways.amqp.errors import RemoteProtocolError, ReplyCode
from polymq.gateways.amqp.events import (
    Event,
    HeaderReceived,
    HeaderRefused,
    MethodReceived,
    Settlement,
    Traffic,
)
from polymq.gateways.amqp.kernels.fast_path import FastPath
from polymq.gateways.amqp.large_deliveries import OUTBOX_BYTES, LargeBody, Outbox
from polymq.gateways.amqp.limits import Limits
from polymq.gateways.amqp.login import Login, check_vhost, tune_of
from polymq.gateways.amqp.protocol import Protocol, Work
from polymq.gateways.amqp.sasl import MECHANISMS
from polymq.gateways.amqp.spec import Method
from polymq.gateways.amqp.states import SENT, State
from polymq.gateways.amqp.tables import Buffer
from polymq.gateways.amqp.templates import Templates
from polymq.gateways.amqp.transport import Transport
from polymq.net.flow import ANSWERS, DISK, LOGIN, QUESTION, TURN, Flow
from polymq.net.kernels.streams import clock_ms
from polymq.net.message_counts import MessageCounts
from polymq.net.turns import Turns

_HANDLERS: Final[Mapping[type[Method], topology.Handler]] = {
    **topology.HANDLERS,
    **basic.HANDLERS,
    **transactions.HANDLERS,
}
_SEES_PUBLISHES: Final = topology.SEES_PUBLISHES | basic.SEES_PUBLISHES
_BETWEEN_EVENTS: Final = LOGIN | QUESTION | ANSWERS
"""What no further event is taken for, within a read."""


class Client:
    """See the head of this file.

    Args:
        properties: what connection.start says of the server.
        templates: shared by the clients of a server.
        replies: likewise.
        new_tag: makes random consumer tags.
        blocked: why publishers are refused at this moment; empty if they are not.
        turns: of the connections of the loop.
    """

    def __init__(
        self,
        *,
        port: BrokerPort,
        transport: Transport,
        work: Work,
        templates: Templates,
        replies: Replies,
        limits: Limits,
        properties: Mapping[str, Any],
        new_tag: Callable[[], str],
        turns: Turns,
        blocked: Callable[[], str] = str,
        counts: MessageCounts | None = None,
    ) -> None:
        self.port = port
        self._why_blocked = blocked
        self._sent_blocked = False
        self.limits = limits
        self.replies = replies
        self.new_tag = new_tag
        self.user = ""
        self.opened_ms = 0  # when connection.open came
        self.connection_id = transport.connection_id
        self.channels: dict[int, Channel] = {}
        self.consumer_count = 0
        self.transaction_bytes = 0
        self.counts = counts or MessageCounts()
        """Messages of all clients of the server (a metric)."""
        self.publisher = BatchPath(port=port, templates=templates, counts=self.counts)
        self._templates = templates
        self.answers = Answers(port=port, write=self._write_answer)
        self._core = Protocol(work=work, limits=limits)
        self._transport = self.transport = transport
        self.write_delivery: Callable[[bytes], None] = transport.write  # they wait for no answer
        self._outbox: Outbox | None = None  # while a large content leaves, and what is behind it
        self.login = Login(self, transport)
        self._properties = properties
        self._rest = b""  # read, and not taken while standing still
        self._running = False  # taking events: on the stack
        self._ended = False  # channels are closed, exclusive queues gone
        self._gone = False  # the socket is
        self._deaf = False  # whatever comes is dropped
        self.flow = Flow()
        self._steps: deque[Iterator[None]] = deque()  # what is left of events that are too long
        self._turns = turns
        self._waited = False  # the first publish of an event, for its turn
        self._lingering = False  # everything is said, and the client may still be writing
        self._dropped_bytes = 0  # since then
        self._stopping = False
        self.unread_bytes = 0
        """Of answers, since the socket was full."""
        self.asks_always = False
        """This client's port counts what it publishes, and has to be asked after each read."""
        self._batch = work.batch
        self.fast_path = FastPath(self, work.batch, self._core)

    # --- bytes in ---------------------------------------------------------------------------

    def consume(self, buffer: bytearray, start: int, end: int) -> int:
        """Take `buffer[start:end]`; returns up to where the bytes are used."""
        if self._deaf:
            self._drop(end - start)
            return end
        if not self.flow.handles:
            self._rest += bytes(buffer[start:end])
            self.login.sent_ahead(len(self._rest))
            return end
        if not self._rest:
            if self.fast_path.take(buffer, start, end):
                return end
            return self._run(buffer, start, end)
        data = self._rest + bytes(buffer[start:end])
        self._rest = b""
        left = len(data) - self._run(data, 0, len(data))
        if left <= end - start:
            return end - left
        self._rest = data[len(data) - left :]
        return end

    def _run(self, buffer: Buffer, start: int, end: int) -> int:
        self._core.receive(buffer, start, end)
        self._take_events()
        used = self._core.position
        self._core.receive(b"", 0, 0)  # the buffer is the next reader's
        if self._deaf:
            return end
        if self.login.sent_ahead(end - used):
            return end
        if not self.flow.handles:
            self._rest = bytes(buffer[used:end])
            used = end
        return used

    def _take_events(self) -> None:
        """Take what was read, as long as the turn goes on. One event is always taken."""
        turns = self._turns
        turns.begin()
        self._running = True
        while not self.flow.waits & _BETWEEN_EVENTS:
            try:
                event = self._core.next_event()
                if event is None:
                    break
                self._handle(event)
            except RemoteProtocolError as error:
                self.fail(error)
            if not self._take_steps():
                break
            if not self._deaf and (self.flow.waits & TURN or turns.is_over()):
                self._rest_until_next_turn()
                break
        self._running = False
        self.check_pressure()

    def work(self, steps: Iterator[None]) -> None:
        """See `channel.Link.work`."""
        self._steps.append(steps)
        if not self._running and not self.flow.waits & TURN:
            self._turns.begin()
            self._take_steps()
            if not self._gone:
                self.check_pressure()

    @property
    def is_working(self) -> bool:
        """See `channel.Link.is_working`."""
        return bool(self._steps)

    def _take_steps(self) -> bool:
        """Take steps of what is left to do while the turn goes on; whether all are taken."""
        while self._steps:
            was_running, self._running = self._running, True
            try:
                done = self._turns.go_on(self._steps[0])
            finally:
                self._running = was_running
            if not done:
                self._rest_until_next_turn()
                return False
            self._steps.popleft()
        return True

    def _rest_until_next_turn(self) -> None:
        if not self.flow.waits & TURN:
            self.flow.begin(TURN)
            self._turns.wait(self._rested)

    def _handle(self, event: Event) -> None:
        match event:
            case Traffic():
                self._traffic(event)
            case MethodReceived(channel=0, method=method):
                self._on_connection(method)
            case MethodReceived(channel=number, method=method):
                self._on_channel(number, method)
            case HeaderReceived():
                start = spec.ConnectionStart(
                    version_major=0,
                    version_minor=9,
                    server_properties=self._properties,
                    mechanisms=MECHANISMS,
                    locales=b"en_US",
                )
                self.answer(self._core.send(start))
            case HeaderRefused(reply=reply):
                self._transport.write(reply)
                self._deaf = True
                self._transport.close()

    # --- publishes and acks -----------------------------------------------------------------

    def _traffic(self, traffic: Traffic) -> None:
        """The publishes, then the acks. An error between them lets those before it count. What is
        behind it, or left when the turn is over, comes again. The first publish, whose route may
        have taken all of a turn, waits once only: others may change that route again."""
        count, settlements = traffic.batch.count, traffic.settlements
        settled = self._settle(settlements, 0, 0)
        confirming: dict[Channel, None] = {}
        may_wait = traffic.batch is self._batch and not self._waited
        self._waited = False
        errors = AckErrors(self.channels, settlements[settled:], count)
        for index, run in enumerate(errors.before(self.publisher.portions(self.channels, traffic))):
            if (index or may_wait) and self._turns.is_over():
                self._waited = not index
                errors.rows = run.first
                break
            channel = self.channels.get(run.channel)
            if channel is None:  # closed by an error within this read
                continue
            try:
                self.publisher.publish(channel, traffic.batch, run)
            except RemoteProtocolError as error:
                settled = self._settle(settlements, settled, run.first)
                self.fail(error)
                continue
            if channel.confirming:
                confirming[channel] = None
        if count == errors.rows == 1 and self.publisher.stored_with is not None:
            self._learn(traffic)
        for channel in confirming:
            channel.confirm()
        if errors.rows < count:
            # Settlements behind the last row that was taken come again with what follows it.
            settled = self._settle(settlements, settled, errors.rows - 1)
            self._core.cut(errors.rows, settlements[settled:])
        else:
            self._settle(settlements, settled, count)
        if traffic.runs:
            self.keeps_up()

    def _learn(self, traffic: Traffic) -> None:
        """Let the fast path take messages like the only one of this read."""
        channel = self.channels.get(traffic.runs[0].channel)
        if traffic.batch is not self._batch or channel is None:
            return  # not as it came, or the channel was closed
        learnt = self.publisher.kind_of(channel, traffic)
        if learnt is not None:
            self.fast_path.learn(*learnt)

    def keeps_up(self) -> bool:
        """Whether the disk keeps up with what is published; if not, nothing is read until then."""
        flow = self.flow
        if not flow.waits & DISK and self.port.overloaded(self._disk_caught_up):
            flow.begin(DISK)
            if not self._running:
                self.check_pressure()
        return not flow.waits & DISK

    def _disk_caught_up(self) -> None:
        self.flow.end(DISK)
        if not self._gone and not self._running:
            self.check_pressure()

    def _settle(self, settlements: Sequence[Settlement], index: int, rows: int) -> int:
        """Take settlements from `index` on that came before row `rows`; returns the next index."""
        touched: dict[Channel, None] = {}
        while index < len(settlements) and settlements[index].rows <= rows:
            settlement = settlements[index]
            index += 1
            channel = self.channels.get(settlement.channel)
            if channel is None:
                continue
            try:
                channel.settle(settlement.first_tag, settlement.count, settlement.bits)
                touched[channel] = None
            except RemoteProtocolError as error:
                self.fail(error)
        for channel in touched:
            channel.credit_grew()
        return index

    # --- methods ----------------------------------------------------------------------------

    def _on_channel(self, number: int, method: Method) -> None:
        if isinstance(method, spec.ChannelOpen):
            self.channels[number] = Channel(number, self)
            self.reply(number, spec.ChannelOpenOk())
        elif isinstance(method, spec.ChannelClose):
            channel = self.channels.pop(number, None)
            if channel is not None:  # else ours crossed theirs
                self.work(channel.close())
            self.work(self._replying(number, spec.ChannelCloseOk()))
        elif type(method) in _SEES_PUBLISHES and not self._sees_publishes():
            self._wait(partial(self._dispatch, number, method))
        else:
            self._dispatch(number, method)

    def _dispatch(self, number: int, method: Method) -> None:
        channel = self.channels.get(number)
        if channel is None:  # closed while the method waited
            return
        try:
            _HANDLERS[type(method)](channel, method)
        except Refused as error:
            raise mapping.refusal(error, type(method), number) from error

    def _replying(
        self, channel: int, method: Method, then: Callable[[], None] | None = None
    ) -> Iterator[None]:
        """Answer behind all steps before it, unless the client is gone, or all is over, by then."""
        if not self._gone and (channel == 0 or not self._ended):
            self.reply(channel, method, then=then)
        yield

    def _sees_publishes(self) -> bool:
        position = Position(self.publisher.position)
        return self.port.committed(position, self.publisher.durability)

    def _wait(self, action: Callable[[], None]) -> None:
        """Do the action when what was published is visible; hold everything behind it."""
        self.flow.begin(QUESTION)
        self.port.when_committed(
            Position(self.publisher.position),
            self.publisher.durability,
            self._transport.later,
            partial(self._act, action),
        )

    def _act(self, action: Callable[[], None]) -> None:
        if self._ended:
            return
        self.flow.end(QUESTION)
        self._running = True
        try:
            action()
        except RemoteProtocolError as error:
            self.fail(error)
        self._turns.begin()
        self._take_steps()
        self._running = False
        self._go_on()

    # --- holding ----------------------------------------------------------------------------

    def pause(self, wait: int = QUESTION) -> Callable[[], None]:
        """See `channel.Link.pause` and `login.Host.pause`."""
        self.flow.begin(wait)
        return partial(self._release, wait)

    def _release(self, wait: int) -> None:
        self.flow.end(wait)
        if not self._running:
            # Not from within an engine's callback: another connection may be taking events.
            self._transport.later(self._go_on)

    def _rested(self) -> None:
        """Others had their turn."""
        self.flow.end(TURN)
        self._turns.begin()
        if self._take_steps():
            self._go_on()
        if not self._gone:
            self.check_pressure()

    def _go_on(self) -> None:
        """Take what was kept while standing still."""
        if self._gone or not self.flow.handles:
            return
        rest, self._rest = self._rest, b""
        if rest:
            used = self._run(rest, 0, len(rest))
            if used < len(rest):
                self._rest = rest[used:]
        self.check_pressure()

    # --- the connection's own methods ---------------------------------------------------------

    def _on_connection(self, method: Method) -> None:
        match method:
            case spec.ConnectionStartOk():
                self.login.begin(method)
            case spec.ConnectionTuneOk(heartbeat=seconds):
                self._transport.heartbeat(seconds)
            case spec.ConnectionOpen():
                self._open(method)
            case spec.ConnectionUpdateSecret():
                # Passwords do not expire, so there is nothing to renew.
                self.reply(0, spec.ConnectionUpdateSecretOk())
            case spec.ConnectionClose():
                self._end()
                self.work(self._replying(0, spec.ConnectionCloseOk(), then=self._close_socket))
            case spec.ConnectionCloseOk():
                self._linger()

    def _close_socket(self) -> None:
        if self._core.state is State.CLOSED:
            self._linger()

    def _linger(self) -> None:
        """The connection is closed, and the client's to end: read on, and drop what it still sends.
        A socket that is closed while its client writes loses the close-ok on its way."""
        if self._stopping:
            self._transport.close()
            return
        self._lingering = self._deaf = True
        self._rest = b""
        if self._outbox is not None:
            self._outbox.drop_bodies()
            self._empty_outbox()
        self._transport.abort_in(self.limits.linger_seconds)
        self.flow.waits = 0
        self.flow.regulate(self._transport)

    def _drop(self, size: int) -> None:
        """So much came that nobody looks at."""
        self._dropped_bytes += size
        if self._lingering and self._dropped_bytes > self.limits.linger_bytes_max:
            self._transport.close()

    def entered(self, principal: str, port: BrokerPort) -> None:
        """See `login.Host.entered`."""
        self.asks_always = port is not self.port
        self.port = port
        templates = self._templates.of(port)
        self.publisher = BatchPath(port=port, templates=templates, counts=self.counts)
        self.user = principal
        self.reply(0, tune_of(self.limits))

    def _open(self, method: spec.ConnectionOpen) -> None:
        check_vhost(method)
        self.opened_ms = clock_ms()
        self._transport.proven()
        self.reply(0, spec.ConnectionOpenOk())
        self.storage_blocks(self._why_blocked())

    @property
    def hears(self) -> bool:
        """Whether it can be told that its connection ends."""
        return (self._core.state, spec.ConnectionClose) in SENT

    @property
    def is_over(self) -> bool:
        """See `login.Host.is_over`."""
        return self._gone or self._ended or self._deaf

    def refuse(self, abort_seconds: float) -> None:
        """See `login.Host.refuse`."""
        self._deaf = True
        self._rest = b""
        self._transport.abort_in(abort_seconds)

    # --- closing ----------------------------------------------------------------------------

    def fail(self, error: RemoteProtocolError) -> None:
        """Close what the error names, unless it is closed already: the first error counts."""
        if error.channel:
            channel = self.channels.pop(error.channel, None)
            if channel is not None:
                self.work(channel.close())
                self.answer(self._core.close(error))
            return
        self._end()
        data = self._core.close(error)
        if data:
            self.answer(data)
            self._transport.abort_in(self.limits.close_seconds)

    def _end(self) -> None:
        """Close all channels and let go of the exclusive queues."""
        if self._ended:
            return
        self._ended = True
        channels = list(self.channels.values())
        self.channels.clear()
        self.work(self._ending([channel.close() for channel in channels]))

    def _ending(self, closing: Sequence[Iterator[None]]) -> Iterator[None]:
        for steps in closing:
            yield from steps
            yield
        yield from self.port.queues.release_owner(self)
        held = self.flow.waits & (QUESTION | LOGIN)
        if held:  # close-ok has to be heard, behind whatever was kept
            self.flow.end(held)
            self._transport.later(self._go_on)

    def stop(self) -> None:
        """The server stops: say so, and wait for close-ok."""
        self._stopping = True
        if self._core.state is State.OPEN:
            self.fail(
                RemoteProtocolError(ReplyCode.CONNECTION_FORCED, "the broker is shutting down")
            )
            self._transport.abort_in(None)  # the server's own time counts
        elif self._lingering or self._core.state not in (
            State.CLOSING,
            State.CLOSE_RECEIVED,
            State.CLOSED,
        ):
            self._transport.close()

    def storage_failed(self, text: str) -> None:
        """Confirms that wait will never come: close, so that publishers know."""
        self.answers.stop()
        self._end()
        data = self._core.close(RemoteProtocolError(ReplyCode.RESOURCE_ERROR, text))
        if data:
            self._transport.write(data)
        self._transport.abort_in(self.limits.close_seconds)

    def storage_blocks(self, reason: str) -> None:
        """Publishers are refused for this reason from now on, or, if it is empty, not any more. A
        client that knows the notification is told (RabbitMQ's connection.blocked)."""
        if self._core.state is not State.OPEN or bool(reason) is self._sent_blocked:
            return
        if self.login.has_capability("connection.blocked"):
            self._sent_blocked = bool(reason)
            blocked = spec.ConnectionBlocked(reason=reason[: spec.SHORT_STRING_MAX])
            notice = self._core.send(blocked if reason else spec.ConnectionUnblocked(), 0)
            self._transport.write(notice)  # not behind confirms that wait for the same disk

    def lost(self) -> None:
        """The socket is gone."""
        self._gone = True
        self.login.leave()
        self.answers.stop()
        self._end()
        self._core.lost()
        self._outbox = None
        self._rest = b""
        del self.fast_path, self.login  # they know their client: without cycles all is free at once

    # --- bytes out --------------------------------------------------------------------------

    def answer(
        self,
        data: bytes,
        position: int = 0,
        then: Callable[[], None] | None = None,
        durability: Durability | None = None,
    ) -> None:
        """See `Answers.send`."""
        self.answers.send(data, position, then, durability)
        if self.unread_bytes or self.answers.bytes_waiting:
            self._weigh()

    def reply(
        self,
        channel: int,
        method: Method,
        position: int = 0,
        then: Callable[[], None] | None = None,
        durability: Durability | None = None,
    ) -> None:
        """Answer with a method; the core's state changes now, the bytes leave in their turn."""
        self.answer(self._core.send(method, channel), position, then, durability)

    def write_large(self, body: LargeBody) -> None:
        """See `channel.Link.write_large`."""
        if self._outbox is not None:
            self._outbox.add(body)
            return
        self._outbox = Outbox()
        self._outbox.add(body)
        self.write_delivery = self._outbox.add
        self._empty_outbox()

    def _empty_outbox(self) -> None:
        """Write what the socket takes of it; the rest when it takes more."""
        outbox = self._outbox
        while outbox and not self._transport.full:
            self._transport.write(outbox.take(OUTBOX_BYTES))
        if not outbox:
            self._outbox = None
            self.write_delivery = self._transport.write

    def _write_answer(self, data: bytes) -> None:
        if self._outbox is not None:
            self.unread_bytes += len(data)
            self._outbox.add(data)
        else:
            if self._transport.full:
                self.unread_bytes += len(data)
            self._transport.write(data)
        if not self._running:
            self.check_pressure()

    def _weigh(self) -> None:
        """Whether the answers that wait, or that the client does not read, are too many."""
        waiting = self.answers.bytes_waiting + self.unread_bytes
        self.flow.set(ANSWERS, waiting > self.limits.answers_bytes_max)

    def check_pressure(self) -> None:
        """Read on while there is nothing to wait for (`net.flow`)."""
        if self._lingering:
            return  # all that comes is dropped
        flow = self.flow
        was_full = flow.waits & ANSWERS
        self._weigh()
        flow.regulate(self._transport)
        if was_full and not flow.waits & ANSWERS:
            self._transport.later(self._go_on)

    def drained(self) -> None:
        """The socket takes bytes again."""
        if self._outbox is not None:
            self._empty_outbox()
            if self._outbox is not None:
                return
        self.unread_bytes = 0
        if not self._running:
            self.check_pressure()
        for channel in list(self.channels.values()):
            channel.ready()

    # --- for the channels -------------------------------------------------------------------

    def later(self, callback: Callable[[], None]) -> None:
        """See `channel.Link.later`."""
        self._transport.later(callback)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Callable[[], None]:
        """See `channel.Link.call_later`."""
        return self._transport.call_later(seconds, callback)

    @property
    def frame_max(self) -> int:
        """Largest whole frame that the client takes."""
        return self._core.frame_max

    @property
    def heartbeat_seconds(self) -> int:
        """What the client wants; 0: none."""
        return self._core.heartbeat

    @property
    def wants_cancel(self) -> bool:
        """See `channel.Link.wants_cancel`."""
        return not self._gone and self.login.has_capability("consumer_cancel_notify")

    def takes_deliveries(self) -> bool:
        """See `channel.Link.takes_deliveries`."""
        return not self._ended and self._outbox is None and not self._transport.full
