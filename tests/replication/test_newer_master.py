"""A slave whose master runs a newer version: it stops with a sentence, and never saves a state that
lacks what it did not understand."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from polymq.broker.errors import UnknownChange
from tests.durability.running import Running, running
from tests.harness.broker import Broker
from tests.replication.test_link import Pair, run
from tests.replication.test_standby import copy

SECONDS_MAX = 30.0
NEWER = {"op": "newer+"}


def change_unknown_to_slaves(master: Broker) -> None:
    """As a newer version would make one."""
    journal = master.engine.core.journal
    journal.handle("newer+", lambda _op: [])
    journal.write(NEWER)
    master.step()


def test_the_state_is_not_saved_any_more(master: Broker, slave: Broker) -> None:
    """A start that took the saved state for that of the whole log would never know."""
    master.engine.port.topics.create("t", 1)
    copy(master, slave)
    slave.save()
    change_unknown_to_slaves(master)
    with pytest.raises(UnknownChange, match=r"the change 'newer\+', which"):
        copy(master, slave)
    assert slave.engine.begin_snapshot() is None
    standby = slave.engine.standby
    assert standby is not None
    with pytest.raises(UnknownChange):
        standby.take(b"whatever")
    slave.stop()
    with pytest.raises(UnknownChange, match=r"the change 'newer\+', which"):
        slave.open()


def test_contents_that_this_version_does_not_know(master: Broker, slave: Broker) -> None:
    """The name is known, and a field is missing: the sentence names both."""
    copy(master, slave)
    journal = master.engine.core.journal
    apply = journal.apply
    journal.apply = lambda op: None if op["op"] == "topic+" else apply(op)  # type: ignore[method-assign]
    journal.write({"op": "topic+", "renamed": "t"})
    journal.apply = apply  # type: ignore[method-assign]
    master.step()
    with pytest.raises(UnknownChange, match=r"'topic\+' with other contents \(KeyError: "):
        copy(master, slave)


def test_the_link_does_not_try_again(master: Broker, slave: Broker) -> None:
    """Whoever put it together is told once, and no further connection is made."""

    async def scenario(pair: Pair) -> None:
        await pair.follow()
        await pair.copied()
        change_unknown_to_slaves(master)
        await pair.until(lambda: bool(pair.refusals))
        link = pair.link
        assert link is not None
        assert link._task is not None
        await pair.until(link._task.done)
        assert len(pair.refusals) == 1
        assert "newer+" in pair.refusals[0]
        assert not link.following

    run(master, slave, scenario)


def slave_of(master: Running, directory: Path, secret: Path) -> list[str]:
    """The command of a slave."""
    config = directory / "slave.toml"
    assert master.ports.replication is not None
    ports = "".join(
        f"[{listener}]\nport = 0\n" for listener in ("mqtt", "amqp", "http", "rocketmq", "admin")
    )
    config.write_text(
        f'[server]\ndata_directory = "{directory / "slave"}"\n{ports}'
        '[log]\nformat = "json"\n[storage]\nsegment_bytes = 16777216\n'
        "[names]\nenabled = false\n"
        f'[replication]\nrole = "slave"\nname = "slave"\nsecret_file = "{secret}"\n'
        f'master = "127.0.0.1:{master.ports.replication}"\n'
    )
    return [sys.executable, "-m", "polymq", "serve", "--config", str(config)]


def until(condition: Callable[[], bool], log: Path) -> None:
    pause = threading.Event()
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, log.read_text()
        pause.wait(0.05)


@pytest.mark.slow
def test_a_slave_ends_with_one_line_and_the_code_of_such_a_start(tmp_path: Path) -> None:
    """Exit code 65, which keeps systemd from starting it again; and no traceback."""
    secret = tmp_path / "secret"
    secret.write_text("sixteen bytes or more")
    secret.chmod(0o600)
    options = {
        "replication__listen": "127.0.0.1:0",
        "replication__name": "master",
        "replication__secret_file": str(secret),
    }
    with running(tmp_path / "master", **options) as master:
        command = slave_of(master, tmp_path, secret)
        core = master.call(lambda: master._node.engine.core)
        log = tmp_path / "slave.log"
        with log.open("w") as errors_file:
            slave = subprocess.Popen(command, stderr=errors_file)
        try:
            until(lambda: "following the master" in log.read_text(), log)
            master.call(lambda: core.journal.handle("newer+", lambda _op: []))
            master.call(lambda: core.journal.write(NEWER))
            slave.wait(SECONDS_MAX)
        finally:
            slave.kill()
            slave.wait()
        errors = log.read_text()
        assert slave.returncode == 65, errors
        assert "Traceback" not in errors
        last = errors.strip().splitlines()[-1]
        assert last.startswith("polymq: this slave cannot follow its master 127.0.0.1:"), last
        assert "the change 'newer+', which this version does not know. Upgrade this broker" in last
        events = [json.loads(line) for line in errors.splitlines() if line.startswith("{")]
        assert not [event for event in events if "bug" in event["event"]]
        again = subprocess.run(
            command, stderr=subprocess.PIPE, text=True, timeout=SECONDS_MAX, check=False
        )
    assert again.returncode == 65
    assert "it has the change 'newer+'" in again.stderr.strip().splitlines()[-1]
