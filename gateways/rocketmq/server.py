"""The RocketMQ door's sockets: ties the core to a connection and to the engine.

Rules:

* A connection reads for at most `pulls_reading_max` pulls at once, and for none while its
  transport is past the high-water mark. The other pulls wait in order; everything else is
  answered at once.
* The engine answers at once where the records are in memory, and the transport learns of the
  answers only at the end of the loop's iteration: so a connection also stops after
  `TURN_BYTES_MAX` of answers, and goes on in the next iteration.
* Between the question to the engine and its answer a topic may be deleted, or a client vanish.
  The topic is looked up again when the records are there, and its incarnation compared.
* The protocol as it is spoken here has no login: a connection has the rights of the user that the
  configuration names for this door, or of nobody. They are looked at for each request.
* Closing is answering first: a server that stops answers what it holds with "nothing new".
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable

from broker.port import BrokerPort, Refused, TopicInfo
from gateways.rocketmq import mapping
from gateways.rocketmq.connection import (
    AskOffset,
    AskRoute,
    AskTopics,
    Event,
    Malformed,
    Pull,
    RocketmqCore,
    Unsupported,
)
from gateways.rocketmq.holds import Hold, Holds
from gateways.rocketmq.limits import RocketmqLimits
from gateways.rocketmq.mapping import Answer, Identity
from net.connection import Connection, Context
from net.listener import Listener, listen
from remoting.codes import ResponseCode
from remoting.errors import RemoteProtocolError

HOLD_TICK_SECONDS = 0.1
"""How late a held pull may notice that its queue grew."""
TURN_BYTES_MAX = 1024 * 1024
"""Of answers to one connection in one iteration of the loop: as much as its transport takes before
it calls a halt."""


class RocketmqConnection(Connection):
    """One client."""

    def __init__(self, server: RocketmqServer) -> None:
        super().__init__(server.context)
        self._server = server
        self._port = server.port
        self._leave: Callable[[], None] | None = None
        self._limits = server.limits
        self._core = RocketmqCore()
        self._turn: deque[Pull] = deque()  # pulls that wait for their turn to read
        self._held: dict[int, Pull] = {}  # by serial; the server's holds name them
        self._reading_count = 0
        self._turn_bytes = 0  # answered in this iteration of the loop
        self._starting = False  # inside _read_next, which an engine that answers at once re-enters
        self._draining = False

    # --- the socket's side ----------------------------------------------------------------

    def opened(self) -> None:
        self._stay_awake()
        port = self._server.port
        self._port = port.for_principal(port.listener_principal(self._server.user))
        try:
            self._leave = self._port.enter(self._expelled)
        except Refused:
            self.close()

    def _expelled(self, _why: str) -> None:
        self.close()

    def consume(self, buffer: bytearray, start: int, end: int) -> int:
        self._stay_awake()
        try:
            events, used = self._core.receive(buffer, start, end)
        except RemoteProtocolError as error:
            self._server.protocol_error(self, error)
            self.close()
            return end
        for event in events:
            self._handle(event)
        self._read_next()
        return used

    def drained(self) -> None:
        if not self._draining:
            self.resume_reading()
        self._read_next()

    def lost(self, error: Exception | None) -> None:
        self._turn.clear()
        self._held.clear()
        self._server.holds.drop(self)
        if self._leave is not None:
            self._leave()

    def expired(self, now: float) -> float | None:
        if self._core.open_count:  # it waits for us, not we for it
            return now + self._limits.idle_seconds_max
        self.close()
        return None

    def _stay_awake(self) -> None:
        self.deadline(self.context.now() + self._limits.idle_seconds_max)

    def drain(self) -> None:
        """Close as soon as everything that was asked is answered."""
        self._draining = True
        self.stop_reading()
        for hold in self._server.holds.drop(self):
            self.release(hold.serial)
        self._close_if_drained()

    def _close_if_drained(self) -> None:
        if self._draining and not self._core.open_count:
            self.close()

    # --- answering ------------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        try:
            self._take(event)
        except Refused as error:
            self._answer(event.serial, mapping.refused(error))

    def _take(self, event: Event) -> None:
        port = self._port
        match event:
            case Pull():
                self._turn.append(event)
            case AskOffset():
                self._answer(event.serial, mapping.offset(port, event.code, event.fields))
            case AskRoute():
                address = self._server.advertised or self._own_address()
                identity = self._server.identity
                self._answer(event.serial, mapping.route(port, event.fields, identity, address))
            case AskTopics():
                self._answer(event.serial, mapping.topic_list(port))
            case Unsupported():
                self._answer(event.serial, mapping.unsupported(event.code))
            case Malformed():
                self._answer(
                    event.serial, mapping.failed(ResponseCode.INVALID_PARAMETER, event.reason)
                )

    def _own_address(self) -> str:
        """Where this client reached us: an address that works for it."""
        name = self.transport.get_extra_info("sockname") if self.transport is not None else None
        host, port = name[:2] if isinstance(name, tuple) else ("127.0.0.1", 0)
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _answer(self, serial: int, answer: Answer) -> None:
        if self.closing:
            return
        head = self._core.answer(
            serial,
            answer.code,
            answer.fields,
            remark=answer.remark,
            body_size=len(answer.body),
        )
        self.write(head)
        if answer.body:
            self.write(answer.body)
            self._turn_bytes += len(answer.body)
        self._close_if_drained()

    # --- pulls ----------------------------------------------------------------------------

    def _read_next(self) -> None:
        if self.paused:
            self.stop_reading()
        if self._starting:
            return
        self._starting = True
        try:
            while self._may_read() and self._turn_bytes < TURN_BYTES_MAX:
                self._pull(self._turn.popleft())
        finally:
            self._starting = False
        if self._may_read():
            # Runs behind the write of what is gathered, so `paused` tells the truth again.
            self.context.loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn_bytes = 0
        self._read_next()

    def _may_read(self) -> bool:
        free = self._reading_count < self._limits.pulls_reading_max
        return bool(self._turn) and free and not self.paused and not self.closing

    def _pull(self, pull: Pull) -> None:
        fields = pull.fields
        try:
            info = mapping.find_topic(self._port, fields.topic, fields.user_topic)
        except Refused as error:
            self._answer(pull.serial, mapping.refused(error))
            return
        if info is None:
            self._answer(pull.serial, mapping.no_such_topic(fields.topic))
            return
        if not 0 <= fields.queue_id < len(info.max_offsets):
            self._answer(pull.serial, mapping.no_such_queue(info, fields.queue_id))
            return
        if fields.count_max <= 0:
            code = ResponseCode.INVALID_PARAMETER
            self._answer(pull.serial, mapping.failed(code, "maxMsgNums has to be positive"))
            return
        code = mapping.pull_code(info, fields.queue_id, fields.queue_offset)
        if code == ResponseCode.SUCCESS:
            self._read(pull, info)
        elif code == ResponseCode.PULL_NOT_FOUND and self._hold(pull, info):
            self._held[pull.serial] = pull
        else:
            self._answer(pull.serial, mapping.pull_answer(info, fields, code))

    def _read(self, pull: Pull, info: TopicInfo) -> None:
        fields, limits = pull.fields, self._limits
        asked = fields.bytes_max if fields.bytes_max is not None else limits.pull_bytes_default
        self._reading_count += 1
        try:
            self._port.pull(
                info.name,
                fields.queue_id,
                fields.queue_offset,
                count_max=min(fields.count_max, limits.pull_count_max),
                bytes_max=min(max(asked, 1), limits.pull_bytes_max),
                callback=lambda records, next_offset: self._have_read(
                    pull, info, records, next_offset
                ),
            )
        except Refused as error:
            self._reading_count -= 1
            self._answer(pull.serial, mapping.refused(error))

    def _have_read(self, pull: Pull, before: TopicInfo, records: bytes, next_offset: int) -> None:
        self._reading_count -= 1
        if self.closing:
            return
        info = self._server.port.topic(before.name)
        if info is None or info.incarnation != before.incarnation:
            self._answer(pull.serial, mapping.no_such_topic(pull.fields.topic))
        elif not records:
            code = ResponseCode.PULL_RETRY_IMMEDIATELY
            self._answer(pull.serial, mapping.pull_answer(info, pull.fields, code))
        else:
            answer = mapping.pull_answer(
                info,
                pull.fields,
                ResponseCode.SUCCESS,
                records=records,
                next_offset=next_offset,
            )
            self._answer(pull.serial, answer)
        self._read_next()

    def _hold(self, pull: Pull, info: TopicInfo) -> bool:
        if self._draining or not mapping.may_hold(pull.fields):
            return False
        seconds = min(pull.fields.suspend_ms / 1000, self._limits.hold_seconds_max)
        return self._server.hold(
            Hold(
                owner=self,
                serial=pull.serial,
                topic=info.name,
                queue_id=pull.fields.queue_id,
                offset=pull.fields.queue_offset,
                until=self.context.now() + seconds,
            )
        )

    def release(self, serial: int) -> None:
        """Answer a held pull: with what came meanwhile, or that nothing did."""
        pull = self._held.pop(serial)
        fields = pull.fields
        try:
            info = mapping.find_topic(self._port, fields.topic, fields.user_topic)
        except Refused as error:
            self._answer(serial, mapping.refused(error))
            return
        if info is not None and fields.queue_id < len(info.max_offsets):
            code = mapping.pull_code(info, fields.queue_id, fields.queue_offset)
            if code == ResponseCode.PULL_NOT_FOUND:
                self._answer(serial, mapping.pull_answer(info, fields, code))
                return
        self._turn.append(pull)
        self._read_next()


class RocketmqServer:
    """The door: listens, and owns what its connections share.

    Args:
        advertise: `host:port` that routes name; by default each client is told the address that
            it connected to, which is wrong only behind a translation of addresses.
        user: whose rights all clients of this door have; empty for nobody's.
    """

    def __init__(
        self,
        *,
        port: BrokerPort,
        context: Context,
        limits: RocketmqLimits | None = None,
        cluster: str = "DefaultCluster",
        broker_name: str = "broker-a",
        advertise: str | None = None,
        user: str = "",
    ) -> None:
        self.port = port
        self.user = user
        self.context = context
        self.limits = limits or RocketmqLimits()
        self.identity = Identity(cluster=cluster, broker_name=broker_name)
        self.advertised = advertise
        self.holds: Holds[RocketmqConnection] = Holds(self.limits.holds_max)
        self.protocol_error_count = 0
        self._listener: Listener | None = None
        self._tick: asyncio.TimerHandle | None = None

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Listen; returns the bound port. Raises `net.listener.CannotListen`."""
        self._listener = await listen(
            self.context,
            lambda: RocketmqConnection(self),
            host=host,
            port=port,
            tls=tls,
            connections_max=self.limits.connections_max,
        )
        return self._listener.port

    async def stop(self, drain_seconds: float) -> None:
        """Stop accepting, answer what was asked, then close; abort what takes longer."""
        if self._listener is None:
            return
        self._listener.stop_accepting()
        for connection in list(self._listener.connections):
            if isinstance(connection, RocketmqConnection):
                connection.drain()
        await self._listener.wait_empty(drain_seconds)
        await self._listener.close()
        if self._tick is not None:
            self._tick.cancel()

    @property
    def connection_count(self) -> int:
        """Clients that are connected now."""
        return len(self._listener.connections) if self._listener is not None else 0

    def protocol_error(self, connection: RocketmqConnection, error: RemoteProtocolError) -> None:
        """A client violated the protocol; its connection is closed."""
        self.protocol_error_count += 1

    def hold(self, hold: Hold[RocketmqConnection]) -> bool:
        """Hold a pull; False when there are too many."""
        if not self.holds.add(hold):
            return False
        if self._tick is None:
            self._tick = self.context.loop.call_later(HOLD_TICK_SECONDS, self._look_at_holds)
        return True

    def _look_at_holds(self) -> None:
        self._tick = None
        for hold in self.holds.take(self.context.now(), self._ends):
            hold.owner.release(hold.serial)
        if self.holds and self._tick is None:
            self._tick = self.context.loop.call_later(HOLD_TICK_SECONDS, self._look_at_holds)

    def _ends(self, topic: str) -> tuple[int, ...] | None:
        info = self.port.topic(topic)
        return None if info is None else info.max_offsets
