"""`make fuzz`: a search for bytes that break a promise of MQTT's parsers (`parsers.py` has them).

--seconds N         how long (default 60)
--seed N            of the search; without it one is drawn, and printed
--keep              afterwards, choose the inputs that are worth it for `tests/fuzz/cases.txt`
--input FILE        only this one: how a failure is repeated

It needs atheris, which measures what an input reaches in the code. What it finds is in
`build/fuzz`, and is what the next run begins with. An input that breaks a promise is
written there, too; make a test of it, and add it to `cases.txt`.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import random
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final

FOUND: Final = Path("build/fuzz")
CORPUS: Final = FOUND / "corpus"
SLOW_SECONDS: Final = 10
MEMORY_MIB: Final = 2048
COSTS_EVERY: Final = 64
"""Inputs of which one is also looked at for what it costs, which takes as long as all of these."""


def main() -> int:
    """Search in a process of its own, because atheris ends it; say whether all was well."""
    options = parse_options()
    if options.input is not None:
        return repeat(options.input)
    if importlib.util.find_spec("atheris") is None:
        print("make fuzz needs atheris: .venv/bin/pip install --editable '.[fuzz]'")
        return 2
    if options.search:
        search(options)
    from tests.fuzz.cases import chosen, read_cases, seeds, write_cases

    CORPUS.mkdir(parents=True, exist_ok=True)
    for case in [*seeds(), *read_cases()]:
        (CORPUS / sha256(case).hexdigest()[:16]).write_bytes(case)
    command = [sys.executable, "-m", "tests.fuzz", "--search", *sys.argv[1:]]
    code = subprocess.run(command, check=False).returncode
    if options.keep and code == 0:
        found = chosen(path.read_bytes() for path in CORPUS.iterdir())
        write_cases(found)
        print(f"{len(found)} cases written")
    return code


def parse_options() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(prog="make fuzz FUZZ=...", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seconds", type=int, default=60, metavar="N")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31), metavar="N")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--input", type=Path, metavar="FILE")
    parser.add_argument("--search", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def repeat(path: Path) -> int:
    """Check one input. A broken promise is an exception, which says which."""
    from tests.fuzz import parsers

    data = path.read_bytes()
    parsers.check(data)
    parsers.check_costs(data)
    print("all promises hold for it")
    return 0


def search(options: argparse.Namespace) -> None:
    """Never returns. Atheris measures what is imported under it, so nothing of ours may be here
    before."""
    import atheris

    with atheris.instrument_imports(include=["polymq.gateways", "polymq.net"]):
        from tests.fuzz import parsers
    for forms in parsers.FORMS:
        for module in forms:
            instrument(atheris, module)
    count = 0

    def look(data: bytes) -> None:
        nonlocal count
        count += 1
        parsers.check(data)
        if count % COSTS_EVERY == 0 and data:
            parsers.check_costs(data)

    arguments = [
        "tests.fuzz",
        f"-max_total_time={options.seconds}",
        f"-seed={options.seed % (1 << 31) or 1}",
        f"-max_len={parsers.BYTES_MAX}",
        f"-timeout={SLOW_SECONDS}",
        f"-rss_limit_mb={MEMORY_MIB}",
        f"-artifact_prefix={FOUND}/",
        "-print_final_stats=1",
        str(CORPUS),
    ]
    atheris.Setup(arguments, look)
    atheris.Fuzz()


def instrument(atheris: Any, module: ModuleType) -> None:
    """Measure the plain form of a kernel, which is not imported as others are."""
    kinds = [one for one in vars(module).values() if inspect.isclass(one)]
    for owner in (module, *kinds):
        for one in vars(owner).values():
            if isinstance(one, FunctionType) and one.__module__ == module.__name__:
                atheris.instrument_func(one)


if __name__ == "__main__":
    sys.exit(main())
