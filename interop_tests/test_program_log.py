"""`polymq audit` and `polymq log` against a running server."""

from __future__ import annotations

import json
import subprocess
import sys

from interop_tests.conftest import Server
from interop_tests.people import Admin, basic, polymq


def caller_of(server: Server, user: str, password: str) -> Admin:
    made = Admin(server)
    made.authorization = basic(user, password)
    return made


def test_the_last_lines(server: Server) -> None:
    """As a table, as JSON, and with filters; the audit log and the rest are apart."""
    admin = Admin(server)
    admin.good("PUT", "/api/v1/topics/orders", {})
    admin.add("ann", "reader")
    admin.add("bob")
    table = polymq(server, "audit")
    assert table.returncode == 0, table.stderr
    lines = table.stdout.splitlines()
    assert lines[0].split() == ["TIME", "LEVEL", "EVENT", "VALUES"]
    assert "topic created" in lines[1], "the oldest is first"
    assert "user=bob" in lines[-1]
    found = json.loads(polymq(server, "audit", "--user", "ann", "--json").stdout)
    assert {row["values"]["user"] for row in found["items"]} == {"ann"}
    one = polymq(server, "audit", "--limit", "1")
    assert len(one.stdout.splitlines()) == 2
    assert "use --limit 0 for all" in one.stderr
    nothing = polymq(server, "audit", "--text", "no such text")
    assert (nothing.stdout, nothing.stderr) == ("", "There is no such line.\n")
    rest = json.loads(polymq(server, "log", "--json").stdout)
    assert rest["items"]
    assert "polymq.audit" not in {row["logger"] for row in rest["items"]}
    assert polymq(server, "log", "--level", "error").stdout == ""


def test_follow(server: Server) -> None:
    """New lines come until the server is gone, and each once."""
    admin = Admin(server)
    admin.add("first")
    command = [
        sys.executable,
        "-m",
        "polymq",
        "audit",
        "--follow",
        "--json",
        "--text",
        "user added",
    ]
    command += ["--data-directory", str(server.data_directory)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as made:
        assert made.stdout is not None
        assert made.stderr is not None
        assert json.loads(made.stdout.readline())["values"]["user"] == "first"
        admin.add("second")
        admin.add("third")
        for name in ("second", "third"):
            assert json.loads(made.stdout.readline())["values"]["user"] == name
        server.kill()
        assert made.wait(30) == 69
        assert "Traceback" not in made.stderr.read()


def test_a_reader_reads_them_and_no_password_is_in_them(server: Server) -> None:
    """Neither one that was right nor one that was wrong."""
    admin = Admin(server)
    admin.add("eve", "reader", password="right-password-1")
    wrong = caller_of(server, "eve", "wrong-password-2")
    assert wrong.ask("GET", "/api/v1/audit")[0] == 401
    eve = caller_of(server, "eve", "right-password-1")
    shown = json.dumps([eve.good("GET", "/api/v1/audit"), eve.good("GET", "/api/v1/log")])
    assert "login failed" in shown
    assert "password-" not in shown
    admin.add("plain", password="right-password-1")
    nobody = caller_of(server, "plain", "right-password-1")
    assert nobody.ask("GET", "/api/v1/log")[0] == 403
