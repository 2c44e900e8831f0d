"""Fakes for tests of the MQTT gateway: an engine that records, a loop and a transport in memory.

Nothing here waits: a test moves the clock, runs the loop's turns and commits the log itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from interop_tests import mqtt_wire as wire
from polymq.broker.port import (
    Address,
    BrokerPort,
    ConnectedClient,
    Durability,
    Position,
    Reason,
    RecordRun,
    Refused,
    RunMeta,
    SessionLink,
    StorageFailed,
    SubscriptionOptions,
    Will,
)
from polymq.core_log.kernels.batch import (
    BODY_SIZE,
    BODY_START,
    EXTRA_BASE64,
    EXTRA_NONE,
    EXTRA_SIZE,
    EXTRA_START,
    Batch,
)
from polymq.gateways.mqtt.connection import Connection as MqttConnection
from polymq.gateways.mqtt.limits import Limits
from polymq.gateways.mqtt.mapping import TopicMapping
from polymq.gateways.mqtt.rules import Rules
from polymq.gateways.mqtt.shared import Shared
from polymq.net.connection import Context
from polymq.net.turns import Turns
from tests.gateways.mqtt.mqtt_records import records
from tests.harness import spy_port
from tests.harness.spy_port import operation


@dataclass
class SpyRoute:
    topic: str
    tag: str | None
    routed: bool = True
    by_headers: bool = False


@dataclass
class SpyTemplate:
    route: SpyRoute
    properties: Mapping[str, str]
    durability: Durability
    retain: bool
    valid: bool = True
    rows_at_once: int = 4096
    queues: tuple[object, ...] = ()


@dataclass(frozen=True)
class Published:
    """One message as the engine got it."""

    topic: str
    tag: str | None
    body: bytes
    qos: int
    retain: bool = False
    once: tuple[str, int] | None = None
    """Client id and packet id of a QoS 2 message."""
    block: bytes = b""
    """The properties of MQTT 5 that it came with."""
    more: tuple[tuple[str, str], ...] = ()
    """Constant properties beside those that all messages have."""


class SpySession:
    """A session that records what it is told."""

    def __init__(
        self,
        port: SpyPort,
        client_id: str,
        clean: bool,
        link: SessionLink,
        expiry_seconds: int | None = 0,
    ) -> None:
        self.expiry_seconds = expiry_seconds
        self.port = port
        self.client_id = client_id
        self.clean = clean
        self.link = link
        self.present = False
        self.position = Position(0)
        self.calls: list[tuple[Any, ...]] = []
        self.inbound: set[int] = set()
        self.addresses: set[Address] = set()
        self.options_of: dict[Address, SubscriptionOptions] = {}
        self.subscriptions = self.options_of
        self.refused: dict[Address, Refused] = {}
        self.will: Will | None = None
        self.resumed_count = 0
        """How often acknowledgements made it look for more to send."""

    def set_will(self, will: Will) -> None:
        if self.port.refused_will is not None:
            raise self.port.refused_will
        self.will = will
        self.position = self.port.append()

    def clear_will(self) -> None:
        self.will = None

    def resume(self) -> None:
        self.calls.append(("resume",))

    def subscribe(
        self, address: Address, options: SubscriptionOptions, *, retained: bool = True
    ) -> Position:
        if address in self.refused:
            raise self.refused[address]
        plain = options == SubscriptionOptions(qos=options.qos)
        self.calls.append(("subscribe", address, options.qos if plain else options))
        self.addresses.add(address)
        self.options_of[address] = options
        return self.port.append()

    def expire_after(self, seconds: int | None) -> None:
        self.calls.append(("expire_after", seconds))

    def options(self) -> Iterator[tuple[Address, SubscriptionOptions]]:
        return iter(self.options_of.items())

    def is_subscribed(self, address: Address) -> bool:
        return address in self.addresses

    def replay_retained(self, address: Address, since: Position) -> None:
        self.calls.append(("replay_retained", address, since))

    def unsubscribe(self, address: Address) -> Position:
        self.calls.append(("unsubscribe", address))
        self.addresses.discard(address)
        return self.port.append()

    def acknowledged(self, first_packet_id: int, count: int, more: bool = False) -> None:
        self.resumed_count += not more
        self.calls.append(("acknowledged", first_packet_id, count))

    def received(self, first_packet_id: int, count: int) -> None:
        self.calls.append(("received", first_packet_id, count))

    def rejected(self, first_packet_id: int, count: int) -> None:
        self.calls.append(("rejected", first_packet_id, count))

    def completed(self, first_packet_id: int, count: int, more: bool = False) -> None:
        self.resumed_count += not more
        self.calls.append(("completed", first_packet_id, count))

    def resume_if_starved(self) -> None:
        self.resumed_count += 1

    def send_singly(self, singly: bool) -> None:
        self.calls.append(("send_singly", singly))

    def is_duplicate(self, packet_id: int) -> bool:
        return packet_id in self.inbound

    def are_new(self, packet_ids: Sequence[int]) -> bool:
        return not self.inbound & {*packet_ids} and len({*packet_ids}) == len(packet_ids)

    def released(self, first_packet_id: int, count: int) -> Position:
        packet_ids = [(first_packet_id + k - 1) % 65_535 + 1 for k in range(count)]
        self.calls += [("released", packet_id) for packet_id in packet_ids]
        self.inbound -= {*packet_ids}
        return self.port.append()

    def release_all(self) -> Position:
        self.calls.append(("release_all",))
        self.inbound.clear()
        return self.port.append()

    def ready(self) -> None:
        self.calls.append(("ready",))

    def disconnect(self) -> None:
        """Its will is published, as the engine does, unless the server stops."""
        self.calls.append(("disconnect",))
        will, self.will = self.will, None
        if will is not None and not self.port.is_stopping:
            self.port.published.append(
                Published(
                    will.topic, will.tag, will.body, will.qos, will.retain, block=will.properties
                )
            )


class SpyPort(spy_port.SpyPort):
    """The part of `BrokerPort` that MQTT uses. Positions count calls; `commit` moves the point."""

    def __init__(self, *, auto_commit: bool = True) -> None:
        self.auto_commit = auto_commit
        self.disk_is_behind = False
        self.end = 0
        self.flushed = 0
        self.published: list[Published] = []
        self.runs: list[int] = []
        """How many messages each call of `publish` brought."""
        self.delays_ms: list[int] = []
        """Of what was published for later, in ms."""
        self.connected: list[SpySession] = []
        self.inflight_max = 0
        """What the last CONNECT asked for."""
        self.rows_at_once = 4096
        self.template_queues: tuple[object, ...] = ()
        """Both of the templates that it makes from now on."""
        self.templates_made = 0
        self.refused_topics: dict[str, Refused] = {}
        self.refused_connect: Refused | None = None
        self.refused_will: Refused | None = None
        self.is_stopping = False
        """Or has failed: wills are for the next start."""
        self.users: dict[str | None, bytes | None] | None = None
        self.logins_take_time = False
        self.logins: list[Callable[[], None]] = []
        """Answers to logins that the test gives later."""
        self.present_ids: set[str] = set()
        self._waiting: list[tuple[int, Callable[..., None], tuple[object, ...]]] = []
        self._on_failure: list[Callable[[StorageFailed], None]] = []

    def append(self) -> Position:
        self.end += 1
        return Position(self.end)

    def commit(self, count: int | None = None) -> None:
        """Everything appended so far is durable, or only `count` more positions."""
        self.flushed = self.end if count is None else self.flushed + count
        while self._waiting and self._waiting[0][0] <= self.flushed:
            _, callback, arguments = self._waiting.pop(0)
            callback(*arguments)

    def fail(self) -> None:
        self.is_stopping = True
        self._waiting.clear()
        for callback in self._on_failure:
            callback(StorageFailed("the disk is gone"))

    # --- BrokerPort -------------------------------------------------------------------------

    @operation("topics.route")
    def route(self, topic: str, tag: str | None) -> SpyRoute:
        if topic in self.refused_topics:
            raise self.refused_topics[topic]
        return SpyRoute(topic, tag)

    @operation("topics.template")
    def template(
        self,
        route: SpyRoute,
        *,
        properties: Mapping[str, str],
        extra_kind: int = EXTRA_NONE,
        extra_name: str = "",
        extra_keyed: bool = True,
        durability: Durability = Durability.FLUSHED,
        retain: bool = False,
    ) -> SpyTemplate:
        self.templates_made += 1
        has_block = properties["PMQ_PROTO"] == "mqtt5"
        expected = (EXTRA_BASE64, "PMQ_MQTT5") if has_block else (EXTRA_NONE, "")
        assert (extra_kind, extra_name, extra_keyed) == (*expected, False)
        return SpyTemplate(
            route,
            properties,
            durability,
            retain,
            rows_at_once=self.rows_at_once,
            queues=self.template_queues,
        )

    def publish(self, template: SpyTemplate, batch: Batch, first: int, last: int) -> Position:
        self.runs.append(last - first)
        for row in range(first, last):
            self._publish_row(template, batch, row, None)
        return self.append()

    @operation("delays.publish_later")
    def publish_later(
        self, template: SpyTemplate, batch: Batch, first: int, last: int, *, delay_ms: int
    ) -> Position:
        self.delays_ms.append(delay_ms)
        return self.publish(template, batch, first, last)

    @operation("sessions.publish_once")
    def publish_once(
        self,
        template: SpyTemplate,
        batch: Batch,
        first: int,
        last: int,
        session: SpySession,
        packet_ids: Sequence[int],
        *,
        delay_ms: int,
    ) -> Position:
        if delay_ms:
            self.delays_ms.append(delay_ms)
        for row, packet_id in zip(range(first, last), packet_ids, strict=True):
            try:
                self._publish_row(template, batch, row, (session.client_id, packet_id))
            except Refused as error:
                error.stored = row - first
                raise
            session.inbound.add(packet_id)
        return self.append()

    def _publish_row(
        self, template: SpyTemplate, batch: Batch, row: int, once: tuple[str, int] | None
    ) -> None:
        values = batch.row(row)
        start = values[BODY_START]
        body = bytes(batch.buffer[start : start + values[BODY_SIZE]])
        if len(body) > 4 * 1024 * 1024:
            raise Refused(Reason.TOO_LARGE, "too large")
        qos = int(template.properties["PMQ_QOS"])
        properties = dict(template.properties)
        block = b""
        if properties.pop("PMQ_PROTO") == "mqtt5":
            extra = values[EXTRA_START]
            block = bytes(batch.buffer[extra : extra + values[EXTRA_SIZE]])
            assert block
        more = {name for name in properties if name not in ("PMQ_QOS", "PMQ_RETAIN")}
        assert (template.properties.get("PMQ_RETAIN") == "1") == template.retain
        assert template.durability is (Durability.FLUSHED if qos else Durability.APPENDED)
        self.published.append(
            Published(
                template.route.topic,
                template.route.tag,
                body,
                qos,
                template.retain,
                once,
                block,
                tuple((name, properties[name]) for name in sorted(more)),
            )
        )

    def when_committed(
        self,
        position: int,
        durability: Durability,
        callback: Callable[..., None],
        *arguments: object,
    ) -> None:
        assert durability is Durability.FLUSHED
        if self.auto_commit:
            self.flushed = self.end
        if position <= self.flushed:
            callback(*arguments)
            return
        if self._waiting:
            position = max(position, self._waiting[-1][0])
        self._waiting.append((position, callback, arguments))

    def committed(self, position: int, durability: Durability) -> bool:
        return position <= self.flushed

    def overloaded(self, resume: Callable[[], None]) -> bool:
        if not self.disk_is_behind:
            return False
        self.when_committed(self.end, Durability.FLUSHED, resume)
        return True

    @operation("storage.when_failed")
    def when_storage_fails(self, callback: Callable[[StorageFailed], None]) -> None:
        self._on_failure.append(callback)

    @operation("admission.check_connection")
    def check_connection(self, client_id: str, user: str | None, address: str) -> None:
        """All may connect."""

    @operation("admission.client_came")
    def client_came(self, _client: ConnectedClient) -> Callable[[], None]:
        return lambda: None

    @operation("admission.authenticate")
    def authenticate(
        self,
        user: str | None,
        password: bytes | None,
        address: str,
        answer: Callable[[str | Refused], None],
        origin: object = None,
    ) -> Callable[[], None]:
        assert address
        if self.users is not None and (user not in self.users or self.users[user] != password):
            known: str | Refused = Refused(Reason.NOT_AUTHENTICATED, "user or password is wrong")
        else:
            known = user or "anonymous"
        if self.logins_take_time:
            self.logins.append(later := lambda: answer(known))
            return lambda: self.logins.remove(later)
        answer(known)
        return lambda: None

    @operation("sessions.connect")
    def connect_session(
        self,
        client_id: str,
        *,
        clean: bool,
        expiry_seconds: int | None,
        link: SessionLink,
        principal: str,
        inflight_max: int | None = None,
        one_copy: bool = True,
    ) -> SpySession:
        assert inflight_max is None or inflight_max > 0
        self.inflight_max = inflight_max or 0
        if self.refused_connect is not None:
            raise self.refused_connect
        assert principal
        for session in self.connected:
            if session.client_id == client_id and ("disconnect",) not in session.calls:
                session.disconnect()
                session.link.taken_over()
        session = SpySession(self, client_id, clean, link, expiry_seconds)
        session.present = client_id in self.present_ids and not clean
        session.position = Position(0) if clean else self.append()
        self.connected.append(session)
        return session


class ManualLoop:
    """As much of an event loop as `net` uses, in the test's hands."""

    def __init__(self) -> None:
        self.clock = 1000.0
        self._soon: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._later: list[tuple[float, Callable[..., None], tuple[Any, ...]]] = []

    def time(self) -> float:
        return self.clock

    def call_soon(self, callback: Callable[..., None], *arguments: Any) -> None:
        self._soon.append((callback, arguments))

    def call_later(self, delay: float, callback: Callable[..., None], *arguments: Any) -> object:
        self._later.append((self.clock + delay, callback, arguments))
        return object()

    def step(self) -> bool:
        """One turn of the loop. Returns whether there was anything to do."""
        turn, self._soon = self._soon, []
        for callback, arguments in turn:
            callback(*arguments)
        return bool(turn)

    def run(self) -> None:
        """Turns of the loop until nothing is left to do now."""
        for _ in range(1000):
            if not self.step():
                return
        raise AssertionError("the loop does not come to rest")

    def advance(self, seconds: float) -> None:
        """Let time pass, timers included."""
        end = self.clock + seconds
        while True:
            self.run()
            due = sorted((timer for timer in self._later if timer[0] <= end), key=lambda t: t[0])
            if not due:
                break
            self._later.remove(due[0])
            self.clock = max(self.clock, due[0][0])
            due[0][1](*due[0][2])
        self.clock = end
        self.run()


