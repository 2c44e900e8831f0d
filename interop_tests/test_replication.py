"""Two brokers as processes: one of them dies under load (a handful of `make replica-kills`), the
slave's log shrinks with its master's, and clients find them."""

from __future__ import annotations

import contextlib
import json
from functools import partial
from pathlib import Path

import pika
import pytest

from interop_tests.conftest import Server
from interop_tests.name_server import NameServer, wait_until
from interop_tests.remoting_wire import Client as RemotingWire
from interop_tests.remoting_wire import consumer
from interop_tests.replica_kills import (
    KINDS,
    Pair,
    differences,
    report,
    run_kills,
    status,
    wait,
)
from interop_tests.test_log_deletion import OPTIONS as SHORT_LIVED
from interop_tests.test_log_deletion import publish, store_of, wait_for
from interop_tests.test_tls import FILES, TLS


@pytest.mark.slow
def test_nothing_acked_is_lost_with_a_broker(tmp_path: Path) -> None:
    kills = run_kills(tmp_path, len(KINDS), seed=7)
    report(kills, 7, 0.0)
    assert kills.counts.total() == len(KINDS)
    assert kills.published.acked
    assert not kills.faults


@pytest.mark.slow
def test_a_slave_deletes_what_its_master_deletes(tmp_path: Path) -> None:
    """Both logs shrink while they are written; what both have is the same, byte for byte. The
    slave starts again without `state.db`, is promoted, and has what it should."""
    pair = Pair(tmp_path, dict(SHORT_LIVED))
    with contextlib.ExitStack() as stack:
        stack.callback(pair.close)
        pair.start()
        publish(pair.leader, 40)
        for server in pair.servers:
            wait_for(server, "it does not shrink", lambda value: value["start"] > 0)
        publish(pair.leader, 10, queue="q")
        end = pair.wait_equal()
        pair.follower.kill()
        for name in ("state.db", "state.db-wal", "state.db-shm", "store/checkpoint"):
            (pair.follower.data_directory / name).unlink(missing_ok=True)
        pair.follower.start()
        pair.wait_following()
        end = pair.wait_equal()
        assert store_of(pair.follower)["start"] > 0
        for server in pair.servers:
            server.kill()
        assert not differences(pair, end)
        pair.follower.configure(**{"replication.min_in_sync": 1})
        pair.follower.start()
        pair.promote(force=True)  # it was killed while it followed
        parameters = pika.ConnectionParameters("127.0.0.1", pair.leader.amqp_port)
        with pika.BlockingConnection(parameters) as connection:
            channel = connection.channel()
            assert channel.basic_get("q", auto_ack=True)[2] == b"kept"


@pytest.mark.slow
def test_a_master_that_was_replaced_takes_nothing(tmp_path: Path) -> None:
    """It dies, its slave is promoted, and somebody starts it again as what its settings say: it
    asks its peer before it opens its log, and is fenced; also when it asks nobody any more. As a
    slave it follows."""
    pair = Pair(tmp_path)
    with contextlib.ExitStack() as stack:
        stack.callback(pair.close)
        pair.start()
        old, new = pair.leader, pair.follower
        old.kill()
        pair.promote()
        assert status(new)["term"] == 1
        for peer in (old_peer := pair.address(1)), "":
            old.configure(**{"replication.master": peer})
            old.start()
            found = status(old)
            assert (found["role"], found["term"], found["led_in_term"]) == ("fenced", 0, 1), peer
            with pytest.raises(Exception, match="replaced as the master"):
                publish(old, 1)
            old.kill()
        old.configure(**{"replication.master": old_peer, "replication.role": "slave"})
        old.start()
        wait(old, lambda: bool(status(old).get("following")), "slave that follows")
        assert status(old)["term"] == 1
        publish(new, 1)


