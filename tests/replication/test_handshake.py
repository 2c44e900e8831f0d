"""The cores against peers that are wrong: each is refused in one sentence, and learns nothing."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from polymq.replication.common import LogExtent, common_end
from polymq.replication.follower import Answered, Cut, Follower, Following, Refused
from polymq.replication.frames import Kind, Range, encode, encode_range, encode_values
from polymq.replication.limits import HELLO_BYTES_MAX, WINDOW_BYTES
from polymq.replication.source import (
    Acked,
    Ahead,
    Identity,
    Joined,
    Met,
    Outranked,
    Rejected,
    Source,
)

SECRET = b"sixteen bytes or more"
MASTER = LogExtent(start=0, end=1000, epochs=[(1, 0, 11), (2, 400, 12)])
EMPTY = LogExtent(start=0, end=0, epochs=[])


def source(**changes: Any) -> Source:
    values: dict[str, Any] = {
        "identity": Identity(cluster="c", group="g", secret=SECRET),
        "nonce": "aa",
        "extent": lambda: MASTER,
        "admit": lambda *_: "",
        "segment_bytes": 4096,
    }
    return Source(**{**values, **changes})


def follower(**changes: Any) -> Follower:
    values: dict[str, Any] = {
        "identity": Identity(cluster="c", group="g", secret=SECRET),
        "name": "s",
        "nonce": "bb",
        "extent": EMPTY,
        "segment_bytes": 4096,
    }
    return Follower(**{**values, **changes})


def shake(master: Source, slave: Follower, *, size: int = 1 << 20) -> list[Any]:
    """Let both talk until nobody has anything to say; all events."""
    events: list[Any] = []
    while True:
        to_master, to_slave = slave.outgoing(), master.outgoing()
        if not to_master and not to_slave:
            return events
        for at in range(0, len(to_master), size):
            events += master.receive(to_master[at : at + size])
        for at in range(0, len(to_slave), size):
            events += slave.receive(to_slave[at : at + size])


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_a_slave_joins_and_follows(size: int) -> None:
    """However the bytes are cut: the log from the common place on, and acks back."""
    master, slave = source(), follower()
    assert shake(master, slave, size=size) == [Joined("s", 0), Following()]
    master.send(0, b"log", 3, epoch=2, points=(9, 8))
    slave.ack(0, 0)
    assert shake(master, slave, size=size) == [Acked("s", 0, 0), Range(0, 2, 9, 8, b"log")]
    slave.ack(2, 3)
    assert shake(master, slave, size=size) == [Acked("s", 2, 3)]
    assert (master.flushed, master.received) == (2, 3)


@pytest.mark.parametrize(
    ("master", "slave", "sentence"),
    [
        ({}, {"identity": Identity(cluster="c", group="g", secret=b"x" * 20)}, "another secret"),
        ({}, {"identity": Identity(cluster="d", group="g", secret=SECRET)}, "not of 'd', 'g'"),
        ({}, {"identity": Identity(cluster="c", group="h", secret=SECRET)}, "not of 'c', 'h'"),
        ({}, {"name": ""}, "a slave needs a name"),
        ({}, {"name": "n" * 128}, "no proper 'name'"),
        ({}, {"segment_bytes": 8192}, "set storage.segment_bytes of slave 's' to that"),
        ({"admit": lambda name, _: f"{name} is taken"}, {}, "s is taken"),
        (
            {"extent": lambda: LogExtent(start=500, end=1000, epochs=MASTER.epochs)},
            {},
            "what is left of it here begins at 500",
        ),
        (
            {},
            {"extent": LogExtent(start=0, end=10, epochs=[(1, 0, 99)])},
            "is not a copy of this one",
        ),
    ],
)
def test_who_does_not_fit_is_refused(
    master: dict[str, Any], slave: dict[str, Any], sentence: str
) -> None:
    """Both sides end, with a sentence on the slave's that says what is wrong."""
    there, here = source(**master), follower(**slave)
    events = shake(there, here)
    assert here.closed
    (refused,) = [event for event in events if isinstance(event, Refused)]
    assert sentence in refused.text
    assert not any(isinstance(event, Joined | Following | Cut) for event in events)


