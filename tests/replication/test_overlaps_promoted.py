"""A promoted slave and a session whose filters overlap: each message that the client has not
acknowledged comes once, as the master would have sent it."""

from __future__ import annotations

import random

import pytest

from polymq.broker.port import ONE_LEVEL, REST, Address, Session
from tests.broker.test_engine_sessions import connect
from tests.harness.broker import Broker, SpyLink, at_qos
from tests.replication.test_standby import follow

FILTERS: tuple[Address, ...] = (("a", REST), ("a", ONE_LEVEL), ("a", "x", REST))
TAGS = ("x", "x.y", "y", "z.z")
"""Of which three, two, two and one filters match."""
WINDOW = 6
COUNT = 24
LAZY_SECONDS = 1.0
"""In this time what was acknowledged is in the log."""


class Client:
    """A client that receives, acknowledges some of it, and comes back.

    Attributes:
        done: what it has acknowledged or released, which must not come again.
        came: what it has got in all, by the first copy.
    """

    def __init__(self, qos: int) -> None:
        self.qos = qos
        self.done: set[bytes] = set()
        self.came: list[bytes] = []
        self._held: dict[int, bytes] = {}  # QoS 2: received, not released

    def connect(self, broker: Broker) -> tuple[Session, SpyLink]:
        link = SpyLink()
        session = broker.port.sessions.connect(
            "c", clean=False, expiry_seconds=None, link=link, principal="u", inflight_max=WINDOW
        )
        session.resume()
        broker.step()
        return session, link

    def take(self, broker: Broker, session: Session, link: SpyLink, share: float) -> None:
        """Handle all that comes; acknowledge this share of what has come, the oldest first."""
        seen = 0
        released = 0
        while seen < len(link.publishes) or released < len(link.pubrels):
            new, seen = link.publishes[seen:], len(link.publishes)
            for _, body, _, packet, duplicate, _ in new:
                assert body not in self.done, f"{body!r} came again"
                if body in self.came:
                    assert duplicate, f"{body!r} came as new again"
                else:
                    assert not duplicate
                    self.came.append(body)
                if len(self.done) < share * COUNT:
                    self.done.add(body)
                    self._held[packet] = body
                    (session.acknowledged if self.qos == 1 else session.received)(packet, 1)
            freed, released = link.pubrels[released:], len(link.pubrels)
            for packet in freed:
                self._held.pop(packet)
                session.completed(packet, 1)
            broker.step(0.1)


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("is_connected", [True, False])
def test_each_message_comes_once(
    master: Broker, slave: Broker, qos: int, share: float, is_connected: bool
) -> None:
    """What was in flight, what waited in the queues of several filters, and what is published to
    the promoted slave; in the order of the log."""
    client = Client(qos)
    session, link = client.connect(master)
    for address in FILTERS:
        session.subscribe(address, at_qos(qos), retained=False)
    if not is_connected:
        session.disconnect()
    bodies = [b"%d" % number for number in range(COUNT)]
    order = random.Random(qos).choices(TAGS, k=COUNT)
    for body, tag in zip(bodies, order, strict=True):
        master.publish(master.template("a", tag, qos=qos), body)
        master.step()
    if not is_connected:
        session, link = client.connect(master)
    client.take(master, session, link, share)
    master.step(LAZY_SECONDS)
    follow(master, slave)
    slave.stop()
    slave.follows = ""
    slave.open()
    session, link = client.connect(slave)
    slave.publish(slave.template("a", "x", qos=qos), b"later")
    slave.step()
    client.take(slave, session, link, 2.0)
    assert client.came == [*bodies, b"later"]
    assert client.done == set(client.came)
    slave.step(LAZY_SECONDS)
    session.disconnect()
    _, link = connect(slave, "c")
    assert link.publishes == []
