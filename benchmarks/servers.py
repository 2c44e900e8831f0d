"""The servers that are compared: started on free ports of loopback, in directories of their own.

Rules:

* A system service is never touched: each server here has its own configuration, data directory,
  ports and, for RabbitMQ, node name, cookie and port mapper. All of them end by their process id.
* The peers get their fastest setting: mosquitto without persistence and without limits on queues,
  RabbitMQ with classic queues, without plugins, and without the busy waiting that would count as
  work. PolyMQ runs as it is delivered, every message in the log and acks after fdatasync; and,
  where a scenario has acks, once more with acks from the page cache.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from benchmarks.errors import BenchmarkFailed
from benchmarks.machine import HOST, ROOT, free_port, pinned, process_tree
from benchmarks.scenarios import Protocol

READY_SECONDS_MAX: Final = 90.0
STOP_SECONDS_MAX: Final = 30.0
STORED_SECONDS_MAX: Final = 15.0
LOOK_SECONDS: Final = 0.02
LOG_LINES_SHOWN: Final = 15


class Server(ABC):
    """A server process.

    Attributes:
        name, protocols: for the report, and for which scenarios it is there.
        ports: by protocol, known after the start.
    """

    name: ClassVar[str]
    protocols: ClassVar[tuple[Protocol, ...]]

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self.directory = directory
        self.ports: dict[Protocol, int] = {}
        self._processes: list[subprocess.Popen[bytes]] = []
        self._log_path = directory / "output.log"

    @abstractmethod
    def start(self) -> None:
        """Start, and return when clients can connect. Raises BenchmarkFailed."""

    @property
    def process_ids(self) -> list[int]:
        """The processes whose processor time counts."""
        return process_tree(self._processes[-1].pid)

    def stop(self) -> None:
        """End what was started, the last first, and wait for it."""
        for process in reversed(self._processes):
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(STOP_SECONDS_MAX)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        self._processes.clear()

    def _launch(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        within: Path | None = None,
    ) -> None:
        """Start a process in its own directory, where it may leave what it likes (RabbitMQ does,
        when it is ended in the middle of something), or in another one."""
        with self._log_path.open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    [*pinned("server"), *command],
                    cwd=within or self.directory,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **(environment or {})},
                )
            )

    def _wait_until(self, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not ready():
            if self._processes[-1].poll() is not None:
                raise BenchmarkFailed(f"{self.name} ended at its start:\n{self._log_tail()}")
            if time.monotonic() > deadline:
                raise BenchmarkFailed(f"{self.name} is not ready in time:\n{self._log_tail()}")
            time.sleep(LOOK_SECONDS)

    def _log_tail(self) -> str:
        lines = self._log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-LOG_LINES_SHOWN:])


class PolyMQ(Server):
    """The server of this tree, with its default configuration.

    Args:
        kernels: `compiled`, `pure`, or empty for what is there.
    """

    name = "PolyMQ"
    protocols: ClassVar[tuple[Protocol, ...]] = ("mqtt", "mqtt_ws", "amqp")
    durability: ClassVar = "fsync"
    """What an acknowledgement means in all topics."""

    def __init__(
        self, directory: Path, *, kernels: str = "", settings: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(directory)
        self._kernels = kernels
        self._settings = settings or {}
        self._admin_port = 0

    def start(self) -> None:
        ready_file = self.directory / "ready.json"
        settings = {
            f"{listener}.port": "0" for listener in ("mqtt", "amqp", "http", "rocketmq", "admin")
        }
        settings |= {"mqtt.websocket": "true", "mqtt.websocket_port": "0"}
        settings["server.data_directory"] = str(self.directory / "data")
        settings["names.enabled"] = "false"
        settings["log.level"] = "warning"
        settings["topics.durability"] = self.durability
        settings.update(self._settings)
        arguments = [part for pair in settings.items() for part in ("--set", "=".join(pair))]
        environment = {"POLYMQ_KERNELS": self._kernels} if self._kernels else {}
        serve = [sys.executable, "-m", "polymq", "serve", "--ready-file", str(ready_file)]
        self._launch([*serve, *arguments], environment, within=ROOT)
        self._wait_until(ready_file.exists)
        ready = json.loads(ready_file.read_text(encoding="utf-8"))
        self.ports = {protocol: ready[protocol] for protocol in self.protocols}
        if "mqtts" in ready:
            self.ports["mqtts"] = ready["mqtts"]
        self._admin_port = ready["admin"]

    @property
    def kernels(self) -> dict[str, str]:
        """Which form each package's kernels have in the running server."""
        return dict(self._ask("health")["kernels"])

    def stored_count(self) -> int:
        """Messages in the log, in all topics, as far as they are on the disk."""
        return sum(
            topic["message_count"] for topic in self._ask("api/v1/topics?limit=500")["items"]
        )

    def wait_stored(self, count: int) -> int:
        """Wait until the log holds `count` messages (what nobody waits for is flushed a little
        later); returns how many it holds."""
        deadline = time.monotonic() + STORED_SECONDS_MAX
        while (stored := self.stored_count()) < count and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
        return stored

    def memory_bytes(self) -> int:
        """Resident bytes."""
        status = Path(f"/proc/{self.process_ids[0]}/status").read_text(encoding="utf-8")
        (line,) = [line for line in status.splitlines() if line.startswith("VmRSS:")]
        return int(line.split()[1]) * 1024

    def cpu_seconds(self) -> float:
        """Processor time since its start, of all threads."""
        fields = Path(f"/proc/{self.process_ids[0]}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _ask(self, what: str) -> Any:
        address = f"http://{HOST}:{self._admin_port}/{what}"
        with urllib.request.urlopen(address, timeout=STORED_SECONDS_MAX) as answer:
            return json.load(answer)


class PolyMQPageCache(PolyMQ):
    """The same with acknowledgements that do not wait for the disk, as the peers' do not."""

    name = "page cache"
    durability = "page_cache"


class Mosquitto(Server):
    """Eclipse mosquitto, from Debian's package or any other place on the path."""

    name = "mosquitto"
    protocols = ("mqtt", "mqtt_ws")

    CONFIGURATION: ClassVar = """\
listener {port} 127.0.0.1
listener {websocket_port} 127.0.0.1
protocol websockets
socket_domain ipv4
allow_anonymous true
persistence false
max_inflight_messages 0
max_queued_messages 0
set_tcp_nodelay true
log_dest stderr
log_type error
"""

    @staticmethod
    def program() -> str | None:
        """Where it is installed."""
        return shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

    @classmethod
    def version(cls) -> str:
        """What it says of itself."""
        said = subprocess.run(
            [cls.program() or "mosquitto", "-h"], capture_output=True, text=True, check=False
        )
        found = re.search(r"mosquitto version (\S+)", said.stdout)
        return found[1] if found else "?"

    def start(self) -> None:
        program = self.program()
        assert program is not None
        port = self.ports["mqtt"] = free_port()
        websocket_port = self.ports["mqtt_ws"] = free_port()
        # As root it would take another user, who cannot read what root starts it with.
        user = "user root\n" if os.geteuid() == 0 else ""
        configuration = self.directory / "mosquitto.conf"
        text = self.CONFIGURATION.format(port=port, websocket_port=websocket_port)
        configuration.write_text(text + user, encoding="utf-8")
        self._launch([program, "-c", str(configuration)])
        self._wait_until(lambda: _answers(port, b"\xc0\x00"))


class RabbitMQ(Server):
    """RabbitMQ as Debian packages it, with an Erlang port mapper of its own."""

    name = "RabbitMQ"
    protocols = ("amqp",)

    SCRIPT: ClassVar = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
    CONFIGURATION: ClassVar = """\
listeners.tcp.1 = 127.0.0.1:{port}
log.console = false
log.file.level = error
"""
    ERLANG_OPTIONS: ClassVar = (
        "+sbwt none +sbwtdcpu none +sbwtdio none -kernel inet_dist_use_interface {127,0,0,1}"
    )

    @classmethod
    def program(cls) -> str | None:
        """Where it is installed. The script on the path would start the system's node."""
        return str(cls.SCRIPT) if cls.SCRIPT.exists() and shutil.which("epmd") else None

    @classmethod
    def version(cls) -> str:
        """The version in the package's directory name."""
        names = [path.name for path in cls.SCRIPT.parent.parent.glob("lib/rabbitmq_server-*")]
        return names[0].partition("-")[2] if names else "?"

    def start(self) -> None:
        port = self.ports["amqp"] = free_port()
        mapper_port = str(free_port())
        configuration = self.directory / "rabbitmq.conf"
        configuration.write_text(self.CONFIGURATION.format(port=port), encoding="utf-8")
        # Erlang would start a port mapper that outlives it: this one ends with the benchmark.
        self._launch(["epmd", "-port", mapper_port, "-address", HOST])
        environment = {
            "HOME": str(self.directory),
            "ERL_EPMD_PORT": mapper_port,
            "ERL_EPMD_ADDRESS": HOST,
            "RABBITMQ_NODENAME": f"polymq-benchmark-{os.getpid()}@localhost",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_CONFIG_FILE": str(configuration),
            "RABBITMQ_CONF_ENV_FILE": str(self.directory / "none.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.directory / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(self.directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.directory / "log"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(self.directory / "generated"),
            "RABBITMQ_FEATURE_FLAGS_FILE": str(self.directory / "feature_flags"),
            "RABBITMQ_PID_FILE": str(self.directory / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": self.ERLANG_OPTIONS,
            # The script then becomes the server instead of waiting for it as a shell.
            "RUNNING_UNDER_SYSTEMD": "true",
        }
        self._launch([str(self.SCRIPT)], environment)
        self._wait_until(lambda: _answers(port, b"AMQP\x00\x00\x09\x01"))


PEERS: Final[tuple[type[Mosquitto] | type[RabbitMQ], ...]] = (Mosquitto, RabbitMQ)


def _answers(port: int, hello: bytes) -> bool:
    """Whether somebody takes a connection there, and reacts: with an answer, or by closing."""
    try:
        with socket.create_connection((HOST, port), timeout=1) as probe:
            probe.settimeout(READY_SECONDS_MAX)
            probe.sendall(hello)
            probe.recv(1)
    except ConnectionResetError:
        return True
    except OSError:
        return False
    return True
