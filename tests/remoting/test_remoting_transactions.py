"""Transactions: the half message, the work, the decision, and the questions of brokers."""

from __future__ import annotations

import itertools
import zlib
from typing import Any

import pytest

from polymq.remoting.broker_fields import EndTransactionFields, SendFields, long_names
from polymq.remoting.compression import ZLIB_FLAG
from polymq.remoting.errors import BadFields, CallFailed, LocalProtocolError, RequestFailed
from polymq.remoting.frames import Command
from polymq.remoting.headers import read_fields
from polymq.remoting.messages import Message
from polymq.remoting.producer import PREPARED, Producer, ProducerSettings, Sent
from polymq.remoting.records import Record
from polymq.remoting.steps import Address, Call
from polymq.remoting.transactions import CHECKS_COUNT_MAX, Decision, Transactions
from tests.remoting.record_builder import build_properties, build_record
from tests.remoting.scripted import SEND, World, bad, good
from tests.remoting.stage import Stage

END, CHECK = 37, 39
POSITION = "7F000001" + "00002A9F" + f"{4711:016X}"


class Listener:
    """Decides what the test says."""

    def __init__(self, decision: object = Decision.COMMIT) -> None:
        self.decision = decision
        self.done: list[tuple[bytes, str]] = []
        self.checked: list[Record] = []

    def _decided(self) -> Decision:
        if isinstance(self.decision, Exception):
            raise self.decision
        return self.decision  # type: ignore[return-value]  # which some tests want

    def execute(self, message: Message, sent: Sent) -> Decision:
        self.done.append((message.body, sent.message_id))
        return self._decided()

    def check(self, record: Record) -> Decision:
        self.checked.append(record)
        return self._decided()


class Bank:
    """A broker and a producer of transactions."""

    def __init__(self, decision: object = Decision.COMMIT, **settings: Any) -> None:
        self.world = World(t={"a": 1})
        self.code = 0
        self.world.answers["a", SEND] = lambda _: Command(
            code=self.code,
            opaque=1,
            fields={"msgId": POSITION, "queueId": "0", "queueOffset": "12"},
        )
        ids = itertools.count()
        self.report: list[str] = []
        self.listener = Listener(decision)
        self.producer = Producer(
            group="g",
            client_id="me",
            routes=self.world.routes,
            clock=lambda: self.world.now,
            clock_ms=lambda: 1000,
            choose=lambda count: 0,
            new_id=lambda: f"{next(ids):032X}",
            settings=ProducerSettings(**settings),
        )
        self.transactions = Transactions(self.producer, self.listener, report=self.report.append)

    def send(self, message: Message | None = None) -> tuple[Sent, Decision]:
        return self.world.run(self.transactions.send(message or Message(topic="t", body=b"x")))

    def ends(self) -> list[EndTransactionFields]:
        calls = self.world.asked(END)
        assert all(call.oneway for call in calls)
        return [read_fields(EndTransactionFields, call.fields) for call in calls]

    def ask(self, body: bytes | None = None, **fields: str) -> None:
        """The broker's question about a message."""
        record = build_record(body=b"x", properties=build_properties(UNIQ_KEY="K"))
        fields = {"tranStateTableOffset": "12", "commitLogOffset": "4711", "msgId": "K"} | fields
        command = Command(
            code=CHECK, opaque=9, flag=2, fields=fields, body=record if body is None else body
        )
        assert self.transactions.asked(Address("a", 1), command) is not None


@pytest.mark.parametrize("decision", Decision)
def test_the_half_comes_first_and_then_the_decision(decision: Decision) -> None:
    bank = Bank(decision)
    sent, decided = bank.send()
    assert decided is decision
    assert bank.listener.done == [(b"x", sent.message_id)]
    (half,) = bank.world.asked(SEND)
    fields = read_fields(SendFields, long_names(half.fields))
    assert fields.sys_flag == PREPARED
    pairs = dict(pair.split("\x01") for pair in fields.properties.split("\x02") if pair)
    assert (pairs["TRAN_MSG"], pairs["PGROUP"]) == ("true", "g")
    (end,) = bank.ends()
    assert (end.tran_state_table_offset, end.commit_log_offset) == (12, 4711)
    assert (end.commit_or_rollback, end.producer_group) == (decision, "g")
    assert (end.msg_id, end.from_transaction_check) == (sent.message_id, False)
    assert [call.code for call in bank.world.calls] == [SEND, END]


