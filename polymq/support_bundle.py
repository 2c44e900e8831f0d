"""`polymq doctor --bundle`: what support needs to know of a server, in one file without secrets.

Rules:

* Every part is text, and every text goes through the same `Remover` on its way into the file.
* A part that cannot be had is a line in `missing.txt`, and the others are written all the same: a
  bundle is wanted when something does not work.
* No message, and no file of the data directory but through the server's own reports.
"""

from __future__ import annotations

import io
import json
import os
import platform
import re
import resource
import shutil
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any, Final

from polymq import program_version
from polymq.admin.client import api_path
from polymq.commands.access import admin_client_of
from polymq.doctor import examine
from polymq.errors import ExitCode, Failure
from polymq.hiding import Remover, remover_for, without_secrets
from polymq.kernel_forms import FORM, missing_kernels
from polymq.ports import running_server
from polymq.render import render_toml
from polymq.settings import ENVIRONMENT_PREFIX, Settings

LOG_BYTES_MAX: Final = 1024 * 1024
"""Of the log's end: some thousand lines, and still a mail."""
FOLDER: Final = "polymq-support"
"""Of all files in the bundle."""
STANDARD_OUTPUT: Final = Path("-")
ABOUT: Final = """\
What `polymq doctor --bundle` found on a machine that runs PolyMQ.

  doctor.txt     the checks of `polymq doctor`
  versions.txt   PolyMQ, Python, libraries, and the form of the kernels
  platform.txt   system, processor, memory, disk, limits of a process
  settings.toml  the configuration in force; secrets are hidden
  health.json, store.json, metrics.txt   what a running server says of itself
  log.txt        the end of its log, if that is a file
  missing.txt    what could not be had, and why

No message is in here, and no secret of the configuration. Names of users, clients and topics, and
addresses may be in the log and in the store's report.
"""
_LIBRARY: Final = re.compile(r"[\w.-]+")
"""The name of a library, at the beginning of what says which versions of it fit."""
_OS_RELEASE: Final = Path("/etc/os-release")
_MEMORY_MAX: Final = Path("/sys/fs/cgroup/memory.max")
"""What a container or a unit may use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A file of the bundle.

    Attributes:
        text: makes what is in it. Raises Failure or OSError, if it cannot be had.
    """

    name: str
    text: Callable[[], str]


def write_bundle(settings: Settings, file: Path, *, log_file: Path | None) -> None:
    """Write the bundle: readable by its owner only, and whole or not at all.

    Args:
        file: which must not exist; `-` is standard output.
        log_file: the server's log. None: what a running server has as its stderr, if it is a file.

    Raises:
        Failure: the file cannot be written.
    """
    content = make_bundle(parts_of(settings, log_file), remover_for(settings))
    if file == STANDARD_OUTPUT:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise _cannot_write(file, error) from error
    try:
        with os.fdopen(descriptor, "wb") as bundle:
            bundle.write(content)
    except OSError as error:
        file.unlink(missing_ok=True)
        raise _cannot_write(file, error) from error


def _cannot_write(file: Path, error: OSError) -> Failure:
    return Failure(ExitCode.CANNOT_CREATE, f"cannot write the bundle {file}: {error.strerror}")


def parts_of(settings: Settings, log_file: Path | None) -> Iterator[Part]:
    """All parts that there may be."""
    yield Part(name="README.txt", text=lambda: ABOUT)
    yield Part(name="doctor.txt", text=lambda: _findings(settings))
    yield Part(name="versions.txt", text=_versions)
    yield Part(name="platform.txt", text=lambda: _platform(settings))
    yield Part(name="settings.toml", text=lambda: render_toml(without_secrets(settings)))
    yield Part(name="health.json", text=lambda: _indented(_answer(settings, "/health")))
    yield Part(name="store.json", text=lambda: _indented(_answer(settings, api_path("store"))))
    yield Part(name="metrics.txt", text=lambda: _answer(settings, "/metrics"))
    yield Part(name="log.txt", text=lambda: _end_of_log(settings, log_file))


