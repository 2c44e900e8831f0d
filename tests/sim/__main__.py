"""Run seeds: `python -m tests.sim --first 1000 --seeds 5000`; says what was done and found."""

from __future__ import annotations

import argparse
import time
from collections import Counter, defaultdict

from tests.sim.names import Violation, run_seed


def main() -> int:
    """Run the seeds; 1 if one of them found something."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=500)
    arguments = parser.parse_args()
    faults: Counter[str] = Counter()
    totals: dict[str, float] = defaultdict(float)
    violations: list[str] = []
    began = time.perf_counter()
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        try:
            report = run_seed(seed)
        except BaseExceptionGroup as group:
            found, others = group.split(Violation)
            if others is not None:
                raise
            violation: BaseException | None = found
            while isinstance(violation, BaseExceptionGroup):
                violation = violation.exceptions[0]
            violations.append(str(violation))
            continue
        faults += report.faults
        totals["virtual hours"] += report.virtual_seconds / 3600
        totals["looks"] += report.looks_count
        totals["answers to clients"] += report.answered_count
        totals["registrations of new brokers"] += report.registered_count
        totals["brokers that left or were silent"] += report.evicted_count
    seconds = time.perf_counter() - began
    print(f"{arguments.seeds} seeds in {seconds:.1f} s, {faults.total()} faults:")
    for name, count in sorted((*faults.items(), *totals.items())):
        print(f"  {count:10.0f}  {name}")
    for text in violations:
        print(text)
    print(f"{len(violations)} violations")
    return bool(violations)


if __name__ == "__main__":
    raise SystemExit(main())
