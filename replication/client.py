"""The slave's link to its master: connects, and connects again for as long as it follows."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Protocol

from polymq.core_log.errors import StoreError, StoreRefused
from polymq.core_log.store import Store
from polymq.net.connection import Context, SocketConnection
from polymq.replication.extent import extent_of
from polymq.replication.follower import Cut, Follower, FollowerEvent, Following, Refused
from polymq.replication.frames import Range
from polymq.replication.lag import Lag
from polymq.replication.limits import (
    HANDSHAKE_SECONDS,
    HEARTBEAT_SECONDS,
    RETRY_SECONDS_FIRST,
    RETRY_SECONDS_MAX,
    SILENCE_SECONDS,
)
from polymq.replication.source import Identity

log = logging.getLogger("polymq.replication")


class Copy(Protocol):
    """What takes the master's log."""

    on_flushed: Callable[[int], None]

    @property
    def wanted(self) -> int:
        """The position of the byte that has to come next."""

    @property
    def flushed(self) -> int:
        """How far it is on the disk."""

    @property
    def said(self) -> tuple[int, int]:
        """The master's points, as it told them last."""

    def take(self, data: bytes) -> None:
        """The next bytes. Raises StoreError; StoreRefused: no later bytes can be taken, either."""

    def committed(self, flushed: int, in_sync: int) -> None:
        """The master's points."""

    def released(self, position: int, flushed: int) -> None:
        """The master's log begins at `position`, and it has everything before `flushed` on its
        disk."""

    def lost(self) -> None:
        """The master is gone."""


