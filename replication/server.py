"""The master's listener: slaves connect, and the log goes to each as fast as it takes it.

Theory. A slave that keeps up gets what was just written, from memory; one that lags gets history
that reader threads check on its way. Nothing happens per message: a piece is what one loop
iteration wrote, or up to a chunk of memory or 256 KiB of a file.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

from core_log.store import Store
from net.connection import Connection, Context
from net.listener import Listener, listen
from replication.lag import Lag
from replication.limits import (
    HANDSHAKE_SECONDS,
    HEARTBEAT_SECONDS,
    RANGE_BYTES,
    SILENCE_SECONDS,
    SLAVES_MAX,
)
from replication.source import Acked, Identity, Joined, Met, Outranked, Rejected, Source
from replication.standing import standing_of

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


class ReplicationServer:
    """Ships one store's log.

    Args:
        points: the log's flushed and in-sync ends.
        replicas: told what each slave has on its disk.
        outranked: told of a term that is higher than ours, which a peer knows.
        new_nonce: random hexadecimal digits.
    """

    def __init__(
        self,
        *,
        context: Context,
        store: Store,
        readers: Readers,
        identity: Identity,
        points: Callable[[], tuple[int, int]],
        replicas: Replicas,
        outranked: Callable[[int], None],
        new_nonce: Callable[[], str],
    ) -> None:
        self.context = context
        self.store = store
        self.readers = readers
        self.identity = identity
        self.points = points
        self.replicas = replicas
        self.outranked = outranked
        self.new_nonce = new_nonce
        self.slaves: dict[str, SlaveConnection] = {}
        """Those that follow, by name."""
        self._listener: Listener | None = None

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Listen; returns the bound port. Raises CannotListen."""
        self._listener = await listen(
            self.context,
            lambda: SlaveConnection(self),
            host=host,
            port=port,
            tls=tls,
            connections_max=2 * SLAVES_MAX,
        )
        return self._listener.port

    async def stop(self) -> None:
        """Close all connections."""
        if self._listener is not None:
            await self._listener.close()

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

    def admit(self, name: str) -> str:
        """Why a slave of this name may not join."""
        if name in self.slaves:
            other = self.slaves[name].peer
            return f"a slave named {name!r} follows already, from {other}: names are for one each"
        if len(self.slaves) >= SLAVES_MAX:
            return f"this master has {SLAVES_MAX} slaves, which is the limit"
        return ""


class SlaveConnection(Connection):
    """One slave."""

    def __init__(self, server: ReplicationServer) -> None:
        super().__init__(server.context)
        self._server = server
        store = server.store
        self.source = Source(
            identity=server.identity,
            nonce=server.new_nonce(),
            standing=lambda: standing_of(store),
            admit=server.admit,
            segment_bytes=store.segment_bytes,
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

    def opened(self) -> None:
        """See `Connection`."""
        self._heard = self.context.now()
        self.deadline(self._heard + HANDSHAKE_SECONDS)

    def consume(self, buffer: bytearray, start: int, end: int) -> int:
        """See `Connection`."""
        self._heard = self.context.now()
        for event in self.source.receive(bytes(memoryview(buffer)[start:end])):
            if isinstance(event, Joined):
                self._server.slaves[event.name] = self
                self._lag = Lag(self._heard)
                log.info("slave %s (%s) follows from %d on", event.name, self.peer, event.position)
                self.deadline(self._heard + HEARTBEAT_SECONDS)
            elif isinstance(event, Acked):
                self._lag.heard(self._heard, self._server.store.log.written, event.flushed)
                self._server.replicas.acked(event.name, event.flushed)
            elif isinstance(event, Outranked):
                log.warning("%s (%s) knows of term %d", event.name, self.peer, event.term)
                self._server.outranked(event.term)
            elif isinstance(event, Met):
                pass  # it has our epoch, and draws its own conclusion
            else:
                assert isinstance(event, Rejected)
                log.warning("refused slave %s (%s): %s", self.source.name, self.peer, event.text)
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
        end = store.place_behind(start, data)
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
            text = f"the master can not read its log: {error}"
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
        if not following or now - self._heard > SILENCE_SECONDS:
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
