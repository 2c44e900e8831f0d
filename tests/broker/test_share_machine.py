"""Shared subscriptions, whatever their members do: nothing is lost, and QoS 2 comes once."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from polymq.broker.port import REST, Session, shared_address
from polymq.broker.sessions.settings import (
    DROP_NEWEST,
    DROP_OLDEST,
    HASH_TOPIC,
    ROUND_ROBIN,
    STICKY,
    SessionSettings,
)
from tests.broker.test_engine_sessions import connect
from tests.broker.test_session_bytes import check_counts, waiting_bytes
from tests.harness.broker import Broker, SpyLink, at_qos

SHARE: Final = shared_address("g", ("a", REST))
KEEPER: Final = 0
"""Never unsubscribes, so that the share lives."""
MEMBERS: Final = ((False, 2), (False, 1), (True, 2), (True, 1), (True, 0))
"""Whether a member's session ends with its connection, and its QoS."""
BYTES_MAX: Final = 1_200
"""What may wait for a share that has a bound: some five messages."""
numbers_of_members = st.sampled_from(range(len(MEMBERS)))


class Members(RuleBasedStateMachine):
    """One share, and members that come, go, acknowledge and do not."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.mkdtemp(
            prefix="polymq-test-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")
        )
        self.broker = Broker(Path(self.directory) / "data")
        self.here: dict[int, tuple[Session, SpyLink]] = {}
        self.seen: dict[int, int] = {}  # publishes of each connection that were looked at
        self.unacked: dict[int, list[tuple[int, int, int]]] = {}  # number, QoS, packet id
        self.published: dict[int, int] = {}  # QoS of each message
        self.once: dict[int, int] = {}  # which client got a message with QoS 2
        self.acked: set[int] = set()
        self.sent: set[int] = set()
        self.strategy = ROUND_ROBIN
        self.come(KEEPER, 1000)

    @rule(strategy=st.sampled_from([ROUND_ROBIN, STICKY, HASH_TOPIC]))
    @precondition(lambda self: not self.published)
    def choose(self, strategy: str) -> None:
        """Before the first message: the server starts with another strategy."""
        self.begin(SessionSettings(share_strategy=strategy))  # type: ignore[arg-type]

    def begin(self, settings: SessionSettings) -> None:
        """Start with other settings."""
        self.broker.session_settings = settings
        self.kill()

    @rule(client=numbers_of_members, credit=st.sampled_from([0, 3, 1000]))
    def come(self, client: int, credit: int) -> None:
        """Connect and subscribe, or subscribe again."""
        clean, qos = MEMBERS[client]
        if client not in self.here:
            self.here[client] = connect(self.broker, f"c{client}", clean=clean, credit=credit)
            self.seen[client] = 0
            self.unacked[client] = []
        session, link = self.here[client]
        link.left = credit
        session.subscribe(SHARE, at_qos(qos))
        session.ready()
        self.look()

    @rule(client=numbers_of_members)
    def go(self, client: int) -> None:
        """The connection ends."""
        found = self.here.pop(client, None)
        if found is not None:
            found[0].disconnect()
        self.look()

    @rule(client=numbers_of_members)
    def unsubscribe(self, client: int) -> None:
        """What is in flight stays so."""
        if client in self.here and client != KEEPER:
            self.here[client][0].unsubscribe(SHARE)
        self.look()

    @rule(qos=st.sampled_from([0, 1, 2]), count=st.integers(1, 7), tag=st.sampled_from("xyz"))
    def publish(self, qos: int, count: int, tag: str) -> None:
        """A run."""
        first = len(self.published)
        numbers = range(first, first + count)
        self.published.update(dict.fromkeys(numbers, qos))
        template = self.broker.template("a", tag, qos=qos)
        before = waiting_bytes(self.broker)
        self.broker.publish(template, *(b"%d" % number for number in numbers))
        self.look()
        settings = self.broker.session_settings
        if settings is not None and settings.waiting_bytes_max:
            most = before if settings.overflow == DROP_NEWEST else 0
            assert waiting_bytes(self.broker) <= max(BYTES_MAX, most)

    @rule(client=numbers_of_members, count=st.integers(1, 9))
    def acknowledge(self, client: int, count: int) -> None:
        """The oldest, as far as they were sent."""
        if client not in self.here:
            return
        session, _ = self.here[client]
        for number, qos, packet in self.unacked[client][:count]:
            if qos == 1:
                session.acknowledged(packet, 1)
            else:
                session.received(packet, 1)
                session.completed(packet, 1)
            self.acked.add(number)
        del self.unacked[client][:count]
        self.look()

    @rule()
    def kill(self) -> None:
        """The server is killed, and started again."""
        self.broker.kill()
        self.broker.open()
        self.here.clear()

    @rule()
    def end_keeper_connection(self) -> None:
        """The one that lasts comes again at once."""
        self.go(KEEPER)
        self.come(KEEPER, 1000)

    def look(self) -> None:
        """What members got: QoS 2 never twice."""
        for _ in range(3):
            self.broker.step()
        for client, (_, link) in self.here.items():
            for _, body, qos, packet, duplicate, _ in link.publishes[self.seen[client] :]:
                number = int(body)
                self.sent.add(number)
                if number in self.once:  # the same session may get it again, as a duplicate
                    assert (client, qos, duplicate) == (self.once[number], 2, True), number
                if qos == 2:
                    self.once[number] = client
                if qos:
                    self.unacked[client].append((number, qos, packet))
                else:
                    self.acked.add(number)  # that is all there is of it
            self.seen[client] = len(link.publishes)
        check_counts(self.broker)

    def teardown(self) -> None:
        """All others go: what was not done with comes to the one that is left, and that is all."""
        self.finish()
        self.check_all_came()
        self.broker.stop()
        shutil.rmtree(self.directory)

    def finish(self) -> None:
        """Everything that waits comes to the one that is left."""
        for client in list(self.here):
            self.go(client)
        self.come(KEEPER, 100_000)
        while self.unacked[KEEPER]:
            self.acknowledge(KEEPER, 1000)
        group = self.broker.engine.port.sessions.shares.by_address[SHARE]
        assert (group.ready_count, group.cursor.outstanding_count) == (0, 0)

    def check_all_came(self) -> None:
        """Nothing was lost."""
        needed = {number for number, qos in self.published.items() if qos}
        assert needed <= self.sent
        assert {number for number in needed - self.acked if number not in self.once} == set()


class BoundedMembers(Members):
    """The same with a bound of bytes: some is lost."""

    @rule(overflow=st.sampled_from([DROP_OLDEST, DROP_NEWEST]))
    @precondition(lambda self: not self.published)
    def bound(self, overflow: str) -> None:
        """Before the first message: the server starts with a bound."""
        self.begin(SessionSettings(waiting_bytes_max=BYTES_MAX, overflow=overflow))  # type: ignore[arg-type]

    def check_all_came(self) -> None:
        """What was sent with QoS 2 came once: see `look`."""


@pytest.mark.slow
@pytest.mark.parametrize("machine", [Members, BoundedMembers])
def test_nothing_is_lost_and_quality_2_comes_once(machine: type[Members]) -> None:
    """Members of all kinds, in any order, with crashes; with a bound, no more waits than that."""
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=60,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
