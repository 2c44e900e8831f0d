"""`make demo`: every protocol to every protocol, a crash, a failover, and Parquet.

Publishers and subscribers are processes of their own with client libraries that are not ours;
what they see is compared here. Ends with 0 only if everything held.
"""

from __future__ import annotations

import argparse
import secrets
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from examples.demo.ali_ons import AliOns
from examples.demo.crash import run_crash
from examples.demo.matrix import (
    ALI_ONS,
    COUNT,
    TITLES,
    Matrix,
    ali_ons_line,
    complaints,
    run_matrix,
    table,
)
from examples.demo.messages import KINDS, PROTOCOLS, TOPIC
from examples.demo.replica import run_replica
from examples.demo.server import DemoServer
from examples.demo.workers import DemoFailed, Processes

if TYPE_CHECKING:
    from examples.demo.parquet import Sink

STEPS = ("matrix", "crash", "replica", "parquet")


def main() -> int:
    """Run the demo; returns the exit code."""
    options = _options()
    started = time.monotonic()
    directory = Path(tempfile.mkdtemp(prefix="polymq-demo-"))
    processes = Processes()
    failures: list[str] = []
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        failures += _run(options, processes, directory)
    except DemoFailed as error:
        failures.append(str(error))
    except KeyboardInterrupt:
        print("\nThe demo was interrupted.", file=sys.stderr)
        return 130
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        processes.end_all()
        if failures:
            print(f"\nThe data and the servers' logs stay in {directory}.", file=sys.stderr)
        else:
            shutil.rmtree(directory, ignore_errors=True)
    seconds = time.monotonic() - started
    if failures:
        print(f"\nThe demo FAILED after {seconds:.0f} s:", *failures, sep="\n  ", file=sys.stderr)
        return 1
    print(f"\nEverything held. It took {seconds:.0f} s.")
    return 0


