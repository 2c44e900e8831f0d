"""The socket shell of one client: bytes, heartbeats and deadlines.

Knows no AMQP beyond that a client has a handshake to finish, a heartbeat, and a polite way to go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from polymq.gateways.amqp.client import Client
from polymq.gateways.amqp.heartbeat import Beat, Heartbeat
from polymq.gateways.amqp.limits import Limits
from polymq.gateways.amqp.methods import HEARTBEAT
from polymq.net.clients import ClientInfo, identity
from polymq.net.connection import Context, SocketConnection

FINE_HEARTBEAT_SECONDS: Final = 20
"""Heartbeats of shorter intervals have a timer of their own: a second is much of half of them."""


class Connection(SocketConnection):
    """One socket and its client: `client.Transport`."""

    protocol = "amqp"

    def __init__(
        self, context: Context, limits: Limits, new_client: Callable[[Connection], Client]
    ) -> None:
        super().__init__(context)
        self.client = new_client(self)
        self._limits = limits
        self._reading_stopped = False
        self._heartbeat: Heartbeat | None = None
        self._beaten_bytes = 0  # `written_bytes` at the last tick of the heartbeat
        self._beat_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None  # of a fine heartbeat
        self._abort_at: float | None = None

    # --- net.SocketConnection ---------------------------------------------------------------

    def opened(self) -> None:
        """The protocol header has to come, and all up to connection.open, in time."""
        self.abort_in(self._limits.handshake_seconds)

    def consume(self, buffer: bytearray, start: int, end: int) -> int:
        """See `net.SocketConnection.consume`."""
        if self._heartbeat is not None:
            self._heartbeat.heard = True
        return self.client.consume(buffer, start, end)

    def drained(self) -> None:
        """See `net.SocketConnection.drained`."""
        self.client.drained()

    def lost(self, error: Exception | None) -> None:
        """See `net.SocketConnection.lost`."""
        if self._timer is not None:
            self._timer.cancel()
        self.client.lost()
        del self.client  # it has this as its transport

    def expired(self, now: float) -> float | None:
        """A tick of the heartbeat, or the end of somebody's patience."""
        if self._abort_at is not None and self._abort_at <= now:
            if self.client.login.is_overdue():
                return self._next_deadline()
            self.abort()
            return None
        if self._heartbeat is not None and self._beat_at is not None and self._beat_at <= now:
            # From tick to tick, so that the coarse deadlines do not add up.
            self._beat_at = max(now, self._beat_at + self._heartbeat.tick_seconds)
            if not self._beat(now):
                return None
        return self._next_deadline()

    def _beat(self, now: float) -> bool:
        """A tick of the heartbeat. False if the client is dead."""
        heartbeat = self._heartbeat
        assert heartbeat is not None
        if self._reading_stopped:  # we do not listen, so silence says nothing
            heartbeat.heard = True
        heartbeat.spoke = self.written_bytes > self._beaten_bytes
        beat = heartbeat.tick(now)
        if beat is Beat.DEAD:
            self.abort()
            return False
        if beat is Beat.SEND:
            self.write(HEARTBEAT)
        self._beaten_bytes = self.written_bytes  # a heartbeat does not count for the next tick
        return True

    def _next_deadline(self) -> float | None:
        times = [at for at in (self._abort_at, self._beat_at) if at is not None]
        return min(times) if times else None

    def fed(self) -> None:
        """See `net.SocketConnection.fed`: who had to wait for the turn's bound may go on."""
        self.client.drained()

    # --- what operators see (`net.clients`) ---------------------------------------------------

    @property
    def user(self) -> str:
        """See `net.clients`."""
        return self.client.user if self.has_socket else ""

    @property
    def client_name(self) -> str:
        """What it says of itself, as RabbitMQ's clients do."""
        return self.client.login.client_name if self.has_socket else ""

    @property
    def connection_id(self) -> str:
        """See `client.Transport`."""
        return identity(self)

    def describe(self) -> ClientInfo:
        """See `net.clients`."""
        client = self.client
        return self.described(
            client.flow, channels=len(client.channels), consumers=client.consumer_count
        )

    def end(self, why: str) -> None:
        """Close it as the broker may (AMQP 1.4.2.10), with the reason."""
        if not self.has_socket:
            return
        if self.client.hears:
            self.client.login.expelled(why)
        else:
            self.close()

    # --- client.Transport -------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """See `client.Transport.full`."""
        if self.turn_bytes >= self._limits.turn_bytes_max:
            self.starved = True
            return True
        return self.paused

    def abort_in(self, seconds: float | None) -> None:
        """See `client.Transport.abort_in`."""
        self._abort_at = None if seconds is None else self.context.now() + seconds
        self.deadline(self._next_deadline())

    def proven(self) -> None:
        """See `client.Transport.proven`."""
        super().proven()
        self.abort_in(None)

    def heartbeat(self, seconds: int) -> None:
        """See `client.Transport.heartbeat`."""
        if seconds:
            now = self.context.now()
            self._heartbeat = Heartbeat(seconds, now)
            if seconds < FINE_HEARTBEAT_SECONDS:
                self._beat_in(self._heartbeat.tick_seconds)
            else:
                self._beat_at = now + self._heartbeat.tick_seconds
                self.deadline(self._next_deadline())

    def _beat_in(self, seconds: float) -> None:
        self._timer = self.context.call_later(seconds, self._beat_finely)

    def _beat_finely(self) -> None:
        """A tick of a heartbeat that deadlines, which are a second late at most, are too coarse
        for."""
        if not self.closing and self._beat(self.context.now()):
            assert self._heartbeat is not None
            self._beat_in(self._heartbeat.tick_seconds)

    def later(self, callback: Callable[[], None]) -> None:
        """See `client.Transport.later`."""
        self.context.loop.call_soon(callback)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Callable[[], None]:
        """See `client.Transport.call_later`."""
        return self.context.call_later(seconds, callback).cancel

    def stop_reading(self) -> None:
        """See `client.Transport`."""
        if not self._reading_stopped:
            self._reading_stopped = True
            super().stop_reading()

    def resume_reading(self) -> None:
        """See `client.Transport`."""
        if self._reading_stopped:
            self._reading_stopped = False
            super().resume_reading()
