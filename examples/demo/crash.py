"""Step 2: the server dies without warning while everybody publishes. What was acked is there."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

from examples.demo.matrix import TITLES
from examples.demo.messages import PROTOCOLS, stream_item
from examples.demo.server import DemoServer
from examples.demo.workers import DemoFailed, Worker

ACKED_BEFORE_KILL = 200
"""Of each publisher, before the server is killed at a random moment of the next second."""
STEP_SECONDS_MAX = 60.0
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
    crash = publish_until_killed(server, seed)
    started = time.monotonic()
    server.start()
    server.wait_ready()
    crash.restart_seconds = time.monotonic() - started
    read_everything(server, "demo-crash", crash, seed)
    return crash


def declare_subscribers(server: DemoServer, name: str) -> None:
    """Make a durable subscription in each protocol."""
    workers = [_subscriber(server, protocol, name, "--declare") for protocol in PROTOCOLS]
    try:
        for worker in workers:
            worker.wait_ready()
            worker.finish()
    finally:
        for worker in workers:
            worker.kill()


def publish_until_killed(server: DemoServer, seed: int) -> Crash:
    """Publish in each protocol; kill the server when all of them have their first acks."""
    publishers = {
        protocol: Worker(
            f"the {TITLES[protocol]} publisher",
            "examples.demo.publish",
            protocol,
            server.ports[protocol],
            seed,
            0,
        )
        for protocol in PROTOCOLS
    }
    crash = Crash(acked={protocol: set() for protocol in PROTOCOLS})
    try:
        for protocol, worker in publishers.items():
            for line in worker.said(STEP_SECONDS_MAX):
                crash.acked[protocol].add(line["tag"])
                if len(crash.acked[protocol]) >= ACKED_BEFORE_KILL:
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


def read_everything(server: DemoServer, name: str, crash: Crash, seed: int) -> None:
    """Read in each protocol until every acked message came; the rest of what comes is checked."""
    workers = {protocol: _subscriber(server, protocol, name) for protocol in PROTOCOLS}
    try:
        for protocol, worker in workers.items():
            crash.got[protocol] = _read(worker, crash, seed)
    finally:
        for worker in workers.values():
            worker.kill()


def _subscriber(server: DemoServer, protocol: str, name: str, *arguments: str) -> Worker:
    return Worker(
        f"the {TITLES[protocol]} subscriber",
        "examples.demo.subscribe",
        SUBSCRIBER[protocol],
        server.ports[protocol],
        name,
        *arguments,
    )


def _read(worker: Worker, crash: Crash, seed: int) -> dict[str, str]:
    """What one subscriber gets: tag -> digest."""
    missing = {tag for tags in crash.acked.values() for tag in tags}
    got: dict[str, str] = {}
    last: dict[str, int] = {}
    try:
        for line in worker.said(STEP_SECONDS_MAX):
            if line["event"] == "received":
                _take(line["tag"], line["digest"], crash, got, last, seed)
                missing.discard(line["tag"])
            if not missing:
                break
    except DemoFailed:
        if not missing:
            raise
        # Time is up: what did not come is found by `lost`.
    worker.finish()
    for line in worker.said_so_far():
        if line["event"] == "received":
            _take(line["tag"], line["digest"], crash, got, last, seed)
    return got


def _take(
    tag: str, digest: str, crash: Crash, got: dict[str, str], last: dict[str, int], seed: int
) -> None:
    publisher, _, number = tag.partition(".")
    if tag in got:
        crash.repeated += 1
    elif int(number) < last.get(publisher, -1):
        crash.problems.append(f"{tag} came after number {last[publisher]}")
    last[publisher] = max(last.get(publisher, -1), int(number))
    got[tag] = digest
    if digest != stream_item(publisher, int(number), seed).digest():
        crash.problems.append(f"{tag} came with another body")
