"""`polymq topic` and `polymq message` against a running server, as a person types them."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from interop_tests.conftest import Server

COMMAND_SECONDS_MAX = 60.0
AWKWARD = bytes(range(256)) + b"\xff\xfe\0"


def polymq(
    server: Server, *arguments: str, body: bytes = b"", code: int = 0
) -> subprocess.CompletedProcess[bytes]:
    """Run a command that finds the server by its data directory."""
    ended = subprocess.run(
        [sys.executable, "-m", "polymq", *arguments, "--data-directory", server.data_directory],
        input=body,
        capture_output=True,
        check=False,
        timeout=COMMAND_SECONDS_MAX,
    )
    assert ended.returncode == code, ended.stderr.decode()
    return ended


def complaint(server: Server, *arguments: str, code: int) -> str:
    line = polymq(server, *arguments, code=code).stderr.decode()
    assert line.count("\n") == 1
    return line


@pytest.mark.slow
def test_life_of_a_topic(server: Server) -> None:
    assert b"There are no topics yet" in polymq(server, "topic", "list").stdout
    assert b"created" in polymq(server, "topic", "create", "orders", "--queues", "3").stdout
    assert b"already exists" in polymq(server, "topic", "create", "orders").stdout
    shown = json.loads(polymq(server, "topic", "show", "orders", "--json").stdout)
    assert [queue["queue"] for queue in shown["queues"]] == [0, 1, 2]
    listed = json.loads(polymq(server, "topic", "list", "--json").stdout)["items"]
    assert [topic["name"] for topic in listed] == ["orders"]
    server.kill()
    server.restart()
    assert b"queue 2: empty, next offset 0" in polymq(server, "topic", "show", "orders").stdout
    assert b"deleted" in polymq(server, "topic", "delete", "orders", "--yes").stdout
    assert "there is no topic 'orders'" in complaint(server, "topic", "show", "orders", code=1)


@pytest.mark.slow
def test_settings_of_a_topic(server: Server) -> None:
    """A value of its own, shown as such, after a kill too; `default` goes back."""
    polymq(server, "topic", "create", "orders", "retention_bytes=1000")
    reported = polymq(server, "topic", "set", "orders", "retention_seconds=60").stdout.decode()
    assert "  retention_seconds = 60\n" in reported
    assert "  durability = fsync  (the server's default)\n" in reported
    server.kill()
    server.restart()
    assert polymq(server, "topic", "show", "orders").stdout.decode().endswith(reported)
    reported = polymq(server, "topic", "set", "orders", "retention_seconds=default").stdout.decode()
    assert "  retention_seconds = 259200  (the server's default)\n" in reported
    line = complaint(server, "topic", "set", "orders", "retention_seconds=72h", code=1)
    assert "whole number of seconds" in line
    line = complaint(server, "topic", "set", "nothing", "retention_seconds=1", code=1)
    assert "there is no topic 'nothing'" in line


def test_delete_asks_and_no_means_no(server: Server) -> None:
    polymq(server, "topic", "create", "kept")
    asked = polymq(server, "topic", "delete", "kept", body=b"n\n", code=130)
    assert b"Delete topic kept with 0 messages?" in asked.stderr
    polymq(server, "topic", "show", "kept")


@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "create", "\udcff"),
        ("message", "publish", "s", "t", "b", "--id", "\udcff"),
        ("message", "read", "\udcff"),
        ("permission", "list", "\udcff"),
    ],
)
def test_arguments_that_are_not_text_are_refused(
    server: Server, arguments: tuple[str, ...]
) -> None:
    """The shell hands over any octets; no name is other than UTF-8."""
    assert "an argument is not UTF-8: \\udcff" in complaint(server, *arguments, code=2)


def test_nobody_answers_a_question(server: Server) -> None:
    polymq(server, "topic", "create", "kept")
    asked = polymq(server, "topic", "delete", "kept", body=b"", code=2)
    assert b"use --yes" in asked.stderr
    polymq(server, "topic", "show", "kept")


@pytest.mark.slow
def test_names_with_awkward_characters(server: Server) -> None:
    """Slash, space, percent, umlaut: the name comes back as it was given."""
    name = "a/b c%41 ü"
    polymq(server, "topic", "create", name)
    polymq(server, "message", "publish", name, "tag", "body")
    assert json.loads(polymq(server, "topic", "list", "--json").stdout)["items"][0]["name"] == name
    message = json.loads(polymq(server, "message", "read", name, "--format", "json").stdout)
    assert (message["topic"], message["tag"]) == (name, "tag")


@pytest.mark.slow
def test_mqtt_topics_that_begin_with_a_slash_have_a_name_that_can_be_typed(server: Server) -> None:
    """`||` everywhere; a topic of that very name has one bar more."""
    client = mqtt.Client(CallbackAPIVersion.VERSION2)
    client.connect(server.host, server.mqtt_port)
    client.loop_start()
    for topic in ("/temp", "||/temp"):
        client.publish(topic, topic, qos=1).wait_for_publish(30)
    listed = json.loads(polymq(server, "topic", "list", "--json").stdout)["items"]
    assert sorted(topic["name"] for topic in listed) == ["||", "|||"]
    assert b"||: 1 message\n" in polymq(server, "topic", "show", "||").stdout
    polymq(server, "message", "publish", "||", "more", body=b"over HTTP")
    read = ("message", "read", "||", "--format")
    assert polymq(server, *read, "body").stdout == b"/tempover HTTP"
    first, second = map(json.loads, polymq(server, *read, "json").stdout.splitlines())
    assert (first["topic"], first["tag"]) == ("||", "temp")
    assert (second["topic"], second["tag"]) == ("||", "more")
    assert polymq(server, "message", "read", "|||", "--format", "body").stdout == b"||/temp"
    assert b"deleted" in polymq(server, "topic", "delete", "||", "--yes").stdout
    listed = json.loads(polymq(server, "topic", "list", "--json").stdout)["items"]
    assert [topic["name"] for topic in listed] == ["|||"]
    assert "there is no topic '||'" in complaint(server, "topic", "show", "||", code=1)
    client.disconnect()
    client.loop_stop()


@pytest.mark.slow
def test_a_topic_with_a_long_name_is_read(server: Server) -> None:
    """The log has a hash of its name; what is shown is the log's name then."""
    name = "n" * 300
    polymq(server, "message", "publish", name, "t", body=b"long")
    assert polymq(server, "message", "read", name, "--format", "body").stdout == b"long"


