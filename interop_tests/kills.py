"""`make kills`: a loaded server that dies at the n-th call of a system call, again and again.

    python -m interop_tests.kills [--kills 60] [--seed N]
    python -m interop_tests.kills --restart-mib 1024

Publishers on MQTT QoS 1, AMQP confirms and HTTP run all the time and keep books (`ledger/`). strace
kills the server when one of its threads enters a chosen call for the n-th time: while it writes the
log, syncs, names a segment, saves, recovers. Then it is started again on the same data, and killed
again. In the end the log is read by offset and held against the books: nothing that was acked is
lost, altered or out of its publisher's order.

With `--restart-mib` nothing is killed at a call: a log of that size is written, the server is
killed, and the time from its start to the first accepted connection is measured.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import math
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pika

from interop_tests.conftest import Server
from interop_tests.ledger.bodies import read_body
from interop_tests.ledger.books import What
from interop_tests.ledger.ports import lasting_ports
from interop_tests.ledger.processes import Client
from interop_tests.ledger.verdict import Key, Published, judge_log

STRACE = "strace"
TOPIC = "load"
CALLS = {
    "pwrite64": 150,
    "fdatasync": 80,
    "fsync": 20,
    "rename": 18,
    "ftruncate": 16,
    "fallocate": 5,
    "unlink": 10,
    "openat": 1150,
    "write": 600,
    "pwritev,pwritev2": 60,
}
"""Each call, and the largest ordinal that is drawn: a thread may not come to it, then the server is
killed without it, and that kill does not count."""
PUBLISHERS = {"mqtt": 20, "amqp": 20, "http": 4}
LOADED_SECONDS_MAX = 3.0
STEP_SECONDS_MAX = 120.0
KILLED = -9
OPTIONS: dict[str, object] = {
    # Small, so that segments, savings and their calls come often.
    "storage.segment_bytes": 1024 * 1024,
    "storage.save_seconds": 0.2,
}
BODY_BYTES = 256 * 1024
SECONDS_WANTED = 3.0


@dataclass(slots=True)
class Kills:
    """What was done.

    Attributes:
        counts: kills by call.
        starting: those of them that met the server before its listeners were open.
        missed: how often the call was not reached.
        faults: what is wrong in the end.
        restarts: seconds from start to open listeners, of servers that were not killed meanwhile.
    """

    counts: Counter[str] = field(default_factory=Counter)
    starting: int = 0
    missed: int = 0
    published: Published = field(default_factory=Published)
    records: int = 0
    faults: list[str] = field(default_factory=list)
    restarts: list[float] = field(default_factory=list)


def command_killed_at(call: str, ordinal: int) -> tuple[str, ...]:
    """The server under strace, which kills it when a thread enters the call for the n-th time."""
    return (
        # Not with --seccomp-bpf: signals are not injected then.
        *(STRACE, "-D", "-f", "-qqq", "-o", "/dev/null"),
        *("-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={ordinal}"),
        *(sys.executable, "-m", "polymq"),
    )


def is_possible() -> bool:
    """Whether strace is here."""
    return shutil.which(STRACE) is not None


def start_to_die(server: Server, call: str, ordinal: int) -> bool:
    """Start the server and wait until it is killed at the call. False if it did not come to it.

    Returns once it is dead in any case. Whether its listeners were open shows its ready file.
    """
    server.command = command_killed_at(call, ordinal)
    server.launch()
    deadline = time.monotonic() + STEP_SECONDS_MAX
    while not server.is_ready():
        if server.ended_within(0.02):
            assert server.process.returncode == KILLED, server.log_lines()[-5:]
            return True
        assert time.monotonic() < deadline, "the server neither starts nor dies"
    if server.ended_within(LOADED_SECONDS_MAX):
        assert server.process.returncode == KILLED, server.log_lines()[-5:]
        return True
    server.kill()
    return False


def run_kills(directory: Path, kills_count: int, seed: int) -> Kills:
    """Kill so many times, every call in its turn, and judge what is left."""
    chance = random.Random(seed)
    kills = Kills()
    server = Server(directory, {**lasting_ports(), **OPTIONS}, {}, (sys.executable, "-m", "polymq"))
    plain = server.command
    server.start()
    ports = {"mqtt": server.mqtt_port, "amqp": server.amqp_port, "http": server.http_port}
    with contextlib.ExitStack() as stack:
        stack.callback(server.close, sys.stderr)
        publishers = [
            stack.enter_context(
                Client(
                    f"{protocol}_publisher",
                    directory,
                    port=ports[protocol],
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
        server.kill()
        calls = list(CALLS)
        turn = 0
        while kills.counts.total() < kills_count and turn < 4 * kills_count:
            call = calls[turn % len(calls)]
            turn += 1
            if start_to_die(server, call, draw_ordinal(chance, CALLS[call])):
                kills.counts[call] += 1
                kills.starting += not server.is_ready()
            else:
                kills.missed += 1
        server.command = plain
        began = time.monotonic()
        server.start()
        kills.restarts.append(time.monotonic() - began)
        for client in publishers:
            client.stop()
        for client in publishers:
            client.wait_end(STEP_SECONDS_MAX)
            client.read()
            kills.published.add(client.lines)
        log = read_log(server)
        kills.records = len(log)
        kills.faults = judge_log(kills.published, log).texts
        if kills.published.acked != kills.published.sent:
            kills.faults.append("something was sent and never acked")
        assert server.terminate() == 0
    return kills


def read_log(server: Server) -> list[Key]:
    """Every record of the topic by offset, each body checked."""
    command = [*(sys.executable, "-m", "polymq", "message", "read", TOPIC, "--format", "json")]
    found: list[Key] = []
    with subprocess.Popen(
        [*command, "--data-directory", str(server.data_directory)], stdout=subprocess.PIPE
    ) as reader:
        assert reader.stdout is not None
        for line in reader.stdout:
            message = json.loads(line)
            assert message["offset"] == len(found), "offsets are dense and begin at 0"
            found.append(read_body(base64.b64decode(message["body_base64"])))
    assert reader.returncode == 0
    return found


def draw_ordinal(chance: random.Random, largest: int) -> int:
    """Small ordinals are as likely as large ones: the first calls are those of recovery."""
    return max(1, round(math.pow(largest, chance.random())))


def report(kills: Kills, seed: int, seconds: float) -> None:
    """The figures of a run."""
    published = kills.published
    print(f"{kills.counts.total()} kills at system calls in {seconds:.0f} s, seed {seed}", end="")
    print(f"; {kills.starting} of them before the listeners were open, {kills.missed} not reached")
    print(", ".join(f"{call} {count}" for call, count in sorted(kills.counts.items())))
    print(f"published {len(published.sent):,}, acked {len(published.acked):,}", end="")
    print(f", outcomes unknown {published.unknown.total():,}, records {kills.records:,}")
    print(f"{len(kills.faults)} faults", *kills.faults, sep="\n")


# --- how long a restart takes ---------------------------------------------------------------------


def measure_restart(directory: Path, size_mib: int) -> float:
    """Seconds from the start of a killed server with such a log to its first accepted
    connection."""
    server = Server(
        directory,
        {**lasting_ports(), "storage.segment_bytes": 1 << 30},
        {},
        (sys.executable, "-m", "polymq"),
    )
    server.start()
    try:
        fill(server, size_mib)
        server.kill()
        began = time.monotonic()
        server.launch()
        while True:
            assert not server.ended_within(0), server.log_lines()[-5:]
            try:
                socket.create_connection((server.host, server.mqtt_port), timeout=1).close()
            except OSError:
                assert time.monotonic() < began + STEP_SECONDS_MAX, "it does not come up"
                server.ended_within(0.01)
            else:
                return time.monotonic() - began
    finally:
        server.close(sys.stderr)


def fill(server: Server, size_mib: int) -> None:
    """Publish so much to a durable queue, confirmed."""
    parameters = pika.ConnectionParameters(server.host, server.amqp_port)
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    channel.queue_declare("filled", durable=True)
    channel.confirm_delivery()
    properties = pika.BasicProperties(delivery_mode=2)
    for number in range(size_mib * (1 << 20) // BODY_BYTES):
        body = number.to_bytes(8, "big") * (BODY_BYTES // 8)
        channel.basic_publish("", "filled", body, properties)
    connection.close()


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="make kills KILLS=...", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--restart-mib", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="polymq-kills-") as name:
        if options.restart_mib:
            seconds = measure_restart(Path(name), options.restart_mib)
            print(f"{seconds:.2f} s from start to first accept, {options.restart_mib} MiB of log")
            return int(seconds > SECONDS_WANTED)
        if not is_possible():
            print("strace is not installed: without it nothing can be killed at a system call")
            return 1
        began = time.monotonic()
        kills = run_kills(Path(name), options.kills, options.seed)
        report(kills, options.seed, time.monotonic() - began)
        return int(bool(kills.faults) or kills.counts.total() < options.kills)


if __name__ == "__main__":
    sys.exit(main())
