"""A cluster of name servers, brokers and clients under faults, from one seed.

    run_seed(4711) -> Report, or raises Violation with the seed, the moment and what was wrong

The seed says how many nodes there are, which kinds of faults come, how often, and when; then all
that is broken heals, and the cluster has to find together again. The same seed gives the same
trace, to the byte (`Report.trace`).

Invariants, looked at every few virtual seconds and after the end of the faults:

* *nobody dead*: a name server does not name a broker from which nothing could come for 130 seconds
  (120 of silence, 10 until the scan), and one whose process ended across a whole link for no longer
  than a moment;
* *everybody alive*: a broker that has been up, with a whole link to a name server that has been up,
  for 30 seconds and the time of one call, is in the tables there, with its topics;
* *clients go on*: a client that knows a route is answered by a broker that is up and reachable,
  whatever the name servers do; and one that does not learns it as long as one of them could tell.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import trio
import trio.testing
from trio._core import _run as trio_run

from polymq.remoting.registrar import RegistrarSettings
from tests.sim.network import Link, Network, pass_time
from tests.sim.nodes import BrokerNode, ClientNode, NameServerNode, Node, address_of

FAULTS_SECONDS = (60.0, 260.0)
LOOK_SECONDS = 4.0
SILENCE_SECONDS = 130.0
SETTINGS = RegistrarSettings()
ALIVE_SECONDS = SETTINGS.interval_seconds + SETTINGS.call_seconds + SETTINGS.gather_seconds + 1.0
MOMENT_SECONDS = 2.0
DELAY_SECONDS_MAX = 2.0


class Violation(AssertionError):
    """An invariant does not hold."""


@dataclass(slots=True, kw_only=True)
class Report:
    """What a run did."""

    seed: int
    faults: Counter[str] = field(default_factory=Counter)
    virtual_seconds: float = 0.0
    answered_count: int = 0
    registered_count: int = 0
    evicted_count: int = 0
    looks_count: int = 0
    trace: str = ""


def run_seed(seed: int) -> Report:
    """One run. Raises Violation."""
    # trio takes runnable tasks in an order drawn by lot; with these two the lot is the seed's.
    trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    trio_run._r.seed(seed)
    clock = trio.testing.MockClock(autojump_threshold=0)
    return trio.run(_Run(seed).run, clock=clock)


class _Run:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.report = Report(seed=seed)
        self.network = Network()
        self.names: list[NameServerNode] = []
        self.brokers: list[BrokerNode] = []
        self.clients: list[ClientNode] = []
        self._trace = hashlib.sha256()
        self._nursery: trio.Nursery
        self._reported: dict[str, int] = {}

    async def run(self) -> Report:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._build()
            for node in self._nodes():
                node.start()
            faults = self.random.uniform(*FAULTS_SECONDS)
            with trio.move_on_after(faults):
                async with trio.open_nursery() as during:
                    during.start_soon(self._make_faults)
                    during.start_soon(self._keep_looking)
            self._heal_all()
            with trio.move_on_after(ALIVE_SECONDS + MOMENT_SECONDS):
                await self._keep_looking()
            self._look()
            self.report.virtual_seconds = trio.current_time()
            self._look_at_the_end()
            nursery.cancel_scope.cancel()
        self.report.answered_count = sum(client.answered_count for client in self.clients)
        self.report.trace = self._trace.hexdigest()
        return self.report

    def _build(self) -> None:
        random, network = self.random, self.network
        common = (network, self._nursery, random)
        self.names = [
            NameServerNode(f"n{number}", *common) for number in range(random.choice((1, 2, 2, 3)))
        ]
        servers = [address_of(node.name) for node in self.names]
        self.brokers = [
            BrokerNode(f"b{number}", *common, servers=servers)
            for number in range(random.choice((1, 2, 3)))
        ]
        self.clients = [
            ClientNode(f"c{number}", *common, names=self.names, brokers=self.brokers)
            for number in range(random.choice((1, 2)))
        ]
        for one in self._nodes():
            for other in self._nodes():
                if one is not other:
                    network.link(one.name, other.name)

    def _nodes(self) -> list[Node]:
        return [*self.names, *self.brokers, *self.clients]

    # --- faults ---------------------------------------------------------------------------

    async def _make_faults(self) -> None:
        """Every seed has kinds of faults and a pace of its own."""
        kinds = sorted(FAULTS)
        chosen = self.random.sample(kinds, self.random.randint(3, len(kinds)))
        pace = self.random.choice((4.0, 10.0, 25.0))
        while True:
            await pass_time(self.random.expovariate(1 / pace))
            kind = self.random.choice(chosen)
            subject = FAULTS[kind](self)
            if subject is not None:
                self.report.faults[kind] += 1
                self._note(f"{kind} {subject}")

    def _note(self, text: str) -> None:
        self._trace.update(f"{trio.current_time():.6f} {text}\n".encode())

    def _pick(self, nodes: list[Node]) -> Node | None:
        return self.random.choice(nodes) if nodes else None

    def _servers(self, *, up: bool) -> list[Node]:
        return [node for node in (*self.names, *self.brokers) if node.is_up is up]

    def kill(self) -> str | None:
        node = self._pick(self._servers(up=True))
        if node is None:
            return None
        node.kill()
        return node.name

    def power_off(self) -> str | None:
        node = self._pick(self._servers(up=True))
        if node is None:
            return None
        node.power_off()
        return node.name

    def restart(self) -> str | None:
        node = self._pick(self._servers(up=False))
        if node is None:
            return None
        node.start()
        return node.name

    def stop(self) -> str | None:
        brokers = [broker for broker in self.brokers if broker.is_up]
        broker = self.random.choice(brokers) if brokers else None
        if broker is None:
            return None
        broker.stop()
        return broker.name

    def all_names_down(self) -> str | None:
        down = [node for node in self.names if node.is_up]
        for node in down:
            node.kill()
        return " ".join(node.name for node in down) or None

    def change_topics(self) -> str | None:
        broker = self.random.choice(self.brokers)
        topic = f"made-{self.random.randrange(2)}"
        broker.topics ^= {topic}
        if broker.is_up and hasattr(broker, "registrar"):
            broker.registrar.topics_changed()
        return f"{broker.name} {topic}"

    def _links(self, *, cut: bool) -> list[tuple[str, Link]]:
        return [(name, link) for name, link in self.network.links() if link.is_cut is cut]

    def cut(self) -> str | None:
        links = self._links(cut=False)
        if not links:
            return None
        name, link = self.random.choice(links)
        link.cut()
        return name

    def isolate(self) -> str | None:
        node = self.random.choice(self._nodes())
        for name, link in self.network.links():
            if node.name in name.split("-"):
                link.cut()
        return node.name

    def heal(self) -> str | None:
        links = [(n, link) for n, link in self.network.links() if link.is_cut or link.delay]
        if not links:
            return None
        name, link = self.random.choice(links)
        link.heal()
        return name

    def heal_everything(self) -> str | None:
        for _, link in self.network.links():
            if link.is_cut or link.delay:
                link.heal()
        return "all"

    def slow(self) -> str | None:
        links = self._links(cut=False)
        if not links:
            return None
        name, link = self.random.choice(links)
        link.slow(self.random.uniform(0.01, DELAY_SECONDS_MAX), self.random.choice((64, 500)))
        return name

    def reset(self) -> str | None:
        streams = [stream for node in self._nodes() for stream in node.host.streams]
        if not streams:
            return None
        self.random.choice(streams).reset()
        return str(len(streams))

    def lose(self) -> str | None:
        streams = [stream for node in self._nodes() for stream in node.host.streams]
        if not streams:
            return None
        self.random.choice(streams).lose()
        return str(len(streams))

    def _heal_all(self) -> None:
        for _, link in self.network.links():
            link.heal()
        for broker in self.brokers:
            if broker.leaving and broker.is_up:  # or it would go after everything is well
                broker.kill()
        for node in self._nodes():
            if not node.is_up:
                node.start()
        self._note("healed")

    # --- invariants -----------------------------------------------------------------------

    async def _keep_looking(self) -> None:
        while True:
            self._look()
            await pass_time(LOOK_SECONDS)

    def _look(self) -> None:
        self.report.looks_count += 1
        now = trio.current_time()
        for server in self.names:
            # A process that was started just now has not run yet, so it has no tables.
            if server.up_since is None or now == server.up_since:
                continue
            named = server.named()
            self._note(f"{server.name} {sorted(named)}")
            for broker in self.brokers:
                self._look_at(server, broker, broker.name in named, now)
            self._count(server)
        for client in self.clients:
            if client.failures:
                self._violated("clients go on", client.failures[0])

    def _look_at(self, server: NameServerNode, broker: BrokerNode, named: bool, now: float) -> None:
        link = self.network.link(server.name, broker.name)
        pair = f"{server.name} and {broker.name}"
        assert server.up_since is not None
        if named:
            silent_since = max(
                broker.down_since if broker.up_since is None else 0.0,
                link.since if link.is_cut else 0.0,
            )
            if silent_since and now - silent_since > SILENCE_SECONDS + DELAY_SECONDS_MAX:
                self._violated("nobody dead", f"{pair}: silent since {silent_since:.1f}")
            killed = broker.killed_at
            lost = now - link.lost_at < SILENCE_SECONDS  # nobody was told, or not of the right one
            whole = not lost and not link.is_cut and not link.delay
            if killed is not None and whole and link.since < killed:
                if now - killed > MOMENT_SECONDS:
                    self._violated("nobody dead", f"{pair}: killed at {killed:.1f}")
            return
        if broker.up_since is None or link.is_cut or link.delay or broker.leaving:
            return
        well_since = max(broker.up_since, server.up_since, link.since)
        if now - well_since > ALIVE_SECONDS:
            self._violated("everybody alive", f"{pair}: well since {well_since:.1f}")

    def _look_at_the_end(self) -> None:
        for server in self.names:
            tables = server.server.requests.tables
            expected = {topic for broker in self.brokers for topic in broker.topics}
            expected |= {broker.name for broker in self.brokers} | {"c"}
            if set(tables.topics()) != expected:
                lacking, too_many = expected - set(tables.topics()), set(tables.topics()) - expected
                self._violated("everybody alive", f"{server.name}: {lacking=} {too_many=}")

    def _count(self, server: NameServerNode) -> None:
        for _, event, _ in server.spy_log.said:
            self.report.registered_count += event == "broker joined"
            self.report.evicted_count += event in (
                "broker left",
                "broker is silent and was removed",
            )
            if event == "bug":
                self._violated("no bugs", server.name)
        server.spy_log.said.clear()

    def _violated(self, invariant: str, what: str) -> None:
        raise Violation(
            f"{invariant}: {what} (seed {self.report.seed}, {trio.current_time():.1f} s): "
            f"python -m tests.sim --first {self.report.seed} --seeds 1"
        )


FAULTS: dict[str, Callable[[_Run], str | None]] = {
    "kill": _Run.kill,
    "power off": _Run.power_off,
    "restart": _Run.restart,
    "stop": _Run.stop,
    "all name servers down": _Run.all_names_down,
    "change topics": _Run.change_topics,
    "cut": _Run.cut,
    "isolate": _Run.isolate,
    "heal": _Run.heal,
    "heal everything": _Run.heal_everything,
    "slow": _Run.slow,
    "reset": _Run.reset,
    "lose a connection": _Run.lose,
}
