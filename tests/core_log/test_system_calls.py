"""The store on real files whose system calls fail, come short, or are interrupted, one at a time.

The simulated disk of the crash tests stands in the place of `RealFiles`. So neither that class nor
`kernels/fast_files.pyx` runs there. Here both do: `tests/harness/shim/faults.c` is preloaded and
changes what single calls of the C library do.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHIM = ROOT / "tests" / "harness" / "shim" / "faults.c"
COMPILER = shutil.which(os.environ.get("CC", "cc"))

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled shim."""
    assert COMPILER is not None
    made = tmp_path_factory.mktemp("shim") / "faults.so"
    command = [COMPILER, "-O1", "-shared", "-fPIC", "-o", str(made), str(SHIM), "-ldl"]
    subprocess.run(command, check=True)
    return made


def run(shim: Path, directory: Path, call: str, action: str) -> dict[str, Any]:
    """The workload with the action at each call of this kind. Returns what it found."""
    command = [sys.executable, "-m", "tests.harness.shim.workload", str(directory), call, action]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "LD_PRELOAD": str(shim)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["faults"] == []
    assert sum(found["outcomes"].values()) == found["count"]
    return found


@pytest.mark.parametrize("action", ["short", "EINTR"])
def test_a_write_that_is_cut_or_interrupted_is_gone_on_with(
    shim: Path, tmp_path: Path, action: str
) -> None:
    """A signal may come at any time, and a system may take less than it was given: nobody notices,
    and every byte is where it belongs."""
    found = run(shim, tmp_path, "write", action)
    assert found["count"] >= 30
    assert found["outcomes"] == {"none": found["count"]}


@pytest.mark.parametrize("call", ["write", "sync", "truncate"])
def test_a_failed_call_costs_no_promised_message(shim: Path, tmp_path: Path, call: str) -> None:
    """EIO at each write, sync and truncation: the log refuses from then on, and the next start
    finds all that was promised."""
    found = run(shim, tmp_path, call, "EIO")
    assert found["count"] >= 5
    assert set(found["outcomes"]) <= {
        "none",
        "publish: StorageFailed",
        "flush: StorageFailed",
        "checkpoint: StorageFailed",
    }


@pytest.mark.parametrize("call", ["write", "allocate"])
def test_a_full_disk_is_no_failure(shim: Path, tmp_path: Path, call: str) -> None:
    """ENOSPC at each call that needs room is refused, and the same store goes on."""
    found = run(shim, tmp_path, call, "ENOSPC")
    assert not [outcome for outcome in found["outcomes"] if outcome.endswith("Failed")]
