"""What `make bench` runs: `python benchmarks/run.py` is `python -m benchmarks` from anywhere."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    # The tree's packages are meant, not the modules that happen to lie beside this file.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    runpy.run_module("benchmarks", run_name="__main__", alter_sys=True)
