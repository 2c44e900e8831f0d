"""Clients that are written in other languages, driven by lines of JSON."""

from __future__ import annotations

import itertools
import json
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

ANSWER_SECONDS_MAX = 60.0
LOOK_SECONDS = 0.05


class LineDriver:
    """A program that takes commands as lines of JSON on its standard input, and answers on its
    standard output: a line for each command, with its id, and lines of its own accord.

    Attributes:
        said: lines that are no answers, in the order in which they came.
    """

    def __init__(self, command: Sequence[str | Path], *, directory: Path, log: IO[str]) -> None:
        self.said: list[dict[str, Any]] = []
        self._answers: dict[int, dict[str, Any]] = {}
        self._news: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._ids = itertools.count(1)
        self._process = subprocess.Popen(
            command,
            cwd=directory,
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
        assert line is not None, "the program ended"
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
            self.take_news()
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
