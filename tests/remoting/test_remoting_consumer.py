"""Which queues a consumer has, where it begins, what it commits and gives back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymq.remoting.codes import RequestCode
from polymq.remoting.consumer import Consumer
from polymq.remoting.consumer_settings import Begin, ConsumerSettings, Model
from polymq.remoting.frames import Command
from polymq.remoting.group_bodies import MessageQueue
from polymq.remoting.records import encode_record
from polymq.remoting.sharing import share_evenly
from polymq.remoting.steps import Address, Call
from tests.remoting.scripted import World, bad, good

PULL, COMMIT, BACK, MEMBERS = 11, 15, 36, 38


def queue(number: int, broker: str = "a", topic: str = "t") -> MessageQueue:
    return MessageQueue(topic=topic, broker_name=broker, queue_id=number)


def members(*names: str) -> Command:
    return good(json.dumps({"consumerIdList": names}).encode())


def record(offset: int, tag: str = "x", topic: str = "t") -> bytes:
    return encode_record(
        topic=topic, properties={"TAGS": tag}, body=b"b", queue_offset=offset,
        position=1000 + offset, born_ms=0,
    )  # fmt: skip


def pulled(body: bytes, following: int, code: int = 0) -> Command:
    fields = {"suggestWhichBrokerId": "0", "nextBeginOffset": str(following)}
    fields |= {"minOffset": "0", "maxOffset": "9"}
    return Command(code=code, opaque=1, fields=fields, body=body)


class Group:
    """A broker with a topic of four queues, and one consumer of it."""

    def __init__(self, expression: str = "*", **settings: Any) -> None:
        self.world = World(t={"a": 4})
        self.members: Command | None = members("me")
        self.offset: Command = bad(22)
        self.pull: Command | None = pulled(b"", 0, 19)
        answers = self.world.answers
        answers["a", MEMBERS] = lambda _: self.members
        answers["a", RequestCode.QUERY_CONSUMER_OFFSET] = lambda _: self.offset
        answers["a", RequestCode.GET_MIN_OFFSET] = lambda _: good(offset="3")
        answers["a", RequestCode.GET_MAX_OFFSET] = lambda _: good(offset="7")
        answers["a", RequestCode.SEARCH_OFFSET] = lambda _: good(offset="5")
        answers["a", PULL] = lambda _: self.pull
        self.consumer = Consumer(
            group="g",
            client_id="me",
            routes=self.world.routes,
            subscriptions={"t": expression},
            started_ms=99,
            settings=ConsumerSettings(**settings),
        )

    def share(self) -> list[int]:
        return sorted(queue.queue_id for queue in self.world.run(self.consumer.share()))

    def take(self, number: int = 0) -> list[int]:
        """One pull: the offsets of what it gives."""
        return [record.queue_offset for record in self.world.run(self.consumer.pull(queue(number)))]

    def committed(self) -> list[tuple[str, str]]:
        self.world.run(self.consumer.commit())
        calls = self.world.asked(COMMIT)
        return [(call.fields["queueId"], call.fields["commitOffset"]) for call in calls]


@given(st.integers(0, 40), st.lists(st.text(max_size=5), min_size=1, max_size=9, unique=True))
def test_every_queue_has_one_member_and_shares_differ_by_one(count: int, names: list[str]) -> None:
    queues = [queue(number) for number in range(count)]
    shares = [share_evenly(names[::-1], name, queues[::-1]) for name in names]
    assert sorted(q for share in shares for q in share) == queues
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_shares_are_those_of_rocketmq() -> None:
    queues = [queue(number) for number in range(5)]
    assert share_evenly(["b", "a"], "a", queues) == queues[:3]
    assert share_evenly(["b", "a"], "b", queues) == queues[3:]
    assert share_evenly(["b", "a"], "c", queues) == []


def test_members_share_and_lose_what_others_take() -> None:
    group = Group()
    assert group.share() == [0, 1, 2, 3]
    group.members = members("me", "another")
    assert group.share() == [2, 3]
    group.members = None  # nobody says who is there: everything stays
    assert group.share() == [2, 3]
    group.members = members("another")
    assert group.share() == []


def test_what_is_lost_is_committed_first() -> None:
    group = Group(begin=Begin.FIRST)
    group.share()
    group.pull = pulled(record(3), 4)
    assert group.take() == [3]
    group.consumer.handled(queue(0))
    group.members = members("another")
    assert group.share() == []
    assert [(c.fields["queueId"], c.fields["commitOffset"]) for c in group.world.asked(COMMIT)] == [
        ("0", "4")
    ]


def test_a_broker_says_that_the_members_changed() -> None:
    consumer = Group().consumer
    other = Command(code=40, opaque=1, fields={"consumerGroup": "other"})
    assert consumer.asked(Address("a", 1), other) is not None
    assert consumer.members_changed.count == 0
    assert consumer.asked(
        Address("a", 1), Command(code=40, opaque=1, fields={"consumerGroup": "g"})
    )
    assert consumer.members_changed.count == 1
    assert consumer.asked(Address("a", 1), Command(code=39, opaque=1)) is None


@pytest.mark.parametrize(
    ("settings", "first"),
    [
        ({"begin": Begin.FIRST}, "3"),
        ({"begin": Begin.LAST}, "7"),
        ({"begin": Begin.TIMESTAMP, "begin_ms": 55}, "5"),
    ],
)
def test_a_group_begins_where_it_was_told_to_and_then_where_it_was(
    settings: dict[str, Any], first: str
) -> None:
    group = Group(**settings)
    group.share()
    group.take()
    assert group.world.asked(PULL)[0].fields["queueOffset"] == first
    known = Group(**settings)
    known.offset = good(offset="6")
    known.share()
    known.take()
    assert known.world.asked(PULL)[0].fields["queueOffset"] == "6"


def test_a_pull_waits_at_the_broker_and_names_its_subscription() -> None:
    group = Group("x || y")
    group.share()
    group.take()
    (call,) = group.world.asked(PULL)
    assert call.fields["sysFlag"] == "6"
    assert (call.fields["subscription"], call.fields["subVersion"]) == ("x || y", "99")
    assert int(call.fields["suspendTimeoutMillis"]) / 1000 < call.seconds


def test_tags_are_compared_once_more_and_what_is_passed_over_is_handled() -> None:
    group = Group("x||y", begin=Begin.FIRST)
    group.share()
    group.pull = pulled(record(3, "x") + record(4, "z") + record(5, "y"), 6)
    assert group.take() == [3, 5]
    assert group.committed() == []  # not handled yet
    group.consumer.handled(queue(0))
    assert group.committed() == [("0", "6")]
    group.pull = pulled(record(6, "z"), 7)
    assert group.take() == []
    assert group.committed() == [("0", "6"), ("0", "7")]
    assert group.committed() == [("0", "6"), ("0", "7")], "what is committed is not said twice"


@pytest.mark.parametrize("code", [20, 21])
def test_a_broker_may_move_the_offset(code: int) -> None:
    group = Group(begin=Begin.FIRST)
    group.share()
    group.pull = pulled(b"", 8, code)
    assert group.take() == []
    group.take()
    assert group.world.asked(PULL)[-1].fields["queueOffset"] == "8"


@pytest.mark.parametrize("answer", [None, bad(1), good(), pulled(b"no record", 9)])
def test_what_fails_is_a_pause_and_no_loss(answer: Command | None) -> None:
    group = Group(begin=Begin.FIRST)
    group.share()
    group.take()
    group.pull = answer
    before = group.world.now
    assert group.take() == []
    assert group.world.now >= before
    group.pull = pulled(record(0), 1)
    assert group.take() == [0]


def test_what_was_handled_in_vain_goes_back_and_if_not_is_pulled_again() -> None:
    group = Group(begin=Begin.FIRST)
    group.share()
    group.pull = pulled(record(3) + record(4), 5)
    records = group.world.run(group.consumer.pull(queue(0)))
    assert group.world.run(group.consumer.handled_in_vain(queue(0), records[0]))
    (call,) = group.world.asked(BACK)
    assert (call.fields["offset"], call.fields["group"]) == ("1003", "g")
    assert call.fields["delayLevel"] == "0"
    group.world.answers["a", BACK] = lambda _: None
    assert not group.world.run(group.consumer.handled_in_vain(queue(0), records[1]))
    group.take()
    assert group.world.asked(PULL)[-1].fields["queueOffset"] == "4"
    assert group.committed() == [("0", "4")], "what was before it is handled"


def test_broadcasting_reads_all_and_keeps_its_own_offsets() -> None:
    group = Group(model=Model.BROADCASTING, begin=Begin.FIRST)
    group.members = members("another")
    assert group.share() == [0, 1, 2, 3]
    group.pull = pulled(record(3), 4)
    group.take()
    group.consumer.handled(queue(0))
    assert group.committed() == []
    assert group.consumer.offsets == {queue(0): 4}
    again = Group(model=Model.BROADCASTING)
    again.consumer.offsets = {queue(0): 4}
    again.share()
    again.take()
    assert again.world.asked(PULL)[0].fields["queueOffset"] == "4"
    assert again.world.asked(RequestCode.QUERY_CONSUMER_OFFSET) == []


def test_the_retry_topic_of_the_group_is_read_from_its_beginning() -> None:
    group = Group()
    group.world.topics["%RETRY%g"] = {"a": 1}
    retry = queue(0, topic="%RETRY%g")
    assert retry in group.world.run(group.consumer.share())
    group.world.run(group.consumer.pull(retry))
    assert group.world.asked(PULL)[0].fields["queueOffset"] == "3"


def test_a_topic_that_is_nowhere_is_looked_for_and_its_brokers_are_told_at_once() -> None:
    group = Group()
    queues = group.world.topics.pop("t")
    assert group.share() == []
    group.world.run(group.consumer.wait_to_share(0))
    assert group.world.now == group.consumer.settings.look_seconds
    group.world.topics["t"] = queues
    assert group.share() == [0, 1, 2, 3]
    codes = [call.code for call in group.world.calls]
    assert codes == [RequestCode.HEART_BEAT, MEMBERS], "who is not there has no share"
    group.world.run(group.consumer.wait_to_share(0))
    assert group.world.now == 1.0 + group.consumer.settings.share_seconds


def test_heartbeats_say_what_is_read_and_leaving_commits() -> None:
    group = Group("x||y", begin=Begin.FIRST)
    group.share()
    (beat,) = group.world.asked(RequestCode.HEART_BEAT)
    said = json.loads(beat.body)
    assert said["clientID"] == "me"
    (data,) = said["consumerDataSet"]
    assert (data["groupName"], data["messageModel"]) == ("g", "CLUSTERING")
    subscription = data["subscriptionDataSet"][0]
    assert subscription["tagsSet"] == ["x", "y"]
    assert subscription["codeSet"] == [ord("x"), ord("y")]
    group.pull = pulled(record(3), 4)
    group.take()
    group.consumer.handled(queue(0))
    group.world.run(group.consumer.leave())
    last: list[Call] = group.world.calls[-2:]
    assert [call.code for call in last] == [COMMIT, RequestCode.UNREGISTER_CLIENT]
    assert last[1].fields["consumerGroup"] == "g"
