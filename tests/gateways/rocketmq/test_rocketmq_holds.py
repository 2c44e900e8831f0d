"""Held pulls, without a clock."""

from __future__ import annotations

from polymq.gateways.rocketmq.holds import Hold, Holds


def hold(serial: int, *, owner: str = "c", topic: str = "t", offset: int = 5) -> Hold[str]:
    return Hold(owner=owner, serial=serial, topic=topic, queue_id=0, offset=offset, until=10.0)


def taken(holds: Holds[str], now: float, ends: dict[str, tuple[int, ...]]) -> list[int]:
    return sorted(item.serial for item in holds.take(now, ends.get))


def test_a_hold_ends_when_its_queue_grows_or_its_time_is_up() -> None:
    holds: Holds[str] = Holds(10)
    assert holds.add(hold(1))
    assert holds.add(hold(2, topic="u"))
    assert taken(holds, 0, {"t": (5,), "u": (5,)}) == []
    assert taken(holds, 1, {"t": (6,), "u": (5,)}) == [1]
    assert taken(holds, 9.9, {"u": (5,)}) == []
    assert taken(holds, 10, {"u": (5,)}) == [2]
    assert len(holds) == 0


def test_a_hold_ends_with_its_topic_or_its_queue() -> None:
    """Or when the queue's end moved back: the topic was made anew."""
    holds: Holds[str] = Holds(10)
    for serial, topic in enumerate("abc"):
        holds.add(hold(serial, topic=topic))
    assert taken(holds, 0, {"b": (), "c": (1,)}) == [0, 1, 2]


def test_there_is_a_limit_and_room_comes_back() -> None:
    holds: Holds[str] = Holds(2)
    assert holds.add(hold(1))
    assert holds.add(hold(2, owner="d"))
    assert not holds.add(hold(3))
    assert [item.serial for item in holds.drop("d")] == [2]
    assert holds.add(hold(3))
    assert [item.serial for item in holds.drop("c")] == [1, 3]
    assert holds.drop("c") == []
    assert len(holds) == 0
