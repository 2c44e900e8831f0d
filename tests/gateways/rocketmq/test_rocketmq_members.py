"""Who is in a group decides who reads which queue: each change has to reach every member."""

from __future__ import annotations

import pytest

from polymq.gateways.rocketmq.members import SILENT_SECONDS, Members
from polymq.remoting.group_bodies import ConsumerData, Heartbeat, ProducerData, SubscriptionData


class Scene:
    """Members whose channels are names."""

    def __init__(self, count_max: int = 100) -> None:
        self.reported: list[tuple[str, str]] = []
        self.members: Members[str] = Members(
            lambda channel, group: self.reported.append((channel, group)), count_max=count_max
        )

    def beat(
        self,
        client_id: str,
        channel: str,
        *,
        now: float = 0.0,
        topics: dict[str, str] | None = None,
        version: int = 1,
    ) -> bool:
        subscriptions = [
            SubscriptionData(topic=topic, sub_string=tags, sub_version=version)
            for topic, tags in (topics or {"orders": "*"}).items()
        ]
        data = ConsumerData(group_name="billing", subscription_data_set=subscriptions)
        beat = Heartbeat(client_id=client_id, consumer_data_set=[data])
        return self.members.heard(beat, channel, now)

    def take_reported(self) -> list[tuple[str, str]]:
        reported, self.reported = self.reported, []
        return reported

    @property
    def ids(self) -> list[str]:
        group = self.members.consumers.get("billing")
        return [] if group is None else list(group.members)


def test_all_members_are_told_when_one_comes_and_not_when_it_is_heard_again() -> None:
    scene = Scene()
    scene.beat("a", "wire-a")
    assert scene.take_reported() == [("wire-a", "billing")]
    scene.beat("b", "wire-b")
    assert scene.take_reported() == [("wire-a", "billing"), ("wire-b", "billing")]
    scene.beat("a", "wire-a", now=30.0)
    assert scene.take_reported() == []
    assert scene.ids == ["a", "b"]


def test_members_leave_by_saying_so_and_with_their_connection() -> None:
    scene = Scene()
    for name in ("a", "b", "c"):
        scene.beat(name, f"wire-{name}")
    scene.take_reported()
    scene.members.left("a", "wire-a", None, "billing")
    assert scene.take_reported() == [("wire-b", "billing"), ("wire-c", "billing")]
    scene.members.lost("wire-b")
    assert scene.take_reported() == [("wire-c", "billing")]
    scene.members.lost("wire-c")
    assert scene.members.consumers == {}


def test_an_old_connection_does_not_take_the_client_away_from_its_new_one() -> None:
    """A client reconnects, and the end of its first connection is noticed later."""
    scene = Scene()
    scene.beat("a", "old")
    scene.beat("a", "new")
    scene.members.lost("old")
    scene.members.left("a", "old", None, "billing")
    assert scene.ids == ["a"]


def test_who_is_silent_is_dropped() -> None:
    scene = Scene()
    scene.beat("a", "wire-a")
    scene.beat("b", "wire-b", now=60.0)
    scene.take_reported()
    scene.members.expire(SILENT_SECONDS)
    assert scene.ids == ["a", "b"]
    scene.members.expire(SILENT_SECONDS + 1)
    assert scene.ids == ["b"]
    assert scene.take_reported() == [("wire-b", "billing")]


def test_a_changed_subscription_is_told_and_the_newest_counts() -> None:
    scene = Scene()
    scene.beat("a", "wire-a")
    scene.beat("b", "wire-b")
    scene.take_reported()
    scene.beat("a", "wire-a", topics={"orders": "paid"}, version=5)
    assert len(scene.take_reported()) == 2
    scene.beat("b", "wire-b", version=4)  # it has not been updated yet
    assert scene.take_reported() == []
    subscriptions = scene.members.consumers["billing"].subscriptions
    assert subscriptions["orders"].sub_string == "paid"


def test_a_lone_member_that_gives_a_topic_up_takes_it_out_of_the_group() -> None:
    scene = Scene()
    scene.beat("a", "wire-a", topics={"orders": "*", "returns": "*"})
    scene.beat("a", "wire-a", topics={"orders": "*"})
    assert set(scene.members.consumers["billing"].subscriptions) == {"orders"}


def test_there_is_room_for_so_many_and_leaving_makes_room() -> None:
    scene = Scene(count_max=2)
    assert scene.beat("a", "wire-a")
    assert scene.beat("b", "wire-b")
    assert not scene.beat("c", "wire-c")
    assert scene.beat("a", "wire-a")  # who is in stays in
    scene.members.lost("wire-a")
    assert scene.beat("c", "wire-c")
    assert scene.ids == ["b", "c"]


def test_producers_that_find_no_room_leave_nothing_behind() -> None:
    members = Scene(count_max=0).members
    beat = Heartbeat(client_id="p", producer_data_set=[ProducerData(group_name="shop")])
    assert not members.heard(beat, "wire", 0.0)
    assert members.producers == {}


@pytest.mark.parametrize("end", ["lost", "left", "expire"])
def test_producers_can_be_asked_until_they_go(end: str) -> None:
    members = Scene().members
    beat = Heartbeat(client_id="p", producer_data_set=[ProducerData(group_name="shop")])
    members.heard(beat, "wire", 0.0)
    assert list(members.producers["shop"]) == ["wire"]
    if end == "lost":
        members.lost("wire")
    elif end == "left":
        members.left("p", "wire", "shop", None)
    else:
        members.expire(SILENT_SECONDS + 1)
    assert members.producers == {}
