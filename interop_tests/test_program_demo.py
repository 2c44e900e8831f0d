"""`make demo` notices what it is there to notice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DEMO_SECONDS_MAX = 120.0


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
    ended = demo("--steps", "matrix,crash", directory=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "16 of 16 cells held" in ended.stdout
    assert "\n  0 acked lost, 0 altered or out of order\n" in ended.stdout
    assert "Everything held" in ended.stdout
    assert list(tmp_path.iterdir()) == [], "the demo left something behind"


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["amqp:rocketmq", "rocketmq:http"])
def test_one_corrupt_cell_makes_it_fail(tmp_path: Path, cell: str) -> None:
    """A byte is changed on the way into one subscriber; the other fifteen cells hold."""
    ended = demo("--steps", "matrix", "--corrupt", cell, directory=tmp_path)
    assert ended.returncode == 1
    assert "15 of 16 cells held" in ended.stdout
    titles = {"mqtt": "MQTT", "amqp": "AMQP", "http": "CloudEvents", "rocketmq": "RocketMQ"}
    publisher, subscriber = (titles[name] for name in cell.split(":"))
    assert f"{publisher} to {subscriber}: " in ended.stderr
    assert "came with another body" in ended.stderr
    assert "Everything held" not in ended.stdout


def test_a_cell_that_does_not_exist(tmp_path: Path) -> None:
    ended = demo("--corrupt", "mqtt:kafka", directory=tmp_path)
    assert ended.returncode == 2
    assert "a cell is FROM:TO out of mqtt, amqp, http, rocketmq" in ended.stderr
