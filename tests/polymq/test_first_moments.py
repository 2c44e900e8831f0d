"""What may go wrong while the program is still loading."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from polymq import serve
from polymq.program import run


@pytest.fixture
def hangups() -> Iterator[None]:
    """Leaves the handler as it was."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangups")
@pytest.mark.parametrize("command", ["serve", "namesrv"])
def test_a_hangup_is_ignored_before_anything_heavy_is_imported(command: str) -> None:
    """In a fresh interpreter: when the first module of the command line is looked for."""
    script = (
        "import runpy, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name in ('click', 'polymq.program', 'importlib.metadata'):\n"
        "            ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN\n"
        "            print(name, ignored, flush=True)\n"
        "            sys.exit(0)\n"
        "sys.modules.pop('importlib.metadata', None)\n"
        "sys.meta_path.insert(0, Finder())\n"
        f"sys.argv = ['polymq', '{command}']\n"
        "runpy.run_module('polymq', run_name='__main__', alter_sys=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "polymq.program True\n", done.stderr


@pytest.mark.parametrize("command", ["serve", "namesrv"])
def test_a_start_survives_a_hangup_in_its_first_moments(command: str, tmp_path: Path) -> None:
    """The signal is sent as soon as the kernel says that it is ignored, and nothing else has been
    logged; the start goes on."""
    ports = ["mqtt", "amqp", "http", "rocketmq", "names", "admin"] if command == "serve" else []
    options = [part for port in ports for part in (f"--{port}-port", "0")] or ["--port", "0"]
    ready = tmp_path / "ready.json"
    options += ["--data-directory", str(tmp_path / "d"), "--ready-file", str(ready)]
    environment = {**os.environ, "POLYMQ_STORAGE__SEGMENT_BYTES": str(1024 * 1024)}
    with subprocess.Popen(
        [sys.executable, "-m", "polymq", command, *options],
        env=environment,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            wait_for(lambda: ignores_hangups(process.pid) or process.poll() is not None)
            before = ready.exists()
            process.send_signal(signal.SIGHUP)
            wait_for(lambda: ready.exists() or process.poll() is not None)
            assert (before, process.poll()) == (False, None)
        finally:
            process.terminate()
            process.communicate(timeout=30)


def ignores_hangups(process: int) -> bool:
    status = Path(f"/proc/{process}/status").read_text()
    (mask,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:"))
    return bool(int(mask, 16) >> (signal.SIGHUP - 1) & 1)


def wait_for(happened: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(60_000):
        if happened():
            return
        pause.wait(0.001)
    raise AssertionError("it did not happen in a minute")


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
@pytest.mark.usefixtures("hangups")
def test_too_few_descriptors_are_one_line(
    number: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Wherever the first one is missing: while a module is loaded, say."""

    def loading(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number), "/somewhere/limits.py")

    monkeypatch.setattr(serve, "run_server", loading)
    assert run(["serve", "--data-directory", str(tmp_path)]) == 1
    reported = capsys.readouterr().err
    assert reported.count("\n") == 1
    assert "ulimit -n" in reported
