"""The programs that the console shows do what they say, each as a process against a server.

Those run here whose language and library are on this machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from interop_tests.conftest import Server
from interop_tests.people import PASSWORD, Admin
from polymq.console.snippets import PROTOCOLS, Target, program

pytestmark = pytest.mark.slow(seconds=40)

FILES: Final = {
    "Python": ("hello.py", [sys.executable]),
    "Go": ("hello.go", ["go", "run"]),
    "JavaScript": ("hello.js", ["node"]),
    "Java": ("Hello.java", ["java"]),
    "Shell": ("hello.sh", ["sh", "-e"]),
}
"""The file of a program, and what runs it."""
NEEDS: Final = {
    ("MQTT", "Shell"): "mosquitto_sub",
    ("AMQP", "Shell"): "amqp-consume",
    ("HTTP", "Shell"): "curl",
    ("HTTP", "Go"): "go",
    ("HTTP", "JavaScript"): "node",
    ("HTTP", "Java"): "java",
}
CASES: Final = [
    *(("MQTT", "Python"), ("AMQP", "Python"), ("HTTP", "Python"), ("RocketMQ", "Python")),
    *NEEDS,
]
SECONDS_MAX: Final = 120


@pytest.fixture(scope="module", params=["nobody", "ann"])
def house(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, str]]:
    """A server without users, and one whose user ann may use the topic."""
    server = Server(tmp_path_factory.mktemp("house"), {}, {}, (sys.executable, "-m", "polymq"))
    server.start()
    user = "" if request.param == "nobody" else request.param
    if user:
        admin = Admin(server)
        admin.add(user)
        admin.allow(user, "publish,subscribe,create", "#")
    yield server, user
    server.close(sys.stdout)


@pytest.mark.parametrize(("name", "language"), CASES, ids=" ".join)
def test_a_message_goes_through(
    house: tuple[Server, str], name: str, language: str, tmp_path: Path
) -> None:
    """Published and received, with a login where the broker has users."""
    server, user = house
    needed = NEEDS.get((name, language))
    if needed is not None and shutil.which(needed) is None:
        pytest.skip(f"there is no {needed} on this machine")
    (protocol,) = [one for one in PROTOCOLS if one.name == name]
    environment = {**os.environ, "PASSWORD": PASSWORD}
    if user and protocol.listener == "rocketmq":
        made = Admin(server).good("POST", Admin.path("users", user, "access-keys"), {})
        environment |= {"ACCESS_KEY": made["access_key"], "SECRET_KEY": made["secret_key"]}
    target = Target(
        host="127.0.0.1",
        port=getattr(server, f"{protocol.listener}_port"),
        topic="new orders" if name == "HTTP" else "orders",
        user=user,
    )
    file, command = FILES[language]
    (tmp_path / file).write_text(program(protocol, language, target), encoding="utf-8")
    ran = subprocess.run(
        [*command, file],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "hello" in ran.stdout
