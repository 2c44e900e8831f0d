"""`polymq sink` against a started server: what analysts find in the files, whatever was killed.

The files are read by readers that are not Spark, by a plain glob; what must be in them follows
from what was published. The places where the sink is killed are those of the variable
`PMQ_SINK_FAULT`: it makes the sink stop at one of them and create a file, so that the kill hits
exactly there and not somewhere near.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import paho.mqtt.client as mqtt
import pika
import psutil
import pyarrow.dataset as ds
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from interop_tests.conftest import Server

pytestmark = [pytest.mark.spark, pytest.mark.slow(seconds=60)]

SINK_SECONDS_MAX = 180.0
LOOK_SECONDS = 0.05

Row = tuple[str, int, int, str]
"""Topic, queue, offset, SHA-256 of the body."""

LONG_NAME = "é" * 50
"""With its escapes, it is longer than the name of a directory may be."""
MANY_HEADERS = {f"header-{number}": "x" * 1000 for number in range(100)}
"""More than a record's properties have room for."""


def row(topic: str, offset: int, body: bytes) -> Row:
    return topic, 0, offset, hashlib.sha256(body).hexdigest()


class Publisher:
    """Publishes through three protocols and knows what the files have to hold.

    One publisher per topic, in order, each message acknowledged: offsets count from 0.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.expected: Counter[Row] = Counter()
        self._counts: Counter[str] = Counter()

    def _note(self, topic: str, body: bytes) -> None:
        self.expected[row(topic, self._counts[topic], body)] += 1
        self._counts[topic] += 1

    def mqtt(self, count: int) -> None:
        """Readings, and a message to a topic with a long name and to one without a name."""
        client = mqtt.Client(CallbackAPIVersion.VERSION2)
        client.connect(self.server.host, self.server.mqtt_port)
        client.loop_start()
        sent = []
        for number in range(count):
            body = b"reading %d" % (self._counts["sensors"])
            self._note("sensors", body)
            sent.append(client.publish(f"sensors/room{number % 3}/temp", body, qos=1))
        for topic, path in ((LONG_NAME, f"{LONG_NAME}/temp"), ("||", "/temp")):
            self._note(topic, b"21.5")
            sent.append(client.publish(path, b"21.5", qos=1))
        for message in sent:
            message.wait_for_publish(30)
        client.disconnect()
        client.loop_stop()

    def amqp(self, count: int) -> None:
        parameters = pika.ConnectionParameters(self.server.host, self.server.amqp_port)
        connection = pika.BlockingConnection(parameters)
        channel = connection.channel()
        channel.confirm_delivery()
        channel.exchange_declare("orders", "topic", durable=True)
        for number in range(count):
            body = bytes([number % 256]) * (number % 50)
            self._note("orders", body)
            properties = pika.BasicProperties(
                content_type="application/octet-stream",
                message_id=f"m-{number}",
                headers={"number": number, **(MANY_HEADERS if number == 7 else {})},
                delivery_mode=2,
            )
            channel.basic_publish("orders", "eu.new", body, properties)
        connection.close()

    def http(self, count: int) -> None:
        for number in range(count):
            body = b'{"number": %d}' % number
            self._note("events", body)
            headers = {
                "ce-specversion": "1.0",
                "ce-type": "com.example.made",
                "ce-source": "/tests",
                "ce-id": f"e-{number}",
                "content-type": "application/json",
            }
            url = f"http://{self.server.host}:{self.server.http_port}/topics/events"
            request = urllib.request.Request(url, data=body, headers=headers, method="POST")
            with urllib.request.urlopen(request, timeout=30) as answer:
                assert answer.status in (200, 202, 204)

    def delete(self, topic: str) -> None:
        """What is published then goes to another topic of that name."""
        command = [sys.executable, "-m", "polymq", "topic", "delete", topic, "--yes"]
        command += ["--data-directory", str(self.server.data_directory)]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        self._counts[topic] = 0


class Sink:
    """`polymq sink` on one pair of directories, started as often as a test likes."""

    def __init__(self, server: Server, directory: Path) -> None:
        self.server = server
        self.output = directory / "lake"
        self.log_path = directory / "sink.log"
        self._directory = directory
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, *options: str, fault: str | None = None) -> subprocess.Popen[bytes]:
        """In a session of its own, so that all that it starts can be killed with it."""
        environment = dict(os.environ)
        if fault is not None:
            environment["PMQ_SINK_FAULT"] = fault
        command = [sys.executable, "-m", "polymq", "sink", *options]
        command += ["--broker", f"{self.server.host}:{self.server.rocketmq_port}"]
        command += ["--output", str(self.output)]
        command += ["--checkpoint", str(self._directory / "checkpoint")]
        with self.log_path.open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self._directory,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def run_once(self) -> None:
        process = self.start("--once")
        assert process.wait(SINK_SECONDS_MAX) == 0, self.log_tail()

    def kill_at(self, point: str, batch: int) -> None:
        """Run until the place is reached in this batch, then kill everything that belongs to it."""
        marker = self._directory / f"{point}-{batch}"
        process = self.start("--once", fault=f"{point}:{batch}:{marker}")
        self.wait_for(process, marker.exists)
        self.kill(process)

    def wait_for(self, process: subprocess.Popen[bytes], condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + SINK_SECONDS_MAX
        while not condition():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LOOK_SECONDS)
                raise AssertionError(f"the sink ended: {self.log_tail()}")
            assert time.monotonic() < deadline, self.log_tail()

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """SIGKILL to the whole session: driver, Java machine and Python workers, which have
        process groups of their own."""
        for other in psutil.process_iter():
            with contextlib.suppress(ProcessLookupError, psutil.Error):
                if os.getsid(other.pid) == process.pid:
                    other.kill()
        process.wait()

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                self.kill(process)

    def log_tail(self) -> str:
        return self.log_path.read_text(errors="replace")[-4000:]

    def rows(self) -> Counter[Row]:
        """What DuckDB finds by a plain glob."""
        # Directories of the sink's own come and go meanwhile, which `os.walk` does not mind.
        names = (name for _, _, names in os.walk(self.output) for name in names)
        if not any(name.endswith(".parquet") for name in names):
            return Counter()
        query = f"""
            SELECT topic_name, queue_id, queue_offset, sha256(body)
            FROM read_parquet('{self.output}/**/*.parquet')
        """
        return Counter(duckdb.execute(query).fetchall())


@pytest.fixture
def sink(server: Server, tmp_path: Path) -> Iterator[Sink]:
    made = Sink(server, tmp_path)
    yield made
    made.close()


def test_the_files_are_right_whatever_was_killed_when(server: Server, sink: Sink) -> None:
    """Killed after writing, between two renames, and before Spark logged the batch; at every
    moment no message is there twice, and in the end all are there once. A topic is deleted and
    created again, others have names that are no directory's."""
    publisher = Publisher(server)
    publisher.mqtt(300)
    publisher.amqp(100)
    publisher.http(5)

    sink.kill_at("after-write", 0)
    assert sink.rows() == Counter()

    sink.kill_at("after-rename-1", 0)
    some = sink.rows()
    assert some
    assert some < publisher.expected

    # This one finishes the batch, goes on to the next, and is killed there.
    marker = sink.output.with_name("after-manifest")
    process = sink.start("--every-seconds", "1", fault=f"after-manifest:1:{marker}")
    sink.wait_for(process, lambda: sink.rows() == publisher.expected)
    publisher.mqtt(50)
    sink.wait_for(process, marker.exists)
    sink.kill(process)
    assert len(list(sink.output.glob("_manifest/[0-9]*.json"))) == 2

    publisher.delete("events")
    publisher.http(3)
    publisher.amqp(20)
    sink.run_once()
    assert sink.rows() == publisher.expected
    assert list(sink.output.glob("_tmp/*/*")) == []
    _check_what_an_analyst_sees(sink.output)


