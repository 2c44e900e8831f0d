"""`make replica-kills`: a master and its slave under load, of which one dies, or both, and again.

    python -m interop_tests.replica_kills [--kills 50] [--seed N]

Publishers on MQTT QoS 1, AMQP confirms and HTTP run all the time and keep books (`ledger/`); the
brokers ask for two disks (`min_in_sync = 2`). With kill -9 dies the slave, which is started again;
or the master, whose slave is promoted and which comes back as the slave of that one; or both, which
come back as they were. In the end the log is read by offset and held against the books: nothing
that was acked is lost, altered or out of its publisher's order; and both logs are the same, byte
for byte.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import random
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from interop_tests.conftest import Server
from interop_tests.kills import read_log
from interop_tests.ledger.books import What
from interop_tests.ledger.ports import lasting_ports
from interop_tests.ledger.processes import Client
from interop_tests.ledger.verdict import Published, judge_log
from interop_tests.relay import Relay

TOPIC = "load"
PUBLISHERS = {"mqtt": 20, "amqp": 20, "http": 4}
KINDS = ("slave", "master", "both")
STEP_SECONDS_MAX = 60.0
LOOK_SECONDS = 0.02
ACKS_BETWEEN = 200
"""How many acks come between two kills, at most."""
COMMAND = (sys.executable, "-m", "polymq")


@dataclass(slots=True)
class Kills:
    """What was done, and what is wrong in the end.

    Attributes:
        outages: seconds from the kill of a master to the next ack.
    """

    counts: Counter[str] = field(default_factory=Counter)
    published: Published = field(default_factory=Published)
    records: int = 0
    compared_bytes: int = 0
    outages: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


class Pair:
    """Two brokers, of which one is the master.

    Args:
        options: settings of both, besides those that they need.
    """

    def __init__(self, directory: Path, options: dict[str, object] | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        secret = directory / "secret"
        secret.touch(mode=0o600)
        secret.write_text(secrets.token_hex(32))
        addresses = [f"127.0.0.1:{port}" for port in list(lasting_ports().values())[:2]]
        self._options: list[dict[str, object]] = [
            {
                **lasting_ports(),
                # Small, so that segments end and states are saved often.
                "storage.segment_bytes": 1024 * 1024,
                "storage.save_seconds": 0.5,
                "replication.name": f"broker-{number}",
                "replication.listen": addresses[number],
                "replication.master": addresses[1 - number],
                "replication.secret_file": secret,
                "replication.min_in_sync": 2,
                **(options or {}),
            }
            for number in range(2)
        ]
        self._directories = [directory / "a", directory / "b"]
        self.servers = [self._made(number, "slave" if number else "master") for number in range(2)]
        self.master = 0
        self.relays: dict[str, Relay] = {}
        """By protocol: where clients find the master."""

    def _made(self, number: int, role: str) -> Server:
        options = {**self._options[number], "replication.role": role}
        return Server(self._directories[number], options, {}, COMMAND)

    def address(self, number: int) -> str:
        """Where one of the two listens for slaves."""
        return str(self._options[number]["replication.listen"])

    def start(self) -> None:
        """Start both, and return when one follows the other."""
        for server in self.servers:
            server.start()
        self.wait_following()

    def close(self) -> None:
        """End both, and show what they said."""
        for server in self.servers:
            server.close(sys.stderr)

    @property
    def leader(self) -> Server:
        """The master."""
        return self.servers[self.master]

    @property
    def follower(self) -> Server:
        """The slave."""
        return self.servers[1 - self.master]

    def kill(self, kind: str) -> None:
        """Kill one or both, and bring them back."""
        if kind in ("master", "both"):
            self.leader.kill()
        if kind in ("slave", "both"):
            self.follower.kill()
        if kind == "master":
            self.promote()
            self.servers[1 - self.master] = self._made(1 - self.master, "slave")
            self.follower.start()
        if kind == "both":
            self.leader.start()
        if kind in ("slave", "both"):
            self.follower.start()
        self.wait_following()

    def promote(self, *, force: bool = False) -> None:
        """Make the slave the master."""
        body = {"force": force}
        answer = ask(self.follower, "POST", "/api/v1/replication/promote", body)
        assert answer["role"] == "master"
        self.master = 1 - self.master
        self.leader.configure(**{"replication.role": "master"})
        wait(self.leader, lambda: status(self.leader).get("role") == "master", "promotion")
        for protocol, relay in self.relays.items():
            relay.target = getattr(self.leader, f"{protocol}_port")

    def wait_following(self) -> None:
        """Wait until the slave follows."""
        wait(
            self.follower,
            lambda: bool(status(self.follower).get("following")),
            "slave that follows",
        )

    def wait_equal(self) -> int:
        """Wait until the slave has all that the master has, and nothing more comes; its end."""
        ends: list[int] = []

        def equal() -> bool:
            both = [status(server).get("flushed", -1) for server in self.servers]
            ends.append(both[0] if both[0] == both[1] else -1 - len(ends))
            return len(ends) > 20 and len(set(ends[-20:])) == 1

        wait(self.follower, equal, "rest")
        return ends[-1]


def ask(server: Server, method: str, path: str, body: object = None) -> dict[str, Any]:
    """Ask the operator's listener."""
    connection = http.client.HTTPConnection(server.host, server.admin_port, timeout=10)
    with contextlib.closing(connection):
        raw = None if body is None else json.dumps(body)
        connection.request(method, path, raw, headers={"X-PolyMQ-Admin": "test"})
        answer = connection.getresponse()
        found: dict[str, Any] = json.loads(answer.read())
        assert answer.status < 300, found
        return found