def test_a_slave_with_more_than_its_master_cuts() -> None:
    """What is behind the common place was never the master's."""
    slave = follower(extent=LogExtent(start=0, end=900, epochs=[(1, 0, 11)]))
    events = shake(source(), slave)
    assert events == [Ahead("s", 400), Cut(400, 2)]
    assert slave.closed


@pytest.mark.parametrize(
    ("one", "other", "end"),
    [
        ([(1, 0, 1)], [(1, 0, 1)], 70),
        ([(1, 0, 1), (2, 50, 2)], [(1, 0, 1)], 50),
        ([(1, 0, 1), (2, 50, 2)], [(1, 0, 1), (2, 50, 2)], 70),
        ([(1, 0, 1), (2, 50, 2)], [(1, 0, 1), (2, 50, 3)], 50),
        ([(1, 0, 1), (2, 50, 2)], [(1, 0, 1), (2, 60, 2)], 50),
        ([(1, 0, 1), (3, 30, 2)], [(1, 0, 1), (2, 40, 2), (3, 60, 3)], 30),
        ([(1, 0, 1)], [(1, 0, 2)], None),
        ([(5, 20, 1)], [(1, 0, 2)], None),
        ([(5, 20, 0), (6, 60, 4)], [(5, 20, 0), (6, 60, 4), (7, 65, 1)], 65),
    ],
)
def test_the_common_end(one: Any, other: Any, end: int | None) -> None:
    """By the newest epoch that both have, begun by the same record; in both directions."""
    logs = [LogExtent(start=0, end=100, epochs=one), LogExtent(start=0, end=70, epochs=other)]
    assert common_end(*logs) == end
    assert common_end(*reversed(logs)) == end
    assert common_end(logs[0], EMPTY) == 0


def test_a_stranger_learns_nothing() -> None:
    """Without the secret no byte of the log and no epoch comes, whatever is sent instead of a
    proof; and a frame before the proof is small."""
    master = source()
    slave = follower(identity=Identity(cluster="c", group="g", secret=b"guess" * 4))
    assert master.receive(slave.outgoing()) == []
    challenge = master.outgoing()
    assert len(challenge) < 200
    (event,) = master.receive(encode_values(Kind.PROOF, proof="0" * 64, end=0, epochs=[]))
    assert isinstance(event, Rejected)
    assert b"another secret" in master.outgoing()
    master = source()
    (event,) = master.receive(encode(Kind.HELLO, b"x" * (HELLO_BYTES_MAX + 1)))
    assert isinstance(event, Rejected)


def test_a_stranger_is_nobodys_master() -> None:
    """Who answers a slave without the secret gets no proof and no epochs, and is left."""
    slave = follower()
    slave.outgoing()
    (event,) = slave.receive(encode_values(Kind.CHALLENGE, nonce="aa", proof="0" * 64))
    assert event == Refused("the master has another secret than this slave")
    assert not slave.outgoing()


TERM_2 = LogExtent(start=0, end=1000, epochs=[(1, 0, 11), (2_000_000_003, 400, 12)])


def test_a_slave_that_knows_a_higher_term_is_not_led() -> None:
    """It has followed a master that was promoted since: the old one hears of it, and sends it
    nothing; one that sends all the same is not followed."""
    master, slave = source(), follower(extent=TERM_2)
    outranked, rejected, refused = shake(master, slave)
    assert outranked == Outranked("s", 2)
    assert isinstance(rejected, Rejected)
    assert isinstance(refused, Refused)
    assert master.closed
    assert slave.closed
    slave = follower(extent=TERM_2)
    master = source()
    master.receive(slave.outgoing())
    slave.receive(master.outgoing())
    (refused,) = slave.receive(encode_values(Kind.START, position=1000, epoch=2))
    assert isinstance(refused, Refused)
    assert "it was replaced" in refused.text


