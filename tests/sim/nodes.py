"""The programs of a simulated cluster: the code that ships, on a network in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random

import trio

from polymq.namesrv.server import NameServer
from polymq.remoting.connection import Connection, RequestReceived
from polymq.remoting.driver_trio import TrioDriver, open_trio_driver
from polymq.remoting.errors import RemoteProtocolError, RemotingError
from polymq.remoting.messages import Message
from polymq.remoting.producer import Producer, ProducerSettings
from polymq.remoting.registrar import Identity, Registrar
from polymq.remoting.registration import TopicConfig
from polymq.remoting.routes import NameServers, Routes
from polymq.remoting.steps import Address
from tests.namesrv.running import Memory, SpyLog
from tests.sim.network import PORT, Network, pass_time

CALL_EVERY_SECONDS = 12.0
SEND_SECONDS = 3.0
STORED = {"msgId": "00", "queueId": "0", "queueOffset": "1"}


def address_of(name: str) -> str:
    return f"{name}:{PORT}"


class Node:
    """A program on a host of its own, which can be started, stopped, killed and cut off.

    Attributes:
        up_since: None while it does not run.
        killed_at: when its process ended without a goodbye while its host went on.
    """

    def __init__(self, name: str, network: Network, nursery: trio.Nursery, random: Random) -> None:
        self.name = name
        self.host = network.host(name)
        self.network = network
        self.random = random
        self.up_since: float | None = None
        self.down_since = 0.0
        self.killed_at: float | None = None
        self._nursery = nursery
        self._scope = trio.CancelScope()

    @property
    def is_up(self) -> bool:
        return self.up_since is not None

    def start(self) -> None:
        self.up_since, self.killed_at = trio.current_time(), None
        self._scope = trio.CancelScope()
        self.host.is_up = True
        self.host.lifetime += 1
        self._nursery.start_soon(self._live, self._scope)

    def kill(self) -> None:
        """The process ends; the host tells its peers."""
        self.killed_at = trio.current_time()
        self._end()

    def power_off(self) -> None:
        """The host ends; nobody is told."""
        self.host.power_off()
        self.host.is_up = False
        self._end()

    def _end(self) -> None:
        self.ended()
        self.up_since, self.down_since = None, trio.current_time()
        self.host.serve = None
        self._scope.cancel()

    def ended(self) -> None:
        """For programs that have to forget something of their life."""

    async def _live(self, scope: trio.CancelScope) -> None:
        with scope:
            await self.run()

    async def run(self) -> None:
        raise NotImplementedError

    def listen(self, nursery: trio.Nursery, handle: Callable[..., Awaitable[None]]) -> None:
        self.host.serve = lambda stream: nursery.start_soon(handle, stream)


class NameServerNode(Node):
    """A name server. Its tables are gone with its process."""

    server: NameServer
    spy_log: SpyLog

    async def run(self) -> None:
        self.spy_log = SpyLog()
        self.server = NameServer(keeper=Memory(), log=self.spy_log)
        async with trio.open_nursery() as nursery:
            self.listen(nursery, self.server.handle)
            await self.server.keep_watch()

    def named(self) -> dict[str, str]:
        """Broker name -> address, of all that a route could name now."""
        return {
            data.broker_name: next(iter(data.broker_addrs.values()))
            for data in self.server.requests.tables.brokers()
        }


class BrokerNode(Node):
    """A broker: registers, and answers clients."""

    def __init__(
        self,
        name: str,
        network: Network,
        nursery: trio.Nursery,
        random: Random,
        *,
        servers: list[str],
    ) -> None:
        super().__init__(name, network, nursery, random)
        self.servers = [Address.parse(server) for server in servers]
        self.topics = {"common", f"of-{self.name}"}
        self.registrar: Registrar
        self.leaving = False  # it has begun to take its leave
        self._driver: TrioDriver | None = None
        self._tasks: trio.Nursery | None = None

    async def run(self) -> None:
        lifetime, self.leaving = self.host.lifetime, False
        self.registrar = Registrar(
            identity=Identity(cluster="c", broker=self.name, address=address_of(self.name)),
            topics=lambda: [
                TopicConfig(topic_name=name, read_queue_nums=1, write_queue_nums=1, perm=6)
                for name in sorted(self.topics)
            ],
            clock_ms=lambda: int(trio.current_time() * 1000),
            chance=self.random.random,
            state_version=lifetime,
        )
        async with (
            open_trio_driver(
                connect=self.network.connect_from(self.name),
                on_lost=lambda server: self.registrar.connection_lost(server),
            ) as driver,
            trio.open_nursery() as nursery,
        ):
            self._driver, self._tasks = driver, nursery
            self.listen(nursery, self._answer)
            for server in self.servers:
                nursery.start_soon(driver.run, self.registrar.keep_registered(server))

    def ended(self) -> None:
        self._tasks = None

    def stop(self) -> None:
        """In order: it takes its leave, and then ends."""
        if self._tasks is not None and not self.leaving:
            self.leaving = True
            self._tasks.start_soon(self._leave)

    async def _leave(self) -> None:
        assert self._driver is not None
        for server in self.servers:
            await self._driver.run(self.registrar.leave(server))
        self.kill()

    async def _answer(self, stream: trio.abc.Stream) -> None:
        frames, buffer = Connection(), bytearray()
        async with stream:
            try:
                while data := await stream.receive_some():
                    buffer += data
                    events, used = frames.receive(buffer, 0, len(buffer))
                    del buffer[:used]
                    for event in events:
                        if isinstance(event, RequestReceived):
                            await stream.send_all(frames.answer(event.serial, 0, STORED))
            except (trio.BrokenResourceError, trio.ClosedResourceError, RemoteProtocolError):
                return


class ClientNode(Node):
    """A producer: sends to the topic of one broker or another, again and again.

    Attributes:
        failures: sends that failed although the route was known or could have been learned, and
            nothing had happened to the broker and the way to it for some time.
    """

    def __init__(
        self,
        name: str,
        network: Network,
        nursery: trio.Nursery,
        random: Random,
        *,
        names: list[NameServerNode],
        brokers: list[BrokerNode],
    ) -> None:
        super().__init__(name, network, nursery, random)
        self.names = names
        self.servers = [Address.parse(address_of(node.name)) for node in names]
        self.brokers = brokers
        self.answered_count = 0
        self.failures: list[str] = []

    async def run(self) -> None:
        self.learned: set[str] = set()  # topics whose route it had: places do not change here
        self.routes = Routes(NameServers(self.servers, self.random.randrange))
        self.producer = Producer(
            group="producers",
            client_id=self.name,
            routes=self.routes,
            clock=trio.current_time,
            clock_ms=lambda: int(trio.current_time() * 1000),
            choose=self.random.randrange,
            new_id=lambda: "0",
            settings=ProducerSettings(send_seconds=SEND_SECONDS, attempts_max=1),
        )
        async with (
            open_trio_driver(connect=self.network.connect_from(self.name)) as driver,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(driver.run, self.routes.keep_fresh())
            while True:
                await pass_time(CALL_EVERY_SECONDS * (0.5 + self.random.random()))
                broker = self.brokers[self.random.randrange(len(self.brokers))]
                await self._send(driver, broker)

    async def _send(self, driver: TrioDriver, broker: BrokerNode) -> None:
        topic = f"of-{broker.name}"
        known = topic in self.learned
        well = self._is_well(broker) and (known or self._could_learn(topic))
        failure: RemotingError | None = None
        for _ in range(2):  # the first may find out that a connection is no more
            try:
                await driver.run(self.producer.send(Message(topic=topic, body=b"x")))
            except RemotingError as error:
                failure = error
            else:
                self.answered_count += 1
                self.learned.add(topic)
                return
        if well and self._is_well(broker) and (known or self._could_learn(topic)):
            self.failures.append(f"{trio.current_time():.1f} {self.name} {topic}: {failure}")

    def _could_learn(self, topic: str) -> bool:
        """Whether a name server could tell where the topic is, and nothing happened to it."""
        return any(
            self._is_well(node) and node.server.requests.tables.route(topic) is not None
            for node in self.names
        ) and all(self._is_well(node) or not node.is_up for node in self.names)

    def _is_well(self, node: Node) -> bool:
        """Whether nothing has happened to the node or the way to it for some time."""
        link = self.network.link(self.name, node.name)
        if node.up_since is None or link.is_cut or link.delay:
            return False
        return trio.current_time() - max(node.up_since, link.since) > 2 * SEND_SECONDS
