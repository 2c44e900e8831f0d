"""`polymq export` against a started server: what analysts find in the file, in every format, and
what a command says that cannot write one.
"""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import paho.mqtt.client as mqtt
import pika
import pyarrow as pa
import pyarrow.feather
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from interop_tests.conftest import Server, StartServer
from interop_tests.people import Admin

COUNT = 1000
NO_TEXT = b"\xff\x00"
PYSPARK_IS_MISSING = "import sys; sys.modules['pyspark'] = sys.modules['py4j'] = None; "


@pytest.fixture
def server(start_server: StartServer) -> Server:
    """A server with a topic of MQTT and one of AMQP."""
    started = start_server()
    publish_readings(started)
    publish_orders(started)
    return started


def publish_readings(server: Server) -> None:
    client = mqtt.Client(CallbackAPIVersion.VERSION2)
    client.connect(server.host, server.mqtt_port)
    client.loop_start()
    sent = [client.publish("sensors/room1/temp", b"%d" % n, qos=1) for n in range(COUNT)]
    for message in sent:
        message.wait_for_publish(30)
    client.disconnect()
    client.loop_stop()


def publish_orders(server: Server) -> None:
    parameters = pika.ConnectionParameters(server.host, server.amqp_port)
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.exchange_declare("orders", "topic", durable=True)
    for number, body in enumerate((b'two\nlines, "quoted"', NO_TEXT, "\u00e4".encode())):
        properties = pika.BasicProperties(
            message_id=f"m-{number}", content_type="text/plain", headers={"n": number, "none": None}
        )
        channel.basic_publish("orders", "eu.new", body, properties)
    connection.close()


def export(server: Server, *arguments: object) -> subprocess.CompletedProcess[bytes]:
    """Run the command, in a Python without Spark."""
    program = PYSPARK_IS_MISSING + "from polymq.__main__ import main; main()"
    command = [sys.executable, "-c", program, "export", *map(str, arguments)]
    command += ["--data-directory", str(server.data_directory)]
    return subprocess.run(command, capture_output=True, timeout=60, check=False)


def query(text: str) -> list[Any]:
    """The rows of a query of DuckDB."""
    with duckdb.connect() as connection:
        return connection.execute(text).fetchall()


def lines_of(server: Server, *arguments: object) -> list[dict[str, object]]:
    done = export(server, *arguments, "-", "--format", "jsonl")
    assert (done.returncode, done.stderr) == (0, b"")
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_topic_as_parquet(server: Server, tmp_path: Path) -> None:
    """Every message once, in order, with the columns of the documentation; and nothing else is
    left in the directory."""
    file = tmp_path / "table" / "sensors.parquet"
    file.parent.mkdir()
    done = export(server, "sensors", file)
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().startswith(f"1,000 messages of sensors are in {file}, ")
    rows = query(
        "SELECT queue_offset, tag, protocol, decode(body), cardinality(headers) "
        f"FROM '{file}' ORDER BY file_row_number"
    )
    assert rows == [(n, "room1.temp", "mqtt", str(n), 0) for n in range(COUNT)]
    assert list(file.parent.iterdir()) == [file]


def test_a_topic_as_arrow(server: Server, tmp_path: Path) -> None:
    """A file, and a stream into a pipe."""
    assert export(server, "orders", tmp_path / "orders.arrow").returncode == 0
    table = pyarrow.feather.read_table(tmp_path / "orders.arrow")
    assert table.column("keys").to_pylist() == ["m-0", "m-1", "m-2"]
    done = export(server, "orders", "-", "--format", "arrow")
    assert pa.ipc.open_stream(done.stdout).read_all().equals(table)


def test_a_topic_as_text(server: Server) -> None:
    """Bodies that are no text are in base64, beside the others."""
    rows = lines_of(server, "orders")
    assert [row["body"] for row in rows] == ['two\nlines, "quoted"', None, "\u00e4"]
    assert [row.get("body_base64") for row in rows] == [None, "/wA=", None]
    assert rows[0]["headers"] == {"n": "0", "none": None}
    done = export(server, "orders", "-", "--format", "csv")
    (first, second, third) = csv.DictReader(io.StringIO(done.stdout.decode()))
    assert (first["body"], first["body_base64"]) == ('two\nlines, "quoted"', "")
    assert (second["body"], second["body_base64"]) == ("", "/wA=")
    assert json.loads(third["headers"]) == {"n": "2", "none": None}
    assert first["store_ts"] == rows[0]["store_ts"]
    assert lines_of(server, "sensors")[17]["headers"] == {}


def test_a_part_of_a_topic(server: Server) -> None:
    """By offset and by time; the times of the first and the last message are included."""

    def offsets(*options: object) -> Sequence[object]:
        return [row["queue_offset"] for row in lines_of(server, "sensors", *options)]

    everything = lines_of(server, "sensors")
    times = [str(row["store_ts"]) for row in everything]
    assert offsets("--from-offset", 10, "--to-offset", 13) == [10, 11, 12]
    for since, until in ((times[0], times[-1]), (times[300], times[500])):
        chosen = [n for n, at in enumerate(times) if since <= at <= until]
        assert offsets("--since", since, "--until", until) == chosen
    assert offsets("--since", "2099-01-01") == []
    assert offsets("--until", "2000-01-01") == []


