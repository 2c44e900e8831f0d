"""Check an installed PolyMQ: compiled, able to serve, and as quick as compiled kernels are.

    python packaging/check_installation.py [--pure]

Run it with the interpreter of the installation, anywhere but in the source tree's root: a wheel is
to be tested, not the tree. It starts a server on ports that the system chooses, has it acknowledge
messages from an MQTT client, stops it, and prints the figures. It needs no other package.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import polymq
from polymq.kernel_forms import FORM, missing_kernels

MESSAGES: Final = 20_000
START_SECONDS_MAX: Final = 60.0
ANSWER_SECONDS_MAX: Final = 60.0
LISTENERS: Final = ("mqtt", "amqp", "http", "rocketmq", "names", "admin")
CONNECT: Final = bytes.fromhex("100f00044d5154540402003c0003636869")
"""MQTT 3.1.1, clean session, client id `chi`."""
CONNACK: Final = bytes.fromhex("20020000")
TOPIC: Final = b"check/installation"
PUBACK_BYTES: Final = 4


def main() -> None:
    """Check everything, and end with a line on stderr if something is wrong."""
    wanted = "pure" if "--pure" in sys.argv[1:] else "compiled"
    if wanted != FORM:
        missing = ", ".join(missing_kernels()) or "all kernels"
        sys.exit(f"the kernels are {FORM}, not {wanted}: {missing}")
    started = time.perf_counter()
    with server() as ports:
        up = time.perf_counter()
        acknowledged = publish(ports["mqtt"])
        seconds = time.perf_counter() - up
    print(f"polymq {polymq.program_version()} at {Path(polymq.__file__).parent}")
    print(f"Python {sys.version.split()[0]}, kernels {FORM}")
    print(f"started in {up - started:.1f} s")
    print(f"{acknowledged:,} messages with QoS 1 acknowledged in {seconds:.2f} s")


@contextmanager
def server() -> Iterator[dict[str, int]]:
    """A server with an empty data directory; its ports. It has to stop in order."""
    with tempfile.TemporaryDirectory(prefix="polymq-check-") as directory:
        ready = Path(directory, "ready.json")
        ports = [f"--{name}-port=0" for name in LISTENERS]
        command = [sys.executable, "-m", "polymq", "serve", *ports]
        environment = {**os.environ, "POLYMQ_LOG__LEVEL": "warning"}
        process = subprocess.Popen(
            [*command, f"--data-directory={directory}/data", f"--ready-file={ready}"],
            cwd=directory,
            env=environment,
        )
        try:
            yield wait_for(ready, process)
            process.send_signal(signal.SIGTERM)
            if process.wait(START_SECONDS_MAX) != 0:
                sys.exit(f"the server ended with exit code {process.returncode}")
        finally:
            process.kill()
            process.wait()


def wait_for(ready: Path, process: subprocess.Popen[bytes]) -> dict[str, int]:
    """The ports, as soon as the server has written them."""
    deadline = time.monotonic() + START_SECONDS_MAX
    while not ready.exists():
        if process.poll() is not None:
            sys.exit(f"the server ended at its start with exit code {process.returncode}")
        if time.monotonic() > deadline:
            sys.exit(f"the server was not ready within {START_SECONDS_MAX:g} s")
        time.sleep(0.02)
    found: dict[str, int] = json.loads(ready.read_text(encoding="utf-8"))
    return found


def publish(port: int) -> int:
    """Publish all messages, and wait for all acknowledgements; how many came."""
    with socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS_MAX) as client:
        client.sendall(CONNECT)
        if read(client, len(CONNACK)) != CONNACK:
            sys.exit("the server did not accept an MQTT client")
        for first in range(1, MESSAGES + 1, 1_000):
            identifiers = range(first, min(first + 1_000, MESSAGES + 1))
            client.sendall(b"".join(map(packet, identifiers)))
            read(client, PUBACK_BYTES * len(identifiers))
    return MESSAGES


def packet(identifier: int) -> bytes:
    """PUBLISH with QoS 1."""
    rest = len(TOPIC).to_bytes(2, "big") + TOPIC + identifier.to_bytes(2, "big") + b"20.5"
    return bytes([0x32, len(rest)]) + rest


def read(client: socket.socket, count: int) -> bytes:
    """So many bytes from the server."""
    received = b""
    while len(received) < count:
        received += (more := client.recv(count - len(received)))
        if not more:
            sys.exit("the server closed the connection")
    return received


if __name__ == "__main__":
    main()
