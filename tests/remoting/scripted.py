"""Servers that answer as a test says, and a driver without sockets or time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from polymq.remoting.bodies import BrokerData, QueueData, TopicRoute, encode_body
from polymq.remoting.codes import RequestCode
from polymq.remoting.errors import CallFailed
from polymq.remoting.frames import Command
from polymq.remoting.routes import NameServers, Routes
from polymq.remoting.steps import Address, Call, Invoke, Start, Step, Steps

T = TypeVar("T")
NAMES = Address("names", 9876)
Answer = Callable[[Call], Command | None]


def good(body: bytes = b"", **fields: str) -> Command:
    return Command(code=0, opaque=1, fields=fields, body=body)


def bad(code: int) -> Command:
    return Command(code=code, opaque=1, remark="no")


class World:
    """A name server and its brokers.

    Attributes:
        topics: topic -> broker -> count of queues. The broker's address is `broker:1`.
        answers: of a broker, by (broker, code); None: it does not answer.
        calls: everything that was asked, routes excepted.
        now: moved by pauses.
    """

    def __init__(self, **topics: dict[str, int]) -> None:
        self.topics = topics
        self.answers: dict[tuple[str, int], Answer] = {}
        self.calls: list[Call] = []
        self.now = 0.0
        self.perm = 6
        self.names_are_up = True
        self.routes = Routes(NameServers((NAMES,), lambda count: 0))

    def run(self, steps: Steps[T]) -> T:
        """Carry an operation out."""
        try:
            step = next(steps)
            while True:
                answer = self.answer(step)
                if isinstance(step, Call) and answer is None and not step.oneway:
                    step = steps.throw(CallFailed("no answer"))
                else:
                    step = steps.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            return result

    def answer(self, step: Step) -> Command | None:
        if isinstance(step, Invoke):
            try:
                step.result = step.function(*step.arguments)
            except Exception as error:  # noqa: BLE001  (the operation decides what it means)
                step.failure = error
            return None
        if not isinstance(step, Call):
            assert not isinstance(step, Start), "a World does one thing at a time: take a Stage"
            self.now += step.seconds
            return None
        if step.address == NAMES:
            return self._route(step.fields["topic"]) if self.names_are_up else None
        self.calls.append(step)
        answer = self.answers.get((step.address.host, step.code))
        return good() if answer is None else answer(step)

    def asked(self, code: int) -> list[Call]:
        """The calls with this code."""
        return [call for call in self.calls if call.code == code]

    def _route(self, topic: str) -> Command:
        brokers = self.topics.get(topic)
        if brokers is None:
            return bad(17)
        route = TopicRoute(
            broker_datas=[
                BrokerData(broker_name=name, broker_addrs={"0": f"{name}:1"}) for name in brokers
            ],
            queue_datas=[
                QueueData(
                    broker_name=name, read_queue_nums=count, write_queue_nums=count, perm=self.perm
                )
                for name, count in brokers.items()
            ],
        )
        return good(encode_body(route))


def stores(call: Call) -> Command:
    """A broker that takes messages."""
    return good(msgId="00", queueId=call.fields["e"], queueOffset="5")


SEND, SEND_BATCH = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE
