"""Name servers and brokers come and go; a program that sends and one that consumes go on.

The programs are what a user of the Python client writes (docs/rocketmq-client.md), as processes.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from interop_tests.conftest import StartServer
from interop_tests.name_server import SECONDS_MAX, MakeNameServer, NameServer, wait_until
from interop_tests.test_name_servers import (
    ask,
    brokers_of,
    name_servers,
    pytestmark,
)

__all__ = ["name_servers", "pytestmark"]

CREATE_TOPIC = 17
PROGRAM = """
import sys, threading
from polymq.client import Begin, ClientOptions, ConsumerSettings, Message, RemotingError
from polymq.client.threads import open_consumer, open_producer

names, group, topic = sys.argv[1:]
options = ClientOptions(name_servers=names)
settings = ConsumerSettings(begin=Begin.FIRST, pause_seconds=0.2)
lock = threading.Lock()
def say(*words):
    with lock:
        print(*words, flush=True)
def handle(record):
    say("got", record.body.decode())
with (
    open_producer("senders", options) as producer,
    open_consumer(group, {topic: "*"}, handle, options, settings=settings),
):
    for line in sys.stdin:
        to, body = line.split()
        try:
            sent = producer.send(Message(topic=to, body=body.encode()))
            say("sent", body, sent.queue.broker_name)
        except RemotingError as error:
            say("failed", body, type(error).__name__)
"""


class Program:
    """A user's program: sends what it is told to, and says what it consumed.

    Attributes:
        said: its lines, as words.
    """

    def __init__(self, names: str, topic: str) -> None:
        self.said: list[list[str]] = []
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, names, f"readers-of-{topic}", topic],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)

    def send(self, topic: str, body: str) -> list[str]:
        """What it says about it."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{topic} {body}\n")
        self._process.stdin.flush()
        return self.wait(lambda texts: texts[1] == body and texts[0] in ("sent", "failed"))

    def wait(self, wanted: Callable[[list[str]], bool]) -> list[str]:
        """A line that it says, or has said."""
        deadline = time.monotonic() + SECONDS_MAX
        for texts in self.said:
            if wanted(texts):
                return texts
        while True:
            texts = self._lines.get(timeout=max(deadline - time.monotonic(), 0)).split()
            self.said.append(texts)
            if wanted(texts):
                return texts

    def goes_on(self, topic: str, body: str) -> str:
        """It sends a message and consumes it; the broker that took it."""
        texts = self.send(topic, body)
        assert texts[0] == "sent", texts
        self.wait(lambda texts: texts == ["got", body])
        return texts[2]

    def close(self) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        code = self._process.wait(SECONDS_MAX)
        self._reader.join()
        self._process.stdout.close()
        return code


StartProgram = Callable[[str, str], Program]


@pytest.fixture
def program() -> Iterator[StartProgram]:
    made: list[Program] = []

    def start(names: str, topic: str) -> Program:
        made.append(Program(names, topic))
        return made[-1]

    yield start
    for one in made:
        one.close()


def started(name_servers: Callable[[], NameServer]) -> tuple[NameServer, NameServer, str]:
    first, second = name_servers(), name_servers()
    first.start()
    second.start()
    return first, second, f"127.0.0.1:{first.port};127.0.0.1:{second.port}"


def has_brokers(name_server: NameServer, brokers: set[str]) -> bool:
    return set(brokers_of(name_server.port, "t")) == brokers


def options(names: str, broker: str) -> dict[str, object]:
    return {"names.servers": json.dumps(names.split(";")), "names.broker": broker}


@pytest.mark.slow
def test_sending_and_consuming_go_on_while_name_servers_come_and_go(
    start_server: StartServer, name_servers: MakeNameServer, program: StartProgram
) -> None:
    """One is killed and started again, then both."""
    first, second, names = started(name_servers)
    start_server(**options(names, "a"))
    user = program(names, "t")
    wait_until(lambda: user.send("t", f"{time.monotonic_ns()}")[0] == "sent")
    first.kill()
    user.goes_on("t", "without-one")
    assert user.send("new-1", "new-1")[0] == "sent", "the other one tells"
    first.start()
    wait_until(lambda: brokers_of(first.port, "t"))
    first.kill()
    second.kill()
    for number in range(5):
        user.goes_on("t", f"without-both-{number}")
    assert user.send("nowhere", "lost")[1:] == ["lost", "Unreachable"]
    first.start()
    second.start()
    wait_until(lambda: brokers_of(first.port, "t") and brokers_of(second.port, "t"))
    user.goes_on("t", "again")
    assert user.send("new-2", "new-2")[0] == "sent"
    assert user.close() == 0


@pytest.mark.slow
def test_sending_and_consuming_go_on_when_a_broker_is_killed(
    start_server: StartServer, name_servers: MakeNameServer, program: StartProgram
) -> None:
    """It is out of the routes at once; what is sent goes to the other one."""
    first, second, names = started(name_servers)
    one = start_server(**options(names, "a"))
    other = start_server(**options(names, "b"))
    for server in (one, other):
        create = {"topic": "t", "readQueueNums": "2", "writeQueueNums": "2", "perm": "6"}
        assert ask(server.rocketmq_port, CREATE_TOPIC, **create)[0]["code"] == 0
    for name_server in (first, second):
        wait_until(partial(has_brokers, name_server, {"a", "b"}))
    user = program(names, "t")
    taken: set[str] = set()
    while taken != {"a", "b"}:
        taken.add(user.goes_on("t", f"both-{time.monotonic_ns()}"))
    one.kill()
    killed = time.monotonic()
    assert {user.goes_on("t", f"alone-{number}") for number in range(6)} == {"b"}
    for name_server in (first, second):
        wait_until(partial(has_brokers, name_server, {"b"}))
    assert time.monotonic() - killed < 30, "at once, as the documentation says, and not by silence"
    assert user.close() == 0
