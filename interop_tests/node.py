"""Clients that are written for Node: where they are installed, and how they are driven.

Where there is no Node, the tests that need it are left out. Where there is, they have to run: what
npm cannot fetch fails them, unless POLYMQ_TESTS_WITHOUT_NODE says that this is known.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path
from typing import IO

import pytest

from interop_tests.line_driver import LineDriver

HERE = Path(__file__).parent
INSTALL_SECONDS_MAX = 180


def need_packages(folder: str) -> Path:
    """The folder of a Node program with its packages installed."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("there is no Node on this machine")
    if os.environ.get("POLYMQ_TESTS_WITHOUT_NODE"):
        pytest.skip("POLYMQ_TESTS_WITHOUT_NODE is set")
    path = HERE / folder
    with (path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
        stamp = path / "node_modules" / ".installed"
        wanted = (path / "package.json").read_text(encoding="utf-8")
        if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
            done = subprocess.run(
                ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock"],
                cwd=path,
                capture_output=True,
                text=True,
                timeout=INSTALL_SECONDS_MAX,
                check=False,
            )
            if done.returncode:
                pytest.fail(
                    f"npm cannot install the packages of {folder} (to leave these tests out, set "
                    f"POLYMQ_TESTS_WITHOUT_NODE=1):\n{done.stderr[-2000:]}"
                )
            stamp.write_text(wanted, encoding="utf-8")
    return path


class NodeDriver(LineDriver):
    """A Node program."""

    def __init__(self, path: Path, *arguments: str, log: IO[str]) -> None:
        super().__init__(["node", "driver.js", *arguments], directory=path, log=log)
