"""The sink on a Spark cluster: a master and a worker that have nothing but the wheel.

The wheel is built and installed, with its extra `spark`, in an environment outside the tree, and no
Java is on the PATH: so this also shows that `pip install 'polymq[spark]'` is all it takes.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import duckdb
import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from interop_tests.conftest import Server

pytestmark = [pytest.mark.spark, pytest.mark.slow(seconds=90)]

ROOT = Path(__file__).resolve().parents[1]
FILES = ("pyproject.toml", "setup.py", "README.md", "LICENSE")
COMMAND_SECONDS_MAX = 300.0
START_SECONDS_MAX = 90.0
LOOK_SECONDS = 0.05


def run(command: Sequence[str | Path], *, environment: dict[str, str], directory: Path) -> str:
    ended = subprocess.run(
        command,
        env=environment,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS_MAX,
        check=False,
    )
    assert ended.returncode == 0, f"{command}:\n{ended.stdout}\n{ended.stderr[-4000:]}"
    return ended.stdout


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    """Deleted at once: an environment with Spark has almost a gigabyte."""
    with tempfile.TemporaryDirectory(prefix="polymq-cluster-") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def environment(directory: Path) -> dict[str, str]:
    """This process's environment without the tree, and with all commands of the machine but Java:
    Spark's scripts need a shell and the usual tools."""
    tools = directory / "tools"
    tools.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        for command in Path(folder).glob("*") if "venv" not in folder else ():
            if not command.name.startswith("java") and not (tools / command.name).exists():
                (tools / command.name).symlink_to(command)
    dropped = ("POLYMQ_", "PYTHON", "JAVA_", "SPARK_", "PYSPARK_", "VIRTUAL_ENV", "XDG_CACHE_HOME")
    stored = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    assert shutil.which("java", path=str(tools)) is None
    changed = {
        "PATH": str(tools),
        "XDG_CACHE_HOME": str(directory / "cache"),
        # Four Java machines that mostly start up.
        "JAVA_TOOL_OPTIONS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }
    return {**stored, **changed}


@pytest.fixture(scope="module")
def python(directory: Path, environment: dict[str, str]) -> Path:
    """The Python of an environment with the wheel and its extra `spark`."""
    source = directory / "source"
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.c")
    shutil.copytree(ROOT / "polymq", source / "polymq", ignore=ignored)
    for name in FILES:
        shutil.copy(ROOT / name, source)
    # The kernels are not what is tested here: without a compiler they stay in Python, and the
    # wheel is there in seconds.
    built = {**os.environ, "CC": "/bin/false", "POLYMQ_KERNELS": ""}
    wheels = directory / "wheels"
    build: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
    ]
    run([*build, "--wheel-dir", wheels, source], environment=built, directory=directory)
    (wheel,) = wheels.glob("polymq-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        tops = {name.partition("/")[0] for name in packed.namelist()}
    assert {name for name in tops if not name.endswith(".dist-info")} == {"polymq"}
    venv.create(directory / "venv", with_pip=True)
    python = directory / "venv" / "bin" / "python"
    # The pip cache of the user serves again; everything else is looked for from scratch.
    cached = {**environment, "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", "")}
    cached = {name: value for name, value in cached.items() if value}
    # Of the thousands of modules, Python compiles those that are used.
    install: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--no-compile"]
    run([*install, f"{wheel}[spark]"], environment=cached, directory=directory)
    return python


class Daemon:
    """A Spark master or worker."""

    def __init__(self, command: list[str], environment: dict[str, str], log_path: Path) -> None:
        self.log_path = log_path
        with log_path.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                env=environment,
                cwd=log_path.parent,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def wait_for(self, pattern: str) -> str:
        """The first group of the pattern, once the daemon has said it."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            text = self.log_path.read_text(errors="replace")
            if found := re.search(pattern, text):
                return found[1]
            try:
                self.process.wait(LOOK_SECONDS)
            except subprocess.TimeoutExpired:
                assert time.monotonic() < deadline, text[-4000:]
            else:
                raise AssertionError(text[-4000:])

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(START_SECONDS_MAX)


@pytest.fixture
def master(python: Path, directory: Path, environment: dict[str, str]) -> Iterator[str]:
    """The address of a running master with one worker."""
    ask_java: list[str | Path] = [python, "-m", "polymq.spark_sink.java"]
    java_home = run(ask_java, environment=environment, directory=directory).strip()
    ask_home: list[str | Path] = [python, "-c", "import pyspark; print(pyspark.__path__[0])"]
    spark_home = run(ask_home, environment=environment, directory=directory).strip()
    assert Path(java_home).is_relative_to(directory)  # the packaged Java, in its wrapper
    daemons: list[Daemon] = []

    def start(name: str, kind: str, *arguments: str) -> Daemon:
        folder = directory / name
        folder.mkdir()
        command = [f"{spark_home}/bin/spark-class", f"org.apache.spark.deploy.{kind}"]
        settings = {"JAVA_HOME": java_home, "SPARK_HOME": spark_home, "SPARK_LOCAL_IP": "127.0.0.1"}
        local = ["--host", "127.0.0.1", "--webui-port", "0", *arguments]
        daemon = Daemon(command + local, {**environment, **settings}, folder / "log")
        daemons.append(daemon)
        return daemon

    try:
        address = start("master", "master.Master", "--port", "0").wait_for(
            r"Starting Spark master at (spark://\S+)"
        )
        worker = start("worker", "worker.Worker", "-c", "2", "-m", "2g", "-d", "work", address)
        worker.wait_for(r"Successfully registered with master (\S+)")
        yield address
    finally:
        for daemon in reversed(daemons):
            daemon.stop()


def test_executors_write_the_files_with_nothing_but_the_wheel(
    server: Server, master: str, python: Path, directory: Path, environment: dict[str, str]
) -> None:
    client = mqtt.Client(CallbackAPIVersion.VERSION2)
    client.connect(server.host, server.mqtt_port)
    client.loop_start()
    bodies = [b"reading %d" % number for number in range(500)]
    for message in [client.publish("sensors/room/temp", body, qos=1) for body in bodies]:
        message.wait_for_publish(30)
    client.disconnect()
    client.loop_stop()

    where: list[str | Path] = [python, "-c", "import polymq.spark_sink as s; print(s.__file__)"]
    installed = run(where, environment=environment, directory=directory)
    assert Path(installed.strip()).is_relative_to(directory)
    command: list[str | Path] = [python, "-m", "polymq", "sink", "--once", "--master", master]
    command += ["--broker", f"{server.host}:{server.rocketmq_port}"]
    command += ["--output", directory / "lake", "--checkpoint", directory / "checkpoint"]
    local = {**environment, "SPARK_LOCAL_IP": "127.0.0.1"}
    run(command, environment=local, directory=directory)

    query = f"""
        SELECT topic, queue_id, queue_offset, sha256(body)
        FROM read_parquet('{directory}/lake/**/*.parquet')
    """
    assert Counter(duckdb.execute(query).fetchall()) == Counter(
        ("sensors", 0, offset, hashlib.sha256(body).hexdigest())
        for offset, body in enumerate(bodies)
    )
    # The worker ran an application's executor: the driver did not do the work itself.
    assert list((directory / "worker" / "work").glob("app-*/0/stderr"))
