"""Promotions that would lose something, and brokers that come back with what their new master
lacks, as processes."""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from interop_tests.conftest import Server
from interop_tests.ledger.ports import lasting_ports
from interop_tests.replica_kills import COMMAND, Pair, ask, status, wait
from interop_tests.test_log_deletion import publish, store_of

MESSAGES_COUNT = 60
ADDRESSES = ("m", "s1", "s2")


class Trio:
    """Three brokers that ask for two disks. The first one leads."""

    def __init__(self, directory: Path) -> None:
        secret = directory / "secret"
        secret.touch(mode=0o600)
        secret.write_text(secrets.token_hex(32))
        self.addresses = [f"127.0.0.1:{port}" for port in list(lasting_ports().values())[:3]]
        self.servers = [
            Server(
                directory / name,
                {
                    **lasting_ports(),
                    "storage.segment_bytes": 1024 * 1024,
                    "replication.role": "slave" if number else "master",
                    "replication.name": name,
                    "replication.listen": self.addresses[number],
                    "replication.master": self.addresses[0] if number else "",
                    "replication.secret_file": secret,
                    "replication.min_in_sync": 2,
                },
                {},
                COMMAND,
            )
            for number, name in enumerate(ADDRESSES)
        ]

    def follow(self, number: int, master: int) -> None:
        """Start a broker as another one's slave."""
        server = self.servers[number]
        server.configure(
            **{"replication.role": "slave", "replication.master": self.addresses[master]}
        )
        server.start()

    def close(self) -> None:
        """End all of them."""
        for server in self.servers:
            server.close(sys.stdout)


def command(server: Server, *texts: str) -> subprocess.CompletedProcess[str]:
    """What an operator types."""
    return subprocess.run(
        [*COMMAND, *texts, "--data-directory", str(server.data_directory)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def has_diverged(server: Server) -> bool:
    return "diverged" in status(server)


def follows(server: Server) -> None:
    """Wait until it follows."""
    wait(server, lambda: bool(status(server).get("following")), "slave that follows")


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[Trio]:
    """Three brokers, not started."""
    made = Trio(tmp_path)
    yield made
    made.close()


@pytest.mark.slow
def test_two_of_three_die_and_the_one_behind_is_promoted(trio: Trio) -> None:
    """Messages are acknowledged with the disks of the master and of one slave; both die at once,
    and the other slave, which was away, is promoted by force. Neither cuts anything: both say what
    they have. One is told to give it up; the other still has all of it, and leads again."""
    m, s1, s2 = trio.servers
    for server in trio.servers:
        server.start()
    for slave in (s1, s2):
        follows(slave)
    publish(m, 3)
    wait(s2, lambda: status(s2)["flushed"] == status(m)["flushed"], "copy")
    s2.kill()
    publish(m, MESSAGES_COUNT)
    for server in (m, s1):
        server.kill()
    s2.start()
    refused = command(s2, "broker", "promote")
    assert refused.returncode
    assert "it was stopped while it followed" in refused.stderr
    assert command(s2, "broker", "promote", "--force").returncode == 0
    for number, server in enumerate((m, s1)):
        trio.follow(number, 2)
        wait(server, partial(has_diverged, server), "refusal")
        found = status(server)["diverged"]
        assert found["promised"] >= MESSAGES_COUNT
        assert found["messages"] == MESSAGES_COUNT
        assert not status(server)["following"]
        text = command(server, "broker", "follow")
        assert text.returncode
        assert f"this broker has {MESSAGES_COUNT} messages" in text.stderr
        assert "may have been acknowledged" in text.stderr
    given_up = command(s1, "broker", "follow", "--force")
    assert given_up.returncode == 0, given_up.stderr
    assert f"{MESSAGES_COUNT} messages" in given_up.stdout
    follows(s1)
    listed = command(s1, "store", "cut", "list", "--json")
    (path,) = [json.loads(line)["path"] for line in listed.stdout.splitlines()]
    shown = command(s1, "store", "cut", "show", path, "--format", "json")
    assert len(shown.stdout.splitlines()) == MESSAGES_COUNT, shown.stderr
    assert store_of(s1)["cut_files"] == 1
    # Nothing is lost yet: the old master has all of it, and is promoted in the place of the other.
    s2.kill()
    assert command(m, "broker", "promote", "--force").returncode == 0
    assert status(m)["term"] == 2
    s1.kill()
    trio.follow(1, 0)
    wait(s1, lambda: ask_topic(m)["message_count"] == MESSAGES_COUNT + 3, "message")


def ask_topic(server: Server) -> dict[str, Any]:
    """The topic that was published to."""
    return ask(server, "GET", "/api/v1/topics/t")


@pytest.mark.slow
def test_a_promotion_says_what_would_be_lost(tmp_path: Path) -> None:
    """While its master answers, when it was stopped while it followed, and by the settings alone a
    slave is promoted by force only. When its master has gone first, it is promoted at once, and
    the answer is that of the master."""
    pair = Pair(tmp_path)
    with contextlib.ExitStack() as stack:
        stack.callback(pair.close)
        pair.start()
        publish(pair.leader, 1)
        pair.wait_equal()
        master, slave = pair.leader, pair.follower

        def refusal() -> str:
            with pytest.raises(AssertionError) as refused:
                ask(slave, "POST", "/api/v1/replication/promote")
            return str(refused.value)

        assert "answers, in term 0: stop it first" in refusal()
        slave.kill()
        slave.start()
        pair.wait_following()
        assert "it follows its master, which still" in refusal()
        assert "was stopped" not in refusal(), "it has followed since"
        assert status(slave)["following"]
        slave.kill()
        master.kill()
        slave.start()
        assert "it was stopped while it followed" in refusal()
        slave.kill()
        slave.configure(**{"replication.role": "master"})
        with pytest.raises(AssertionError):
            slave.start()
        assert any("It is not promoted" in line for line in slave.log_lines())
        slave.configure(**{"replication.role": "slave"})
        slave.start()
        master.start()
        pair.wait_following()
        master.kill()
        wait(slave, lambda: not status(slave)["following"], "end of the link")
        answer = ask(slave, "POST", "/api/v1/replication/promote")
        assert (answer["role"], answer["term"]) == ("master", 1)
        wait(slave, lambda: status(slave).get("role") == "master", "promotion")
        assert status(slave)["epoch"] == answer["epoch"]


@pytest.mark.slow
def test_a_slave_binds_its_port_at_its_start(tmp_path: Path) -> None:
    """A port that is taken ends the start, not the broker that is promoted; and nobody can take it
    between the roles."""
    pair = Pair(tmp_path)
    with contextlib.ExitStack() as stack:
        stack.callback(pair.close)
        address = pair.address(1)
        port = int(address.rpartition(":")[2])
        with socket.create_server(("127.0.0.1", port)):
            with pytest.raises(AssertionError):
                pair.servers[1].start()
            assert any(
                f"port {port} on 127.0.0.1 is taken" in line for line in pair.servers[1].log_lines()
            )
        pair.start()
        with pytest.raises(OSError, match="in use"):
            socket.create_server(("127.0.0.1", port))
        pair.leader.kill()
        pair.promote()
        with pytest.raises(OSError, match="in use"):
            socket.create_server(("127.0.0.1", port))
