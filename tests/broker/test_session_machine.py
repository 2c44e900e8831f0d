"""A client with a session, whatever it acknowledges, and whenever: nothing is lost, nothing of QoS
2 comes twice, and its window opens again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final

import pytest

from polymq.broker.port import REST
from polymq.broker.sessions.settings import DROP_NEWEST, DROP_OLDEST, Overflow, SessionSettings
from tests.broker.test_engine_sessions import connect, start_again
from tests.broker.test_session_bytes import check_counts, waiting_bytes
from tests.harness.broker import Broker, at_qos

WINDOW: Final = 8
FILTER: Final = ("a", REST)
RETAINED: Final = ("r", REST)
RETAINED_COUNT: Final = 12
STEPS: Final = (4, 6, 2, 3, 1)
"""How often a client does each thing (`Client.do`)."""


class Client:
    """It has a part of what came acknowledged, in any order. After a connection it may acknowledge
    once more what it got on an earlier one, as clients do whose users acknowledge."""

    def __init__(self, directory: Path, seed: int, settings: SessionSettings | None = None) -> None:
        self.dice = Random(seed)
        self.broker = Broker(
            directory / "data", inflight_count_start=WINDOW, inflight_count_max=WINDOW
        )
        self.settings = settings
        self.counted = True
        """Bytes that wait are counted; after a stop, that is done behind the first message."""
        if settings is not None:
            self.broker.session_settings = settings
            self.broker.restart()
        for number in range(RETAINED_COUNT):
            template = self.broker.template("r", f"{number:02}", qos=1 + number % 2, retain=True)
            self.broker.publish(template, b"r%d" % number)
        self.broker.step()
        self.published: dict[bytes, int] = {b"r%d" % n: 1 + n % 2 for n in range(RETAINED_COUNT)}
        self.wanted: set[bytes] = set()
        self.got: dict[bytes, int] = {}
        self.known: set[int] = set()  # packet ids of QoS 2 that were not released yet
        self.to_ack: list[tuple[int, int]] = []  # packet id and QoS of what has no answer
        self.to_complete: list[int] = []
        self.acked: set[int] = set()  # packet ids that had a PUBACK on this connection
        self.earlier: list[int] = []  # packet ids that PUBACK was due for on earlier connections
        self.begin()
        self.session.subscribe(FILTER, at_qos(2))
        self.look()

    def begin(self) -> None:
        self.session, self.link = connect(self.broker, "c", credit=10_000)
        self.seen = self.released = 0
        self.to_ack.clear()
        self.to_complete.clear()
        self.acked.clear()
        self.look()

    def look(self) -> None:
        """Take what has come."""
        self.broker.step(0.1)
        for _, body, qos, packet, duplicate, _ in self.link.publishes[self.seen :]:
            assert qos == self.published[body]
            if qos == 1 or packet not in self.known:
                self.got[body] = self.got.get(body, 0) + 1
                assert qos == 1 or self.got[body] == 1, "QoS 2 came twice"
            else:
                assert duplicate
            if qos == 2:
                self.known.add(packet)
            self.to_ack.append((packet, qos))
        self.seen = len(self.link.publishes)
        for packet in self.link.pubrels[self.released :]:
            self.known.discard(packet)
            self.to_complete.append(packet)
        self.released = len(self.link.pubrels)
        session = self.broker.engine.sessions.by_client["c"]
        unacked = {tag + k for tag, _, _, count in session.unacked.runs() for k in range(count)}
        assert not unacked & self.acked, "what was acknowledged is in flight"
        flying = {packet for packet, _ in self.to_ack} - self.acked | {*self.to_complete}
        assert len(flying) <= WINDOW
        check_counts(self.broker)

    def do(self) -> None:
        """One thing."""
        dice = self.dice
        step = dice.choices(("publish", "acknowledge", "complete", "lose", "retained"), STEPS)[0]
        if step == "publish":
            self.publish(dice.choice((1, 1, 2)), dice.randint(1, 9))
        elif step == "acknowledge":
            share, again = dice.choice((0.0, 0.6, 1.0)), dice.random() < 0.5
            self.acknowledge(share, again=again, shuffled=dice.random() < 0.3)
        elif step == "complete":
            self.complete()
        elif step == "lose":
            self.lose(dice.choice(("reconnect", "stop", "kill")))
        else:
            self.follow_retained(wanted=dice.random() < 0.7)

    def publish(self, qos: int, count: int) -> None:
        """A run."""
        first = len(self.published)
        bodies = [b"%d" % number for number in range(first, first + count)]
        self.published.update(dict.fromkeys(bodies, qos))
        self.wanted.update(bodies)
        self.broker.publish(self.broker.template("a", "x", qos=qos), *bodies)
        self.look()

    def follow_retained(self, *, wanted: bool) -> None:
        """Subscribe to what is retained, or only to what comes from now on."""
        if RETAINED in dict(self.session.options()):
            return
        since = self.session.subscribe(RETAINED, at_qos(2), retained=wanted)
        self.broker.step()
        if wanted:
            self.session.replay_retained(RETAINED, since)
            self.wanted.update(b"r%d" % number for number in range(RETAINED_COUNT))
        self.look()

    def acknowledge(self, share: float, *, again: bool, shuffled: bool) -> None:
        """Some of what came, in any order, and in one read."""
        chosen = [one for one in self.to_ack if self.dice.random() < share]
        if shuffled:
            self.dice.shuffle(chosen)
        self.to_ack = [one for one in self.to_ack if one not in chosen]
        firsts = [packet for packet, qos in chosen if qos == 1]
        if again:
            firsts = sorted({*self.earlier, *firsts})
            self.earlier.clear()
        self.acked.update(firsts)
        for first, count in _runs(firsts):
            self.session.acknowledged(first, count, True)
        for first, count in _runs([packet for packet, qos in chosen if qos == 2]):
            self.session.received(first, count)
        self.session.resume_if_starved()
        self.look()

    def complete(self) -> None:
        """Some PUBCOMPs."""
        chosen = [packet for packet in self.to_complete if self.dice.random() < 0.6]
        self.to_complete = [packet for packet in self.to_complete if packet not in chosen]
        for first, count in _runs(chosen):
            self.session.completed(first, count, True)
        self.session.resume_if_starved()
        self.look()

    def lose(self, way: str) -> None:
        """The connection ends, or the server does."""
        self.earlier += [packet for packet, qos in self.to_ack if qos == 1]
        self.counted = self.counted and way != "stop"
        if way == "reconnect":
            self.session.disconnect()
        else:
            start_again(self.broker, way)
        self.begin()

    def finish(self) -> None:
        """All that was published has come, and nothing is in flight."""
        for _ in range(200):
            if not (self.to_ack or self.to_complete):
                break
            self.acknowledge(1.0, again=False, shuffled=False)
            for packet in list(self.to_complete):
                self.session.completed(packet, 1)
            self.to_complete.clear()
            self.look()
        if self.settings is None:
            assert self.wanted <= self.got.keys()
        session = self.broker.engine.sessions.by_client["c"]
        assert (session.unacked.count, len(session.releasing)) == (0, 0)
        self.broker.stop()


def _runs(packets: Sequence[int]) -> list[tuple[int, int]]:
    """Consecutive packet ids, as the parser gathers them: first and count."""
    runs: list[tuple[int, int]] = []
    for packet in packets:
        if runs and packet == sum(runs[-1]):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((packet, 1))
    return runs


@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_lost_and_the_window_opens(tmp_path: Path, seed: int) -> None:
    """Through any number of connections and crashes."""
    client = Client(tmp_path, seed)
    for _ in range(80):
        client.do()
    client.finish()


@pytest.mark.parametrize("overflow", [DROP_OLDEST, DROP_NEWEST])
@pytest.mark.parametrize("seed", range(8))
def test_what_waits_stays_within_its_bytes(tmp_path: Path, seed: int, overflow: Overflow) -> None:
    """Whatever the client does, what waits never exceeds the bound, and what was sent is sent
    again."""
    settings = SessionSettings(waiting_bytes_max=1_500, overflow=overflow)
    client = Client(tmp_path, seed, settings)
    for _ in range(80):
        published, before = len(client.published), waiting_bytes(client.broker)
        client.do()
        if len(client.published) > published:
            most = before if overflow == DROP_NEWEST else 0
            waiting = waiting_bytes(client.broker)
            assert waiting <= max(settings.waiting_bytes_max, most) or not client.counted
            client.counted = True
    client.finish()
