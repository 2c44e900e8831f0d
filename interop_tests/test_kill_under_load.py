"""Kills a loaded server again and again: nothing that it acked is lost, corrupt or out of order.

Publishers on MQTT QoS 1, AMQP confirms and HTTP run in processes of their own, and so do consumers;
each keeps a book on disk (`ledger/`). The server is killed with SIGKILL at random moments and
started again on the same directory and ports. In the end everything is read four times over: by the
consumers that were there all the time, by a session, a queue and a subscription that nobody had
read from, and by offset. The books then have to agree.
"""

from __future__ import annotations

import base64
import contextlib
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from interop_tests.conftest import Server, StartServer
from interop_tests.ledger.bodies import read_body
from interop_tests.ledger.books import Line, What
from interop_tests.ledger.ports import lasting_ports
from interop_tests.ledger.processes import Client
from interop_tests.ledger.verdict import (
    Key,
    Published,
    judge_consumer,
    judge_log,
    unflagged_repeats,
)

KILLS = 10
ATTEMPTS_MAX = 40
"""A kill that met fewer unacked publishes than it should does not count; this ends the search."""
UNACKED_MIN = 100
SECONDS_BEFORE_KILL_MAX = 0.3
STEP_SECONDS_MAX = 30.0
"""For each single thing that is waited for; all of it together takes about a minute."""
TOPIC = "load"
PUBLISHERS = {"mqtt": 400, "amqp": 400, "http": 32}
"""Protocol, and how many publishes are kept under way."""
CONSUMERS = ("mqtt", "amqp", "http")


def ports_of(server: Server) -> dict[str, int]:
    return {"mqtt": server.mqtt_port, "amqp": server.amqp_port, "http": server.http_port}


@pytest.fixture
def server(start_server: StartServer) -> Server:
    """A server that can be started again while clients try to reach it."""
    return start_server(**lasting_ports())


@pytest.fixture
def make_client(server: Server, tmp_path: Path) -> Iterator[Callable[..., Client]]:
    """Client processes of the server; all are gone after the test."""
    with contextlib.ExitStack() as stack:

        def make(protocol: str, role: str, name: str, **options: int) -> Client:
            client = Client(
                f"{protocol}_{role}",
                tmp_path,
                port=ports_of(server)[protocol],
                name=name,
                topic=TOPIC,
                **options,
            )
            return stack.enter_context(client)

        yield make


def wait_for_connections(client: Client) -> None:
    """Each connection of an HTTP publisher is a publisher of its own."""
    protocol = client.name.partition("-")[0]
    count = PUBLISHERS[protocol] if protocol == "http" else 1
    client.wait(lambda c: len(c.connected) == count, STEP_SECONDS_MAX, f"{count} connections")


class Load:
    """Everything that speaks to the server during the test."""

    def __init__(self, server: Server, make_client: Callable[..., Client], seed: int) -> None:
        self.server = server
        self.publishers = [
            make_client(protocol, "publisher", f"{protocol}-publisher", window=window, seed=seed)
            for protocol, window in PUBLISHERS.items()
        ]
        self.live = [
            make_client(protocol, "consumer", f"live-{protocol}") for protocol in CONSUMERS
        ]
        self.late = [
            make_client(protocol, "consumer", f"late-{protocol}") for protocol in CONSUMERS
        ]

    def start(self) -> None:
        """Every queue and subscription is there before the first message."""
        for client in self.late:
            client.declare(STEP_SECONDS_MAX)
        for client in self.live:
            client.start()
        for client in self.live:
            client.wait(lambda c: c.count[What.READY] > 0, STEP_SECONDS_MAX, "subscription")
        for client in self.publishers:
            client.start()

    def kill_server(self, chance: random.Random) -> dict[str, int]:
        """Kill at a random moment of the load; returns how much was unacked, by publisher."""
        for client in self.publishers:
            wait_for_connections(client)
        assert not self.server.ended_within(chance.uniform(0.0, SECONDS_BEFORE_KILL_MAX))
        moment = time.monotonic()
        self.server.kill()
        for client in self.publishers:
            client.wait(lambda c: not c.connected, STEP_SECONDS_MAX, "end of its connections")
        return {client.name: client.unacked_at(moment) for client in self.publishers}

    def finish_publishing(self) -> Published:
        """Let the publishers get their last acks and end; returns what their books say."""
        published = Published()
        for client in self.publishers:
            client.stop()
        for client in self.publishers:
            client.wait_end(STEP_SECONDS_MAX)
            client.read()
            published.add(client.lines)
        return published

    def drain(self, clients: list[Client], wanted: set[Key]) -> None:
        """Wait until each of the clients has received all of it, and end them."""
        for client in clients:
            client.wait(lambda c: wanted <= c.got, STEP_SECONDS_MAX, "end of the backlog")
        for client in clients:
            client.stop()
        for client in clients:
            client.wait_end(STEP_SECONDS_MAX)
            client.read()


