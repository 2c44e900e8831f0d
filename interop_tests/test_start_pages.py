"""The pages that a newcomer begins with: every command and program does what the page says."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from interop_tests.conftest import Server
from interop_tests.pages import Page, agrees, commands

NEEDS = {"start-mqtt.md": "mosquitto_sub", "start-http.md": "curl"}


def page(name: str, server: Server, directory: Path) -> Page:
    if (program := NEEDS.get(name)) is not None and shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    ports = {
        1883: server.mqtt_port,
        5672: server.amqp_port,
        8080: server.http_port,
        10911: server.rocketmq_port,
    }
    directory.mkdir()
    found = {"POLYMQ_SERVER__DATA_DIRECTORY": str(server.data_directory)}
    return Page(name, directory, ports, found)


@pytest.mark.parametrize(
    ("name", "least"),
    [("start-mqtt.md", 10), ("start-amqp.md", 5), ("start-http.md", 8), ("start-rocketmq.md", 5)],
)
def test_the_page_does_what_it_says(name: str, least: int, server: Server, tmp_path: Path) -> None:
    """From its first command to its last, in the order of the page."""
    assert page(name, server, tmp_path / "reader").run() >= least


@pytest.mark.spark
def test_the_page_about_parquet_does_what_it_says(server: Server, tmp_path: Path) -> None:
    assert page("start-parquet.md", server, tmp_path / "reader").run() == 6


def test_a_page_that_shows_something_else_is_noticed() -> None:
    """What the runner compares with: a runner that accepts everything would pass for ever."""
    assert agrees("NAME ...\nreadings  queue", "NAME  KIND  USER\nreadings   queue")
    assert not agrees("room1.temp 21.5", "room1.temp 22.5")
    assert not agrees("one", "one\ntwo")
    assert [(command.text, command.shown) for command in commands("$ a \\\n    b\n1\n$ c\n")] == [
        ("a \\\n    b", ["1"]),
        ("c", []),
    ]
