"""A consumer at work: what it holds, what becomes of that when members change, and order."""

from __future__ import annotations

import json
import string
import zlib
from collections import Counter
from typing import Any

import lz4.frame
import pytest

from polymq.remoting.compression import COMPRESSED, LZ4, ZLIB_FLAG
from polymq.remoting.consumer import Consumer
from polymq.remoting.consumer_settings import Begin, ConsumerSettings
from polymq.remoting.frames import Command
from polymq.remoting.group_bodies import MessageQueue
from polymq.remoting.records import Record
from polymq.remoting.steps import Address, Call
from tests.remoting.record_builder import build_properties, build_record
from tests.remoting.scripted import World, bad, good
from tests.remoting.stage import HELD, Stage

PULL, COMMIT, BACK, MEMBERS, LOCK, UNLOCK = 11, 15, 36, 38, 41, 42


class Broker:
    """One broker with a topic `t`: its queues, who is there, and what a group has committed.

    Attributes:
        queues: the messages of each queue.
        locks: queue -> client.
    """

    def __init__(self, queue_count: int = 1) -> None:
        self.world = World(t={"a": queue_count})
        self.queues: list[list[bytes]] = [[] for _ in range(queue_count)]
        self.members: list[str] = []
        self.committed: dict[int, int] = {}
        self.locks: dict[int, str] = {}
        answers: dict[int, Any] = {
            34: self._beat,
            MEMBERS: lambda _: good(json.dumps({"consumerIdList": self.members}).encode()),
            14: self._query,
            COMMIT: self._commit,
            31: lambda _: good(offset="0"),
            PULL: self._pull,
            LOCK: self._lock,
            UNLOCK: self._unlock,
        }
        self.world.answers = {("a", code): answer for code, answer in answers.items()}

    def consumer(self, name: str = "me", /, **settings: Any) -> Consumer:
        report: list[str] = []
        made = Consumer(
            group="g",
            client_id=name,
            routes=self.world.routes,
            subscriptions={"t": "*"},
            started_ms=99,
            clock=lambda: self.world.now,
            settings=ConsumerSettings(begin=Begin.FIRST, **settings),
            report=report.append,
        )
        self.report = report
        return made

    def put(self, *bodies: str, queue: int = 0) -> None:
        for body in bodies:
            self.put_raw(body.encode(), queue=queue)

    def put_raw(self, body: bytes, *, queue: int = 0, **parts: Any) -> None:
        offset = len(self.queues[queue])
        self.queues[queue].append(
            build_record(
                topic="t", queue_id=queue, queue_offset=offset, position=100 + offset, body=body,
                properties=build_properties(UNIQ_KEY=f"K{offset}"), **parts,
            )
        )  # fmt: skip

    def _beat(self, call: Call) -> Command:
        name = json.loads(call.body)["clientID"]
        if name not in self.members:
            self.members.append(name)
        return good()

    def _query(self, call: Call) -> Command:
        offset = self.committed.get(int(call.fields["queueId"]))
        return bad(22) if offset is None else good(offset=str(offset))

    def _commit(self, call: Call) -> Command:
        self.committed[int(call.fields["queueId"])] = int(call.fields["commitOffset"])
        return good()

    def _pull(self, call: Call) -> Any:
        queue = self.queues[int(call.fields["queueId"])]
        offset, most = int(call.fields["queueOffset"]), int(call.fields["maxMsgNums"])
        found = queue[offset : offset + most]
        if not found:
            return HELD
        return good(
            b"".join(found), suggestWhichBrokerId="0", nextBeginOffset=str(offset + len(found)),
            minOffset="0", maxOffset=str(len(queue)),
        )  # fmt: skip

    def _lock(self, call: Call) -> Command:
        asked = json.loads(call.body)
        for queue in asked["mqSet"]:
            self.locks.setdefault(queue["queueId"], asked["clientId"])
        mine = [q for q in asked["mqSet"] if self.locks[q["queueId"]] == asked["clientId"]]
        return good(json.dumps({"lockOKMQSet": mine}).encode())

    def _unlock(self, call: Call) -> Command:
        asked = json.loads(call.body)
        for queue in asked["mqSet"]:
            if self.locks.get(queue["queueId"]) == asked["clientId"]:
                del self.locks[queue["queueId"]]
        return good()


class Handler:
    """Keeps what it is given; returns when the test says so, if it is held."""

    def __init__(self, held: bool = False) -> None:
        self.held = held
        self.got: list[str] = []
        self.records: list[Record] = []
        self.failures: Counter[str] = Counter()

    def __call__(self, record: Record) -> object:
        body = record.body.decode()
        self.got.append(body)
        self.records.append(record)
        if self.failures[body]:
            self.failures[body] -= 1
            raise ValueError("not now")
        return HELD if self.held else None


