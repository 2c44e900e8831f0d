"""The master's listener: slaves connect, and the log goes to each as fast as it takes it.

Theory. A slave that keeps up gets what was just written, from memory; one that lags gets history
that reader threads check on its way. Nothing happens per message: a piece is what one loop
iteration wrote, or up to a chunk of memory or 256 KiB of a file.

A slave listens, too: it answers meetings, and tells whoever wants to follow it whom it follows. So
its port is bound long before it is promoted.

Rules:

* Whoever has not proven the secret competes only with others who have not (`net/newcomers.py`).
* A slave that connects again replaces its old connection, which the network may have cut without a
  word. Another broker of the same name replaces it only when it has been quiet.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

from polymq.core_log.store import Store
from polymq.net.connection import Context, SocketConnection
from polymq.net.listener import Listener, listen
from polymq.net.roster import Roster
from polymq.net.tls_source import TlsSource
from polymq.replication.extent import extent_of
from polymq.replication.lag import Lag
from polymq.replication.limits import (
    CONNECTIONS_MAX,
    HEARTBEAT_SECONDS,
    NEWCOMERS_MAX,
    QUIET_SECONDS,
    RANGE_BYTES,
    SILENCE_SECONDS,
    SLAVES_MAX,
    UNPROVEN_SECONDS,
)
from polymq.replication.source import (
    Acked,
    Ahead,
    Identity,
    Joined,
    Met,
    Outranked,
    Rejected,
    Source,
)

log = logging.getLogger("polymq.replication")
T = TypeVar("T")


class Readers(Protocol):
    """Threads that read history."""

    def submit(
        self, read: Callable[[], T], done: Callable[[T | None, Exception | None], None]
    ) -> None:
        """Run `read` in a thread; then `done` with its result or its error, on the loop."""


class Replicas(Protocol):
    """Who counts what slaves have."""

    def acked(self, replica_id: str, position: int) -> None:
        """A slave has everything before `position` on its disk."""

    def lost(self, replica_id: str) -> None:
        """It follows no more."""


@dataclass(kw_only=True, eq=False)
class ReplicationServer:
    """Ships one store's log.

    Args:
        points: the log's flushed and in-sync ends.
        replicas: told what each slave has on its disk.
        outranked: told of a term that is higher than ours, which a peer knows.
        new_nonce: random hexadecimal digits.
        name: of this broker.
        follows: of a broker that does not lead: what slaves are told. Empty: it leads.

    Attributes:
        slaves: those that follow, by name.
    """

    context: Context
    store: Store
    readers: Readers
    identity: Identity
    points: Callable[[], tuple[int, int]]
    replicas: Replicas
    outranked: Callable[[int], None]
    new_nonce: Callable[[], str]
    name: str = ""
    follows: str = ""
    slaves: dict[str, SlaveConnection] = field(init=False, default_factory=dict)
    # Slaves that have more, and from where on.
    _ahead: dict[str, int] = field(init=False, default_factory=dict)
    _listener: Listener | None = field(init=False, default=None)

    async def start(
        self,
        host: str,
        port: int,
        tls: TlsSource | None = None,
        sockets: Sequence[socket.socket] = (),
    ) -> int:
        """Listen, on sockets that are bound already if there are any; returns the bound port.
        Raises CannotListen."""
        self._listener = await listen(
            self.context,
            lambda: SlaveConnection(self),
            host=host,
            port=port,
            tls=tls,
            connections_max=CONNECTIONS_MAX,
            newcomers_max=NEWCOMERS_MAX,
            sockets=sockets,
        )
        return self._listener.port

    async def stop(self) -> None:
        """Close all connections."""
        if self._listener is not None:
            await self._listener.close()

    @property
    def rosters(self) -> Sequence[Roster[SocketConnection]]:
        """For metrics."""
        return () if self._listener is None else (self._listener.roster,)

    def written(self) -> None:
        """The log has grown, or its points have moved."""
        for slave in self.slaves.values():
            slave.pump()

    def lags(self) -> dict[str, float]:
        """How many bytes each slave has not flushed (a metric)."""
        end = self.store.log.written
        return {name: end - slave.source.flushed for name, slave in self.slaves.items()}

    def lag_seconds(self) -> dict[str, float]:
        """How long ago each slave last had all of the log (a metric): 0 if it has it now."""
        return {name: slave.lag_seconds for name, slave in self.slaves.items()}

    def admit(self, name: str, process: str) -> str:
        """Why a slave of this name may not join; empty if it may."""
        other = self.slaves.get(name)
        if other is not None and not other.gives_way_to(process):
            return (
                f"a slave named {name!r} follows already, from {other.peer}: give each slave its "
                "own name"
            )
        if other is None and len(self.slaves) >= SLAVES_MAX:
            return f"this master has {SLAVES_MAX} slaves, which is the limit"
        return ""

    def tell_ahead(self, name: str, peer: str, position: int) -> None:
        """Say once that a slave has more than this broker."""
        if self._ahead.get(name) != position and len(self._ahead) < SLAVES_MAX:
            self._ahead[name] = position
            log.warning(
                "slave %s (%s) has more than this log, after %d: it does not follow until it has "
                "cut that",
                name,
                peer,
                position,
            )

    def join(self, slave: SlaveConnection) -> None:
        """It follows from now on, in place of an older connection of its name."""
        name = slave.source.name
        self._ahead.pop(name, None)
        old = self.slaves.pop(name, None)
        if old is not None:
            self.replicas.lost(name)
            log.info("slave %s (%s) replaces its connection from %s", name, slave.peer, old.peer)
            old.abort()
        self.slaves[name] = slave


class SlaveConnection(SocketConnection):
    """One slave."""

    def __init__(self, server: ReplicationServer) -> None:
        super().__init__(server.context)
        self._server = server
        store = server.store
        self.source = Source(
            identity=server.identity,
            nonce=server.new_nonce(),
            extent=lambda: extent_of(store),
            admit=server.admit,
            segment_bytes=store.segment_bytes,
            name=server.name,
            follows=server.follows,
        )
        self._heard = 0.0
        self._lag = Lag(0.0)
        self._reading = False
        self._said = (-1, -1)

    @property
    def lag_seconds(self) -> float:
        """See `ReplicationServer.lag_seconds`."""
        if self.source.flushed >= self._server.store.log.written:
            return 0.0
        return self._lag.seconds(self.context.now())

    def gives_way_to(self, process: str) -> bool:
        """Whether another connection of this name may replace this one: it is from the same process
        as this one, or this one has been quiet."""
        same = bool(process) and process == self.source.process
        return same or self.context.now() - self._heard > QUIET_SECONDS

    def opened(self) -> None:
        """See `Connection`."""
        self._heard = self.context.now()
        self.deadline(self._heard + UNPROVEN_SECONDS)

    def consume(self, buffer: bytearray, start: int, end: int) -> int:
        """See `Connection`."""
        self._heard = self.context.now()
        for event in self.source.receive(bytes(memoryview(buffer)[start:end])):
            if isinstance(event, Joined):
                self.proven()
                self._server.join(self)
                self._lag = Lag(self._heard)
                log.info("slave %s (%s) follows from %d on", event.name, self.peer, event.position)
                self.deadline(self._heard + HEARTBEAT_SECONDS)
            elif isinstance(event, Acked):
                self._lag.heard(self._heard, self._server.store.log.written, event.flushed)
                self._server.replicas.acked(event.name, event.flushed)
            elif isinstance(event, Outranked):
                if not self._server.follows:  # a slave only answers
                    log.warning("%s (%s) knows of term %d", event.name, self.peer, event.term)
                self._server.outranked(event.term)
            elif isinstance(event, Ahead):
                self._server.tell_ahead(event.name, self.peer, event.position)
            elif isinstance(event, Met):
                pass  # it has our epoch, and draws its own conclusion
            else:
                assert isinstance(event, Rejected)
                log.warning("refused slave %s (%s): %s", self.source.name, self.peer, event.text)
        if self.source.has_spoken:
            self.spoke()
        self.pump()
        if self.source.closed:
            self.close()
        return end

    def pump(self) -> None:
        """Send what the slave has room for."""
        source, store = self.source, self._server.store
        while not self._reading and not self.paused and source.room:
            found = store.log.tail_range(source.sent)
            if found is None:
                self._reading = True
                read = partial(store.range_of_history, source.sent, RANGE_BYTES)
                self._server.readers.submit(read, self._read)
                break
            if not found[1]:
                if self._server.points() != self._said:
                    self._send(source.sent, b"")
                break
            self._send(*found)
        data = source.outgoing()
        if data:
            self.write(data)

    def _send(self, start: int, data: bytes) -> None:
        store = self._server.store
        self._said = self._server.points()
        end = store.position_behind(start, data)
        self.source.send(
            start,
            data,
            end,
            epoch=store.epoch,
            points=self._said,
            log_start=store.log.start,
        )

    def _read(self, found: tuple[int, bytes] | None, error: Exception | None) -> None:
        self._reading = False
        if self.closing:
            return
        if found is None:
            text = f"the master cannot read its log: {error}"
            log.error("slave %s: %s", self.source.name, text)
            self.source.reject(text)
            self.write(self.source.outgoing())
            self.close()
            return
        self._send(*found)
        self.pump()

    def drained(self) -> None:
        """See `Connection`."""
        self.pump()

    def expired(self, now: float) -> float | None:
        """See `Connection`."""
        following = self._server.slaves.get(self.source.name) is self
        if not following:
            self.abort()
            return None
        if now - self._heard > SILENCE_SECONDS:
            log.warning("slave %s (%s) is silent", self.source.name, self.peer)
            self.abort()
            return None
        self._send(self.source.sent, b"")
        self.write(self.source.outgoing())
        return now + HEARTBEAT_SECONDS

    def lost(self, error: Exception | None) -> None:
        """See `Connection`."""
        if self._server.slaves.get(self.source.name) is self:
            del self._server.slaves[self.source.name]
            self._server.replicas.lost(self.source.name)
            log.warning("slave %s (%s) is gone", self.source.name, self.peer)
