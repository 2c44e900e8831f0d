"""Clients over a real engine whose loop and disk move when the test says so, or over a `SpyPort`
that only keeps positions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from polymq.broker.port import BrokerPort, Durability, ExchangeInfo, Position, Refused
from polymq.core_log.kernels.batch import Batch
from polymq.gateways.amqp import spec
from polymq.gateways.amqp.client import Client
from polymq.gateways.amqp.direct_reply import Replies
from polymq.gateways.amqp.limits import Limits
from polymq.gateways.amqp.protocol import Work
from polymq.gateways.amqp.spec import Method
from polymq.gateways.amqp.templates import Templates
from polymq.net.turns import Turns
from tests.gateways.amqp import amqp_wire as wire
from tests.gateways.amqp.amqp_core_driver import HANDSHAKE, HEADER, OPEN, TUNE_OK, channel_open
from tests.gateways.amqp.amqp_wire import Sent
from tests.harness import spy_port
from tests.harness.broker import Broker
from tests.harness.spy_port import operation

CAPABILITIES = {"consumer_cancel_notify": True, "authentication_failure_close": True}


class MemoryTransport:
    """A socket in memory: `client.Transport`."""

    def __init__(self, later: Callable[[Callable[[], None]], None]) -> None:
        self._later = later
        self.data = bytearray()
        self.paused = False
        self.full = False
        self.reading = True
        self.closed = False
        self.abort_seconds: float | None = None
        self.heartbeat_seconds = 0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.address = "127.0.0.1"

    @property
    def connection_id(self) -> str:
        return "0-0"

    def certificate_subject(self) -> str:
        return ""

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.data += data

    def close(self) -> None:
        self.closed = True

    def abort_in(self, seconds: float | None) -> None:
        self.abort_seconds = seconds

    def spoke(self) -> None:
        pass

    def proven(self) -> None:
        self.abort_seconds = None

    def heartbeat(self, seconds: int) -> None:
        self.heartbeat_seconds = seconds

    def later(self, callback: Callable[[], None]) -> None:
        self._later(callback)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Callable[[], None]:
        timer = (seconds, callback)
        self.timers.append(timer)
        return lambda: self.timers.remove(timer) if timer in self.timers else None

    def run_timers(self) -> None:
        timers, self.timers = self.timers, []
        for _, callback in timers:
            callback()

    def stop_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Peer:
    """The other side of a `Client`: sends bytes, and reads what came back as methods."""

    def __init__(
        self,
        port: BrokerPort,
        later: Callable[[Callable[[], None]], None],
        *,
        templates: Templates | None = None,
        replies: Replies | None = None,
        limits: Limits | None = None,
        turns: Turns | None = None,
    ) -> None:
        limits = limits or Limits()
        self.transport = MemoryTransport(later)
        self.rest = b""
        tags = iter(range(1 << 30))
        self.client = Client(
            port=port,
            transport=self.transport,
            work=Work(),
            templates=templates or Templates(port=port, count_max=limits.templates_max),
            replies=replies or Replies(),
            limits=limits,
            properties={"product": "PolyMQ"},
            new_tag=lambda: f"tag{next(tags)}",
            turns=turns or Turns(later, clock=lambda: 0.0),  # however slow the machine is
        )

    def send(self, *parts: bytes) -> None:
        """All parts in one read."""
        data = bytearray(self.rest + b"".join(parts))
        used = self.client.consume(data, 0, len(data))
        self.rest = bytes(data[used:])

    def is_read(self) -> bool:
        """Whether the server reads what it sends."""
        return self.transport.reading

    def received(self) -> list[Sent]:
        """What came since the last call."""
        data = bytes(self.transport.data)
        self.transport.data.clear()
        return wire.sent(data)

    def methods(self) -> list[Method]:
        """The same without contents."""
        return [sent.method for sent in self.received()]

    def ask(self, method: Method, channel: int = 1) -> None:
        self.send(wire.method(channel, method))

    def log_in(self, *channels: int, capabilities: Mapping[str, Any] = CAPABILITIES) -> None:
        start_ok = wire.method(
            0,
            spec.ConnectionStartOk(
                client_properties={"capabilities": capabilities},
                mechanism="PLAIN",
                response=b"\0guest\0guest",
            ),
        )
        self.send(HEADER, start_ok, TUNE_OK, OPEN)
        self.send(*(channel_open(number) for number in channels))
        kinds = [type(method).__name__ for method in self.methods()]
        assert kinds[:3] == ["ConnectionStart", "ConnectionTune", "ConnectionOpenOk"]
        assert kinds[3:] == ["ChannelOpenOk"] * len(channels)


class Bench:
    """An engine and its clients."""

    def __init__(self, broker: Broker, **limits: Any) -> None:
        self.broker = broker
        self.limits = Limits(**limits)
        self.port = broker.port
        self.templates = Templates(port=self.port, count_max=self.limits.templates_max)
        tokens = iter(range(1 << 30))
        self.replies = Replies(lambda: f"token{next(tokens)}")

    def peer(self, *channels: int, **options: Any) -> Peer:
        """A client that is logged in, with these channels open."""
        made = Peer(
            self.port,
            self.broker.loop.call_soon,
            templates=self.templates,
            replies=self.replies,
            limits=self.limits,
        )
        made.log_in(*channels, **options)
        return made

    def step(self, seconds: float = 0.0) -> None:
        """A loop iteration with its flush, `seconds` later."""
        self.broker.step(seconds)


def answer(peer: Peer, kind: type[Method]) -> Method:
    """The only thing that came, which has to be of this kind."""
    (method,) = peer.methods()
    assert isinstance(method, kind), method
    return method


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
    keyed: bool
    valid: bool = True
    rows_at_once: int = 4096
    overflowed: int = 0
    refused: tuple[tuple[int, int], ...] = ()


class SpyPort(spy_port.SpyPort):
    """A port whose positions the test commits, and which refuses what the test says."""

    def __init__(self) -> None:
        self.position = 0
        self.flushed = 0
        self.waiting: list[tuple[int, Callable[..., None], tuple[object, ...]]] = []
        self.published: list[tuple[SpyTemplate, list[bytes]]] = []
        self.refuse_publish: Callable[[SpyTemplate, int], Refused | None] = lambda _t, _n: None
        self.routed = True
        self.nowhere: set[str] = set()
        self.templates_built = 0
        self.calls: list[str] = []
        self.behind: Callable[[], None] | None = None
        self.is_behind = False

    # --- for the test -----------------------------------------------------------------------

    def flush(self, position: int | None = None) -> None:
        self.flushed = self.position if position is None else position
        due = [item for item in self.waiting if item[0] <= self.flushed]
        self.waiting = [item for item in self.waiting if item[0] > self.flushed]
        for _, callback, args in due:
            callback(*args)

    # --- broker.port.BrokerPort ---------------------------------------------------------------

    @operation("storage.when_failed")
    def when_storage_fails(self, callback: Callable[..., None]) -> None:
        self.calls.append("when_storage_fails")

    @operation("storage.when_blocked")
    def when_storage_blocks(self, callback: Callable[[str], None]) -> None:
        self.calls.append("when_storage_blocks")

    @operation("admission.authenticate")
    def authenticate(
        self,
        user: str | None,
        password: bytes | None,
        address: str,
        answer: Callable[[str | Refused], None],
        origin: object = None,
    ) -> Callable[[], None]:
        assert user is not None
        answer(user)
        return lambda: None

    @operation("exchanges.route")
    def exchange_route(self, exchange: str, routing_key: str) -> SpyRoute | None:
        if routing_key in self.nowhere:
            return None
        return SpyRoute(exchange or routing_key, routing_key if exchange else None, self.routed)

    @operation("topics.template")
    def template(self, route: SpyRoute, **settings: Any) -> SpyTemplate:
        self.templates_built += 1
        assert settings["extra_name"] == "PMQ_AMQP"
        keyed = settings["extra_keyed"]
        return SpyTemplate(route, settings["properties"], settings["durability"], keyed)

    def publish(self, template: SpyTemplate, batch: Batch, first: int, last: int) -> Position:
        bodies = []
        for index in range(first, last):
            row = batch.row(index)
            bodies.append(bytes(batch.buffer[row[2] : row[2] + row[3]]))
        refused = self.refuse_publish(template, max(map(len, bodies)))
        if refused is not None:
            raise refused
        self.published.append((template, bodies))
        self.position += last - first
        return Position(self.position)

    def committed(self, position: int, durability: Durability) -> bool:
        return position <= self.flushed

    def when_committed(
        self, position: int, durability: Durability, callback: Callable[..., None], *args: object
    ) -> None:
        assert durability is Durability.FLUSHED
        if position <= self.flushed:
            callback(*args)
        else:
            self.waiting.append((position, callback, args))

    def overloaded(self, resume: Callable[[], None]) -> bool:
        if self.is_behind:
            self.behind = resume
        return self.is_behind

    @operation("queues.release_owner")
    def release_owner(self, owner: object) -> Iterator[None]:
        self.calls.append("release_owner")
        return iter(())

    @operation("exchanges.info")
    def exchange(self, name: str) -> object:
        return ExchangeInfo(
            name=name, type="topic", durable=True, auto_delete=False, internal=False, arguments={}
        )

    @operation("exchanges.delete")
    def delete_exchange(self, name: str, *, if_unused: bool) -> Position:
        self.position += 1
        return Position(self.position)

    @operation("queues.purge")
    def purge_queue(self, name: str, *, owner: object) -> tuple[int, Position]:
        self.calls.append(f"purge {name}")
        return 3, Position(self.position)


def spy_peer(port: SpyPort, *channels: int, **limits: Any) -> Peer:
    """A client over a SpyPort; `later` happens at once, since nothing else runs."""
    made = Peer(cast("BrokerPort", port), lambda callback: callback(), limits=Limits(**limits))
    made.log_in(*channels)
    return made


__all__ = ["HANDSHAKE", "Bench", "MemoryTransport", "Peer", "SpyPort", "answer", "spy_peer"]