def queue(number: int) -> MessageQueue:
    return MessageQueue(topic="t", broker_name="a", queue_id=number)


# --- what is held -------------------------------------------------------------------------------


def test_a_slow_handler_holds_one_pull_and_the_rest_stays_at_the_broker() -> None:
    broker, handler = Broker(), Handler(held=True)
    broker.put(*map(str, range(100)))
    stage = Stage(broker.world)
    stage.start(broker.consumer(pull_count_max=10).keep(handler))
    stage.pass_time(600)
    assert len(broker.world.asked(PULL)) == 1
    stage.let_return(stage.held[0])
    assert handler.got == ["0", "1"]
    (pull,) = broker.world.asked(PULL)
    assert (pull.fields["maxMsgNums"], pull.fields["maxMsgBytes"]) == ("10", str(256 * 1024))


@pytest.mark.parametrize("bound", [{"held_count_max": 20}, {"held_bytes_max": 20}])
def test_all_queues_together_hold_no_more_than_the_settings_say(bound: dict[str, int]) -> None:
    """By count and by bytes; what is handled makes room."""
    broker, handler = Broker(8), Handler(held=True)
    for number in range(8):
        broker.put(*string.ascii_lowercase, queue=number)
    stage = Stage(broker.world)
    consumer = broker.consumer(pull_count_max=10, **bound)
    stage.start(consumer.keep(handler))
    assert consumer.held_count == 20, "two queues of ten"
    for _ in range(10):
        stage.let_return(stage.held[0])
    assert consumer.held_count == 20
    assert len(broker.world.asked(PULL)) == 3


# --- what fails ---------------------------------------------------------------------------------


def test_a_handler_that_raises_is_told_with_its_trace_and_the_message_goes_back() -> None:
    broker, handler = Broker(), Handler()
    broker.put("a", "b", "c")
    handler.failures["b"] = 1
    stage = Stage(broker.world)
    stage.start(broker.consumer().keep(handler))
    assert handler.got == ["a", "b", "c"]
    (back,) = broker.world.asked(BACK)
    assert (back.fields["offset"], back.fields["delayLevel"]) == ("101", "0")
    (report,) = broker.report
    assert "message K1 (t, queue 0, 1)" in report
    assert "ValueError: not now" in report
    assert "__call__" in report
    stage.pass_time(6)
    assert broker.committed == {0: 3}


def test_what_cannot_be_sent_back_is_tried_again_from_its_place() -> None:
    broker, handler = Broker(), Handler()
    broker.put("a", "b", "c")
    handler.failures["b"] = 1
    broker.world.answers["a", BACK] = lambda _: None
    stage = Stage(broker.world)
    stage.start(broker.consumer().keep(handler))
    stage.pass_time(4)
    assert handler.got == ["a", "b", "b", "c"]


def test_bodies_come_as_they_were_sent() -> None:
    broker, handler = Broker(), Handler()
    broker.put_raw(zlib.compress(b"new"), system_flag=ZLIB_FLAG)
    broker.put_raw(zlib.compress(b"old"), system_flag=COMPRESSED)
    broker.put_raw(lz4.frame.compress(b"quick"), system_flag=COMPRESSED | LZ4 << 8)
    broker.put_raw(b"plain")
    Stage(broker.world).start(broker.consumer().keep(handler))
    assert handler.got == ["new", "old", "quick", "plain"]
    assert {record.system_flag for record in handler.records} == {0}


@pytest.mark.parametrize(
    ("body", "flag", "text"),
    [
        (b"something else", COMPRESSED | LZ4 << 8, "does not decompress"),
        (b"something else", COMPRESSED | 2 << 8, "does not decompress"),
        (b"?", COMPRESSED | 6 << 8, "compressed with type 6"),
        (b"no zlib", ZLIB_FLAG, "does not decompress"),
        (zlib.compress(b"x" * 99)[:-5], ZLIB_FLAG, "ends early"),
        (zlib.compress(bytes(17 * 1024 * 1024)), ZLIB_FLAG, "over 16777216 bytes"),
    ],
    ids=["lz4", "zstd", "unknown", "damaged", "cut", "bomb"],
)
def test_a_body_that_does_not_decompress_names_its_message_and_holds_up_nobody(
    body: bytes, flag: int, text: str
) -> None:
    broker, handler = Broker(), Handler()
    broker.put("a")
    broker.put_raw(body, system_flag=flag)
    broker.put("b")
    Stage(broker.world).start(broker.consumer().keep(handler))
    assert handler.got == ["a", "b"]
    (report,) = broker.report
    assert "message K1" in report
    assert text in report
    assert len(broker.world.asked(BACK)) == 1


