"""A network in memory, with everything that goes wrong in one, in virtual time.

A *host* has a name and at most one server. A *link* joins two hosts; its state decides what happens
to bytes between them. Streams behave as TCP's do:

* what is sent arrives in order after the link's delay, perhaps in small pieces;
* across a link that is cut nothing arrives, neither bytes nor the end of a stream nor a new
  connection; what was sent arrives when it heals;
* when a process ends, its peers see the end of their streams; when a host loses its power, they see
  nothing, and what they send later is reset if the host is back by then.

Nothing here draws lots: what happens is said by the caller, so that a seed says it all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import trio

from polymq.remoting.steps import Address

PORT = 1
CONNECT_SECONDS_MAX = 120.0
"""How long a connection is tried for across a cut link, as systems do."""
GRAIN_SECONDS = 0.001


async def pass_time(seconds: float) -> None:
    """Of the simulated world, where waiting costs nothing; no time is cheaper still."""
    if seconds:
        await trio.sleep_until(trio.current_time() + seconds)
    else:
        await trio.lowlevel.checkpoint()


@dataclass(slots=True)
class Link:
    """Between two hosts."""

    delay: float = 0.0
    piece_bytes: int = 65_536
    healed: trio.Event | None = None  # set when a cut link heals; None: it is whole
    since: float = 0.0  # when its state changed last
    lost_at: float = -1e9  # when a connection across it was lost last without anybody being told

    @property
    def is_cut(self) -> bool:
        return self.healed is not None

    def cut(self) -> None:
        self.since = trio.current_time()
        if self.healed is None:
            self.healed = trio.Event()

    def slow(self, delay: float, piece_bytes: int) -> None:
        self.since = trio.current_time()
        self.delay, self.piece_bytes = delay, piece_bytes

    def heal(self) -> None:
        self.since = trio.current_time()
        self.delay, self.piece_bytes = 0.0, 65_536
        if self.healed is not None:
            self.healed.set()
            self.healed = None


class _Pipe:
    """One direction of a stream: what is under way, and whether its writer has ended."""

    __slots__ = ("_wake", "broken", "ended", "lost", "parts")

    def __init__(self) -> None:
        self.parts: deque[tuple[float, bytes]] = deque()  # arrival, bytes
        self.ended = False  # the writer has closed it
        self.broken = False  # reset: nothing more comes, and not even that
        self.lost = False  # nothing arrives any more, and nobody is told
        self._wake = trio.Event()

    def wake(self) -> None:
        self._wake.set()
        self._wake = trio.Event()

    async def wait(self) -> None:
        await self._wake.wait()


class Stream(trio.abc.Stream):
    """One end of a connection."""

    def __init__(self, host: Host, peer: Host, link: Link, incoming: _Pipe, outgoing: _Pipe):
        self._host = host
        self._peer = peer
        self._peer_lifetime = peer.lifetime  # the one that this connection is with
        self._link = link
        self._in = incoming
        self._out = outgoing
        self._closed = False
        host.streams.append(self)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        if self._closed:
            raise trio.ClosedResourceError
        if self._out.broken:
            raise trio.BrokenResourceError
        if (
            self._peer.lifetime != self._peer_lifetime
            and self._peer.is_up
            and not self._link.is_cut
        ):
            self.reset()  # the host that knew this connection has forgotten it
            raise trio.BrokenResourceError
        if self._out.lost:
            return
        self._out.parts.append((trio.current_time() + self._link.delay, bytes(data)))
        self._out.wake()

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def send_eof(self) -> None:
        raise NotImplementedError

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        pipe, link = self._in, self._link
        while True:
            if self._closed:
                raise trio.ClosedResourceError
            if pipe.broken:
                raise trio.BrokenResourceError
            if link.healed is not None:
                await self._either(link.healed)
            elif pipe.parts:
                arrival, data = pipe.parts[0]
                if arrival > trio.current_time():
                    await trio.sleep_until(arrival)
                    continue
                pipe.parts.popleft()
                size = min(link.piece_bytes, max_bytes or link.piece_bytes)
                if len(data) > size:
                    pipe.parts.appendleft((arrival + GRAIN_SECONDS, data[size:]))
                return data[:size]
            elif pipe.ended and not pipe.lost:
                return b""
            else:
                await pipe.wait()

    async def _either(self, healed: trio.Event) -> None:
        """Until the link heals, or the stream is closed or reset on this side."""
        async with trio.open_nursery() as nursery:

            async def first(wait: Callable[[], Awaitable[None]]) -> None:
                await wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(first, healed.wait)
            nursery.start_soon(first, self._in.wait)

    def reset(self) -> None:
        """Both directions break, at once and on both sides."""
        self._link.since = trio.current_time()
        for pipe in (self._in, self._out):
            pipe.broken = True
            pipe.wake()

    def lose(self) -> None:
        """Something on the way has forgotten this connection: silence, in both directions."""
        self._link.since = self._link.lost_at = trio.current_time()
        for pipe in (self._in, self._out):
            pipe.lost = True
            pipe.parts.clear()

    def vanish(self) -> None:
        """This end is gone without a word: what is still under way to it is lost."""
        self._closed = True
        self._in.wake()

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            self._host.streams.remove(self)
            self._out.ended = True
            self._out.wake()
            self._in.wake()
        await trio.lowlevel.checkpoint()


@dataclass(slots=True)
class Host:
    """A machine.

    Attributes:
        lifetime: how often it was started: connections are with one life of a host.
        serve: takes connections, while a server runs.
    """

    name: str
    is_up: bool = False
    lifetime: int = 0
    serve: Callable[[trio.abc.Stream], None] | None = None
    streams: list[Stream] = field(default_factory=list)

    def power_off(self) -> None:
        """Its connections end without a word."""
        for stream in self.streams:
            stream.vanish()
        self.streams.clear()


class Network:
    """All hosts and the links between them."""

    def __init__(self) -> None:
        self.hosts: dict[str, Host] = {}
        self._links: dict[frozenset[str], Link] = {}

    def host(self, name: str) -> Host:
        return self.hosts.setdefault(name, Host(name))

    def link(self, one: str, other: str) -> Link:
        return self._links.setdefault(frozenset((one, other)), Link())

    def links(self) -> list[tuple[str, Link]]:
        """All links with a name, in an order that does not depend on hashes."""
        return sorted(("-".join(sorted(pair)), link) for pair, link in self._links.items())

    def connect_from(self, name: str) -> Callable[[Address], Awaitable[trio.abc.Stream]]:
        """How a process on this host reaches others."""

        async def connect(address: Address) -> trio.abc.Stream:
            host, link = self.host(name), self.link(name, address.host)
            peer = self.host(address.host)
            await pass_time(link.delay)
            if link.is_cut or not peer.is_up:
                await pass_time(CONNECT_SECONDS_MAX)
                raise OSError("timed out")
            if peer.serve is None:
                raise OSError("refused")
            one, other = _Pipe(), _Pipe()
            peer.serve(Stream(peer, host, link, one, other))
            return Stream(host, peer, link, other, one)

        return connect
