"""The programs of docs/rocketmq-client.md do what the page says, in its order, as processes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from interop_tests.conftest import Server

PAGE = Path(__file__).resolve().parent.parent / "docs" / "rocketmq-client.md"
SECONDS_MAX = 60.0
NAMED = "127.0.0.1:9876"


def programs() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_programs_of_the_page_run(server: Server) -> None:
    """The name server that they name is the broker here, which answers routes, too."""
    said = []
    for program in programs():
        assert NAMED in program
        ran = subprocess.run(
            [sys.executable, "-c", program.replace(NAMED, f"{server.host}:{server.rocketmq_port}")],
            capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
        )  # fmt: skip
        assert (ran.returncode, ran.stderr) == (0, ""), program
        said.append(ran.stdout.strip())
    assert len(said) == 6
    assert re.fullmatch(r"[0-9A-F]{32} broker-a \d \d", said[0])
    assert said[1] in ("b'order 17'", "b'order 18'", "b'order 19'")
    assert said[2].startswith("b'order")
    assert said[3] == "COMMIT"
    assert said[4] == "broker-a"
    assert said[5].startswith("b'")
