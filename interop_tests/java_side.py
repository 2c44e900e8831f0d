"""A broker, a name server and a Java machine with Apache's clients, for tests."""

from __future__ import annotations

import base64
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from interop_tests.conftest import Server
from interop_tests.java import JavaDriver, need_clients
from interop_tests.name_server import NameServer, wait_until
from interop_tests.remoting_wire import Client

SECONDS_MAX = 60.0
POLYMQ = (sys.executable, "-m", "polymq")


class Side:
    """A broker, and a Java machine with clients of one generation.

    Attributes:
        names: `host:port` of the name server that the clients ask.
        opened: names of the clients that are open.
    """

    def __init__(self, generation: str, server: Server, driver: JavaDriver, names: str) -> None:
        self.generation = generation
        self.server = server
        self.driver = driver
        self.names = names
        self._number = 0
        self.opened: list[str] = []

    def name(self, kind: str) -> str:
        """One that was not used before."""
        self._number += 1
        return f"{kind}{self._number}"

    def producer(self, **options: object) -> Callable[..., dict[str, Any]]:
        """Make a producer; what is returned sends, or gives it another command."""
        name = self.name("producer")
        self.driver.ask("producer", name=name, group=name, **options)
        self.opened.append(name)

        def give(topic: str, body: bytes, command: str = "send", **more: object) -> dict[str, Any]:
            more = {"name": name, "topic": topic, "body": encoded(body), **more}
            return self.driver.ask(command, **more)

        return give

    def consumer(
        self, topic: str, group: str | None = None, kind: str = "consumer", **more: object
    ) -> str:
        """Make a consumer; its name."""
        name = self.name("consumer")
        made = self.driver.ask(kind, name=name, group=group or name, topic=topic, **more)
        assert "error" not in made, made
        self.opened.append(name)
        return name

    def received(self, *names: str) -> list[dict[str, Any]]:
        return [line for line in self.driver.said if line.get("consumer") in names]

    def bodies(self, *names: str) -> list[bytes]:
        return [base64.b64decode(line["body"]) for line in self.received(*names)]

    def close(self, *names: str) -> None:
        """Close clients; those that a test leaves are closed after it."""
        for name in names or list(self.opened):
            self.driver.ask("close", name=name)
            self.opened.remove(name)

    def make_topic(self, name: str, queues: int = 4) -> str:
        """A topic with several queues."""
        request = urllib.request.Request(
            f"http://{self.server.host}:{self.server.admin_port}/api/v1/topics/{name}",
            data=b'{"queues": %d}' % queues,
            method="PUT",
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            assert answer.status == 201
        wait_until(lambda: has_route(self.names, name))  # consumers ask again after 30 seconds only
        return name

    def until(self, condition: Callable[[], object]) -> None:
        self.driver.until(condition, SECONDS_MAX)


def encoded(body: bytes) -> str:
    return base64.b64encode(body).decode()


def has_route(names: str, topic: str) -> bool:
    """Whether a name server knows the topic."""
    host, _, port = names.rpartition(":")
    with Client(host, int(port)) as client:
        return client.ask(105, topic=topic).code == 0


@contextmanager
def open_side(
    generation: str, directory: Path, more: Mapping[str, object] | None = None
) -> Iterator[Side]:
    """Start all three; they end with the context. What the clients said is printed.

    Args:
        more: properties of the Java machine.
    """
    class_path = need_clients(generation)
    names = NameServer(directory / "names")
    names.start()
    server = Server(
        directory / "server", {"names.servers": f'["127.0.0.1:{names.port}"]'}, {}, POLYMQ
    )
    server.start()
    listener = f"{server.host}:{server.rocketmq_port}"
    asked, serialize = (
        (listener, "JSON") if generation == "4" else (f"127.0.0.1:{names.port}", "ROCKETMQ")
    )
    wait_until(lambda: has_route(asked, "TBW102"))  # until the broker has registered
    with (directory / "java.log").open("w") as log:
        driver = JavaDriver(
            class_path, asked, serialize=serialize, home=directory, log=log, more=more
        )
        try:
            yield Side(generation, server, driver, asked)
        finally:
            driver.close()
            server.kill()
            names.kill()
    print((directory / "java.log").read_text()[-6000:])