def test_other_ways_to_compress_are_handed_in() -> None:
    broker, handler = Broker(), Handler()
    broker.put_raw(b"txet", system_flag=COMPRESSED | 6 << 8)
    broker.put_raw(b"", system_flag=COMPRESSED | 6 << 8)
    consumer = broker.consumer()
    consumer.decompressors = {6: lambda body: body[::-1] if body else bytes(body[0])}
    Stage(broker.world).start(consumer.keep(handler))
    assert handler.got == ["text"]
    assert "message K1" in broker.report[0], "what a decompressor raises is a bad body"


def test_what_was_sent_again_is_shown_under_its_own_topic() -> None:
    broker, handler = Broker(), Handler()
    broker.world.topics["%RETRY%g"] = {"a": 1}
    record = build_record(
        topic="%RETRY%g", body=b"again", properties=build_properties(RETRY_TOPIC="t")
    )
    pull = broker.world.answers["a", PULL]
    broker.world.answers["a", PULL] = lambda call: (
        pull(call) if call.fields["topic"] == "t" or call.fields["queueOffset"] != "0"
        else good(record, suggestWhichBrokerId="0", nextBeginOffset="1", minOffset="0",
                  maxOffset="1")
    )  # fmt: skip
    Stage(broker.world).start(broker.consumer().keep(handler))
    assert [(record.topic, record.body) for record in handler.records] == [("t", b"again")]


def test_what_a_broker_refuses_is_told() -> None:
    """A consumer without the right to read would otherwise be silent for ever."""
    broker = Broker()
    broker.world.answers["a", PULL] = lambda _: bad(16)
    stage = Stage(broker.world)
    stage.start(broker.consumer().keep(Handler()))
    stage.pass_time(7)
    assert len(broker.world.asked(PULL)) == 3, "every three seconds"
    assert "code 16" in broker.report[0]


# --- who is there ---------------------------------------------------------------------------------


def test_a_lost_queue_ends_its_pull_but_not_its_handler() -> None:
    """And is committed when that has returned, not before."""
    broker, handler = Broker(2), Handler(held=True)
    broker.put("a", "b", queue=1)
    stage, consumer = Stage(broker.world), broker.consumer()
    stage.start(consumer.keep(handler))
    broker.members.append("other")  # it gets queue 1
    consumer.members_changed.give()
    stage.settle()
    assert consumer.queues == {queue(0)}
    assert broker.committed == {}
    stage.let_return(stage.held[0])
    assert handler.got == ["a"]
    assert broker.committed == {1: 1}
    broker.members.append("another")  # "me" is the second now, and has nothing
    broker.members.sort()
    consumer.members_changed.give()
    stage.settle()
    assert not any(isinstance(running.step, Call) for running in stage.all), "no pull is left"


def test_a_queue_that_comes_back_waits_for_its_handler() -> None:
    broker, handler = Broker(), Handler(held=True)
    broker.put("a", "b")
    stage, consumer = Stage(broker.world), broker.consumer()
    stage.start(consumer.keep(handler))
    broker.members.insert(0, "a")
    consumer.members_changed.give()
    stage.settle()
    assert consumer.queues == frozenset()
    broker.members.remove("a")
    consumer.members_changed.give()
    stage.settle()
    assert handler.got == ["a"], "not handled twice at a time"
    stage.let_return(stage.held[0])
    assert handler.got == ["a", "b"]
    assert broker.committed == {0: 1}


def test_who_was_forgotten_says_that_it_is_there_and_keeps_its_queues() -> None:
    """A broker that has restarted knows only those whose heartbeat has come since."""
    broker = Broker()
    stage, consumer = Stage(broker.world), broker.consumer()
    stage.start(consumer.keep(Handler()))
    broker.members[:] = ["zoe"]
    consumer.members_changed.give()
    stage.settle()
    assert consumer.queues == {queue(0)}
    broker.members[:] = []
    consumer.connection_lost(Address("a", 1))
    stage.settle()
    stage.pass_time(1)
    assert broker.members == ["me"], "and soon after its connection broke"


def test_closing_waits_for_the_handler_and_commits() -> None:
    broker, handler = Broker(2), Handler(held=True)
    broker.put("a", "b")
    stage, consumer = Stage(broker.world), broker.consumer()
    stage.start(consumer.keep(handler))
    closed = stage.start(consumer.wait_closed())
    consumer.close()
    stage.settle()
    ended = [closed.ended]
    stage.let_return(stage.held[0])
    stage.pass_time(2)
    ended.append(closed.ended)
    assert ended == [False, True]
    assert handler.got == ["a"]
    assert broker.committed == {0: 1}
    broker.world.run(consumer.leave())
    assert len(broker.world.asked(35)) == 1


def test_a_changed_route_is_acted_on_at_once() -> None:
    broker = Broker()
    stage, consumer = Stage(broker.world), broker.consumer()
    stage.start(consumer.keep(Handler()))
    broker.world.topics["t"] = {"a": 2}
    broker.queues.append([])
    broker.world.run(broker.world.routes.refresh("t"))
    stage.settle()
    assert consumer.queues == {queue(0), queue(1)}


