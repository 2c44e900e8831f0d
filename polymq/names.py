"""A broker and its name servers: the one beside it, and those that it registers with.

A part of the composition root. The registrar (`remoting.registrar`) says what to do; here are the
tasks that do it on the broker's loop, one for each name server.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import random
import socket
import ssl
import zlib
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Final

from polymq.broker.engine import Engine
from polymq.gateways.rocketmq.mapping import AUTO_QUEUES, AUTO_TOPIC, TOPIC_PERMISSION
from polymq.logs import logger
from polymq.metrics.registry import Probe, gauge
from polymq.name_server import names_credentials
from polymq.remoting.codes import MASTER_ID
from polymq.remoting.driver_asyncio import AsyncioDriver
from polymq.remoting.registrar import Identity, Registrar, ServerState
from polymq.remoting.registration import TopicConfig
from polymq.remoting.steps import Address
from polymq.settings import Settings
from polymq.tls import names_tls

_FAR_AWAY: Final = ("192.0.2.1", 9)
"""Of a network that is reserved for documentation: nothing is sent there."""
_ANY_HOST: Final = frozenset(("0.0.0.0", "::", ""))
_BESIDE_SECONDS: Final = 5.0
"""How long a start waits for the name server beside the broker."""


class Registration:
    """Keeps a broker in the tables of its name servers.

    Args:
        port: of the listener for RocketMQ clients, which is what routes name.
        beside: the port of the name server beside this broker; None if there is none.
        epoch: of the log: a broker with an older one is not let in beside this one.
    """

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        *,
        port: int,
        beside: int | None,
        epoch: int,
        clock_ms: Callable[[], int],
    ) -> None:
        self._engine = engine
        host = settings.server.host
        self._servers = [Address.parse(server) for server in settings.names.servers]
        self._beside: list[Address] = []
        if beside is not None:
            own = "127.0.0.1" if host in _ANY_HOST else host
            self._beside.append(Address(own, beside))
        self.registrar = Registrar(
            identity=Identity(
                cluster=settings.names.cluster,
                broker=settings.names.broker,
                address=settings.rocketmq.advertise or str(Address(reachable_host(host), port)),
                broker_id=slave_id(settings.replication.name) if engine.core.follows else MASTER_ID,
            ),
            topics=self._topics,
            clock_ms=clock_ms,
            chance=random.random,
            state_version=epoch,
            on_change=self._tell,
        )
        self._driver = self._make_driver(settings, names_tls(settings))
        self._driver_beside = self._make_driver(settings, None)
        self._tasks: list[asyncio.Task[object]] = []
        self._answered = asyncio.Event()
        """The name server beside has accepted this broker, or has not."""

    def _make_driver(self, settings: Settings, tls: ssl.SSLContext | None) -> AsyncioDriver:
        return AsyncioDriver(
            tls=tls,
            on_lost=self.registrar.connection_lost,
            credentials=names_credentials(settings),
        )

    async def start(self) -> None:
        """Register from now on.

        Returns when the name server beside has answered, so that a client that comes once the
        server is ready gets routes. The other name servers may be away, and are not waited for.
        """
        self._engine.topics.on_change = self.registrar.topics_changed
        loop = asyncio.get_running_loop()
        for server, driver in self._drivers():
            task = loop.create_task(driver.run(self.registrar.keep_registered(server)))
            task.add_done_callback(_tell_bug)
            self._tasks.append(task)
        if self._beside:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._answered.wait(), _BESIDE_SECONDS)

    def _drivers(self) -> list[tuple[Address, AsyncioDriver]]:
        """Every name server, and what speaks to it."""
        servers = [(server, self._driver) for server in self._servers]
        return servers + [(server, self._driver_beside) for server in self._beside]

    async def stop(self) -> None:
        """Take leave of all name servers; of one that does not answer, after a second."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        states = self.registrar.states
        leaving = [
            driver.run(self.registrar.leave(server))
            for server, driver in self._drivers()
            if server in states and states[server].registered
        ]
        await asyncio.gather(*leaving)
        self._driver.close()
        self._driver_beside.close()

    @property
    def states(self) -> dict[str, ServerState]:
        """How this broker stands with each name server, by its address."""
        return {str(server): state for server, state in self.registrar.states.items()}

    @property
    def registered_count(self) -> int:
        """Name servers that have this broker in their tables, as far as it knows."""
        return sum(state.registered for state in self.registrar.states.values())

    def _topics(self) -> Iterator[TopicConfig]:
        # Last what producers ask for before a topic is there: the last word on a name counts.
        for name, count in chain(self._engine.topics.sizes(), ((AUTO_TOPIC, AUTO_QUEUES),)):
            yield TopicConfig(
                topic_name=name,
                read_queue_nums=count,
                write_queue_nums=count,
                perm=TOPIC_PERMISSION,
            )

    def _tell(self, server: Address, state: ServerState) -> None:
        if server in self._beside:
            self._answered.set()
        log, identity = logger("polymq"), self.registrar.identity
        if state.registered:
            log.info(
                "registered", name_server=str(server), broker=identity.broker, at=identity.address
            )
        else:
            log.warning("a name server does not accept this broker", reason=state.failure)


def slave_id(name: str) -> int:
    """The number of a slave in routes, from the name that its master knows it by. 0 is the
    master's; a slave that is promoted registers as that, with the epoch that it began."""
    return zlib.crc32(name.encode()) or 1


def names_probe(registration: Callable[[], Registration | None]) -> Probe:
    """The metric of registrations."""

    def count() -> float:
        now = registration()
        return 0 if now is None else now.registered_count

    return gauge(
        "polymq_name_servers_registered", "Name servers that this broker is registered with.", count
    )


def _tell_bug(task: asyncio.Task[object]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        task.get_loop().call_exception_handler({"message": "registering", "exception": error})


def record_host(settings: Settings, port: int) -> tuple[str, int]:
    """Where records say that they are stored: RocketMQ's clients come there with a message's id.

    They have room for an IPv4 address only; where clients are told a name, it is this machine's.

    Args:
        port: of the listener for RocketMQ clients.
    """
    host, _, named = settings.rocketmq.advertise.rpartition(":")
    port = int(named) if named.isdecimal() else port
    for known in (host, reachable_host(settings.server.host)):
        with contextlib.suppress(ValueError):
            return str(ipaddress.IPv4Address(known)), port
    return "127.0.0.1", port


def reachable_host(host: str) -> str:
    """Where others reach a server that listens on `host`: for all addresses, the one that this
    machine would use to reach others."""
    if host not in _ANY_HOST:
        return host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_FAR_AWAY)
        except OSError:
            return "127.0.0.1"  # no network: nobody else can reach us
        return str(probe.getsockname()[0])