@pytest.mark.slow
def test_a_master_is_told_that_it_was_replaced(tmp_path: Path) -> None:
    """It was only cut off: the promoted one finds it, and it takes no more."""
    pair = Pair(tmp_path)
    with contextlib.ExitStack() as stack:
        stack.callback(pair.close)
        pair.start()
        old = pair.leader
        pair.promote(force=True)
        wait(old, lambda: status(old).get("role") == "fenced", "end of the old master")
        with pytest.raises(Exception, match="replaced as the master"):
            publish(old, 1)


@pytest.mark.slow
def test_the_log_crosses_the_network_encrypted(tmp_path: Path) -> None:
    """With TLS on both sides the slave follows, also over a promotion; a slave without TLS, or one
    that does not know the authority, says so and gets nothing."""
    secured = {
        **TLS,
        "replication.tls": "true",
        "replication.tls_ca": FILES / "ca.pem",
    }
    pair = Pair(tmp_path, dict(secured))
    with contextlib.ExitStack() as stack:
        stack.callback(pair.close)
        pair.start()
        publish(pair.leader, 1)
        pair.wait_equal()
        slave = pair.follower
        for changes, text in (
            ({"replication.tls_ca": ""}, "CERTIFICATE_VERIFY_FAILED"),
            ({"replication.tls": "false"}, "the connection to the master"),
        ):
            slave.kill()
            slave.configure(**{**secured, **changes})
            slave.start()
            wait(slave, partial(has_said, slave, text), "complaint")
            assert not status(slave)["following"]
        slave.kill()
        slave.configure(**secured)
        slave.start()
        pair.wait_following()


def has_said(server: Server, text: str) -> bool:
    return any(text in line for line in server.log_lines())


@pytest.mark.slow
def test_consumers_that_only_read_from_a_slave_register_there(tmp_path: Path) -> None:
    """The master is gone: heartbeats are taken at the slave, also of a group that nobody made, and
    each consumer hears of the other; the slave writes nothing."""
    pair = Pair(tmp_path)
    with contextlib.ExitStack() as stack:
        stack.callback(pair.close)
        pair.start()
        publish(pair.leader, 1)
        pair.wait_equal()
        pair.leader.kill()
        end = store_of(pair.follower)["end"]
        for name in ("one", "two"):
            wire = stack.enter_context(RemotingWire("127.0.0.1", pair.follower.rocketmq_port))
            assert wire.beat(name, consumers=[consumer("group", "t")]).code == 0
        answer = wire.ask(38, consumerGroup="group")
        assert sorted(json.loads(answer.body)["consumerIdList"]) == ["one", "two"]
        assert store_of(pair.follower)["end"] == end


@pytest.mark.slow
def test_clients_find_a_slave_through_its_name_server(tmp_path: Path) -> None:
    """It is in the routes beside its master, alone when that is gone, and as the master itself when
    it is promoted."""
    names = NameServer(tmp_path / "names")
    names.start()
    pair = Pair(
        tmp_path / "pair", {"names.servers": f'["127.0.0.1:{names.port}"]', "names.broker": "b"}
    )
    with contextlib.ExitStack() as stack:
        stack.callback(names.kill)
        stack.callback(pair.close)
        pair.start()
        publish(pair.leader, 1)
        pair.wait_equal()
        wire = stack.enter_context(RemotingWire("127.0.0.1", names.port))

        def brokers() -> dict[str, str]:
            answer = wire.ask(105, topic="t")
            if answer.code:
                return {}
            (broker,) = json.loads(answer.body)["brokerDatas"]
            addresses: dict[str, str] = broker["brokerAddrs"]
            return addresses

        master, slave = (f"127.0.0.1:{server.rocketmq_port}" for server in pair.servers)
        wait_until(lambda: set(brokers().values()) == {master, slave})
        assert brokers()["0"] == master
        pair.leader.kill()
        wait_until(lambda: list(brokers().values()) == [slave])
        assert "0" not in brokers()
        pair.promote()
        wait_until(lambda: brokers() == {"0": slave})
