"""The command line: `make bench`, `make bench BENCH="--quick 1"`, `python -m benchmarks --help`."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.comparison import Bench, Comparison
from benchmarks.errors import BenchmarkFailed
from benchmarks.fairness import measure_fairness
from benchmarks.floor import FloorFigures, measure_floors
from benchmarks.generators import build_generators
from benchmarks.lake import lake_lines, measure_lake
from benchmarks.machine import ROOT, describe_machine
from benchmarks.path import measure_path
from benchmarks.report import HEADER, comparison_lines, floor_line, kernels_line, machine_lines
from benchmarks.scale import measure_scale, scale_lines
from benchmarks.scenarios import SCENARIOS, Scenario
from benchmarks.servers import PEERS
from benchmarks.stages import measure_stages, path_lines, path_stage_lines, stage_lines


def parse_arguments(values: Sequence[str] | None) -> argparse.Namespace:
    """The options. Ends the program for --help, --list and mistakes."""
    parser = argparse.ArgumentParser(
        prog="benchmarks/run.py",
        description="Measure this server, in turn with the peers that are installed.",
    )
    parser.add_argument("--rounds", type=_positive, default=3, help="runs of each (default 3)")
    parser.add_argument(
        "--seconds", type=_seconds, default=2.0, help="how long publishers send (default 2)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a look: one round of half a second each"
    )
    parser.add_argument(
        "--only",
        metavar="NAMES",
        type=_scenarios,
        default=SCENARIOS,
        help="scenarios by name or by the start of it, with commas between (see --list)",
    )
    parser.add_argument("--list", action="store_true", help="show the scenarios and end")
    parser.add_argument(
        "--subscriptions",
        type=int,
        metavar="COUNT",
        default=10_000,
        help="other clients' MQTT subscriptions that must be routed around (default 10000)",
    )
    parser.add_argument(
        "--peers",
        metavar="NAMES",
        type=lambda text: [name.lower() for name in text.split(",")],
        default=[peer.name.lower() for peer in PEERS],
        help="which to compare with, or 'none' (default: all that are installed)",
    )
    parser.add_argument(
        "--kernels",
        choices=("compiled", "pure"),
        default="",
        help="the form that our server runs (default: compiled if it is there)",
    )
    parser.add_argument(
        "--directory",
        type=Path,
        default=ROOT / "build" / "benchmarks",
        help="where servers keep their data: a disk, not memory (default: build/benchmarks)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there too")
    parser.add_argument(
        "--stage",
        action="store_true",
        help="no servers: what a message costs in each kernel and on its whole way, in both forms",
    )
    parser.add_argument(
        "--scale",
        action="store_true",
        help="many queues, much backlog, many connections and subscriptions (--quick: a tenth)",
    )
    parser.add_argument(
        "--lake",
        action="store_true",
        help="topics to Parquet, by an export and by Spark (--quick: a tenth of the messages)",
    )
    parser.add_argument(
        "--fairness",
        nargs="?",
        const="",
        metavar="CASES",
        help="how long small requests take beside floods and large requests: all cases, or those "
        "that are named, or begin so, with commas between (--quick: a tenth of each)",
    )
    arguments = parser.parse_args(values)
    if arguments.quick:
        arguments.rounds, arguments.seconds = 1, 0.5
    return arguments


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 60:
        raise argparse.ArgumentTypeError("more than 0 and at most 60 seconds")
    return value


def _scenarios(text: str) -> tuple[Scenario, ...]:
    known = [scenario.name for scenario in SCENARIOS]
    chosen: set[str] = set()
    for part in text.split(","):
        found = [part] if part in known else [name for name in known if name.startswith(part)]
        if not found or not part:
            names = ", ".join(known)
            raise argparse.ArgumentTypeError(f"no scenario is called {part!r}; there are {names}")
        chosen.update(found)
    return tuple(scenario for scenario in SCENARIOS if scenario.name in chosen)


def run_comparisons(arguments: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """All scenarios that were asked for, printed as they come.

    Returns:
        The figures for the JSON file, and whether every check held.
    """
    build_generators()
    machine = describe_machine()
    bench = Bench(
        directory=arguments.directory,
        rounds=arguments.rounds,
        seconds=arguments.seconds,
        subscriptions_count=arguments.subscriptions,
        kernels=arguments.kernels,
        peers=arguments.peers,
    )
    comparisons: list[Comparison] = []
    floors: list[FloorFigures] = []
    try:
        for line in machine_lines(machine, bench.versions):
            print(line)
        print(
            f"medians of {arguments.rounds} runs of {arguments.seconds:g} s, "
            f"{arguments.subscriptions} other subscriptions\n\n{HEADER}",
            flush=True,
        )
        for floor in measure_floors(arguments.directory, arguments.seconds):
            floors.append(floor)
            print(floor_line(floor), flush=True)
        for scenario in arguments.only:
            comparison = bench.compare(scenario)
            comparisons.append(comparison)
            print(*comparison_lines(comparison), sep="\n", flush=True)
        print(f"\n{kernels_line(bench.kernels)}")
    finally:
        bench.close()
    figures = {
        "machine": machine,
        "peers": bench.versions,
        "kernels": bench.kernels,
        "rounds": arguments.rounds,
        "seconds": arguments.seconds,
        "other_subscriptions": arguments.subscriptions,
        "floors": [floor.value() for floor in floors],
        "scenarios": [comparison.value() for comparison in comparisons],
    }
    sound = not any(f.problem for c in comparisons for f in c.figures.values())
    return figures, sound


def run_stages() -> dict[str, Any]:
    """The kernels one by one, and what they are parts of; returns the figures for the JSON file."""
    stages = measure_stages()
    print(*stage_lines(stages), "", sep="\n", flush=True)
    path = measure_path()
    print(*path_lines(path), "", sep="\n", flush=True)
    by_stage = measure_path(by_stage=True)
    print(*path_stage_lines(by_stage), sep="\n")
    return {
        "machine": describe_machine(),
        "stages": stages,
        "path": path,
        "path_by_stage": by_stage,
    }


def run_scale(arguments: argparse.Namespace) -> dict[str, Any]:
    """What large numbers cost; returns the figures for the JSON file."""
    figures = measure_scale(arguments.directory, quick=arguments.quick)
    print(*scale_lines(figures), sep="\n")
    return {"machine": describe_machine(), **figures}


def run_lake(arguments: argparse.Namespace) -> dict[str, Any]:
    """Topics to Parquet; returns the figures for the JSON file."""
    figures = measure_lake(arguments.directory, rounds=arguments.rounds, quick=arguments.quick)
    print(*lake_lines(figures), sep="\n")
    return {"machine": describe_machine(), **figures}


def run_fairness(arguments: argparse.Namespace) -> dict[str, Any]:
    """Paced clients beside loads; returns the figures for the JSON file."""
    return measure_fairness(
        arguments.directory,
        [name for name in arguments.fairness.split(",") if name],
        arguments.peers,
        quick=arguments.quick,
        kernels=arguments.kernels,
    )


def main(values: Sequence[str] | None = None) -> int:
    """Returns 0 if everything was measured and every check held."""
    arguments = parse_arguments(values)
    if arguments.list:
        for scenario in SCENARIOS:
            print(f"{scenario.name:18} {scenario.title:40} {scenario.options}")
        return 0
    # Whoever ends this ends the servers that it started, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sound = True
    try:
        if arguments.scale:
            figures: dict[str, Any] = run_scale(arguments)
        elif arguments.lake:
            figures = run_lake(arguments)
        elif arguments.fairness is not None:
            figures = run_fairness(arguments)
        elif arguments.stage:
            figures = run_stages()
        else:
            figures, sound = run_comparisons(arguments)
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    except BenchmarkFailed as failure:
        print(f"benchmarks: {failure}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("benchmarks: interrupted", file=sys.stderr)
        return 130
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