def status(server: Server) -> dict[str, Any]:
    """What a broker says of its role; nothing while it does not answer."""
    try:
        return ask(server, "GET", "/api/v1/replication")
    except OSError:
        return {}


def wait(server: Server, condition: Callable[[], bool], text: str) -> None:
    """Wait until something holds, while the server runs."""
    deadline = time.monotonic() + STEP_SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, f"no {text} within {STEP_SECONDS_MAX} s"
        assert not server.ended_within(LOOK_SECONDS), server.log_lines()[-5:]


def has_acked(client: Client, count: int) -> bool:
    return client.count[What.ACKED] >= count


def run_kills(directory: Path, kills_count: int, seed: int) -> Kills:
    """Kill so many times, and judge what is left."""
    chance = random.Random(seed)
    kills = Kills()
    pair = Pair(directory)
    with contextlib.ExitStack() as stack:
        stack.callback(pair.close)
        pair.start()
        relays = pair.relays = {
            protocol: stack.enter_context(Relay(getattr(pair.leader, f"{protocol}_port")))
            for protocol in PUBLISHERS
        }
        publishers = [
            stack.enter_context(
                Client(
                    f"{protocol}_publisher",
                    directory,
                    port=relays[protocol].port,
                    name=f"{protocol}-publisher",
                    topic=TOPIC,
                    window=window,
                    seed=seed,
                )
            )
            for protocol, window in PUBLISHERS.items()
        ]
        for client in publishers:  # the first one makes the topic, which AMQP takes for granted
            client.start()
            client.wait(lambda c: c.count[What.ACKED] > 0, STEP_SECONDS_MAX, "first ack")
        for number in range(kills_count):
            first = publishers[0]
            more = first.count[What.ACKED] + chance.randrange(1, ACKS_BETWEEN)
            first.wait(partial(has_acked, count=more), STEP_SECONDS_MAX, "ack")
            kind = KINDS[number % len(KINDS)] if number < len(KINDS) else chance.choice(KINDS)
            began = time.monotonic()
            pair.kill(kind)
            kills.counts[kind] += 1
            first.read()
            more = first.count[What.ACKED] + 1
            first.wait(partial(has_acked, count=more), STEP_SECONDS_MAX, "ack")
            if kind == "master":
                kills.outages.append(time.monotonic() - began)
        for client in publishers:
            client.stop()
        for client in publishers:
            client.wait_end(STEP_SECONDS_MAX)
            client.read()
            kills.published.add(client.lines)
        log = read_log(pair.leader)
        kills.records = len(log)
        kills.faults = judge_log(kills.published, log).texts
        if kills.published.acked != kills.published.sent:
            kills.faults.append("something was sent and never acked")
        end = pair.wait_equal()
        for server in pair.servers:
            server.kill()
        kills.compared_bytes = end
        kills.faults += differences(pair, end)
    return kills


def differences(pair: Pair, end: int) -> list[str]:
    """Where the files of the two logs differ before `end`, from where both begin."""
    found = []
    one, other = (server.data_directory / "store/commitlog" for server in pair.servers)
    names = [{path.name for path in log.iterdir() if path.name.isdigit()} for log in (one, other)]
    first = max(map(min, names))
    starts = sorted(int(name) for name in names[0] | names[1] if name >= first)
    for start in starts:
        if start < end:
            name = f"{start:020d}"
            contents = [(address / name).read_bytes()[: end - start] for address in (one, other)]
            if contents[0] != contents[1]:
                found.append(f"the logs differ in {name}")
    if not starts or not end:
        found.append("there is nothing to compare")
    return found


def report(kills: Kills, seed: int, seconds: float) -> None:
    """The figures of a run."""
    published = kills.published
    print(f"{kills.counts.total()} kills in {seconds:.0f} s, seed {seed}: ", end="")
    print(", ".join(f"{kind} {count}" for kind, count in sorted(kills.counts.items())))
    print(f"published {len(published.sent):,}, acked {len(published.acked):,}", end="")
    print(f", outcomes unknown {published.unknown.total():,}, records {kills.records:,}")
    print(
        f"logs compared: {kills.compared_bytes:,} bytes; seconds from a master's death to", end=""
    )
    print(" the next ack:", " ".join(f"{outage:.1f}" for outage in kills.outages))
    print(f"{len(kills.faults)} faults", *kills.faults, sep="\n")


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="make replica-kills KILLS=...", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="polymq-replica-kills-") as name:
        began = time.monotonic()
        kills = run_kills(Path(name), options.kills, options.seed)
        report(kills, options.seed, time.monotonic() - began)
        return int(bool(kills.faults))


if __name__ == "__main__":
    sys.exit(main())