# --- order ----------------------------------------------------------------------------------------


def ordered(broker: Broker, name: str = "me", **settings: Any) -> Consumer:
    return broker.consumer(name, ordered=True, **settings)


def test_in_order_a_message_is_tried_again_in_its_place() -> None:
    broker, handler = Broker(), Handler()
    broker.put("a", "b", "c")
    handler.failures["b"] = 3
    stage = Stage(broker.world)
    stage.start(ordered(broker).keep(handler))
    assert handler.got == ["a", "b"]
    stage.pass_time(10)
    assert handler.got == ["a", "b", "b", "b", "b", "c"]
    assert [r.reconsume_count for r in handler.records[1:5]] == [0, 1, 2, 3]
    assert broker.world.asked(BACK) == []


def test_in_order_a_message_may_become_a_dead_letter() -> None:
    broker, handler = Broker(), Handler()
    broker.put("a", "b")
    handler.failures["a"] = 99
    stage = Stage(broker.world)
    stage.start(ordered(broker, retries_max=2).keep(handler))
    stage.pass_time(10)
    assert handler.got == ["a", "a", "a", "b"]
    (back,) = broker.world.asked(BACK)
    assert back.fields["delayLevel"] == "-1"


def test_without_the_lock_nothing_is_read() -> None:
    broker, handler = Broker(), Handler()
    broker.put("a")
    broker.locks[0] = "other"
    stage = Stage(broker.world)
    stage.start(ordered(broker).keep(handler))
    stage.pass_time(5)
    assert handler.got == []
    assert broker.world.asked(PULL) == []
    del broker.locks[0]
    stage.pass_time(2)
    assert handler.got == ["a"]


def test_locks_are_renewed_and_believed_in_for_less_than_they_last() -> None:
    broker, handler = Broker(2), Handler()
    stage = Stage(broker.world)
    stage.start(ordered(broker).keep(handler))
    stage.pass_time(61)
    assert len(broker.world.asked(LOCK)) == 2 + 3, "each queue once, then both every 20 seconds"
    broker.world.answers["a", LOCK] = lambda _: None
    stage.pass_time(48)  # 49 seconds after the last renewal
    broker.put("a")
    stage.answer_held()
    assert handler.got == ["a"]
    stage.pass_time(2)
    broker.put("b")
    stage.answer_held()
    assert handler.got == ["a"], "who takes no answers may have lost it"


def test_a_lock_that_was_lost_is_no_licence_to_go_on() -> None:
    """The rest of the pull is left alone; the lock is asked for again, and reading goes on at what
    the group has committed."""
    broker, handler = Broker(), Handler(held=True)
    broker.put("a", "b", "c")
    stage = Stage(broker.world)
    stage.start(ordered(broker).keep(handler))
    broker.locks[0] = "other"
    stage.pass_time(21)  # the renewal says so
    stage.let_return(stage.held[0])
    assert handler.got == ["a"]
    stage.pass_time(3)
    assert handler.got == ["a"]
    broker.committed[0] = 2  # the other one has handled b
    del broker.locks[0]
    stage.pass_time(2)
    assert handler.got == ["a", "c"]


def test_order_is_kept_over_a_handover() -> None:
    """The second member begins when the first has returned, committed and unlocked: where that
    was."""
    broker = Broker(2)
    broker.put(*"abcdef", queue=1)
    one, two = Handler(held=True), Handler()
    stage = Stage(broker.world)
    first, second = ordered(broker, "1"), ordered(broker, "2")
    stage.start(first.keep(one))
    stage.start(second.keep(two))
    assert (one.got, two.got) == (["a"], [])
    first.members_changed.give()
    second.members_changed.give()
    stage.settle()
    stage.pass_time(5)
    assert second.queues == {queue(1)}
    assert two.got == [], "the first is still at a, and has the lock"
    stage.let_return(stage.held[0])
    stage.pass_time(2)
    assert (one.got, two.got) == (["a"], ["b", "c", "d", "e", "f"])
    assert broker.locks == {0: "1", 1: "2"}
    order = [call.code for call in broker.world.calls if call.code in (COMMIT, UNLOCK)]
    assert order[:2] == [COMMIT, UNLOCK]


def test_leaving_gives_the_locks_back() -> None:
    broker = Broker(3)
    stage, consumer = Stage(broker.world), ordered(broker)
    stage.start(consumer.keep(Handler()))
    assert broker.locks == {0: "me", 1: "me", 2: "me"}
    broker.world.run(consumer.leave())
    assert broker.locks == {}
    assert len(broker.world.asked(UNLOCK)) == 1, "all of one broker at once"
