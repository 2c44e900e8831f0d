"""ali-ons, the RocketMQ client for Node, as one more publisher and reader of the matrix.

Where there is no Node, or npm cannot install the library, the demo says so and goes on. The
library is installed into the demo's own directory, while the server starts.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from examples.demo.messages import CONTENT_TYPE, TOPIC, Item
from examples.demo.workers import Processes, Worker, end

PACKAGE = "ali-ons@3.12.0"
INSTALL_SECONDS_MAX = 30.0
"""npm asks again and again where no network answers."""
PROGRAM = Path(__file__).with_suffix(".js")
NPM_OPTIONS = (
    "--no-audit",
    "--no-fund",
    "--no-package-lock",
    "--prefer-offline",
    "--logs-max=0",
    "--fetch-retries=1",
    "--fetch-retry-mintimeout=100",
    "--fetch-retry-maxtimeout=500",
    "--fetch-timeout=10000",
)


class AliOns:
    """The library, being installed from now on if it is wanted and can be."""

    def __init__(self, processes: Processes, directory: Path, *, wanted: bool) -> None:
        self._processes = processes
        self._directory = directory
        self._npm: subprocess.Popen[str] | None = None
        npm = shutil.which("npm")
        self._wanted = wanted
        if wanted and npm is not None and shutil.which("node") is not None:
            directory.mkdir()
            self._npm = processes.start(
                [npm, "install", *NPM_OPTIONS, "--prefix", directory, PACKAGE],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                cwd=directory,
            )

    def missing(self) -> str:
        """Why it is left out; empty if it is there. Waits for npm."""
        if self._npm is None:
            return "there is no node or no npm here" if self._wanted else "as you asked"
        try:
            _, errors = self._npm.communicate(timeout=INSTALL_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            end(self._npm)
            return f"npm could not install it within {INSTALL_SECONDS_MAX:.0f} s"
        if self._npm.returncode:
            said = [line for line in errors.splitlines() if " code " in line]
            return "npm could not install it" + (f" ({said[0].split()[-1]})" if said else "")
        loading = self._processes.start(
            ["node", "-e", "require('ali-ons')"],
            stderr=subprocess.DEVNULL,
            env=self._environment(),
        )
        return "this node cannot load it" if loading.wait() else ""

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "NODE_PATH": str(self._directory / "node_modules")}

    def publisher(self, address: str, items: Sequence[Item]) -> Worker:
        """Publishes these messages, each after the acknowledgement of the one before."""
        worker = self._worker("publish", address, "demo-ali-ons")
        for item in items:
            worker.tell(
                tag=item.tag,
                key=item.identity,
                body=base64.b64encode(item.body()).decode(),
                properties={"kind": item.kind, "content-type": CONTENT_TYPE},
            )
        worker.close_input()
        return worker

    def subscriber(self, address: str) -> Worker:
        """Reads all."""
        return self._worker("subscribe", address, "demo-ali-ons")

    def _worker(self, role: str, address: str, group: str) -> Worker:
        return Worker(
            self._processes,
            f"ali-ons ({role})",
            ["node", PROGRAM, role, address, TOPIC, group],
            env=self._environment(),
        )