@pytest.mark.parametrize(
    ("mine", "theirs", "event"),
    [
        (MASTER, 2_000_000_003, Outranked("s", 2)),
        (TERM_2, 2, Met("s", 0)),
        (TERM_2, 2_000_000_009, Met("s", 2)),
    ],
)
def test_two_masters_tell_each_other_their_terms(mine: LogExtent, theirs: int, event: Any) -> None:
    """The lower one knows then; nothing of a log is sent."""
    master, other = source(extent=lambda: mine), follower(meets=theirs)
    epoch = mine.epochs[-1][0]
    assert shake(master, other) == [event, Answered(epoch // 1_000_000_000, epoch)]
    assert master.closed
    assert other.closed


def test_a_slave_meets_and_leads_nobody() -> None:
    """It says how far its log goes. A slave that wants to follow it is sent on, with nothing."""
    extent = LogExtent(start=0, end=1000, epochs=[(2, 0, 11)], flushed=900)
    changes = {"extent": lambda: extent, "name": "b", "follows": "this is a slave: ask at c"}
    met, answered = shake(source(**changes), follower(meets=2))
    assert met == Met("s", 0)
    assert answered == Answered(0, 2, leads=False, end=900, name="b")
    rejected, refused = shake(source(**changes), follower())
    assert isinstance(rejected, Rejected)
    assert refused == Refused("this is a slave: ask at c")


def test_a_stranger_outranks_nobody() -> None:
    """A higher term counts from somebody who knows the secret."""
    other = follower(
        meets=9_000_000_000, identity=Identity(cluster="c", group="g", secret=b"guess" * 4)
    )
    events = shake(source(), other)
    assert not any(isinstance(event, Outranked | Answered) for event in events)


def test_a_piece_of_another_epoch_ends_it() -> None:
    """A master is in one epoch as long as it leads."""
    master, slave = source(), follower()
    shake(master, slave)
    master.send(0, b"log", 3, epoch=1, points=(9, 8))
    (refused,) = shake(master, slave)
    assert isinstance(refused, Refused)


def test_a_proof_can_not_be_sent_back() -> None:
    """A stranger who answers a master's challenge with the master's own proof is refused."""
    master = source()
    master.receive(follower().outgoing())
    proof = json.loads(master.outgoing()[5:])["proof"]
    (event,) = master.receive(
        encode_values(Kind.PROOF, proof=proof, end=0, epochs=[], segment_bytes=4096)
    )
    assert isinstance(event, Rejected)


def test_the_window() -> None:
    """No more is sent than the slave has room for; its acks make room."""
    master, slave = source(), follower()
    shake(master, slave)
    piece = bytes(1 << 20)
    while master.room:
        master.send(master.sent, piece, master.sent + len(piece), epoch=2, points=(0, 0))
    assert master.sent == WINDOW_BYTES
    shake(master, slave)
    slave.ack(0, len(piece))
    shake(master, slave)
    assert master.room


@pytest.mark.parametrize("acked", [(5, 4), (3, 9)])
def test_an_ack_of_what_was_not_sent_ends_it(acked: tuple[int, int]) -> None:
    """A slave that acks what it cannot have is no copy."""
    master, slave = source(), follower()
    shake(master, slave)
    master.send(0, b"1234", 4, epoch=2, points=(0, 0))
    slave.ack(*acked)
    events = shake(master, slave)
    assert any(isinstance(event, Rejected) for event in events)


def test_a_piece_that_was_damaged_ends_it() -> None:
    """The network's checksum is weak; ours is not alone: records have their own."""
    slave = follower()
    shake(source(), slave)
    data = bytearray(encode_range(Range(0, 1, 2, 3, b"bytes")))
    data[-1] ^= 1
    assert slave.receive(bytes(data)) == [Refused("a piece of the log was damaged on its way")]


@pytest.mark.parametrize("seed", range(200))
def test_noise_is_no_exception(seed: int) -> None:
    """Whatever comes: events, or the end of the connection with a sentence."""
    random = Random(seed)
    for core in (source(), follower()):
        if random.random() < 0.5:
            other: Any = follower() if isinstance(core, Source) else source()
            core.receive(other.outgoing())
        for _ in range(20):
            kind = random.choice(list(Kind))
            payload = random.choice(
                (
                    random.randbytes(random.randrange(60)),
                    b"{}",
                    b'{"nonce":1}',
                    b'{"nonce":"1","proof":"x","end":-1,"epochs":[[1]]}',
                    b"[" * 1000,
                )
            )
            data = bytearray(encode(kind, payload))
            if random.random() < 0.3:
                data[random.randrange(len(data))] = random.randrange(256)
            core.receive(bytes(data))
