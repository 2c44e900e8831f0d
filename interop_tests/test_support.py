"""What operators and containers ask a running server: `polymq health`, and a bundle for support."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile

from interop_tests.conftest import Server
from interop_tests.people import PASSWORD, polymq

SECONDS = 60
UNREACHABLE = 69


def test_health_follows_the_server(server: Server) -> None:
    """`ok` while it runs; another exit code when nobody is there."""
    healthy = polymq(server, "health")
    assert (healthy.returncode, healthy.stdout, healthy.stderr) == (0, "ok\n", "")
    assert server.terminate() == 0
    gone = polymq(server, "health", "--config", "/dev/null")
    assert gone.returncode == UNREACHABLE


def bundle(server: Server) -> dict[str, str]:
    """The files of a bundle that goes to standard output, as in a container."""
    command = [sys.executable, "-m", "polymq", "doctor", "--bundle", "-"]
    ended = subprocess.run(
        [*command, "--data-directory", str(server.data_directory)],
        capture_output=True,
        check=True,
        timeout=SECONDS,
    )
    files = {}
    with tarfile.open(fileobj=io.BytesIO(ended.stdout), mode="r:gz") as archive:
        for member in archive:
            file = archive.extractfile(member)
            assert file is not None
            files[member.name.partition("/")[2]] = file.read().decode()
    return files


def test_a_bundle_of_a_server_with_users(server: Server) -> None:
    """Everything is there, the log included, because this server logs to a file. The password of a
    user and the operator's token are not."""
    made = polymq(server, "user", "add", "ann", text=f"{PASSWORD}\n")
    assert made.returncode == 0, made.stderr
    token = (server.data_directory / "admin.token").read_text(encoding="ascii").strip()
    files = bundle(server)
    assert "missing.txt" not in files
    assert json.loads(files["health.json"])["status"] == "ok"
    assert "segments" in files["store.json"]
    assert "polymq_messages_stored_total" in files["metrics.txt"]
    assert '"event": "ready"' in files["log.txt"]
    everything = "".join(files.values())
    assert PASSWORD not in everything
    assert token not in everything
