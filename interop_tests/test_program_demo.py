"""`make demo` notices what it is there to notice."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parent.parent
DEMO_SECONDS_MAX = 300.0
ROW = r"  \S.*:? .*  +[\d,]+ +[\d,]+ +[\d,]+"
"""Of what a slave has: what, promised, found, lost."""


def demo(*arguments: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "examples.demo", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"TMPDIR": str(directory), "PATH": "/usr/bin:/bin"},
        check=False,
        timeout=DEMO_SECONDS_MAX,
    )


@pytest.mark.slow
def test_every_cell_and_every_ack_holds(tmp_path: Path) -> None:
    """Without the Parquet step, which has tests of its own."""
    ended = demo("--steps", "matrix,crash,replica", directory=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "16 of 16 cells held" in ended.stdout
    assert re.search(r"with ali-ons: 9 of 9 cells held|ali-ons .* is left out: ", ended.stdout)
    assert "\n  0 acked lost, 0 altered or out of order\n" in ended.stdout
    rows = [line.split() for line in ended.stdout.splitlines() if re.fullmatch(ROW, line)]
    assert len(rows) == len({tuple(row[:-3]) for row in rows}) == 15
    assert all(promised == found != "0" and lost == "0" for *_, promised, found, lost in rows)
    assert "Everything held" in ended.stdout
    assert list(tmp_path.iterdir()) == [], "the demo left something behind"


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["amqp:rocketmq", "rocketmq:http"])
def test_one_corrupt_cell_makes_it_fail(tmp_path: Path, cell: str) -> None:
    """A byte is changed on the way into one subscriber; the other fifteen cells hold."""
    ended = demo("--steps", "matrix", "--without-ali-ons", "--corrupt", cell, directory=tmp_path)
    assert ended.returncode == 1
    assert "15 of 16 cells held" in ended.stdout
    titles = {"mqtt": "MQTT", "amqp": "AMQP", "http": "CloudEvents", "rocketmq": "RocketMQ"}
    publisher, subscriber = (titles[name] for name in cell.split(":"))
    assert f"{publisher} to {subscriber}: " in ended.stderr
    assert "came with another body" in ended.stderr
    assert "Everything held" not in ended.stdout


@pytest.mark.slow
def test_an_acked_message_that_a_slave_lacks_makes_it_fail(tmp_path: Path) -> None:
    """The master acknowledges what it alone has, and the slave stands still when it dies. What was
    there before that is found."""
    ended = demo("--steps", "replica", "--careless", directory=tmp_path)
    assert ended.returncode == 1
    assert re.search(r"acknowledged messages, read with AMQP +.* [1-9][\d,]*\n", ended.stdout)
    assert re.search(r"RocketMQ: a group's offsets +4 +4 +0\n", ended.stdout)
    assert re.search(r"\d+ of \d+ lost: acknowledged messages, read with MQTT", ended.stderr)
    assert "Everything held" not in ended.stdout


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_demo_that_is_ended_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    """While a master and a slave run, and clients publish: by Ctrl-C, which takes its files, too,
    and by SIGKILL, which leaves it no time for anything."""
    process = subprocess.Popen(
        [sys.executable, "-m", "examples.demo", "--steps", "replica"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={"TMPDIR": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    deadline = time.monotonic() + DEMO_SECONDS_MAX
    while len(servers := processes_below(tmp_path)) < 2 or not publishers_of(process.pid):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
    started = [psutil.Process(pid) for pid in (*servers, *publishers_of(process.pid))]
    process.send_signal(number)
    _, errors = process.communicate(timeout=DEMO_SECONDS_MAX)
    _, left = psutil.wait_procs(started, DEMO_SECONDS_MAX)
    assert not left
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert "The demo was interrupted." in errors
        assert "Traceback" not in errors
        assert list(tmp_path.iterdir()) == [], "the demo left something behind"


def processes_below(directory: Path) -> list[int]:
    """Servers whose data is there."""
    found = psutil.process_iter(["cmdline"])
    return [p.pid for p in found if f"{directory}/" in " ".join(p.info["cmdline"] or ())]


def publishers_of(pid: int) -> list[int]:
    """Publishers that a demo has started."""
    found = psutil.process_iter(["cmdline", "ppid"])
    children = (p for p in found if p.info["ppid"] == pid)
    return [p.pid for p in children if "examples.demo.publish" in (p.info["cmdline"] or ())]


def test_a_cell_that_does_not_exist(tmp_path: Path) -> None:
    ended = demo("--corrupt", "mqtt:kafka", directory=tmp_path)
    assert ended.returncode == 2
    assert "a cell is FROM:TO out of mqtt, amqp, http, rocketmq" in ended.stderr