def test_names_that_are_the_brokers_own_are_refused(server: Server) -> None:
    line = complaint(server, "topic", "create", "RMQ_SYS_POLYMQ_STATE", code=1)
    assert "RMQ_SYS_POLYMQ_STATE" in line


@pytest.mark.slow
def test_messages_come_back_byte_for_byte(server: Server) -> None:
    polymq(server, "message", "publish", "t", "room1.temp", "21.5 °C")
    reported = polymq(server, "message", "publish", "t", "raw", "--content-type", "image/x",
                  "--id", "id 7", body=AWKWARD)  # fmt: skip
    assert reported.stderr == b"259 bytes are stored in t.\n"
    bodies = polymq(server, "message", "read", "t", "--format", "body").stdout
    assert bodies == "21.5 °C".encode() + AWKWARD
    lines = polymq(server, "message", "read", "t", "--format", "json").stdout.splitlines()
    first, second = map(json.loads, lines)
    assert (first["tag"], first["offset"], first["queue"]) == ("room1.temp", 0, 0)
    assert base64.b64decode(second["body_base64"]) == AWKWARD
    assert second["properties"]["content-type"] == "image/x"
    assert second["properties"]["CE_id"] == "id 7"
    text = polymq(server, "message", "read", "t").stdout.decode()
    assert "t/room1.temp  queue 0  offset 0" in text
    assert "\\u0000\\u0001" in text


@pytest.mark.slow
def test_messages_are_found_by_key_and_shown_by_position(server: Server) -> None:
    """A CloudEvent's id is its key. What is found says where it stands."""
    for number in range(3):
        polymq(server, "message", "publish", "orders", "new", f"{number}", "--id", f"o-{number}")
    find = ("message", "find", "orders", "--format", "json", "--key")
    (line,) = polymq(server, *find, "o-1").stdout.splitlines()
    found = json.loads(line)
    assert (found["offset"], base64.b64decode(found["body_base64"])) == (1, b"1")
    assert polymq(server, *find, "o-1", "--since", "1h").stdout == line + b"\n"
    assert polymq(server, *find, "o-1", "--until", "2020-01-01").stdout == b""
    message_id = f"7F000001{10911:08X}{found['position']:016X}"
    for position in (str(found["position"]), message_id):
        assert (
            polymq(server, "message", "show", position, "--format", "json").stdout == line + b"\n"
        )
    reported = polymq(server, "message", "find", "orders", "--key", "o-7").stderr
    assert reported == b"No message of orders has the key o-7.\n"
    assert "there is no topic 'returns'" in complaint(
        server, "message", "find", "returns", "--key", "k", code=1
    )
    assert "there is no message at position 1" in complaint(server, "message", "show", "1", code=1)
    assert "'x' is neither a position" in complaint(server, "message", "show", "x", code=1)
    assert "'noon' is not a time" in complaint(server, *find, "k", "--since", "noon", code=2)