def test_a_part_without_messages_is_a_file_without_rows(server: Server, tmp_path: Path) -> None:
    for name in ("none.parquet", "none.arrow", "none.csv", "none.jsonl"):
        done = export(server, "sensors", tmp_path / name, "--since", "2099-01-01")
        assert done.returncode == 0, done.stderr
    assert query(f"SELECT count(*) FROM '{tmp_path}/none.parquet'") == [(0,)]
    assert pyarrow.feather.read_table(tmp_path / "none.arrow").num_rows == 0
    assert (tmp_path / "none.csv").read_text().startswith('"topic","tag"')
    assert (tmp_path / "none.jsonl").read_bytes() == b""


def test_a_topic_with_several_queues(start_server: StartServer, tmp_path: Path) -> None:
    """All of them, or those that are named; each in its order."""
    server = start_server()
    command = [sys.executable, "-m", "polymq", "topic", "create", "sensors", "--queues", "8"]
    command += ["--data-directory", str(server.data_directory)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    threads = [threading.Thread(target=publish_readings, args=(server,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    file = tmp_path / "sensors.parquet"
    assert export(server, "sensors", file).returncode == 0
    found = query(
        f"SELECT queue_id, list(queue_offset ORDER BY file_row_number) FROM '{file}' GROUP BY 1"
    )
    assert sum(len(offsets) for _, offsets in found) == 2 * COUNT
    assert all(offsets == list(range(len(offsets))) for _, offsets in found)
    (queue, offsets), *_ = found
    assert len(lines_of(server, "sensors", "--queue", queue)) == len(offsets)
    done = export(server, "sensors", "-", "--format", "csv", "--to-offset", 1)
    assert done.returncode == 2
    assert b"has 8 queues, and each has its own offsets: name one" in done.stderr


def failures(server: Server, directory: Path) -> Iterator[tuple[Sequence[object], int, str]]:
    there = directory / "there.csv"
    yield ("missing", "-", "--format", "csv"), 1, "there is no topic missing"
    yield ("sensors", "sensors.txt"), 2, "use --format"
    yield ("sensors", "-"), 2, "use --format"
    yield ("sensors", there), 73, "exists already: use --overwrite"
    yield ("sensors", directory, "--format", "csv", "--overwrite"), 73, "it is not a file"
    yield ("sensors", directory / "no" / "x.csv"), 73, "cannot be written: No such file"
    yield ("sensors", there, "--overwrite", "--queue", 9), 2, "has no queue 9"
    yield ("sensors", there, "--overwrite", "--to-offset", 1001), 2, "0 to 1001 are not among them"
    yield ("sensors", there, "--overwrite", "--broker", "x"), 2, "is not an address"


def test_what_cannot_be_done_is_one_line(server: Server, tmp_path: Path) -> None:
    """And what was there stays."""
    (tmp_path / "there.csv").write_text("mine")
    for arguments, code, text in failures(server, tmp_path):
        done = export(server, *arguments)
        assert (done.returncode, done.stdout) == (code, b""), done.stderr
        line = done.stderr.decode()
        assert text in line
        assert line.startswith("polymq: ")
        assert line.count("\n") == 1
    assert (tmp_path / "there.csv").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".part"] == []
    assert export(server, "orders", tmp_path / "there.csv", "--overwrite").returncode == 0
    assert (tmp_path / "there.csv").read_text().startswith('"topic"')


def test_whoever_reads_the_pipe_may_have_enough(server: Server) -> None:
    """`polymq export ... - | head -1`: no error."""
    command = [sys.executable, "-m", "polymq", "export", "sensors", "-", "--format", "jsonl"]
    command += ["--data-directory", str(server.data_directory)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert running.stdout is not None
    running.stdout.close()
    _, errors = running.communicate(timeout=60)
    assert (running.returncode, errors) == (0, b"")


def test_a_user_exports_what_it_may_read(start_server: StartServer, tmp_path: Path) -> None:
    """With an access key; without one, and for another topic, the command says what is missing."""
    server = start_server()
    publish_orders(server)
    people = Admin(server)
    people.add("lake")
    people.allow("lake", "subscribe", "orders.#")
    key = people.good("POST", "/api/v1/users/lake/access-keys")
    secret = tmp_path / "lake.secret"
    secret.write_text(key["secret_key"])
    signed = ("--access-key", key["access_key"], "--secret-key-file", secret)
    assert [row["keys"] for row in lines_of(server, "orders", *signed)] == ["m-0", "m-1", "m-2"]
    for arguments, text in (
        (("orders",), "sign requests with an access key"),
        (("sensors", *signed), "'lake' may not subscribe sensors"),
    ):
        done = export(server, *arguments, "-", "--format", "csv")
        assert (done.returncode, done.stdout) == (1, b"")
        assert text in done.stderr.decode()
