"""What a client knows of routes, and whom it asks: failover, stickiness, what is kept."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TypeVar

import pytest

from polymq.remoting.bodies import BrokerData, QueueData, TopicRoute, encode_body
from polymq.remoting.driver_blocking import BlockingDriver
from polymq.remoting.errors import CallFailed, LocalProtocolError, RequestFailed, Unreachable
from polymq.remoting.frames import Command
from polymq.remoting.routes import (
    NameServers,
    Routes,
    master_of,
    parse_name_servers,
    queues_to_read,
    queues_to_write,
)
from polymq.remoting.steps import Address, Call, Fetch, Steps

T = TypeVar("T")
A, B, C = (Address(name, 9876) for name in "abc")
UNKNOWN = Command(code=17, opaque=1, remark="no such topic")


def route(*names: str, perm: int = 6, order: str | None = None, **addresses: str) -> TopicRoute:
    """A topic with two queues on each broker."""
    return TopicRoute(
        broker_datas=[
            BrokerData(broker_name=name, broker_addrs={"0": addresses.get(name, f"{name}:1")})
            for name in names
        ],
        queue_datas=[
            QueueData(broker_name=name, read_queue_nums=2, write_queue_nums=1, perm=perm)
            for name in names
        ],
        order_topic_conf=order,
    )


def answer(found: TopicRoute) -> Command:
    return Command(code=0, opaque=1, body=encode_body(found))


def drive(steps: Steps[T], servers: dict[Address, Command | None]) -> tuple[T, list[Address]]:
    """Carry out: each name server gives its answer, or none. Returns whom was asked, too."""
    asked = []
    try:
        step = next(steps)
        while True:
            assert isinstance(step, Call)
            asked.append(step.address)
            given = servers[step.address]
            step = steps.throw(CallFailed("down")) if given is None else steps.send(given)
    except StopIteration as stop:
        return stop.value, asked


def routes(choose: Callable[[int], int] = lambda count: 0) -> Routes:
    return Routes(NameServers((A, B, C), choose))


def test_a_name_server_is_chosen_by_chance_and_kept_while_it_answers() -> None:
    known = routes(lambda count: count - 1)
    servers: dict[Address, Command | None] = dict.fromkeys((A, B, C), answer(route("x")))
    assert drive(known.fetch("t"), servers)[1] == [C]
    known.names.choose = lambda count: 0
    assert drive(known.fetch("t"), servers)[1] == [C]
    servers[C] = None
    assert drive(known.fetch("t"), servers)[1] == [C, A]
    servers[C] = servers[A]
    assert drive(known.fetch("t"), servers)[1] == [A]


def test_one_that_does_not_know_a_topic_is_not_believed_alone() -> None:
    """It may have just started: the brokers come to it one by one."""
    known = routes()
    found, asked = drive(known.fetch("t"), {A: UNKNOWN, B: None, C: answer(route("x"))})
    assert (found, asked) == (route("x"), [A, B, C])
    with pytest.raises(RequestFailed, match="no such topic"):
        drive(routes().fetch("t"), {A: None, B: UNKNOWN, C: None})
    with pytest.raises(Unreachable, match="down"):
        drive(routes().fetch("t"), {A: None, B: None, C: None})


@pytest.mark.parametrize("later", [UNKNOWN, None, Command(code=2, opaque=1)])
def test_what_cannot_be_learned_changes_nothing(later: Command | None) -> None:
    known = routes()
    drive(known.fetch("t"), dict.fromkeys((A, B, C), answer(route("x"))))
    assert known.changed.count == 1
    found, _ = drive(known.refresh("t"), dict.fromkeys((A, B, C), later))
    assert found == known.known("t") == route("x")
    assert drive(known.get("t"), {})[1] == []  # nobody is asked for what is known
    assert known.changed.count == 1
    drive(known.refresh("t"), dict.fromkeys((A, B, C), answer(route("x", "y"))))
    assert known.changed.count == 2


def test_a_damaged_answer_is_the_name_servers_fault() -> None:
    broken = Command(code=0, opaque=1, body=b"{")
    found, asked = drive(routes().fetch("t"), {A: broken, B: answer(route("x")), C: None})
    assert (found, asked) == (route("x"), [A, B])


def test_another_list_keeps_the_one_in_use_if_it_is_on_it() -> None:
    names = NameServers((A, B), lambda count: 1)
    assert names.current() == B
    names.replace((C, B))
    assert names.current() == B
    names.replace((A, C))
    assert names.current() == C


def test_an_address_server_says_who_the_name_servers_are() -> None:
    """Its answer is a list; what it does not say changes nothing."""
    known = Routes(NameServers((), lambda count: 0), endpoint="http://names/rocketmq/nsaddr")
    steps = known.fetch("t")
    step = next(steps)
    assert isinstance(step, Fetch)
    assert step.url == "http://names/rocketmq/nsaddr"
    asked = steps.send(Command(code=200, opaque=0, body=b"b:9876;a:9876\n"))
    assert isinstance(asked, Call)
    assert asked.address == B
    for answer_or_error in (b"", b"<html>", CallFailed("refused")):
        listing = known.list_name_servers()
        next(listing)
        give = (
            partial(listing.send, Command(code=200, opaque=0, body=answer_or_error))
            if isinstance(answer_or_error, bytes)
            else partial(listing.throw, answer_or_error)
        )
        with pytest.raises(StopIteration) as ended:
            give()
        assert ended.value.value is False
        assert known.names.addresses == (B, A)
    nobody = Routes(NameServers((), lambda count: 0), endpoint="http://names/")
    steps = nobody.fetch("t")
    next(steps)
    with pytest.raises(Unreachable):
        steps.throw(CallFailed("refused"))


def test_a_list_is_got_by_http() -> None:
    class Lists(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"a:9876")

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Lists) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        known = Routes(
            NameServers((), lambda count: 0), endpoint=f"http://127.0.0.1:{server.server_port}/"
        )
        assert BlockingDriver().run(known.list_name_servers())
        thread.join()
    assert known.names.addresses == (A,)
    assert not BlockingDriver().run(known.list_name_servers())  # nobody listens any more


def test_queues_come_from_brokers_that_can_take_them() -> None:
    mixed = TopicRoute(
        broker_datas=[
            BrokerData(broker_name="a", broker_addrs={"0": "a:1"}),
            BrokerData(broker_name="b", broker_addrs={"1": "b:1"}),  # no master
            BrokerData(broker_name="c", broker_addrs={"0": "c:1"}),
            BrokerData(broker_name="d", broker_addrs={"0": "nonsense"}),
        ],
        queue_datas=[
            QueueData(broker_name=name, read_queue_nums=2, write_queue_nums=1, perm=perm)
            for name, perm in (("c", 4), ("b", 6), ("a", 6), ("d", 6))
        ],
    )
    assert [(q.broker_name, q.queue_id) for q in queues_to_write("t", mixed)] == [("a", 0)]
    readable = [(q.broker_name, q.queue_id) for q in queues_to_read("t", mixed)]
    assert readable == [(name, number) for name in "abcd" for number in (0, 1)]
    assert master_of(mixed, "b") is None


def test_the_order_of_an_ordered_topic_is_the_administrators() -> None:
    ordered = route("a", "b", order="b:3;a:1;gone:2;b:x")
    assert [(q.broker_name, q.queue_id) for q in queues_to_write("t", ordered)] == [
        ("b", 0), ("b", 1), ("b", 2), ("a", 0)
    ]  # fmt: skip


def test_name_servers_come_from_an_option_or_the_environment() -> None:
    environ = {"NAMESRV_ADDR": "c:9876"}
    assert parse_name_servers("a:9876; b:9876", environ) == (A, B)
    assert parse_name_servers("a:9876,b:9876;", environ) == (A, B)
    assert parse_name_servers(None, environ) == (C,)
    with pytest.raises(LocalProtocolError, match="NAMESRV_ADDR"):
        parse_name_servers(None, {})
    with pytest.raises(LocalProtocolError, match="HOST:PORT"):
        parse_name_servers("nonsense", {})
