"""One client: ties the core to its socket, and each request to what answers it.

Rules:

* Pulls wait for their turn (`pulling.py`); sends for their commit; everything else is answered at
  once (`requests.py`).
* There is no login: each request says who it is from (`callers.py`), passes the gate (`rights.py`),
  and is carried out with the rights of that user. They are looked at for each request.
* Closing is answering first: a server that stops answers what it holds with "nothing new".
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

from polymq.broker.port import BrokerPort, Durability, Position, Refused
from polymq.gateways.rocketmq import mapping
from polymq.gateways.rocketmq.callers import Callers
from polymq.gateways.rocketmq.mapping import Answer
from polymq.gateways.rocketmq.messages import BadMessage
from polymq.gateways.rocketmq.protocol import Event, Malformed, Protocol, Request, Unsupported
from polymq.gateways.rocketmq.pulling import Pulls
from polymq.gateways.rocketmq.requests import HANDLERS
from polymq.gateways.rocketmq.rights import admit
from polymq.gateways.rocketmq.sending import Sender
from polymq.gateways.rocketmq.shared import Shared
from polymq.net.clients import ClientInfo
from polymq.net.connection import SocketConnection
from polymq.net.flow import DISK, LEAVING, TURN, UNREAD, Flow
from polymq.remoting.broker_fields import GroupFields
from polymq.remoting.codes import PULL_COMMIT_OFFSET, RequestCode, ResponseCode
from polymq.remoting.errors import BadFields, LocalProtocolError, RemoteProtocolError
from polymq.remoting.headers import PullFields, write_fields

log = logging.getLogger(__name__)

PARSED_BYTES_MAX: Final = 16 * 1024
"""Bytes of a read whose requests are parsed together: some 2 ms."""


class Connection(SocketConnection):
    """One client.

    Args:
        user: whose rights a request without a signature has; empty for nobody's.
        advertised: `host:port` that routes name; or a host, whose port is the one that the client
            reached; None: the address that it reached.

    Attributes:
        client_name: its client id, as its heartbeats say.
        principal: who sent the request that is carried out.
        port: the engine, as who sent the request that is carried out may use it. What answers
            later keeps it: the next request may be another user's.
        sender: stores what that user sends.
        language, version: of its library, as its heartbeats say.
    """

    protocol = "rocketmq"
    client_name = ""

    def __init__(self, shared: Shared, user: str, advertised: str | None = None) -> None:
        super().__init__(shared.context)
        self.shared = shared
        self.traffic = shared.bytes
        self.principal = ""
        self.port: BrokerPort
        self.sender: Sender
        self.language = "OTHER"
        self.version = 0
        self._user = user
        self._advertised = advertised
        self._callers: Callers
        self._core = Protocol()
        self._pulls = Pulls(self, shared)
        self._proven = False  # by a request that it may make
        self._flow = Flow()
        self._events: deque[Event] = deque()  # what the last read asked for and is not carried out
        self._frame_due: float | None = None  # when the request that has begun has to be whole

    # --- the socket's side ----------------------------------------------------------------

    def opened(self) -> None:
        self._frame_due = self.context.now() + self.shared.limits.first_frame_seconds_max
        self._stay_awake()
        self._callers = Callers(
            self.shared.port,
            user=self._user,
            address=self.address,
            expelled=self._expelled,
            keys_max=self.shared.limits.access_keys_max,
        )

    @property
    def user(self) -> str:
        """Who sent the last request."""
        return self.principal

    def describe(self) -> ClientInfo:
        """See `net.clients`."""
        return self.described(self._flow, consumers=self.shared.members.count_of(self))

    def _expelled(self, _why: str) -> None:
        self.close()

    def consume(self, buffer: bytearray, start: int, end: int) -> int:
        if self._flow.waits & TURN:
            return start
        try:
            used = self._take(buffer, start, end)
        except RemoteProtocolError as error:
            self.shared.protocol_error_count += 1
            log.info("closing %s: %s", self.peer, error)
            self._events.clear()
            self.close()
            return end
        if used == end or self._flow.waits & TURN:
            self._frame_due = None
        elif used > start or self._frame_due is None:  # another request has begun
            self._frame_due = self.context.now() + self.shared.limits.frame_seconds_max
        self._stay_awake()
        self._pulls.read_next()
        for caller in self._callers:
            if not self._flow.waits & DISK and caller.port.overloaded(self._caught_up):
                self._flow.begin(DISK)
                self._flow.regulate(self)
        return used

    def _take(self, buffer: bytearray, start: int, end: int) -> int:
        """Carry out requests until the read ends or this connection's turn does; returns up to
        where the bytes are used. What was parsed and not carried out waits in `_events`. Raises
        RemoteProtocolError."""
        turns = self.context.turns
        turns.begin()
        at = start
        parsed_max = PARSED_BYTES_MAX
        while True:
            while self._events:
                self._handle(self._events.popleft())
                if turns.is_over() and (self._events or at < end):
                    self._flow.begin(TURN)
                    self._flow.regulate(self)
                    turns.wait(self._next_turn)
                    return at
            if at == end or self.closing or self._flow.waits & LEAVING:
                return at
            stop = min(at + parsed_max, end)
            events, used = self._core.receive(buffer, at, stop)
            if used == at and stop == end:
                return at
            if events and not self._proven:
                self.spoke()
            if used == at:  # a request that is larger
                parsed_max = end - at
            self._events.extend(events)
            at = used

    def _next_turn(self) -> None:
        """Others had their turn: go on with what is left of the read."""
        self._flow.end(TURN)
        self.consume_again()
        self.regulate()

    def regulate(self) -> None:
        """Read on while there is nothing to wait for (`net.flow`)."""
        self._flow.set(UNREAD, self.paused)
        self._flow.regulate(self)

    def _caught_up(self) -> None:
        self._flow.end(DISK)
        self.regulate()

    def drained(self) -> None:
        self.regulate()
        self._pulls.read_next()

    def lost(self, error: Exception | None) -> None:
        self._events.clear()
        self._pulls.forget()
        self.shared.members.lost(self)
        self._callers.leave()

    def expired(self, now: float) -> float | None:
        due = self._frame_due
        if due is not None:
            if not self._flow.is_reading:  # what is late was not read by us
                self._frame_due = now + self.shared.limits.frame_seconds_max
                return self._frame_due
            if due <= now:
                log.info("closing %s: it did not send a whole request in time", self.peer)
                self.shared.protocol_error_count += 1
                self.close()
                return None
        if self._core.open_count:  # it waits for us, not we for it
            return now + self.shared.limits.idle_seconds_max
        self.close()
        return None

    def _stay_awake(self) -> None:
        idle = self.context.now() + self.shared.limits.idle_seconds_max
        self.deadline(idle if self._frame_due is None else min(idle, self._frame_due))

    def drain(self) -> None:
        """Close as soon as everything that was asked is answered."""
        self._pulls.draining = True
        self._flow.begin(LEAVING)
        self._flow.regulate(self)
        self._pulls.release_all()
        self._close_if_drained()

    def _close_if_drained(self) -> None:
        if self._flow.waits & LEAVING and not self._core.open_count:
            self.close()

    # --- answering ------------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        match event:
            case Unsupported():
                self.answer(event.serial, mapping.unsupported(event.code))
            case Malformed():
                code = ResponseCode.INVALID_PARAMETER
                self.answer(event.serial, mapping.failed(code, event.reason))
            case Request():
                answer = self._ask(event)
                if answer is not None and not event.oneway:
                    self.answer(event.serial, answer)

    def _pull(self, request: Request, fields: PullFields) -> None:
        if request.oneway:
            return
        if fields.system_flag & PULL_COMMIT_OFFSET:
            mapping.commit_with_pull(self.port, fields)
        self._pulls.take(request.serial, fields, self.port)

    def _ask(self, request: Request) -> Answer | None:
        """The answer; None if it comes later."""
        try:
            caller = self._callers.caller(request.signature)
            self.principal, self.port, self.sender = caller.principal, caller.port, caller.sender
            request = admit(caller.port, request, self.shared.limits)
            if not self._proven:
                self._proven = True
                self.proven()
            if isinstance(request.fields, PullFields):
                self._pull(request, request.fields)
                return None
            return HANDLERS[RequestCode(request.code)](self, request)
        except Refused as error:
            return mapping.refused(error)
        except BadMessage as error:
            return mapping.failed(ResponseCode.MESSAGE_ILLEGAL, str(error))
        except BadFields as error:
            return mapping.failed(ResponseCode.INVALID_PARAMETER, str(error))

    def returns(self, group: str) -> Sender:
        """Stores what members of a group give back, in the name of who sent the request. Raises
        Refused: FORBIDDEN."""
        return self._callers.returns(self.principal, group)

    def answer_when(
        self, position: Position, durability: Durability, request: Request, answer: Answer
    ) -> None:
        """Answer once the position is committed."""
        if not request.oneway:
            self.port.when_committed(position, durability, self.answer, request.serial, answer)

    def answer_later(self, request: Request, answer: Answer) -> None:
        """Answer a request whose handler said None."""
        if not request.oneway:
            self.answer(request.serial, answer)

    def answer(self, serial: int, answer: Answer) -> None:
        """Send the answer to the request with this serial; nothing if the client is gone."""
        if self.closing:
            return
        try:
            head = self._head(serial, answer)
        except LocalProtocolError as error:  # more topics or groups than a frame has room for
            answer = mapping.failed(ResponseCode.SYSTEM_ERROR, f"the answer is too large: {error}")
            head = self._head(serial, answer)
        self.write(head)
        if answer.body:
            self.write(answer.body)
        self._close_if_drained()

    def _head(self, serial: int, answer: Answer) -> bytes:
        return self._core.answer(
            serial,
            answer.code,
            answer.fields,
            remark=answer.remark,
            body_size=len(answer.body),
            has_records=answer.has_records,
        )

    # --- asking the client ------------------------------------------------------------------

    def tell_group_changed(self, group: str) -> None:
        """The members or subscriptions of a group of this client changed: it shares the queues
        out again."""
        fields = write_fields(GroupFields(consumer_group=group))
        self.tell(RequestCode.NOTIFY_CONSUMERS_CHANGED, fields)

    def tell(self, code: RequestCode, fields: dict[str, str], body: bytes = b"") -> None:
        """Send a oneway request, unless the client does not read."""
        if not self.closing and not self.paused:
            self.write(self._core.tell(code, fields, body))

    @property
    def own_address(self) -> str:
        """Where routes say that this broker is: where this client reached it."""
        advertised = self._advertised
        if advertised is not None and advertised.rpartition(":")[2].isdecimal():
            return advertised
        name = self.transport.get_extra_info("sockname") if self.transport is not None else None
        host, port = name[:2] if isinstance(name, tuple) else ("127.0.0.1", 0)
        if advertised is not None:
            return f"{advertised}:{port}"
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