def make_bundle(parts: Iterator[Part], remove: Remover) -> bytes:
    """A tar.gz of the parts; those that cannot be had are named in `missing.txt`."""
    content, missing, now = io.BytesIO(), "", int(time.time())
    with tarfile.open(fileobj=content, mode="w:gz") as archive:

        def add(name: str, text: str) -> None:
            raw = remove(text).encode("utf-8", "replace")
            entry = tarfile.TarInfo(f"{FOLDER}/{name}")
            entry.size, entry.mtime, entry.mode = len(raw), now, 0o600
            archive.addfile(entry, io.BytesIO(raw))

        for part in parts:
            try:
                text = part.text()
            except (Failure, OSError) as error:
                missing += f"{part.name}: {error}\n"
            else:
                add(part.name, text)
        if missing:
            add("missing.txt", missing)
    return content.getvalue()


def _findings(settings: Settings) -> str:
    lines = (f"{one.status.value:<5} {one.name:<11} {one.text}\n" for one in examine(settings))
    return "".join(lines)


def _versions() -> str:
    missing = ", ".join(missing_kernels()) or "none"
    lines = [
        f"polymq {program_version()}",
        f"kernels: {FORM}, not compiled: {missing}",
        f"python {sys.version}",
        f"at {sys.executable}",
        *_libraries(),
    ]
    return "\n".join(lines) + "\n"


def _libraries() -> Iterator[str]:
    """What PolyMQ says that it needs, as far as it is installed."""
    try:
        wanted = requires("polymq") or []
    except PackageNotFoundError:
        return
    for name in sorted({found[0] for line in wanted if (found := _LIBRARY.match(line))}):
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            continue


def _platform(settings: Settings) -> str:
    lines = [f"system: {' '.join(platform.uname())}", f"C library: {' '.join(platform.libc_ver())}"]
    if _OS_RELEASE.is_file():
        lines.append(_OS_RELEASE.read_text(encoding="utf-8", errors="replace").strip())
    usable = sorted(os.sched_getaffinity(0))
    lines.append(f"processors: {os.cpu_count()}, of which usable: {len(usable)}")
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    lines.append(f"memory: {pages:,} bytes")
    if _MEMORY_MAX.is_file():
        lines.append(f"memory of the control group: {_MEMORY_MAX.read_text('ascii').strip()}")
    lines += _disk(settings.server.data_directory)
    for name in ("NOFILE", "AS", "DATA", "NPROC", "MEMLOCK", "FSIZE", "CORE"):
        soft, hard = map(_limit, resource.getrlimit(getattr(resource, f"RLIMIT_{name}")))
        lines.append(f"limit {name}: {soft}, at most {hard}")
    # Their values are in settings.toml, as far as they are settings.
    ours = sorted(key for key in os.environ if key.startswith(ENVIRONMENT_PREFIX))
    lines.append(f"variables: {', '.join(ours) or 'none'}")
    return "\n".join(lines) + "\n"


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else f"{value:,}"


def _disk(directory: Path) -> Iterator[str]:
    if not directory.is_dir():
        yield f"data directory: {directory.absolute()} is not there"
        return
    usage = shutil.disk_usage(directory)
    yield f"data directory: {directory.absolute()}"
    yield f"its disk: {usage.total:,} bytes, of which free: {usage.free:,}"


def _answer(settings: Settings, path: str) -> str:
    """What a running server answers, to the operator's token if we may read it. Raises Failure."""
    return admin_client_of(settings, None).request("GET", path)[1].decode("utf-8", "replace")


def _indented(document: str) -> str:
    value: Any = json.loads(document)
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _end_of_log(settings: Settings, log_file: Path | None) -> str:
    """Raises Failure, OSError."""
    found = log_file or _log_of(settings)
    with found.open("rb") as log:
        size = log.seek(0, os.SEEK_END)
        log.seek(max(0, size - LOG_BYTES_MAX))
        raw = log.read(LOG_BYTES_MAX)
    if size > LOG_BYTES_MAX:
        raw = raw.partition(b"\n")[2]  # the first line is cut
    return raw.decode("utf-8", "replace")


def _log_of(settings: Settings) -> Path:
    """The file that a running server logs to."""
    running = running_server(settings)
    if running is None:
        raise Failure(ExitCode.FAILED, "no server runs on the data directory: use --log-file")
    stream = Path(f"/proc/{running[0]}/fd/2")
    if not stream.is_file():  # a terminal, a pipe, the journal
        text = "the server does not log to a file: write its log to one, and use --log-file"
        raise Failure(ExitCode.FAILED, text)
    return stream
