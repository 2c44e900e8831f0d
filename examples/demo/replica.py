"""Step: a master and its slave. The master dies under load, the slave is promoted.

Both are servers like any other (`docs/replication.md`) with `min_in_sync = 2`: what was
acknowledged is on two disks. Clients make durable state and publish in each protocol; kill -9 ends
the master; `polymq broker promote` makes the slave the master; the old master comes back as its
slave. Then clients look for all that was promised, and the two logs are compared byte for byte:
at the kill (what the slave has is the beginning of what the master had), and at the end.
"""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path

from examples.demo.crash import (
    QUIET_SECONDS_MAX,
    Crash,
    declare_subscribers,
    publish_until_killed,
    read_everything,
)
from examples.demo.matrix import TITLES
from examples.demo.messages import TOPIC
from examples.demo.server import DemoServer
from examples.demo.state import PARTS, Checked
from examples.demo.subscribe import call
from examples.demo.workers import HOST, DemoFailed, Processes

CONVERGE_SECONDS_MAX = 30.0
LOOK_SECONDS = 0.1
ACKED_BEFORE_KILL = 100
"""By each publisher: with two disks behind each of them they take longer."""
NAME = "demo-replica"


@dataclass(slots=True)
class Takeover:
    """What came of it.

    Attributes:
        crash: what was acked before the kill, and who got what after it.
        checked: durable state, row by row.
        promoted_seconds, acked_seconds: from the kill to the end of the promotion, and to the
            acknowledgement of the first publish after it.
        common_bytes: what the slave had of the dead master's log.
        end_bytes: the log that both have in the end.
        problems: what did not hold, beside what the rows say.
    """

    crash: Crash
    checked: list[Checked] = field(default_factory=list)
    promoted_seconds: float = 0.0
    acked_seconds: float = 0.0
    common_bytes: int = 0
    end_bytes: int = 0
    problems: list[str] = field(default_factory=list)

    def rows(self) -> list[Checked]:
        """All that was promised."""
        acked = self.crash.acked_count
        lost = self.crash.lost()
        messages = [
            Checked(
                what=f"acknowledged messages, read with {TITLES[reader]}",
                promised=acked,
                found=acked - sum(name == reader for _, name in lost),
            )
            for reader in self.crash.got
        ]
        return messages + self.checked

    def complaints(self) -> list[str]:
        """What did not hold."""
        missing = [
            f"{row.promised - row.found} of {row.promised} lost: {row.what}"
            for row in self.rows()
            if row.found != row.promised
        ]
        return missing + self.crash.problems[:5] + self.problems


class Pair:
    """Two servers, of which one follows the other."""

    def __init__(self, processes: Processes, directory: Path, min_in_sync: int) -> None:
        directory.mkdir()
        self._secret = directory / "secret"
        self._secret.touch(mode=0o600)
        self._secret.write_text(secrets.token_hex(32), encoding="ascii")
        self._min_in_sync = min_in_sync
        self.first = DemoServer(processes, directory / "first", self._options("first"))
        self.second = DemoServer(processes, directory / "second", self._options("second"))

    def _options(self, name: str) -> dict[str, object]:
        return {
            "storage.segment_bytes": 4 * 1024 * 1024,
            "replication.name": name,
            "replication.listen": f"{HOST}:0",
            "replication.secret_file": self._secret,
            "replication.min_in_sync": self._min_in_sync,
        }

    @staticmethod
    def let_follow(slave: DemoServer, master: DemoServer) -> None:
        """Start a server as the slave of another, which runs."""
        slave.options["replication.role"] = "slave"
        slave.options["replication.master"] = master.address("replication")
        slave.start()

    def start(self) -> None:
        """A master, and a slave that follows it."""
        self.first.start()
        self.first.wait_ready()
        self.let_follow(self.second, self.first)
        self.second.wait_ready()

    def stop(self) -> None:
        """In order."""
        self.first.stop()
        self.second.stop()


def run_replica(
    processes: Processes, directory: Path, seed: int, *, careless: bool = False
) -> Takeover:
    """Kill a master under load and let its slave take over.

    Args:
        careless: acknowledge what the master alone has, and stop the slave during the load: shows
            that the demo would notice a loss.
    """
    pair = Pair(processes, directory, min_in_sync=1 if careless else 2)
    master, slave = pair.first, pair.second
    pair.start()
    master.command("topic", "create", TOPIC)
    parts = [kind() for kind in PARTS]
    try:
        declare_subscribers(master, NAME)
        for part in parts:
            part.make(master.ports)
        if careless:
            slave.pause()
        took = Takeover(crash=publish_until_killed(master, seed, ACKED_BEFORE_KILL))
        if careless:
            slave.go_on()
        _take_over(pair, took)
        patience = QUIET_SECONDS_MAX / (4 if careless else 1)
        read_everything(slave, NAME, took.crash, seed, patience)
        for part in parts:
            took.checked += part.check(slave.ports)
        _converge(pair, took)
    finally:
        for part in parts:
            part.close()
    pair.stop()
    return took


def _take_over(pair: Pair, took: Takeover) -> None:
    old, new = pair.first, pair.second
    copy, original = log_of(new), log_of(old)
    took.common_bytes = len(copy)
    if not original.startswith(copy):
        took.problems.append("the slave's log is not the beginning of the dead master's")
    new.command("broker", "promote")
    new.wait_ready()
    took.promoted_seconds = time.monotonic() - took.crash.killed_at
    pair.let_follow(old, new)
    call(new.ports["http"], "POST", "/topics/after", "the first publish")
    took.acked_seconds = time.monotonic() - took.crash.killed_at


def _converge(pair: Pair, took: Takeover) -> None:
    deadline = time.monotonic() + CONVERGE_SECONDS_MAX
    pair.first.wait_ready()
    while (log := log_of(pair.first)) != log_of(pair.second):
        if time.monotonic() > deadline:
            took.problems.append("the old master's log does not become that of the new one")
            return
        time.sleep(LOOK_SECONDS)
    took.end_bytes = len(log)
    said = json.loads(pair.first.command("broker", "status"))
    if said["role"] != "slave" or not said["following"]:
        took.problems.append(f"the old master does not follow the new one: {said}")


def log_of(server: DemoServer) -> bytes:
    """A server's commit log, without the zeros that wait for what comes next."""
    directory = server.data_directory / "store" / "commitlog"
    files = sorted(path for path in directory.iterdir() if path.name.isdigit())
    if not files:
        raise DemoFailed(f"there is no log in {directory}")
    return b"".join([path.read_bytes() for path in files]).rstrip(b"\0")
