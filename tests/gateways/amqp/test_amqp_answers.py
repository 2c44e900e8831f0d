"""Answers in the order of the questions, whatever each of them waits for."""

from __future__ import annotations

from typing import cast

from polymq.broker.commits import CommitPoints
from polymq.broker.port import BrokerPort, Durability
from polymq.gateways.amqp.answers import Answers

APPENDED, FLUSHED = Durability.APPENDED, Durability.FLUSHED


class Port:
    """The commit points, and nothing else of a port."""

    def __init__(self) -> None:
        commits = CommitPoints(0)
        self.committed = commits.committed
        self.when_committed = commits.when
        self.advance = commits.advance
        self.state_durability = Durability.FLUSHED


def test_an_answer_waits_for_its_own_class_only() -> None:
    """The page cache is enough for what asks for no more, though the disk is behind."""
    port, said = Port(), list[bytes]()
    answers = Answers(port=cast("BrokerPort", port), write=said.append)
    answers.send(b"1", 10, durability=APPENDED)
    assert said == []
    port.advance(APPENDED, 10)
    assert said == [b"1"]
    answers.send(b"2", 20)
    port.advance(APPENDED, 20)
    assert said == [b"1"]
    port.advance(FLUSHED, 20)
    assert said == [b"1", b"2"]


def test_nothing_overtakes_what_waits_for_the_disk() -> None:
    """Neither what waits for less, nor what waits for nothing."""
    port, said = Port(), list[bytes]()
    answers = Answers(port=cast("BrokerPort", port), write=said.append)
    answers.send(b"1", 10)
    answers.send(b"2", 20, durability=APPENDED)
    answers.send(b"3", durability=APPENDED)
    answers.send(b"4")
    port.advance(APPENDED, 20)
    assert said == []
    assert answers.bytes_waiting == 4
    port.advance(FLUSHED, 10)
    assert said == [b"1", b"2", b"3", b"4"]
    assert answers.bytes_waiting == 0


def test_nothing_overtakes_what_waits_for_the_page_cache() -> None:
    """An answer without a dependency, and one whose position is on the disk already."""
    port, said = Port(), list[bytes]()
    answers = Answers(port=cast("BrokerPort", port), write=said.append)
    port.advance(APPENDED, 5)
    port.advance(FLUSHED, 5)
    answers.send(b"1", 10, durability=APPENDED)
    answers.send(b"2")
    answers.send(b"3", 5)
    assert said == []
    port.advance(APPENDED, 10)
    assert said == [b"1", b"2", b"3"]


def test_after_the_end_nothing_is_sent() -> None:
    """The socket is gone: what waited is dropped, and callbacks that come later do nothing."""
    port, said = Port(), list[bytes]()
    answers = Answers(port=cast("BrokerPort", port), write=said.append)
    answers.send(b"1", 10)
    answers.stop()
    answers.send(b"2")
    port.advance(FLUSHED, 10)
    assert said == []
    assert not answers.waiting