def _run(options: argparse.Namespace, processes: Processes, directory: Path) -> list[str]:
    """The steps; returns what did not hold."""
    seed = options.seed if options.seed is not None else secrets.randbits(32)
    failures: list[str] = []
    server = DemoServer(processes, directory / "standalone")
    ali_ons = AliOns(processes, directory / "ali-ons", wanted=options.ali_ons)
    if {"matrix", "crash", "parquet"} & set(options.steps):
        _title("A standalone server, with an empty data directory")
        server.start()
        server.wait_ready()
        server.command("topic", "create", TOPIC)
        _say(", ".join(f"{TITLES[name]} on port {server.ports[name]}" for name in PROTOCOLS))
        _say(f"random bodies (the same again with --seed {seed})")
    if "matrix" in options.steps:
        failures += _matrix(server, seed, options.corrupt, ali_ons)
    if "crash" in options.steps:
        failures += _crash(server, seed)
    sink = _start_sink(server, directory) if "parquet" in options.steps else None
    if "replica" in options.steps:
        failures += _replica(processes, directory, seed, careless=options.careless)
    if sink is not None:
        failures += _parquet(sink)
    if server.ports["mqtt"]:
        server.stop()
    return failures


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--seed", type=int, help="Repeat the bodies of an earlier run.")
    parser.add_argument(
        "--steps", type=lambda text: text.split(","), default=list(STEPS), help=argparse.SUPPRESS
    )
    parser.add_argument(
        "--corrupt", metavar="FROM:TO", type=_cell, default=None, help=argparse.SUPPRESS
    )
    parser.add_argument(
        "--without-ali-ons",
        dest="ali_ons",
        action="store_false",
        help="Do not install and use ali-ons, the RocketMQ client for Node.",
    )
    parser.add_argument("--careless", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _cell(text: str) -> tuple[str, str]:
    publisher, _, subscriber = text.partition(":")
    if publisher not in PROTOCOLS or subscriber not in PROTOCOLS:
        raise argparse.ArgumentTypeError(f"a cell is FROM:TO out of {', '.join(PROTOCOLS)}")
    return publisher, subscriber


def _matrix(
    server: DemoServer, seed: int, corrupt: tuple[str, str] | None, ali_ons: AliOns
) -> list[str]:
    _title("Every protocol to every protocol")
    _say("paho (MQTT), pika (AMQP), the CloudEvents SDK (HTTP, received by webhook) and our own")
    _say(f"client (RocketMQ), each a process of its own. Each publishes {COUNT} messages:")
    _say(", ".join(KINDS))
    missing = ali_ons.missing()
    matrix: Matrix = run_matrix(server, seed, corrupt, None if missing else ali_ons)
    print()
    for line in table(matrix):
        _say(line)
    print()
    cells = [cell for pair, cell in matrix.items() if ALI_ONS not in pair]
    held = f"{sum(cell.held for cell in cells)} of {len(cells)} cells held"
    _say(f"{held}: SHA-256 of each body; place, tag, key, media type and")
    _say("headers as far as both protocols have them. Times: median from publish to receipt.")
    _say(f"{ALI_ONS} (for Node) is left out: {missing}" if missing else ali_ons_line(matrix))
    return complaints(matrix)


def _crash(server: DemoServer, seed: int) -> list[str]:
    _title("SIGKILL while everybody publishes")
    crash = run_crash(server, seed)
    each = ", ".join(f"{len(tags):,} {TITLES[name]}" for name, tags in crash.acked.items())
    _say(f"{crash.acked_count:,} messages were acknowledged ({each});")
    _say(f"{crash.unanswered:,} were under way when the server died")
    _say(f"restarted and ready after {crash.restart_seconds:.1f} s")
    lost = crash.lost()
    for protocol, digests in crash.got.items():
        missing = sum(subscriber == protocol for _, subscriber in lost)
        _say(f"read with {TITLES[protocol]:<11} {len(digests):>7,} messages, {missing} acked lost")
    _say(f"{len(lost)} acked lost, {len(crash.problems)} altered or out of order")
    found = [f"lost: {tag} for the {subscriber} subscriber" for tag, subscriber in sorted(lost)]
    return [*found[:5], *crash.problems[:5]]


def _replica(processes: Processes, directory: Path, seed: int, *, careless: bool) -> list[str]:
    _title("A master dies under load, and its slave takes over")
    _say("min_in_sync = 2: what is acknowledged is on both disks. kill -9 of the master, then")
    _say("polymq broker promote at the slave; the old master comes back as the slave's slave.")
    took = run_replica(processes, directory / "replica", seed, careless=careless)
    print()
    _say(f"{'':<48}{'promised':>9}{'found':>9}{'lost':>8}")
    for row in took.rows():
        _say(f"{row.what:<48}{row.promised:>9,}{row.found:>9,}{row.promised - row.found:>8,}")
    print()
    _say(f"{took.promoted_seconds:4.1f} s from the kill to the end of the promotion")
    _say(f"{took.acked_seconds:4.1f} s from the kill to the first publish on both disks again")
    _say(f"the dead master's log begins with the slave's, all {took.common_bytes:,} bytes;")
    _say(f"in the end the old master has the new one's, all {took.end_bytes:,} bytes")
    return took.complaints()


def _start_sink(server: DemoServer, directory: Path) -> Sink:
    # DuckDB takes a second to import, and the tests leave this step out.
    from examples.demo.parquet import Sink  # noqa: PLC0415

    return Sink(server, directory)


def _parquet(sink: Sink) -> list[str]:
    _title("Topics to Parquet: polymq sink --once")
    _say("Spark was started after the crash, and reads every topic by offset ...")
    lake = sink.finish()
    _say(f"done in {lake.seconds:.0f} s; read back with DuckDB:")
    for line in lake.summary:
        _say(line)
    _say(
        f"{sum(lake.found.values()):,} rows, {sum(lake.expected.values()):,} messages: "
        + ("the same (queue, offset, body) in both" if lake.held else "NOT the same")
    )
    return [] if lake.held else [f"Parquet: {lake.problem()}"]


def _title(text: str) -> None:
    print(f"\n\N{BLACK CIRCLE} {text}", flush=True)


def _say(text: str) -> None:
    print(f"  {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
