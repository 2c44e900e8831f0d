"""Held pulls, without a clock."""

from __future__ import annotations

from collections.abc import Collection

from polymq.gateways.rocketmq.long_polls import LongPoll, LongPolls


def long_poll(serial: int, *, owner: str = "c", topic: str = "t", offset: int = 5) -> LongPoll[str]:
    return LongPoll(
        owner=owner,
        serial=serial,
        topic=topic,
        queue_id=0,
        group="g",
        offset=offset,
        until=10.0,
    )


def polls(count_max: int, paused: Collection[tuple[str, str]] = ()) -> LongPolls[str]:
    """Of groups and topics, those that are paused are given."""
    return LongPolls(count_max, lambda group, topic: (group, topic) in paused)


def taken(long_polls: LongPolls[str], now: float, ends: dict[str, tuple[int, ...]]) -> list[int]:
    return sorted(item.serial for item in long_polls.take(now, ends.get))


def test_a_hold_ends_when_its_queue_grows_or_its_time_is_up() -> None:
    long_polls: LongPolls[str] = polls(10)
    assert long_polls.add(long_poll(1))
    assert long_polls.add(long_poll(2, topic="u"))
    assert taken(long_polls, 0, {"t": (5,), "u": (5,)}) == []
    assert taken(long_polls, 1, {"t": (6,), "u": (5,)}) == [1]
    assert taken(long_polls, 9.9, {"u": (5,)}) == []
    assert taken(long_polls, 10, {"u": (5,)}) == [2]
    assert len(long_polls) == 0


def test_a_hold_ends_with_its_topic_or_its_queue() -> None:
    """Or when the queue's end moved back: the topic was made anew."""
    long_polls: LongPolls[str] = polls(10)
    for serial, topic in enumerate("abc"):
        long_polls.add(long_poll(serial, topic=topic))
    assert taken(long_polls, 0, {"b": (), "c": (1,)}) == [0, 1, 2]


def test_there_is_a_limit_and_room_comes_back() -> None:
    long_polls: LongPolls[str] = polls(2)
    assert long_polls.add(long_poll(1))
    assert long_polls.add(long_poll(2, owner="d"))
    assert not long_polls.add(long_poll(3))
    assert [item.serial for item in long_polls.drop("d")] == [2]
    assert long_polls.add(long_poll(3))
    assert [item.serial for item in long_polls.drop("c")] == [1, 3]
    assert long_polls.drop("c") == []
    assert len(long_polls) == 0


def test_a_paused_group_waits_behind_what_has_come() -> None:
    """Until its time is up, its topic is gone, or it is resumed: nothing wakes it for messages that
    it does not get."""
    paused = {("g", "t")}
    long_polls = polls(10, paused)
    assert long_polls.add(long_poll(1))
    assert long_polls.take_grown("t", 0) == []
    assert taken(long_polls, 0, {"t": (6,)}) == []
    paused.clear()
    assert taken(long_polls, 0, {"t": (6,)}) == [1]
    paused.add(("g", "t"))
    for serial in (2, 3):
        assert long_polls.add(long_poll(serial, topic="t" if serial == 2 else "u"))
    paused.add(("g", "u"))
    assert taken(long_polls, 0, {"t": (6,)}) == [3], "its topic is gone"
    assert taken(long_polls, 10, {"t": (6,)}) == [2]
