"""Step: the server dies without warning while everybody publishes. What was acked is there."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import Any

from examples.demo.matrix import TITLES
from examples.demo.messages import PROTOCOLS, stream_digest
from examples.demo.server import DemoServer
from examples.demo.subscribe import declare
from examples.demo.workers import Worker, module

ACKED_BEFORE_KILL = 200
"""By each publisher, before the server is killed at a random moment of the next second."""
STEP_SECONDS_MAX = 60.0
QUIET_SECONDS_MAX = 20.0
"""A reader that got nothing for so long has got everything that it will get."""
SUBSCRIBER = {"mqtt": "mqtt", "amqp": "amqp", "http": "poll", "rocketmq": "rocketmq"}


@dataclass(slots=True)
class Crash:
    """What the crash left.

    Attributes:
        acked: tags that publishers hold an ack for, by publisher.
        unanswered: how many messages were sent and neither acked nor refused.
        killed_at: when, on the monotonic clock.
        got: tag -> digest, by subscriber.
        repeated: messages that a subscriber got more than once.
        problems: what did not hold.
    """

    acked: dict[str, set[str]]
    unanswered: int = 0
    killed_at: float = 0.0
    restart_seconds: float = 0.0
    got: dict[str, dict[str, str]] = field(default_factory=dict)
    repeated: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def acked_count(self) -> int:
        """Messages that were promised to be kept."""
        return sum(map(len, self.acked.values()))

    def lost(self) -> set[tuple[str, str]]:
        """(tag, subscriber) of what was acked and did not come."""
        return {
            (tag, subscriber)
            for tags in self.acked.values()
            for tag in tags
            for subscriber, digests in self.got.items()
            if tag not in digests
        }


def run_crash(server: DemoServer, seed: int) -> Crash:
    """Kill the server while four processes publish; restart it; read with four others."""
    declare_subscribers(server, "demo-crash")
    crash = publish_until_killed(server, seed, ACKED_BEFORE_KILL)
    started = time.monotonic()
    server.start()
    server.wait_ready()
    crash.restart_seconds = time.monotonic() - started
    read_everything(server, "demo-crash", crash, seed)
    return crash


def declare_subscribers(server: DemoServer, name: str) -> None:
    """Make a durable subscription in each protocol."""
    for protocol in PROTOCOLS:
        declare(SUBSCRIBER[protocol], server.ports[protocol], name)


def publish_until_killed(server: DemoServer, seed: int, acked_first: int) -> Crash:
    """Publish in each protocol; kill the server within a second of so many acks for each."""
    publishers = {
        protocol: Worker(
            server.processes,
            f"the {TITLES[protocol]} publisher",
            module("publish", protocol, server.ports[protocol], seed, 0),
        )
        for protocol in PROTOCOLS
    }
    crash = Crash(acked={protocol: set() for protocol in PROTOCOLS})
    try:
        for protocol, worker in publishers.items():
            for line in worker.said(STEP_SECONDS_MAX):
                crash.acked[protocol].add(line["tag"])
                if len(crash.acked[protocol]) >= acked_first:
                    break
        time.sleep(random.random())
        server.kill()
        crash.killed_at = time.monotonic()
        for protocol, worker in publishers.items():
            for line in worker.said(STEP_SECONDS_MAX):
                if line["event"] == "acked":
                    crash.acked[protocol].add(line["tag"])
                else:
                    crash.unanswered += line["sent"] - len(crash.acked[protocol])
    finally:
        for worker in publishers.values():
            worker.kill()
    return crash


def read_everything(
    server: DemoServer,
    name: str,
    crash: Crash,
    seed: int,
    quiet_seconds: float = QUIET_SECONDS_MAX,
) -> None:
    """Read in each protocol until every acked message came; the rest of what comes is checked."""
    workers = {protocol: _subscriber(server, protocol, name) for protocol in PROTOCOLS}
    try:
        for protocol, worker in workers.items():
            crash.got[protocol] = _read(worker, crash, seed, quiet_seconds)
            worker.finish()
            for line in worker.said_so_far():
                _take(line, crash, crash.got[protocol], {}, seed)
    finally:
        for worker in workers.values():
            worker.kill()


def _subscriber(server: DemoServer, protocol: str, name: str) -> Worker:
    return Worker(
        server.processes,
        f"the {TITLES[protocol]} subscriber",
        module("subscribe", SUBSCRIBER[protocol], server.ports[protocol], name),
    )


def _read(worker: Worker, crash: Crash, seed: int, quiet_seconds: float) -> dict[str, str]:
    """What one subscriber gets until it has all that was acked: tag -> digest."""
    missing = {tag for tags in crash.acked.values() for tag in tags}
    got: dict[str, str] = {}
    last: dict[str, int] = {}
    for line in worker.said_until_quiet(quiet_seconds):
        _take(line, crash, got, last, seed)
        missing.discard(line.get("tag"))
        if not missing:
            break
    return got


def _take(
    line: dict[str, Any], crash: Crash, got: dict[str, str], last: dict[str, int], seed: int
) -> None:
    if line["event"] != "received":
        return
    tag, digest = line["tag"], line["digest"]
    publisher, _, number = tag.partition(".")
    if tag in got:
        crash.repeated += 1
    elif int(number) < last.get(publisher, -1):
        crash.problems.append(f"{tag} came after number {last[publisher]}")
    last[publisher] = max(last.get(publisher, -1), int(number))
    got[tag] = digest
    if digest != stream_digest(publisher, int(number), seed):
        crash.problems.append(f"{tag} came with another body")
