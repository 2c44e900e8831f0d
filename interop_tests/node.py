"""Clients that are written for Node: where they are installed, and how they are driven.

Where there is no Node, the tests that need it are left out. Where there is, they have to run: what
npm cannot fetch fails them, unless POLYMQ_TESTS_WITHOUT_NODE says that this is known.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import queue
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest

HERE = Path(__file__).parent
INSTALL_SECONDS_MAX = 180
ANSWER_SECONDS_MAX = 30.0
LOOK_SECONDS = 0.05


def need_packages(folder: str) -> Path:
    """The folder of a Node program with its packages installed."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("there is no Node on this machine")
    if os.environ.get("POLYMQ_TESTS_WITHOUT_NODE"):
        pytest.skip("POLYMQ_TESTS_WITHOUT_NODE is set")
    place = HERE / folder
    with (place / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
        stamp = place / "node_modules" / ".installed"
        wanted = (place / "package.json").read_text(encoding="utf-8")
        if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
            done = subprocess.run(
                ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock"],
                cwd=place,
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
    return place


class NodeDriver:
    """A Node program that takes commands as lines of JSON on its standard input.

    Attributes:
        said: lines that are no answers, in the order in which they came.
    """

    def __init__(self, place: Path, *arguments: str, log: IO[str]) -> None:
        self.said: list[dict[str, Any]] = []
        self._answers: dict[int, dict[str, Any]] = {}
        self._news: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._ids = itertools.count(1)
        self._process = subprocess.Popen(
            ["node", "driver.js", *arguments],
            cwd=place,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.until(lambda: any(line.get("ready") for line in self.said))

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._news.put(json.loads(line))
        self._news.put(None)

    def _take(self, deadline: float, *, patient: bool = False) -> None:
        try:
            line = self._news.get(timeout=max(deadline - time.monotonic(), 0.001))
        except queue.Empty:
            if patient:
                return
            raise AssertionError(f"nothing came in time; so far: {self.said[-5:]}") from None
        assert line is not None, "the Node program ended"
        if "id" in line and ("result" in line or "error" in line):
            self._answers[line["id"]] = line
        else:
            self.said.append(line)

    def ask(self, command: str, **given: object) -> dict[str, Any]:
        """Give a command and wait for its result."""
        number = next(self._ids)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"id": number, "command": command, **given}) + "\n")
        self._process.stdin.flush()
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        while number not in self._answers:
            self._take(deadline)
        answer = self._answers.pop(number)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def take_news(self) -> bool:
        """Take what the program has said so far, without waiting; always true."""
        while not self._news.empty():
            self._take(0.0)
        return True

    def until(self, condition: Callable[[], object], seconds: float = ANSWER_SECONDS_MAX) -> None:
        """Take what the program says until the condition holds."""
        deadline = time.monotonic() + seconds
        while not condition():
            self._take(min(deadline, time.monotonic() + LOOK_SECONDS), patient=True)
            assert time.monotonic() < deadline, f"it did not come; so far: {self.said[-5:]}"

    def close(self) -> None:
        """End the program."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
