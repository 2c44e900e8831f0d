"""The protocol core: bytes in, events out, and bytes of what we send (AMQP 4.2).

Rules of this file:

1. Legal behaviour is in the tables of `states.py`; this file walks through them.
2. It knows no socket, no clock and no engine.
3. An error names what to close. After an error on a channel the channel is CLOSING: whatever comes
   for it is dropped until its close-ok. After an error on the connection the same holds for all.

Theory of operation. Two ways lead through it. Publishes that are complete and contiguous, and acks,
are taken by the kernel, hundreds at a time, and come out as one `Traffic`. Everything else goes
frame by frame: the kernel stops at it, `_take_frame` looks at it. Content that the kernel leaves is
put together by `contents.py`, and comes out as a `Traffic` of one row.

An event's batch points into the bytes of this read: handle it before asking for the next one.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from polymq.core_log.kernels.batch import (
    BODY_SIZE,
    BODY_START,
    CAPACITY,
    COLUMNS,
    EXTRA_START,
    FLAGS,
    Batch,
)
from polymq.gateways.amqp import spec
from polymq.gateways.amqp.contents import Assembling, Contents
from polymq.gateways.amqp.errors import (
    LocalProtocolError,
    Malformed,
    RemoteProtocolError,
    ReplyCode,
)
from polymq.gateways.amqp.events import (
    Event,
    HeaderReceived,
    HeaderRefused,
    MethodReceived,
    Run,
    Settlement,
    Traffic,
)
from polymq.gateways.amqp.kernels import codes, frames
from polymq.gateways.amqp.limits import (
    FRAME_BYTES_MIN,
    FRAME_OVERHEAD,
    HANDSHAKE_FRAME_BYTES_MAX,
    Limits,
)
from polymq.gateways.amqp.methods import (
    FRAME_BODY,
    FRAME_END,
    FRAME_HEAD,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    METHOD_HEAD,
    PROTOCOL_HEADER,
    PROTOCOL_HEADER_0_9,
    decode_method,
    method_frame,
    method_kind,
)
from polymq.gateways.amqp.spec import Method
from polymq.gateways.amqp.states import (
    AGAIN,
    CHANNEL_RECEIVED,
    CHANNEL_SENT,
    DROPPED_STATES,
    LATE,
    RECEIVED,
    SENT,
    TRAFFIC_STATE,
    ChannelState,
    Content,
    State,
    fault_of_channel,
    fault_of_connection,
)
from polymq.gateways.amqp.tables import Buffer

SETTLEMENTS_MAX: Final = 1024
"""Settlements of one read; acks that follow each other are one. A kernel that meets the bound
stops, and is called again with the rest."""
BULK_BYTES: Final = 128 * 1024
"""Of a read, that are one event, unless a message is longer. What a turn does not get to is parsed
again in the next one, so there must not be much of it."""
WAIT_FOR_BODY_BYTES_MAX: Final = 32 * 1024
"""A publish whose end has not come is presented again with the next read, so that the kernel can
take it whole. A larger one is put together here, lest its bytes be moved again and again."""
OPEN: Final = State.OPEN
"""As a name of its own: Python 3.11 needs 150 ns for each look into an enumeration."""


class Work:
    """The arrays that a kernel fills. One for all connections of a loop, since each event is
    handled before the next read.

    Attributes:
        assembling: what all connections have received of contents that are not whole yet.
    """

    def __init__(self) -> None:
        self.assembling = Assembling()
        self.batch = Batch()
        self.runs: array[int] = array("q", bytes(8 * CAPACITY))
        self.settlements: array[int] = array(
            "q", bytes(8 * codes.SETTLEMENT_COLUMNS * SETTLEMENTS_MAX)
        )


class Protocol:
    """One client's side of the protocol.

    Args:
        work: arrays to parse into.
        limits: bounds; tune may lower some of them.
    """

    def __init__(self, *, work: Work, limits: Limits) -> None:
        self.state = State.WAIT_HEADER
        self.channels: dict[int, ChannelState] = {}
        self.channel_max = limits.channel_max
        self.frame_max = HANDSHAKE_FRAME_BYTES_MAX
        """Largest whole frame, both ways."""
        self.heartbeat = 0
        """Seconds, as the client wants it; 0 for none."""
        self.position = 0
        """Up to where the bytes of `receive` are used."""
        self._limits = limits
        self._work = work
        self._buffer: Buffer = b""
        self._end = 0
        self._contents = Contents(limits, work.assembling)
        self._used_channels: set[int] = set()  # ever opened: late acks for them are no error
        self._fault: RemoteProtocolError | None = None  # to be raised after the event before it
        self._event_start = 0  # of the last event of the kernel
        self._cut_bytes = 0  # of an event that was taken in part: the rest of it
        self._cut_settlements: list[Settlement] = []  # of that rest

    # --- receiving --------------------------------------------------------------------------

    def receive(self, buffer: Buffer, start: int, end: int) -> None:
        """Look at `buffer[start:end]` from now on; it begins with what was left unused."""
        self._buffer = buffer
        self.position = start
        self._end = end

    def next_event(self) -> Event | None:
        """The next event, or None when there is nothing (more) to say about the bytes.

        Raises:
            RemoteProtocolError: close what it names (`close`), then go on.
        """
        while True:
            if self._fault is not None:
                fault, self._fault = self._fault, None
                raise fault
            if self.position == self._end:
                return None
            if self.state is OPEN:
                event, again = self._take_bulk()
            elif self.state is State.WAIT_HEADER:
                return self._take_header()
            elif self.state in (State.DEAF, State.CLOSE_RECEIVED, State.CLOSED):
                self.position = self._end
                return None
            elif self.state in (State.STARTING, State.AUTHENTICATING, State.OPENING):
                return None  # ours is the next word
            else:
                event, again = self._take_frame()
            if event is not None or not again:
                return event

    def cut(self, rows: int, settlements: Sequence[Settlement]) -> None:
        """Of the last event, a `Traffic` of the kernel, only the first `rows` rows were taken, and
        not these settlements: the rest comes again as the next event."""
        if rows:
            at = (rows - 1) * COLUMNS
            row = self._work.batch.rows[at : at + COLUMNS]
            part = BODY_START if row[BODY_SIZE] else EXTRA_START  # the last, before a frame's end
            end = row[part] + row[part + 1] + 1
        else:
            end = self._event_start
        self._cut_bytes = self.position - end
        self._cut_settlements = [
            replace(settlement, rows=max(0, settlement.rows - rows)) for settlement in settlements
        ]
        self.position = end
        self._fault = None  # it is met again

    def _take_bulk(self) -> tuple[Event | None, bool]:
        """Let the kernel take what it can. Returns an event, and whether to go on without one."""
        work = self._work
        start = self._event_start = self.position
        again, self._cut_bytes = self._cut_bytes, 0
        size = again or BULK_BYTES
        while True:
            end = min(self._end, start + size)
            at, stop, run_count, settlement_count = frames.parse(
                self._buffer,
                start,
                end,
                self.frame_max,
                self._limits.body_bytes_max,
                work.batch,
                work.runs,
                work.settlements,
            )
            self.position = at
            if run_count or settlement_count:
                return self._traffic(run_count, settlement_count, again=again > 0), True
            if end == self._end or stop != codes.NEED_DATA:
                break
            size *= 2  # the first message is longer
        if stop == codes.NEED_DATA:
            if self._end - at < WAIT_FOR_BODY_BYTES_MAX or not self._frame_is_whole():
                return None, False
        return self._take_frame()

    def _frame_is_whole(self) -> bool:
        size = int(FRAME_HEAD.unpack_from(self._buffer, self.position)[2])
        return self._end - self.position >= size + FRAME_OVERHEAD

    def _traffic(
        self, run_count: int, settlement_count: int, *, again: bool = False
    ) -> Traffic | None:
        """The kernel's result as an event, without what its channels do not take.

        Args:
            again: it is the rest of an event that was cut, whose settlements are known: one that
                goes over several publishes began before the cut.
        """
        settlements, fault_row = self._settlements(settlement_count)
        if again:
            settlements, self._cut_settlements = self._cut_settlements, []
        batch = self._work.batch
        starts = self._work.runs
        runs: list[Run] = []
        for index in range(run_count):
            first = starts[index]
            if first >= fault_row:
                break
            flags = batch.rows[first * COLUMNS + FLAGS]
            channel = flags >> codes.CHANNEL_SHIFT
            takes, fault = self._judge(channel, spec.BasicPublish)
            if takes:
                last = starts[index + 1] if index + 1 < run_count else batch.count
                runs.append(Run(channel, flags, first, last))
            elif fault is not None:  # it stands before any that was found
                self._fault = fault
                settlements = [known for known in settlements if known.rows <= first]
                break
        return Traffic(batch, runs, settlements) if runs or settlements else None

    def _settlements(self, count: int) -> tuple[list[Settlement], int]:
        """The kernel's acks that channels take, up to the first fault among them, which is noted;
        and the row that this fault stands before."""
        settlements: list[Settlement] = []
        for at in range(0, count * codes.SETTLEMENT_COLUMNS, codes.SETTLEMENT_COLUMNS):
            settlement = Settlement(*self._work.settlements[at : at + codes.SETTLEMENT_COLUMNS])
            takes, self._fault = self._judge(settlement.channel, spec.BasicAck)
            if takes:
                settlements.append(settlement)
            elif self._fault is not None:
                return settlements, settlement.rows
        return settlements, self._work.batch.count

    def _judge(self, channel: int, method: type[Method]) -> tuple[bool, RemoteProtocolError | None]:
        """Whether the channel takes publishes and acks, and the error if it is one to send them."""
        state = self.channels.get(channel, ChannelState.CLOSED)
        if state is TRAFFIC_STATE:
            return True, None
        if state in DROPPED_STATES or (method in LATE and self._was_used(channel, state)):
            return False, None
        return False, fault_of_channel(state, method, channel)

    # --- frame by frame ---------------------------------------------------------------------

    def _take_header(self) -> Event | None:
        size = min(len(PROTOCOL_HEADER), self._end - self.position)
        found = bytes(self._buffer[self.position : self.position + size])
        if found in (PROTOCOL_HEADER, PROTOCOL_HEADER_0_9):
            self.position += size
            self.state = State.STARTING
            return HeaderReceived()
        if PROTOCOL_HEADER.startswith(found) or PROTOCOL_HEADER_0_9.startswith(found):
            return None
        self.state = State.DEAF
        self.position = self._end
        return HeaderRefused(reply=PROTOCOL_HEADER)

    def _take_frame(self) -> tuple[Event | None, bool]:
        """Take the frame at the position, if it is whole."""
        at = self.position
        if self._end - at < FRAME_HEAD.size:
            return None, False
        kind, channel, size = FRAME_HEAD.unpack_from(self._buffer, at)
        self._check_frame_head(kind, size)
        if self._end - at < size + FRAME_OVERHEAD:
            return None, False
        start = at + FRAME_HEAD.size
        end = start + size
        if self._buffer[end] != FRAME_END:
            raise self._deaf("a frame does not end in 0xCE")
        self.position = end + 1
        if self.state is State.CLOSING and (channel or kind != FRAME_METHOD):
            return None, True
        try:
            if kind == FRAME_METHOD:
                return self._take_method(channel, start, end), True
            if kind == FRAME_HEARTBEAT:
                self._check_heartbeat(channel, size)
                return None, True
            return self._take_content(kind, channel, start, end), True
        except Malformed as error:
            raise RemoteProtocolError(ReplyCode.FRAME_ERROR, str(error)) from error

    def _check_frame_head(self, kind: int, size: int) -> None:
        """Before anything is buffered or allocated by an announced size."""
        if kind not in (FRAME_METHOD, FRAME_HEADER, FRAME_BODY, FRAME_HEARTBEAT):
            raise self._deaf(f"unknown frame type {kind}")
        # Clients count the eight bytes around a payload or don't, so it may fill frame_max.
        if size > self.frame_max:
            raise self._deaf(
                f"a frame of {size + FRAME_OVERHEAD} bytes is larger than {self.frame_max}"
            )

    def _deaf(self, text: str) -> RemoteProtocolError:
        """The error after which frames cannot be told apart any more."""
        self.state = State.CLOSED if self.state is State.CLOSING else State.DEAF
        self.position = self._end
        return RemoteProtocolError(ReplyCode.FRAME_ERROR, text)

    def _check_heartbeat(self, channel: int, size: int) -> None:
        if channel:
            raise RemoteProtocolError(
                ReplyCode.UNEXPECTED_FRAME, f"a heartbeat on channel {channel} (AMQP 4.2.7)"
            )
        if size:
            raise RemoteProtocolError(ReplyCode.FRAME_ERROR, "a heartbeat with a payload")

    def _take_method(self, channel: int, start: int, end: int) -> Event | None:
        if end - start < METHOD_HEAD.size:
            raise RemoteProtocolError(ReplyCode.FRAME_ERROR, "a method frame without a method")
        kind = method_kind(self._buffer, start)
        if kind is None:
            class_id, method_id = METHOD_HEAD.unpack_from(self._buffer, start)
            raise RemoteProtocolError(
                ReplyCode.COMMAND_INVALID,
                f"there is no method {class_id}.{method_id}",
                class_id=class_id,
                method_id=method_id,
            )
        if channel == 0 or kind.CLASS_ID == spec.ConnectionStart.CLASS_ID:
            return self._take_connection_method(channel, kind, start, end)
        if self.state is not State.OPEN:
            raise fault_of_connection(self.state, kind, channel)
        return self._take_channel_method(channel, kind, start, end)

    def _take_connection_method(
        self, channel: int, kind: type[Method], start: int, end: int
    ) -> Event | None:
        state = RECEIVED.get((self.state, kind))
        if state is None or channel:
            if self.state is State.CLOSING:
                return None
            raise fault_of_connection(self.state, kind, channel)
        method = decode_method(kind, self._buffer, start + METHOD_HEAD.size, end)
        self.state = state
        if isinstance(method, spec.ConnectionTuneOk):
            self._tune(method)
        return MethodReceived(channel=0, method=method)

    def _tune(self, method: spec.ConnectionTuneOk) -> None:
        """The client may only lower what we proposed; 0 asks for no limit, which is higher."""
        limits = self._limits
        for name, value, least, most in (
            ("channel_max", method.channel_max, 1, limits.channel_max),
            ("frame_max", method.frame_max, FRAME_BYTES_MIN, limits.frame_bytes_max),
        ):
            if not least <= value <= most:
                raise RemoteProtocolError(
                    ReplyCode.NOT_ALLOWED,
                    f"negotiated {name} = {value} is not between {least} and {most}",
                    class_id=method.CLASS_ID,
                    method_id=method.METHOD_ID,
                )
        self.channel_max = method.channel_max
        self.frame_max = method.frame_max
        self.heartbeat = method.heartbeat

    def _take_channel_method(
        self, channel: int, kind: type[Method], start: int, end: int
    ) -> Event | None:
        state = self.channels.get(channel, ChannelState.CLOSED)
        next_state = CHANNEL_RECEIVED.get((state, kind))
        if next_state is None and self._was_used(channel, state):
            next_state = AGAIN.get(kind)
        if next_state is None:
            if state in DROPPED_STATES or (kind in LATE and self._was_used(channel, state)):
                return None
            raise fault_of_channel(state, kind, channel)
        method = decode_method(kind, self._buffer, start + METHOD_HEAD.size, end)
        if isinstance(method, spec.ChannelOpen):
            self._check_channel_count(method)
            self._used_channels.add(channel)
        elif isinstance(method, spec.ChannelClose):
            self._contents.forget(channel)
        elif isinstance(method, spec.BasicPublish):
            self._contents.begin(channel, method, self._buffer, start, end)
        self._enter(channel, next_state)
        if isinstance(method, (spec.BasicPublish, spec.ChannelCloseOk)):
            return None
        return MethodReceived(channel=channel, method=method)

    def _was_used(self, channel: int, state: ChannelState) -> bool:
        return state is ChannelState.CLOSED and channel in self._used_channels

    def _enter(self, channel: int, state: ChannelState) -> None:
        if state is ChannelState.CLOSED:
            del self.channels[channel]
        else:
            self.channels[channel] = state

    def _check_channel_count(self, method: spec.ChannelOpen) -> None:
        """Like RabbitMQ we limit how many channels are open, not their numbers."""
        if len(self.channels) >= self.channel_max:
            raise RemoteProtocolError(
                ReplyCode.NOT_ALLOWED,
                "number of channels opened has reached the negotiated channel_max "
                f"({self.channel_max})",
                class_id=method.CLASS_ID,
                method_id=method.METHOD_ID,
            )

    # --- contents ---------------------------------------------------------------------------

    def _take_content(self, kind: int, channel: int, start: int, end: int) -> Event | None:
        state = self.channels.get(channel, ChannelState.CLOSED)
        if state in DROPPED_STATES:
            return None
        if kind == FRAME_HEADER:
            if state is not ChannelState.HEADER:
                raise fault_of_channel(state, Content.HEADER, channel)
            done = self._contents.header(channel, self._buffer, start, end)
            seen = Content.HEADER_OF_NOTHING if done else Content.HEADER
        else:
            if state is not ChannelState.BODY:
                raise fault_of_channel(state, Content.BODY, channel)
            done = self._contents.body(channel, self._buffer, start, end)
            seen = Content.LAST_BODY if done else Content.BODY
        self.channels[channel] = CHANNEL_RECEIVED[state, seen]
        return self._contents.complete(channel) if done else None

    # --- sending ----------------------------------------------------------------------------

    def send(self, method: Method, channel: int = 0) -> bytes:
        """The frame of a method, which changes the state as the tables say.

        Raises:
            LocalProtocolError: the state does not allow it.
        """
        if channel == 0:
            connection_state = SENT.get((self.state, type(method)))
            if connection_state is None:
                raise LocalProtocolError(f"{method.NAME} in state {self.state.name}")
            self.state = connection_state
            if isinstance(method, spec.ConnectionClose):
                self._contents.clear()
        else:
            state = self.channels.get(channel, ChannelState.CLOSED)
            next_state = CHANNEL_SENT.get((state, type(method)))
            if next_state is None:
                raise LocalProtocolError(f"{method.NAME} on channel {channel} in {state.name}")
            if isinstance(method, spec.ChannelClose):
                self._contents.forget(channel)
            self._enter(channel, next_state)
        return method_frame(channel, method)

    def lost(self) -> None:
        """The socket is gone: nothing is finished any more."""
        self._contents.clear()

    def close(self, error: RemoteProtocolError) -> bytes:
        """The close that tells the client what is wrong; empty if it cannot be told any more."""
        values = {
            "reply_code": int(error.code),
            "reply_text": error.reply_text,
            "class_id": error.class_id,
            "method_id": error.method_id,
        }
        if error.channel:
            return self.send(spec.ChannelClose(**values), error.channel)  # type: ignore[arg-type]
        if (self.state, spec.ConnectionClose) not in SENT:
            return b""
        return self.send(spec.ConnectionClose(**values))  # type: ignore[arg-type]
