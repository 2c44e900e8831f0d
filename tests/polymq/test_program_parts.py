"""Logs, metrics, ports file and workers: the small parts of the program."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import threading
from pathlib import Path

import prometheus_client
import pytest

from polymq.admin.client import StoredMessage
from polymq.logs import configure_logs, logger
from polymq.metrics.registry import counter, gauge
from polymq.ports import FILE_NAME, Ports, find_ports, write_ports
from polymq.settings import LogSettings, Settings, load_settings
from polymq.workers import Workers
from tests.polymq.metrics.registries import make_registry


def test_json_logs_are_one_object_a_line_from_us_and_from_the_libraries() -> None:
    stream = io.StringIO()
    configure_logs(LogSettings(format="json"), stream)
    logger("polymq.test").info("ready", mqtt=1883)
    logging.getLogger("polymq.gateways.mqtt").warning("closing %d", 3, extra={"peer": "1.2.3.4:5"})
    logging.getLogger("polymq.gateways.mqtt").debug("too much")
    try:
        raise ValueError("in a callback")
    except ValueError:
        logger("polymq.test").exception("bug")
    ours, theirs, bug = (json.loads(line) for line in stream.getvalue().splitlines())
    assert (ours["event"], ours["mqtt"], ours["level"]) == ("ready", 1883, "info")
    assert (theirs["event"], theirs["level"]) == ("closing 3", "warning")
    assert (theirs["logger"], theirs["peer"]) == ("polymq.gateways.mqtt", "1.2.3.4:5")
    assert ours["timestamp"].endswith("Z")
    assert "ValueError: in a callback" in bug["exception"]


def test_console_logs_have_no_colours_in_a_file() -> None:
    stream = io.StringIO()
    configure_logs(LogSettings(format="console", level="warning"), stream)
    logger("polymq.test").info("not shown")
    logger("polymq.test").warning("shown", listener="mqtt")
    (line,) = stream.getvalue().splitlines()
    assert "shown" in line
    assert "listener=mqtt" in line
    assert "\x1b" not in line


def test_metrics_are_read_at_the_scrape_and_only_from_our_registry() -> None:
    value = 1.0
    registry = make_registry(
        [
            gauge("polymq_a", "A.", lambda: value),
            counter("polymq_b", "B.", lambda: 7),
            gauge("polymq_c", "C.", lambda: {"mqtt": 2}, label="protocol"),
        ]
    )
    assert registry.get_sample_value("polymq_a") == 1
    value = 3
    assert registry.get_sample_value("polymq_a") == 3
    assert registry.get_sample_value("polymq_b_total") == 7
    assert registry.get_sample_value("polymq_c", {"protocol": "mqtt"}) == 2
    assert registry.get_sample_value("process_open_fds") is not None
    assert prometheus_client.REGISTRY.get_sample_value("polymq_a") is None


PORTS = Ports(host="127.0.0.1", mqtt=1, amqp=2, http=None, rocketmq=4, admin=5)


def test_ports_of_a_running_server_are_found_by_its_data_directory(tmp_path: Path) -> None:
    settings = load_settings(flags={"server": {"data_directory": tmp_path}})
    assert find_ports(settings).mqtt == Settings().mqtt.port
    write_ports(tmp_path / FILE_NAME, PORTS)
    assert find_ports(settings) == PORTS
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"pid": 1, "mqtt": 2}', "\xff"])
def test_a_broken_ports_file_is_no_file(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE_NAME).write_bytes(content.encode("latin-1"))
    settings = load_settings(flags={"server": {"data_directory": tmp_path}})
    assert find_ports(settings).mqtt == Settings().mqtt.port


def test_the_ports_file_of_a_dead_server_does_not_count(tmp_path: Path) -> None:
    """After SIGKILL the file stays; its process id answers no signal."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    write_ports(tmp_path / FILE_NAME, PORTS)
    path = tmp_path / FILE_NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), "pid": child}))
    settings = load_settings(flags={"server": {"data_directory": tmp_path}})
    assert find_ports(settings).mqtt == Settings().mqtt.port


def test_workers_answer_on_the_loop_with_result_or_error() -> None:
    async def scenario() -> list[tuple[object, str, bool]]:
        workers = Workers(asyncio.get_running_loop(), name="test", count=1)
        answers: list[tuple[object, str, bool]] = []
        done = asyncio.Event()

        def answered(result: object, error: Exception | None) -> None:
            on_loop = threading.current_thread() is threading.main_thread()
            answers.append((result, str(error), on_loop))
            if len(answers) == 2:
                done.set()

        def fail() -> bytes:
            raise OSError("no disk")

        workers.submit(lambda: b"read", answered)
        workers.submit(fail, answered)
        await asyncio.wait_for(done.wait(), 10)
        assert await workers.run(lambda: 5) == 5
        workers.close()
        return answers

    assert asyncio.run(scenario()) == [(b"read", "None", True), (None, "no disk", True)]


def stored(body: bytes) -> StoredMessage:
    return StoredMessage(
        topic="t",
        tag=None,
        queue=0,
        offset=1,
        position=4711,
        born_ms=2,
        store_ms=3,
        properties={"KEYS": "a\udcff"},
        body=body,
    )


def test_bodies_cannot_drive_the_terminal() -> None:
    """Escape sequences and NUL bytes are shown, not sent."""
    assert stored(b"\x1b[31mred\0").printable_body() == "\\u001b[31mred\\u0000"
    assert stored(b"line\nline \xc3\xbc \xff").printable_body() == "line\nline ü \\xff"
    long = stored(b"a" * 5000).printable_body()
    assert long.endswith("... and 904 bytes more")


def test_messages_as_json_keep_any_bytes() -> None:
    value = json.loads(stored(b"\xff\0").as_json())
    assert value["body_base64"] == "/wA="
    assert value["tag"] is None
