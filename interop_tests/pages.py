"""Pages of the documentation, run as their readers would run them.

The commands of a page go to one shell, one after the other. What a page shows below a command is
what the command has to print; `...` in it stands for anything. A subscriber that waits runs beside
the others, and what it printed is looked at in the end. Programs in Python are run as they are; a
block of text behind one is what it prints.

The numbers of the standard ports are replaced by those of the started server, which is why pages
that are run name them. What installs or starts something is left out (`NOT_RUN`).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
BLOCK: Final = re.compile(r"^```(console|python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOT_RUN: Final = re.compile(r"make( |$)|pip install |export PATH=|polymq serve( |$)")
WAITS: Final = re.compile(r"mosquitto_sub (?!.*(-C|-E))")
"""A subscriber that waits for messages until it is stopped."""
SECONDS_MAX: Final = 600.0
END: Final = "--- ended with "


@dataclass
class Command:
    """A command of a page and what the page shows below it."""

    text: str
    shown: list[str] = field(default_factory=list)


def commands(block: str) -> Iterator[Command]:
    """The commands of a block; a line that ends with a backslash goes on in the next one."""
    command: Command | None = None
    for line in block.splitlines():
        if line.startswith("$ "):
            if command is not None:
                yield command
            command = Command(line[2:])
        elif command is not None and not command.shown and command.text.endswith("\\"):
            command.text += f"\n{line}"
        elif line.startswith("# "):
            continue  # says what the next command does
        else:
            assert command is not None, line
            command.shown.append(line)
    if command is not None:
        yield command


def agrees(shown: str, printed: str) -> bool:
    """Whether a program printed what a page shows, apart from blanks within a line."""
    pattern = ".*".join(re.escape(" ".join(part.split(" "))) for part in shown.split("..."))
    blanks = re.compile(r"(?:\\ )+")
    return re.fullmatch(blanks.sub(" +", pattern), printed.strip(), re.DOTALL) is not None


class Page:
    """A page that is run against a server, in an empty directory.

    Args:
        ports: what stands for each number of the page, such as a standard port.
        environment: what the shell has beside the environment of the tests.

    Attributes:
        printed: what each program in Python printed.
    """

    def __init__(
        self, name: str, directory: Path, ports: Mapping[int, int], environment: Mapping[str, str]
    ) -> None:
        self._text = (ROOT / "docs" / name).read_text(encoding="utf-8")
        self._directory = directory
        self._ports = ports
        self._environment = {**os.environ, **environment}
        programs = Path(sys.executable).parent
        self._environment["PATH"] = f"{programs}:{self._environment['PATH']}"
        self._environment["PYTHONPATH"] = str(ROOT)  # the program of this tree
        self._waiting: list[tuple[Command, subprocess.Popen[str]]] = []
        self.printed: list[str] = []

    def run(self) -> int:
        """Run all of it; returns the number of commands and programs that ran.

        Raises:
            AssertionError: one failed, or printed something else than the page shows.
        """
        ran = 0
        with subprocess.Popen(
            ["bash"], cwd=self._directory, env=self._environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ) as shell:  # fmt: skip
            watchdog = threading.Timer(SECONDS_MAX, shell.kill)
            watchdog.start()
            try:
                ran = self._run_blocks(shell)
            finally:
                watchdog.cancel()
                for _, process in self._waiting:
                    process.kill()
                    process.communicate()
                shell.kill()
        return ran

    def _run_blocks(self, shell: subprocess.Popen[str]) -> int:
        ran = 0
        program = ""
        for kind, block in BLOCK.findall(self._text):
            text = self._with_ports(block)
            if kind == "python":
                program = text
                self.printed.append(self._run_program(text))
                ran += 1
            elif kind == "text" and program:
                printed = self.printed[-1]
                assert agrees(text.strip(), printed), f"{program}\nprinted\n{printed}"
                program = ""
            elif kind == "console":
                for command in commands(text):
                    if not NOT_RUN.match(command.text):
                        self._run_command(shell, command)
                        ran += 1
        for command, process in self._waiting:
            self._look_at(command, process)
        return ran

    def _with_ports(self, text: str) -> str:
        pattern = rf"\b({'|'.join(map(str, self._ports))})\b"
        return re.sub(pattern, lambda found: str(self._ports[int(found[0])]), text)

    def _run_program(self, program: str) -> str:
        ended = subprocess.run(
            [sys.executable, "-c", program], cwd=self._directory, env=self._environment,
            capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
        )  # fmt: skip
        assert ended.returncode == 0, f"{program}\n{ended.stderr}"
        return ended.stdout

    def _run_command(self, shell: subprocess.Popen[str], command: Command) -> None:
        if WAITS.match(command.text):
            self._waiting.append((command, self._start(command)))
            return
        assert shell.stdin is not None
        assert shell.stdout is not None
        shell.stdin.write(f"{command.text}\nended=$?; echo; echo '{END}'$ended\n")
        shell.stdin.flush()
        printed = []
        for line in shell.stdout:
            if line.startswith(END):
                break
            printed.append(line)
        text = "".join(printed).strip()
        assert line == f"{END}0\n", f"{command.text}\n{text}\n{line}"
        if command.shown:
            assert agrees("\n".join(command.shown).strip(), text), f"{command.text}\n{text}"

    def _start(self, command: Command) -> subprocess.Popen[str]:
        """Start a subscriber, and return when it has subscribed: with -d it says so."""
        process = subprocess.Popen(
            ["bash", "-c", f"exec stdbuf -oL {command.text} -d"], cwd=self._directory,
            env=self._environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("Subscribed "):
                return process
        raise AssertionError(f"{command.text} ended")

    def _look_at(self, command: Command, process: subprocess.Popen[str]) -> None:
        """Every message that the page shows has to come, in this order."""
        assert process.stdout is not None
        remaining = list(command.shown)
        while remaining:
            line = process.stdout.readline()
            assert line, f"{command.text} has not got {remaining}"
            if agrees(remaining[0], line):
                remaining.pop(0)
