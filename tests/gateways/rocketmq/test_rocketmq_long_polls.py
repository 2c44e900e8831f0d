"""Held pulls, without a clock."""

from __future__ import annotations

from polymq.gateways.rocketmq.long_polls import LongPoll, LongPolls


def long_poll(serial: int, *, owner: str = "c", topic: str = "t", offset: int = 5) -> LongPoll[str]:
    return LongPoll(owner=owner, serial=serial, topic=topic, queue_id=0, offset=offset, until=10.0)


def taken(long_polls: LongPolls[str], now: float, ends: dict[str, tuple[int, ...]]) -> list[int]:
    return sorted(item.serial for item in long_polls.take(now, ends.get))


def test_a_hold_ends_when_its_queue_grows_or_its_time_is_up() -> None:
    long_polls: LongPolls[str] = LongPolls(10)
    assert long_polls.add(long_poll(1))
    assert long_polls.add(long_poll(2, topic="u"))
    assert taken(long_polls, 0, {"t": (5,), "u": (5,)}) == []
    assert taken(long_polls, 1, {"t": (6,), "u": (5,)}) == [1]
    assert taken(long_polls, 9.9, {"u": (5,)}) == []
    assert taken(long_polls, 10, {"u": (5,)}) == [2]
    assert len(long_polls) == 0


def test_a_hold_ends_with_its_topic_or_its_queue() -> None:
    """Or when the queue's end moved back: the topic was made anew."""
    long_polls: LongPolls[str] = LongPolls(10)
    for serial, topic in enumerate("abc"):
        long_polls.add(long_poll(serial, topic=topic))
    assert taken(long_polls, 0, {"b": (), "c": (1,)}) == [0, 1, 2]


def test_there_is_a_limit_and_room_comes_back() -> None:
    long_polls: LongPolls[str] = LongPolls(2)
    assert long_polls.add(long_poll(1))
    assert long_polls.add(long_poll(2, owner="d"))
    assert not long_polls.add(long_poll(3))
    assert [item.serial for item in long_polls.drop("d")] == [2]
    assert long_polls.add(long_poll(3))
    assert [item.serial for item in long_polls.drop("c")] == [1, 3]
    assert long_polls.drop("c") == []
    assert len(long_polls) == 0