class MemoryTransport:
    """A socket that takes everything at once, unless `full` says that nobody reads."""

    def __init__(self, loop: ManualLoop, connection: MqttConnection) -> None:
        self.loop = loop
        self.connection = connection
        self.sent = bytearray()
        self.writes = 0
        self.reading = True
        self.full = False
        self.gone = False

    def get_extra_info(self, name: str) -> object:
        return ("192.0.2.1", 40_000) if name == "peername" else None

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        assert high > low

    def write(self, data: bytes) -> None:
        self.writes += 1
        self.sent += data

    def close(self) -> None:
        if not self.full:
            self.loop.call_soon(self._lost)

    def abort(self) -> None:
        self.loop.call_soon(self._lost)

    def _lost(self) -> None:
        if not self.gone:
            self.gone = True
            self.connection.connection_lost(None)

    def is_reading(self) -> bool:
        return self.reading

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Peer:
    """A client, joined to a connection in memory."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.connection = MqttConnection(broker.shared)
        self.transport = MemoryTransport(broker.loop, self.connection)
        self.connection.connection_made(cast("Any", self.transport))
        self._seen = 0

    def is_closed(self) -> bool:
        return self.transport.gone

    def is_read(self) -> bool:
        return self.transport.reading

    @property
    def link(self) -> SessionLink:
        """The connection as its session sees it."""
        return self.connection.fast_path

    @property
    def session(self) -> SpySession:
        """The session of the last CONNECT, which is this peer's in most tests."""
        return self.broker.port.connected[-1]

    def send(self, *packets: bytes) -> None:
        """Send the packets in one piece, and let the loop turn."""
        data = b"".join(packets)
        at = 0
        while at < len(data) and not self.connection.closing:
            view = memoryview(self.connection.get_buffer(-1))
            size = min(len(view), len(data) - at)
            view[:size] = data[at : at + size]
            view.release()  # as loops do: they keep no hold on the buffer
            self.connection.buffer_updated(size)
            at += size
        self.broker.loop.run()

    def receive(self) -> list[bytes]:
        """The packets that came since the last look."""
        new = bytes(self.transport.sent[self._seen :])
        self._seen = len(self.transport.sent)
        return wire.split_packets(new)

    def vanish(self) -> None:
        """The network is gone, without a word."""
        self.transport.abort()
        self.broker.loop.run()

    def stop_listening(self) -> None:
        """The client reads nothing more: the transport is past its high-water mark."""
        self.transport.full = True
        self.connection.pause_writing()

    def listen_again(self) -> None:
        self.transport.full = False
        self.connection.resume_writing()
        self.broker.loop.run()