class MasterLink:
    """Follows one master.

    Args:
        host, port: where the master listens.
        tls: with what to connect; None for a plain connection.
        cut: told where the log has to be cut before it can follow, and the master's epoch. The link
            comes again meanwhile.
        refused: told why this broker cannot follow at all, once; nothing is tried again then.
        joined: called before the master is told of anything that it sent. Raises StoreError.
        new_nonce: random hexadecimal digits.
        process: random, the same as long as this process lives.

    Attributes:
        connection: while there is one.
        end: the master's log as far as is known, for the lag.
    """

    def __init__(
        self,
        *,
        context: Context,
        store: Store,
        copy: Copy,
        identity: Identity,
        name: str,
        host: str,
        port: int,
        cut: Callable[[int, int], None],
        refused: Callable[[StoreRefused], None],
        joined: Callable[[], None] = lambda: None,
        new_nonce: Callable[[], str],
        process: str = "",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.context = context
        self.copy = copy
        self.end = 0
        self.heard = context.now()
        """When the master was last heard of."""
        self._lag = Lag(self.heard)
        self.has_followed = False
        """Whether the master has ever sent to it."""
        self.connection: MasterConnection | None = None
        self._store = store
        self._identity = identity
        self._name = name
        self._address = host, port
        self._tls = tls
        self._cut = cut
        self._refused = refused
        self._is_refused = False
        self._joined = joined
        self._new_nonce = new_nonce
        self._process = process
        self._task: asyncio.Task[None] | None = None
        self._last_report = ""
        copy.on_flushed = self._flushed

    def start(self) -> None:
        """Begin to connect."""
        self._task = self.context.loop.create_task(self._run())

    async def stop(self) -> None:
        """End the connection."""
        connection = self.connection  # which the task lets go of
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        if connection is not None:
            connection.abort()

    @property
    def following(self) -> bool:
        """Whether the master sends."""
        return self.connection is not None and self.connection.following

    @property
    def lag_bytes(self) -> int:
        """How much of what the master has told of is not on this disk."""
        return max(self.end - self.copy.flushed, 0)

    @property
    def lag_seconds(self) -> float:
        """How long ago this broker last had all that its master had; 0 if it has it now."""
        if self.following and not self.lag_bytes:
            return 0.0
        return self._lag.seconds(self.context.now())

    async def _run(self) -> None:
        pause = RETRY_SECONDS_FIRST
        while not self._is_refused:
            host, port = self._address
            ended: asyncio.Future[str] = self.context.loop.create_future()
            try:
                async with asyncio.timeout(HANDSHAKE_SECONDS):
                    _, connection = await self.context.loop.create_connection(
                        lambda ended=ended: MasterConnection(self, ended),
                        host,
                        port,
                        ssl=self._tls,
                    )
            except (OSError, TimeoutError) as error:
                reason = getattr(error, "strerror", "") or "no answer"
                self.tell(f"the master {host}:{port} cannot be reached: {reason}")
            else:
                self.connection = connection
                try:
                    text = await ended
                finally:
                    self.connection = None
                    self.copy.lost()
                if connection.following:
                    pause = RETRY_SECONDS_FIRST
                self.tell(text or f"the connection to the master {host}:{port} ended")
            await asyncio.sleep(pause)
            pause = min(2 * pause, RETRY_SECONDS_MAX)

    def progressed(self) -> None:
        """The master has told of its log, or this broker has more on its disk."""
        if self.following:
            self._lag.heard(self.context.now(), self.end, self.copy.flushed)

    def follower(self) -> Follower:
        """A core for a new connection."""
        return Follower(
            identity=self._identity,
            name=self._name,
            nonce=self._new_nonce(),
            extent=extent_of(self._store),
            segment_bytes=self._store.segment_bytes,
            process=self._process,
        )

    def tell(self, text: str) -> None:
        """Say why there is no connection, once, unless somebody was told that there is no more."""
        if text != self._last_report and not self._is_refused:
            self._last_report = text
            log.warning("%s; trying again", text)

    def follows(self) -> None:
        """The master sends. Raises StoreError."""
        self._joined()
        self._last_report = ""
        self.has_followed = True
        host, port = self._address
        log.info("following the master %s:%d from %d on", host, port, self.copy.wanted)

    def refuse(self, error: StoreRefused) -> None:
        """What came can never be taken."""
        if not self._is_refused:
            self._is_refused = True
            self._refused(error)

    def cut(self, position: int, epoch: int) -> None:
        """The log has to be cut."""
        self._cut(position, epoch)

    def _flushed(self, _: int) -> None:
        self.progressed()
        if self.connection is not None:
            self.connection.ack()


class MasterConnection(SocketConnection):
    """One connection to the master.

    Args:
        ended: gets the reason when the connection has ended.
    """

    def __init__(self, link: MasterLink, ended: asyncio.Future[str]) -> None:
        super().__init__(link.context)
        self._link = link
        self._ended = ended
        self._core = link.follower()
        self._why = ""
        self.following = False

    def opened(self) -> None:
        """See `Connection`."""
        self._link.heard = self.context.now()
        self.deadline(self._link.heard + HANDSHAKE_SECONDS)
        self.write(self._core.outgoing())

    def consume(self, buffer: bytearray, start: int, end: int) -> int:
        """See `Connection`."""
        self._link.heard = self.context.now()
        for event in self._core.receive(bytes(memoryview(buffer)[start:end])):
            if self.closing:
                break
            try:
                self._take(event)
            except StoreError as error:
                self._close(f"what the master sent cannot be stored: {error}")
        if not self.closing:
            if self.following:
                self.ack()
            data = self._core.outgoing()
            if data:
                self.write(data)
        return end

    def _take(self, event: FollowerEvent) -> None:
        link = self._link
        if isinstance(event, Range):
            if event.data:
                if event.position != link.copy.wanted:
                    self._close(f"the master sent {event.position}, not {link.copy.wanted}")
                    return
                try:
                    link.copy.take(event.data)
                except StoreRefused as error:
                    link.refuse(error)
                    self._close(str(error))
                    return
            link.end = max(link.end, event.flushed, link.copy.wanted)
            link.copy.committed(event.flushed, event.in_sync)
            link.copy.released(event.log_start, event.flushed)
            link.progressed()
        elif isinstance(event, Following):
            link.follows()
            self.following = True
            self.deadline(self.context.now() + HEARTBEAT_SECONDS)
        elif isinstance(event, Cut):
            self._close(f"the master never had what this log has after {event.position}")
            link.cut(event.position, event.epoch)
        else:
            assert isinstance(event, Refused)
            self._close(event.text)

    def _close(self, why: str) -> None:
        self._why = why
        self.close()

    def ack(self) -> None:
        """Tell the master what is here."""
        if self.following and not self.closing:
            self._core.ack(self._link.copy.flushed, self._link.copy.wanted)
            self.write(self._core.outgoing())

    def expired(self, now: float) -> float | None:
        """See `Connection`."""
        if not self.following or now - self._link.heard > SILENCE_SECONDS:
            self._why = "the master is silent"
            self.abort()
            return None
        self.ack()
        return now + HEARTBEAT_SECONDS

    def lost(self, error: Exception | None) -> None:
        """See `Connection`."""
        if not self._ended.done():
            self._ended.set_result(self._why)