@pytest.mark.slow
def test_reading_from_the_middle_and_only_a_few(server: Server) -> None:
    for number in range(5):
        polymq(server, "message", "publish", "t", "n", f"{number}\n")
    read = ("message", "read", "t", "--format", "body")
    assert polymq(server, *read, "--from", "3").stdout == b"3\n4\n"
    assert polymq(server, *read, "--count", "2").stdout == b"0\n1\n"
    assert polymq(server, *read, "--from", "99").stdout == b""
    assert "has no queue 7" in complaint(server, *read, "--queue", "7", code=1)


@pytest.mark.slow
def test_following_shows_what_comes_and_ends_by_ctrl_c(server: Server) -> None:
    polymq(server, "message", "publish", "t", "n", "before\n")
    arguments = ["message", "read", "t", "--from", "first", "--follow", "--format", "body"]
    follower = subprocess.Popen(
        [sys.executable, "-m", "polymq", *arguments, "--data-directory", server.data_directory],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert follower.stdout is not None
        assert follower.stdout.readline() == b"before\n"
        polymq(server, "message", "publish", "t", "n", "after\n")
        assert follower.stdout.readline() == b"after\n"
        follower.send_signal(signal.SIGINT)
        _, errors = follower.communicate(timeout=COMMAND_SECONDS_MAX)
        assert follower.returncode == 130
        assert errors.strip() == b"polymq: interrupted"
    finally:
        follower.kill()
        follower.communicate()


def test_a_reader_that_has_enough_is_no_error(server: Server) -> None:
    """As in `polymq message read t | head -1`."""
    for number in range(3):
        polymq(server, "message", "publish", "t", "n", f"{number}\n" * 30_000)
    reader = subprocess.Popen(
        [sys.executable, "-m", "polymq", "message", "read", "t", "--format", "body",
         "--data-directory", server.data_directory],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    assert reader.stdout is not None
    assert reader.stderr is not None
    assert reader.stdout.readline() == b"0\n"
    reader.stdout.close()
    assert reader.wait(COMMAND_SECONDS_MAX) == 0
    assert reader.stderr.read() == b""
    reader.stderr.close()


def test_what_the_server_refuses_is_told_in_its_words(server: Server) -> None:
    line = complaint(server, "message", "publish", "t", "", "body", code=1)
    assert "type" in line
    line = complaint(server, "message", "read", "none", code=1)
    assert line == "polymq: there is no topic 'none'\n"


def test_without_a_server_the_commands_say_how_to_start_one(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.kill()
    # A server that happens to run on this machine's standard ports is not meant.
    monkeypatch.setenv("POLYMQ_ADMIN__PORT", str(server.admin_port))
    line = complaint(server, "topic", "list", "--config", os.devnull, code=69)
    assert "start one with `polymq serve`" in line


@pytest.mark.parametrize("arguments", [("topic", "list"), ("definitions", "export")])
def test_an_output_that_is_full(server: Server, arguments: tuple[str, ...]) -> None:
    """One line says so, and the exit code: a file that was written in part is no export."""
    polymq(server, "topic", "create", "orders")
    command = [sys.executable, "-m", "polymq", *arguments]
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(
            [*command, "--data-directory", server.data_directory],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=COMMAND_SECONDS_MAX,
        )
    line = "polymq: the output cannot be written: No space left on device\n"
    assert (ended.returncode, ended.stderr) == (1, line)


def test_names_of_what_is_not_there(server: Server) -> None:
    """The line says what is missing, in words and without numbers of errors."""
    assert complaint(server, "message", "list", "none", code=1) == (
        "polymq: there is no topic 'none'\n"
    )
    missing = server.data_directory / "cut" / "none"
    assert complaint(server, "store", "cut", "show", "none", code=1) == (
        f"polymq: {missing} cannot be read: No such file or directory\n"
    )