@dataclass
class Broker:
    """A gateway over the recording engine."""

    port: SpyPort = field(default_factory=SpyPort)
    limits: Limits = field(default_factory=Limits)
    fixed_topic: str | None = None
    rules: Rules = field(default_factory=Rules)
    loop: ManualLoop = field(default_factory=ManualLoop)

    def __post_init__(self) -> None:
        port = cast("BrokerPort", self.port)
        self.turns = Turns(self.loop.call_soon, clock=lambda: 0.0)  # however slow the machine is
        self.shared = Shared(
            port=port,
            context=Context(cast("Any", self.loop), turns=self.turns),
            limits=self.limits,
            rules=self.rules,
            mapping=TopicMapping(
                port=port,
                limits=self.limits,
                fixed_topic=self.fixed_topic,
                mount_point=self.rules.mount_point,
            ),
            new_client_id=lambda: f"made-up-{len(self.port.connected)}",
        )

    def peer(self, connect: bytes | None = wire.connect()) -> Peer:
        """A client that has sent CONNECT and read CONNACK; with None, one that said nothing."""
        peer = Peer(self)
        if connect is not None:
            peer.send(connect)
            assert peer.receive() == [wire.connack()]
        return peer


def make_run(topic: str, tag: str | None, bodies: list[bytes]) -> RecordRun:
    """A run of commit-log records as the engine delivers them."""
    memory = b"before" + records(bodies) + b"after"
    meta = RunMeta(topic=topic, tag=tag, properties={}, prefix_size=0)
    return RecordRun(meta, memory, 6, len(memory) - 5, len(bodies))