def _check_what_an_analyst_sees(output: Path) -> None:
    """With Arrow, columns of the three protocols."""
    table = ds.dataset(output, partitioning="hive").to_table().to_pylist()
    by_key = {(line["topic"], line["queue_offset"]): line for line in table}
    reading, order = by_key["sensors", 1], by_key["orders", 7]
    event = by_key["events", 2]
    assert (reading["protocol"], reading["tag"]) == ("mqtt", "room1.temp")
    assert (order["protocol"], order["tag"], order["keys"]) == ("amqp", "eu.new", "m-7")
    assert order["content_type"] == "application/octet-stream"
    assert dict(order["headers"]) == {"number": "7", **MANY_HEADERS, "amqp.delivery_mode": "2"}
    assert (event["protocol"], event["tag"], event["keys"]) == ("http", "com.example.made", "e-2")
    assert event["content_type"] == "application/json"
    assert dict(event["headers"])["CE_source"] == "/tests"
    assert by_key["||", 0]["tag"] == "temp"
    (long,) = {line["topic"] for line in table if line["topic_name"] == LONG_NAME}
    assert long.startswith("é" * 16 + "@")
    for line in table:
        assert line["store_ts"].strftime("%Y-%m-%d %H") == f"{line['date']} {line['hour']:02}"


def test_a_sink_that_keeps_running_outlives_a_crash_of_the_server(
    server: Server, sink: Sink
) -> None:
    """It waits for the server, goes on, and ends in order when it is asked to."""
    publisher = Publisher(server)
    publisher.mqtt(100)
    process = sink.start("--every-seconds", "1")
    sink.wait_for(process, lambda: sink.rows() == publisher.expected)
    server.kill()
    server.restart()
    publisher.mqtt(100)
    sink.wait_for(process, lambda: sink.rows() == publisher.expected)
    process.send_signal(signal.SIGTERM)
    assert process.wait(SINK_SECONDS_MAX) == 0, sink.log_tail()
    assert sink.rows() == publisher.expected
