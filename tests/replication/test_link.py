"""A master's listener and a slave's link over a real connection, between two engines whose disks
only sync when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from polymq.broker.port import FLUSHED, IN_SYNC, Position, Refused
from polymq.net.connection import Context
from polymq.replication.client import MasterLink
from polymq.replication.server import ReplicationServer
from polymq.replication.source import Identity
from tests.harness.broker import Broker, InlineReaders
from tests.replication.logs import stream

IDENTITY = Identity(cluster="c", group="g", secret=b"sixteen bytes or more")
SECONDS_MAX = 10.0


class Pair:
    """A master and a slave, of which each `step` is one iteration of one engine's loop."""

    def __init__(self, master: Broker, slave: Broker, context: Context) -> None:
        self.master, self.slave, self.context = master, slave, context
        core = master.engine.core
        self.outranked: list[int] = []
        self.server = ReplicationServer(
            context=context,
            store=master.store,
            readers=InlineReaders(),
            identity=IDENTITY,
            points=lambda: (core.commits.points[1], core.commits.points[2]),
            replicas=core.replicas,
            outranked=self.outranked.append,
            new_nonce=lambda: "aa",
        )
        core.on_written = self.server.written
        self.link: MasterLink | None = None
        self.cuts: list[int] = []
        self.refusals: list[str] = []

    async def follow(self, port: int = 0) -> None:
        """The slave connects to the master, or to a relay's port."""
        if not port:
            port = await self.server.start("127.0.0.1", 0)
        standby = self.slave.engine.standby
        assert standby is not None
        self.link = MasterLink(
            context=self.context,
            store=self.slave.store,
            copy=standby,
            identity=IDENTITY,
            name="slave",
            host="127.0.0.1",
            port=port,
            cut=lambda position, _: self.cuts.append(position),
            refused=lambda error: self.refusals.append(str(error)),
            new_nonce=lambda: "bb",
            process="one process",
        )
        self.link.start()
        await self.until(lambda: self.link is not None and self.link.following)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Let the connection work until something holds."""
        async with asyncio.timeout(SECONDS_MAX):
            while not condition():
                await asyncio.sleep(0)

    async def copied(self) -> None:
        """The slave has all that the master has written, not flushed."""
        standby = self.slave.engine.standby
        assert standby is not None
        await self.until(lambda: standby.wanted == self.master.store.log.written)

    def in_sync(self) -> int:
        return self.master.engine.core.commits.points[IN_SYNC]


def run(master: Broker, slave: Broker, scenario: Callable[[Pair], Awaitable[None]]) -> None:
    """One scenario on a loop of its own."""

    async def whole() -> None:
        context = Context(asyncio.get_running_loop())
        pair = Pair(master, slave, context)
        try:
            await scenario(pair)
        finally:
            if pair.link is not None:
                await pair.link.stop()
            await pair.server.stop()
            context.close()

    asyncio.run(whole())


def test_an_ack_is_what_the_slave_has_on_its_disk(master: Broker, slave: Broker) -> None:
    """What has arrived there is not in sync before it is flushed there."""

    async def scenario(pair: Pair) -> None:
        master.port.topics.create("t", 1, {"min_in_sync": "2"})
        master.step(1)
        await pair.follow()
        await pair.copied()
        slave.step()
        await pair.until(lambda: pair.in_sync() == master.store.log.written)
        before = pair.in_sync()
        acked: list[str] = []
        end = master.publish(master.template("t"), b"1", b"2")
        master.port.when_committed(Position(end), IN_SYNC, acked.append, "acked")
        master.step()
        source = pair.server.slaves["slave"].source
        await pair.until(lambda: source.received == master.store.log.written)
        assert pair.in_sync() == before
        assert not acked
        slave.step()
        await pair.until(lambda: bool(acked))
        assert pair.in_sync() == master.store.log.flushed

    run(master, slave, scenario)


def test_without_a_slave_only_what_asks_for_one_waits(master: Broker, slave: Broker) -> None:
    """The slave goes: acks of the topic with `min_in_sync` are held back, those of others are
    not; it comes back, and they are let go."""

    async def scenario(pair: Pair) -> None:
        master.port.topics.create("copied", 1, {"min_in_sync": "2"})
        master.port.topics.create("plain", 1)
        master.step(1)
        await pair.follow()
        await pair.copied()
        slave.step()
        await pair.until(lambda: pair.in_sync() == master.store.log.written)
        assert pair.link is not None
        await pair.link.stop()
        await pair.until(lambda: not pair.server.slaves)
        acked: list[str] = []
        for topic, durability in (("copied", IN_SYNC), ("plain", FLUSHED)):
            end = master.publish(master.template(topic), b"1")
            master.port.when_committed(Position(end), durability, acked.append, topic)
        master.step(1)
        assert acked == ["plain"]
        pair.link.start()
        await pair.copied()
        assert acked == ["plain"]
        slave.step()
        await pair.until(lambda: acked == ["plain", "copied"])
        assert stream(slave.store, 0) == stream(master.store, 0)

    run(master, slave, scenario)


def test_a_slave_that_is_gone_counts_no_more(master: Broker, slave: Broker) -> None:
    """What it had on its disk may be gone with it, or comes back under another name: a second
    slave counts once."""

    async def scenario(pair: Pair) -> None:
        await pair.follow()
        await pair.copied()
        slave.step()
        replicas = master.engine.core.replicas
        await pair.until(lambda: replicas.positions == {"slave": master.store.log.written})
        assert pair.link is not None
        await pair.link.stop()
        await pair.until(lambda: not replicas.positions)

    run(master, slave, scenario)


class Relay:
    """Between a slave and its master: it can end the slave's side without a word to the master."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writers: list[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers.append((writer, up_writer))
        for source, sink in ((reader, up_writer), (up_reader, writer)):
            self._tasks.append(asyncio.create_task(self._pipe(source, sink)))

    async def _pipe(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            if not sink.is_closing():
                sink.write(data)

    def half_close(self) -> None:
        """End the slave's side only."""
        self._writers[-1][0].close()

    async def stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        for both in self._writers:
            for writer in both:
                writer.close()


def test_publishers_go_on_when_a_slave_returns_from_a_half_open_connection(
    master: Broker, slave: Broker
) -> None:
    """The slave's connection ends, and the master hears nothing of it. The slave comes back and
    takes the place of its old connection at once."""

    async def scenario(pair: Pair) -> None:
        master.port.topics.create("t", 1, {"min_in_sync": "2"})
        master.step(1)
        relay = Relay(await pair.server.start("127.0.0.1", 0))
        try:
            await pair.follow(await relay.start())
            await pair.copied()
            slave.step()
            old = pair.server.slaves["slave"]
            relay.half_close()
            assert pair.link is not None
            await pair.until(lambda: pair.link is not None and not pair.link.following)
            assert pair.server.slaves["slave"] is old
            began = pair.context.now()
            acked: list[str] = []
            end = master.publish(master.template("t"), b"1")
            master.port.when_committed(Position(end), IN_SYNC, acked.append, "acked")
            master.step(1)
            await pair.copied()
            slave.step()
            await pair.until(lambda: bool(acked))
            assert pair.context.now() - began < 1.5
            assert pair.server.slaves["slave"] is not old
            await pair.until(lambda: len(pair.server.slaves) == 1 and old.transport is None)
            assert master.engine.core.replicas.positions == {"slave": master.store.log.flushed}
        finally:
            await relay.stop()

    run(master, slave, scenario)


@pytest.mark.parametrize(
    ("process", "quiet_seconds", "admitted"),
    [("one process", 0.0, True), ("another", 0.0, False), ("", 0.0, False), ("another", 3.0, True)],
)
def test_a_name_is_for_one_broker(
    master: Broker, slave: Broker, process: str, quiet_seconds: float, *, admitted: bool
) -> None:
    """The same process takes its name again at once. Another broker of that name has to wait until
    the first one is quiet."""

    async def scenario(pair: Pair) -> None:
        await pair.follow()
        heard = pair.server.slaves["slave"]._heard
        pair.server.slaves["slave"]._heard = heard - quiet_seconds
        refusal = pair.server.admit("slave", process)
        assert (refusal == "") is admitted
        assert admitted or "follows already" in refusal

    run(master, slave, scenario)


def test_who_was_replaced_gets_nothing_in_sync_any_more(master: Broker, slave: Broker) -> None:
    """A slave that has not heard of the new master goes on to follow the old one: what that one
    has stored is not acknowledged to anybody who asked for two disks, and it takes no more."""

    async def scenario(pair: Pair) -> None:
        master.port.topics.create("t", 1, {"min_in_sync": "2"})
        master.step(1)
        await pair.follow()
        template = master.template("t")
        acked: list[str] = []
        end = master.publish(template, b"1")
        master.port.when_committed(Position(end), IN_SYNC, acked.append, "acked")
        master.step()
        await pair.copied()
        master.engine.core.resign("another one leads")
        slave.step()
        source = pair.server.slaves["slave"].source
        await pair.until(lambda: source.flushed == master.store.log.written)
        master.step()
        assert not acked
        with pytest.raises(Refused, match="another one leads"):
            master.publish(template, b"2")

    run(master, slave, scenario)
