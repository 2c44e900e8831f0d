"""Two brokers meet: each learns the other's term, and a master with the lower one leads no more.

It is a handshake of its own and nothing else: a connection, a proof from each side, two terms.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl

from polymq.replication.common import LogExtent
from polymq.replication.follower import Answered, Follower
from polymq.replication.limits import MEETING_SECONDS
from polymq.replication.source import Identity

NOTHING = LogExtent(start=0, end=0, epochs=[])


async def meet(
    host: str,
    port: int,
    *,
    identity: Identity,
    name: str,
    nonce: str,
    epoch: int,
    tls: ssl.SSLContext | None = None,
) -> Answered | None:
    """Tell the broker there of our epoch. Returns what it says of itself, or None if nobody of this
    group answers."""
    core = Follower(
        identity=identity, name=name, nonce=nonce, extent=NOTHING, segment_bytes=0, meets=epoch
    )
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(MEETING_SECONDS):
            reader, writer = await asyncio.open_connection(host, port, ssl=tls)
            try:
                while not core.closed:
                    writer.write(core.outgoing())
                    data = await reader.read(4096)
                    if not data:
                        break
                    for event in core.receive(data):
                        if isinstance(event, Answered):
                            return event
            finally:
                writer.close()
    return None