def read_log(server: Server) -> list[Key]:
    """Every record of the topic by offset, each body checked."""
    command = [*(sys.executable, "-m", "polymq", "message", "read", TOPIC, "--format", "json")]
    found = subprocess.run(
        [*command, "--data-directory", str(server.data_directory)],
        stdout=subprocess.PIPE,
        timeout=STEP_SECONDS_MAX,
        check=True,
    )
    messages = [json.loads(line) for line in found.stdout.splitlines()]
    offsets = [message["offset"] for message in messages]
    assert offsets == list(range(len(offsets))), "offsets are dense and begin at 0"
    return [read_body(base64.b64decode(message["body_base64"])) for message in messages]


def report(published: Published, log: list[Key], load: Load, kills: list[dict[str, int]]) -> None:
    """The figures of the run."""
    print(f"published {len(published.sent)}, acked {len(published.acked)}", end="")
    print(f", unknown outcomes {published.unknown.total()}, records in the log {len(log)}")
    print(f"kills {len(kills)}, unacked at each: {[sum(kill.values()) for kill in kills]}")
    for name in kills[0]:
        print(f"  {name}: {[kill[name] for kill in kills]}")
    counts = Counter(log)
    for client in (*load.live, *load.late):
        got = client.count[What.GOT]
        print(f"{client.name}: received {got}, of them repeats {got - len(log)}", end="")
        print(f", not flagged {len(unflagged_repeats(counts, client.lines))}")


@pytest.mark.disk
@pytest.mark.slow(seconds=60)
def test_nothing_acked_is_lost_over_ten_kills(
    server: Server, make_client: Callable[..., Client]
) -> None:
    """Ten kills with at least 100 publishes unacked at each, all protocols at once; afterwards
    every reader has every acked message, unaltered and in its publisher's order."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    load = Load(server, make_client, seed)
    load.start()
    kills: list[dict[str, int]] = []
    for _ in range(ATTEMPTS_MAX):
        unacked = load.kill_server(chance)
        server.start()
        if sum(unacked.values()) >= UNACKED_MIN:
            kills.append(unacked)
        if len(kills) == KILLS:
            break
    assert len(kills) == KILLS, f"only {len(kills)} of {ATTEMPTS_MAX} kills met enough publishes"
    assert all(sum(kill[name] for kill in kills) > 0 for name in kills[0]), "a protocol was idle"

    published = load.finish_publishing()
    assert published.acked == published.sent, "in the end everything is acked"
    log = read_log(server)
    for client in load.late:
        client.start()
    load.drain([*load.live, *load.late], published.acked)
    report(published, log, load, kills)

    faults = {"the log": judge_log(published, log).texts}
    faults["publishers"] = [line.note for line in published.refused]
    for client in (*load.live, *load.late):
        faults[client.name] = judge_consumer(published, Counter(log), client.lines).texts
    assert not any(faults.values()), faults


def line(what: What, number: int = -1, note: str = "") -> Line:
    return Line(what=what, at=0.0, actor="p", number=number, note=note)


@pytest.mark.parametrize(
    ("log", "got", "faults"),
    [
        ([0, 1, 2], ["0", "1", "2"], []),
        ([0, 1, 2, 1, 2], ["0", "1", "2", "1", "2"], []),
        ([0, 1, 2], ["0", "1", "connected", "1 again", "2"], []),
        ([0, 2], ["0", "1", "2"], ["lost"]),
        ([0, 1, 2], ["0", "2"], ["lost"]),
        ([0, 1, 2, 3], ["0", "1", "2"], ["never sent"]),
        ([0, 2, 1], ["0", "1", "2"], ["reordered"]),
        ([0, 1, 2], ["0", "2", "1"], ["reordered"]),
        ([0, 0, 1, 2], ["0", "1", "2"], ["stored more often"]),
        ([0, 1, 2, 1, 2, 1], ["0", "1", "2"], ["stored more often", "go back more often"]),
        ([0, 1, 2], ["0", "1", "1", "2"], ["unflagged repeats"]),
        ([0, 1, 2], ["0", "corrupt", "1", "2"], ["corrupt"]),
        ([0, 1, 2], ["0", "refused", "1", "2"], ["refused"]),
    ],
)
def test_the_verdict_sees_each_fault(log: list[int], got: list[str], faults: list[str]) -> None:
    """A ledger that could not find anything wrong would prove nothing. Here 0 was acked at once,
    the outcome of 1 and 2 was unknown once."""
    published = Published()
    published.add(line(What.SENT, number) for number in range(3))
    published.add(line(What.UNKNOWN, number) for number in (1, 2))
    published.add([line(What.DISCONNECTED)])
    published.add(line(What.ACKED, number) for number in range(3))
    read = []
    for text in got:
        number, _, note = text.partition(" ")
        said = {"connected": What.CONNECTED, "corrupt": What.CORRUPT, "refused": What.REFUSED}
        what = said.get(number, What.GOT)
        read.append(line(what, int(number) if what is What.GOT else -1, note))
    keys = [("p", number) for number in log]
    found = judge_log(published, keys).texts + judge_consumer(published, Counter(keys), read).texts
    for fault in faults:
        assert any(fault in text for text in found), found
    assert bool(found) == bool(faults), found
