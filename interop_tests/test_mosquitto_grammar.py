"""The converter reads a mosquitto.conf as the installed mosquitto does: it accepts the same files,
and finds the same listeners."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
SECONDS_MAX = 20

pytestmark = [
    pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed"),
    pytest.mark.slow,
]

ACCEPTED = """\
listener {0} 127.0.0.1
---
   listener   {0}    127.0.0.1   # mine
listener {1} 127.0.0.1
---
# comment

listener {0} 127.0.0.1
allow_anonymous true # the rest is ignored
allow_anonymous 0
max_connections -5
---
per_listener_settings true
listener {0} 127.0.0.1
allow_anonymous true
listener {1} 127.0.0.1
acl_file /dev/null
---
bind_address 127.0.0.1
port {0}
port {1}
---
listener {0} 127.0.0.1
mount_point a/b/
max_qos 1
socket_domain ipv4
---
listener {0} 127.0.0.1
persistent_client_expiration 2w
log_type error
log_type all
log_dest stderr
---
listener {0} 127.0.0.1
include_dir {directory}/more
"""
REFUSED = """\
listener {0} 127.0.0.1
nonsense 1
---
listener {0} 127.0.0.1
 # a comment has to begin the line
---
listener\t{0}
---
listener {0} 127.0.0.1
allow_anonymous True
---
listener {0} 127.0.0.1
mount_point a/
mount_point b/
---
listener {0} 127.0.0.1
mount_point
---
listener {0} 127.0.0.1
max_packet_size 19
---
listener {0} 127.0.0.1
max_qos 3
---
listener {0} 127.0.0.1
sys_interval -1
---
listener {0} 127.0.0.1
protocol mqttsn
---
listener {0} 127.0.0.1
log_type loud
---
listener {0} 127.0.0.1
persistent_client_expiration 14
---
listener {0} 127.0.0.1
acl_file /dev/null
per_listener_settings true
---
listener {0} 127.0.0.1
address 127.0.0.1
---
listener 0
---
mount_point a/
listener {0} 127.0.0.1
---
listener {0} 127.0.0.1
include_dir {directory}/none
"""


def made(text: str, directory: Path) -> Path:
    """A file with this text, and ports that nobody has."""
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(2)]
        for each in held:
            each.bind(("127.0.0.1", 0))
        ports = [each.getsockname()[1] for each in held]
    more = directory / "more"
    more.mkdir()
    (more / "b.conf").write_text(f"listener {ports[1]} 127.0.0.1\nmax_connections 5\n")
    (more / "ignored.txt").write_text("nonsense\n")
    file = directory / "m.conf"
    file.write_text("user root\n" + text.format(*ports, directory=directory))
    return file


def mosquitto_opens(file: Path) -> set[int] | None:
    """The ports that mosquitto opens with a file; None if it does not take it."""
    assert MOSQUITTO is not None
    process = subprocess.Popen(
        [MOSQUITTO, "-v", "-c", str(file)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    assert process.stderr is not None
    ports = set()
    is_running = False
    for line in process.stderr:  # it ends with mosquitto
        opened = re.search(rb"Opening \S+ listen socket on port (\d+)", line)
        if opened is not None:
            ports.add(int(opened[1]))
        if line.endswith(b"running\n"):
            is_running = True
            process.kill()  # it can miss SIGTERM at this time
    process.wait(SECONDS_MAX)
    process.stderr.close()
    return ports if is_running else None


def we_open(file: Path) -> set[int] | None:
    """The ports of the settings that a file is converted to; None if it is not taken."""
    done = subprocess.run(
        [sys.executable, "-m", "polymq", "config", "import", "mosquitto-conf", str(file)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    if done.returncode == 2:
        return None
    return {each["port"] for each in tomllib.loads(done.stdout)["mqtt"]["listeners"]}


@pytest.mark.parametrize("text", ACCEPTED.split("---\n"))
def test_what_mosquitto_accepts(text: str, tmp_path: Path) -> None:
    file = made(text, tmp_path)
    ports = mosquitto_opens(file)
    assert ports
    assert we_open(file) == ports


@pytest.mark.parametrize("text", REFUSED.split("---\n"))
def test_what_mosquitto_refuses(text: str, tmp_path: Path) -> None:
    file = made(text, tmp_path)
    assert mosquitto_opens(file) is None
    assert we_open(file) is None