@pytest.mark.parametrize("decision", [ValueError("the database is away"), None, 8, "commit"])
def test_work_that_raises_or_says_nothing_has_not_decided(decision: object) -> None:
    bank = Bank(decision)
    assert bank.send()[1] is Decision.UNKNOWN
    assert bank.ends()[0].commit_or_rollback == 0
    (report,) = bank.report
    assert "is not decided" in report
    assert "the database is away" in report or "is not a Decision" in report


@pytest.mark.parametrize("code", [10, 11, 12])
def test_a_half_that_is_stored_less_safely_is_rolled_back_without_work(code: int) -> None:
    bank = Bank()
    bank.code = code
    assert bank.send()[1] is Decision.ROLLBACK
    assert bank.listener.done == []
    assert bank.ends()[0].commit_or_rollback == Decision.ROLLBACK


def test_a_half_that_is_not_stored_has_no_work_and_no_end() -> None:
    bank = Bank()
    bank.code = 13
    with pytest.raises(RequestFailed):
        bank.send()
    with pytest.raises(LocalProtocolError, match="delayed"):
        bank.send(Message(topic="t", body=b"x", properties={"DELAY": "3"}))
    assert (bank.listener.done, bank.ends()) == ([], [])


def test_a_half_message_is_compressed_like_any_other() -> None:
    bank = Bank(compress_bytes=10)
    bank.send(Message(topic="t", body=b"x" * 100))
    (half,) = bank.world.asked(SEND)
    assert half.fields["f"] == str(PREPARED | ZLIB_FLAG)
    assert zlib.decompress(half.body) == b"x" * 100


@pytest.mark.parametrize("decision", Decision)
def test_the_question_of_a_broker_is_answered_where_it_came_from(decision: Decision) -> None:
    bank = Bank(decision)
    stage = Stage(bank.world)
    stage.start(bank.transactions.keep_checking())
    bank.ask(transactionId="X")
    stage.settle()
    (record,) = bank.listener.checked
    assert record.body == b"x"
    (end,) = bank.ends()
    assert (end.commit_or_rollback, end.from_transaction_check) == (decision, True)
    assert (end.tran_state_table_offset, end.commit_log_offset) == (12, 4711)
    assert (end.msg_id, end.transaction_id) == ("K", "X")
    assert bank.world.asked(END)[0].address == Address("a", 1)


def test_a_check_gets_the_body_as_it_was_sent() -> None:
    bank = Bank()
    stage = Stage(bank.world)
    stage.start(bank.transactions.keep_checking())
    bank.ask(build_record(body=zlib.compress(b"plain"), system_flag=ZLIB_FLAG))
    stage.settle()
    assert bank.listener.checked[0].body == b"plain"


@pytest.mark.parametrize(
    ("body", "fields"),
    [(b"no record", {}), (b"", {}), (None, {"commitLogOffset": "x"})],
)
def test_a_question_that_makes_no_sense_is_told_and_not_the_last(
    body: bytes | None, fields: dict[str, str]
) -> None:
    bank = Bank()
    stage = Stage(bank.world)
    stage.start(bank.transactions.keep_checking())
    bank.ask(body, **fields)
    bank.ask()
    stage.settle()
    assert len(bank.report) == len(bank.ends()) == 1
    assert "a:1 asks about a transaction in a way that makes no sense" in bank.report[0]


def test_questions_that_nobody_answers_do_not_pile_up() -> None:
    bank = Bank()
    for _ in range(CHECKS_COUNT_MAX + 5):
        bank.ask()
    assert bank.transactions.asked(Address("a", 1), Command(code=40, opaque=1)) is None
    Stage(bank.world).start(bank.transactions.keep_checking())
    assert len(bank.ends()) == CHECKS_COUNT_MAX


def test_a_decision_that_does_not_leave_is_told() -> None:
    """The broker will ask: nothing is lost."""
    bank = Bank()
    steps = bank.transactions.send(Message(topic="t", body=b"x"))
    step = next(steps)
    while not (isinstance(step, Call) and step.code == END):
        step = steps.send(bank.world.answer(step))
    with pytest.raises(StopIteration):
        steps.throw(CallFailed("a:1: refused"))
    assert "the broker will ask" in bank.report[0]


def test_a_name_that_is_no_place_is_refused() -> None:
    bank = Bank()
    bank.world.answers["a", SEND] = lambda _: good(msgId="nonsense", queueId="0", queueOffset="1")
    with pytest.raises(BadFields, match="not an offset message id"):
        bank.send()
    bank.world.answers["a", SEND] = lambda _: bad(1)
    with pytest.raises(RequestFailed):
        bank.send()
