"""Logging in, declaring, binding, routing, and the right error for each wrong thing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any, cast

import pytest

from polymq.broker.port import AdmissionPort, Reason, Refused
from polymq.gateways.amqp import basic, client, spec, topology
from polymq.gateways.amqp.errors import Malformed
from polymq.gateways.amqp.sasl import credentials
from polymq.gateways.amqp.spec import METHODS, Method
from polymq.gateways.amqp.states import CHANNEL_RECEIVED, ChannelState
from polymq.gateways.amqp.tables import Timestamp, encode_sized_table
from tests.gateways.amqp import amqp_wire as wire
from tests.gateways.amqp.amqp_core_driver import HEADER, OPEN, TUNE_OK
from tests.gateways.amqp.amqp_harness import CAPABILITIES, Bench, Peer, answer
from tests.gateways.amqp.amqp_wire import Sent


def closed(peer: Peer) -> tuple[str, int, str]:
    """What was closed, with code and text: the last thing that came."""
    method = peer.methods()[-1]
    assert isinstance(method, (spec.ChannelClose, spec.ConnectionClose)), method
    return method.NAME.split(".")[0], method.reply_code, method.reply_text


METHOD_OK = {
    asked: given
    for asked in METHODS.values()
    for given in METHODS.values()
    if f"{asked.NAME}-ok" == given.NAME
}


def ok(peer: Peer, method: Method) -> None:
    """Ask, and get the -ok of it."""
    peer.ask(method)
    (found,) = peer.methods()
    assert isinstance(found, METHOD_OK[type(method)]), found


def fetch(bench: Bench, peer: Peer, queue: str = "q") -> Sent:
    """basic.get: it waits for what the same connection published."""
    peer.ask(spec.BasicGet(queue=queue, no_ack=True))
    bench.step()
    (got,) = peer.received()
    return got


# --- logging in --------------------------------------------------------------------------------


def fresh(bench: Bench) -> Peer:
    return Peer(
        bench.port, bench.broker.loop.call_soon, templates=bench.templates, limits=bench.limits
    )


def start_ok(mechanism: str, response: bytes, capabilities: Any = None) -> bytes:
    properties = {} if capabilities is None else {"capabilities": capabilities}
    return wire.method(
        0,
        spec.ConnectionStartOk(
            client_properties=properties, mechanism=mechanism, response=response
        ),
    )


def test_the_server_says_who_it_is_and_what_it_proposes(bench: Bench) -> None:
    peer = fresh(bench)
    peer.send(HEADER)
    start = answer(peer, spec.ConnectionStart)
    assert isinstance(start, spec.ConnectionStart)
    assert (start.version_major, start.version_minor) == (0, 9)
    assert start.mechanisms.split() == [b"PLAIN", b"AMQPLAIN"]
    assert start.server_properties["product"] == "PolyMQ"
    peer.send(start_ok("PLAIN", b"\0guest\0guest"))
    assert answer(peer, spec.ConnectionTune) == spec.ConnectionTune(
        channel_max=2047, frame_max=131_072, heartbeat=60
    )
    peer.send(TUNE_OK)
    assert peer.transport.heartbeat_seconds == 60
    peer.send(OPEN)
    answer(peer, spec.ConnectionOpenOk)
    assert peer.transport.abort_seconds is None


def test_amqplain_is_a_table_without_its_length() -> None:
    response = encode_sized_table({"LOGIN": "me", "PASSWORD": "secret"})[4:]
    assert credentials("AMQPLAIN", response) == ("me", b"secret")


@pytest.mark.parametrize("response", [b"", b"guest", b"guest\0guest", b"a\0b\0c\0d"])
def test_a_plain_response_has_three_parts(response: bytes) -> None:
    with pytest.raises(Malformed):
        credentials("PLAIN", response)


class Strict:
    """The admission of a broker that knows one user."""

    def __init__(self, admission: AdmissionPort) -> None:
        self._admission = admission

    def authenticate(
        self,
        user: str | None,
        password: bytes | None,
        address: str,
        answer: Callable[[str | Refused], None],
        origin: object,
    ) -> Callable[[], None]:
        known = (user, password) == ("guest", b"guest")
        answer("guest" if known else Refused(Reason.NOT_AUTHENTICATED, "no such user"))
        return lambda: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._admission, name)


WRONG = [
    ("PLAIN", b"\0guest\0wrong"),
    ("PLAIN", b"\0nobody\0guest"),
    ("PLAIN", b"guest"),
    ("PLAIN", b"a\0b\0c\0d"),
    ("AMQPLAIN", b"\x05LOGIN"),
    ("AMQPLAIN", b""),
    ("SCRAM-SHA-256", b"n,,n=user"),
]


@pytest.mark.parametrize(("mechanism", "response"), WRONG)
def test_a_refused_login_says_nothing_of_what_was_wrong(
    bench: Bench, mechanism: str, response: bytes
) -> None:
    """With the capability a close at once; without it silence, then the socket is aborted."""
    strict = cast("AdmissionPort", Strict(bench.port.admission))
    bench.port = replace(bench.broker.port, admission=strict)
    reported = fresh(bench)
    reported.send(HEADER, start_ok(mechanism, response, CAPABILITIES))
    assert closed(reported) == (
        "connection",
        403,
        f"ACCESS_REFUSED - Login was refused using authentication mechanism {mechanism}",
    )
    untold = fresh(bench)
    untold.send(HEADER, start_ok(mechanism, response))
    answer(untold, spec.ConnectionStart)
    assert untold.transport.abort_seconds == bench.limits.penalty_seconds
    untold.send(start_ok("PLAIN", b"\0guest\0guest"), bytes(100_000))
    assert untold.methods() == []
    assert untold.rest == b""


def test_there_is_one_virtual_host(bench: Bench) -> None:
    peer = fresh(bench)
    other = wire.method(0, spec.ConnectionOpen(virtual_host="/other"))
    peer.send(HEADER, start_ok("PLAIN", b"\0guest\0guest"), TUNE_OK, other)
    assert closed(peer) == ("connection", 530, "NOT_ALLOWED - vhost /other not found")
    assert peer.transport.abort_seconds == bench.limits.close_seconds
    peer.send(wire.method(0, spec.ConnectionCloseOk()))
    assert peer.transport.abort_seconds == bench.limits.linger_seconds


def test_capabilities_that_are_no_table_do_no_harm(bench: Bench) -> None:
    peer = fresh(bench)
    peer.send(HEADER, start_ok("PLAIN", b"\0guest\0guest", "all of them"))
    assert isinstance(peer.methods()[-1], spec.ConnectionTune)


def test_secrets_may_be_renewed(bench: Bench) -> None:
    peer = bench.peer()
    peer.ask(spec.ConnectionUpdateSecret(new_secret=b"new", reason="expired"), 0)
    answer(peer, spec.ConnectionUpdateSecretOk)


# --- every method has its place ------------------------------------------------------------------


def test_every_legal_method_of_a_channel_is_handled() -> None:
    legal = {kind for state, kind in CHANNEL_RECEIVED if state is ChannelState.OPEN}
    methods = {kind for kind in legal if isinstance(kind, type) and issubclass(kind, Method)}
    elsewhere = {spec.BasicPublish, spec.ChannelClose}
    assert methods - elsewhere == set(client._HANDLERS)
    assert not client._SEES_PUBLISHES - set(client._HANDLERS)
    assert not set(topology.HANDLERS) & set(basic.HANDLERS)


# --- exchanges -----------------------------------------------------------------------------------


def test_exchanges_are_declared_found_and_deleted(bench: Bench) -> None:
    peer = bench.peer(1)
    for kind in ("direct", "fanout", "topic"):
        declare = spec.ExchangeDeclare(exchange=f"my {kind}\r\n", type=kind)
        ok(peer, declare)
        ok(peer, declare)
        ok(peer, spec.ExchangeDeclare(exchange=f"my {kind}", passive=True))
        ok(peer, spec.ExchangeDelete(exchange=f"my {kind}"))
        ok(peer, spec.ExchangeDelete(exchange=f"my {kind}"))
    for name in ("", "amq.direct", "amq.fanout", "amq.topic"):
        ok(peer, spec.ExchangeDeclare(exchange=name, passive=True))


WRONG_EXCHANGE: list[tuple[Method, str, int]] = [
    (spec.ExchangeDeclare(exchange="none", passive=True), "channel", 404),
    (spec.ExchangeDeclare(exchange="", type="direct"), "channel", 403),
    (spec.ExchangeDeclare(exchange="amq.mine", type="direct"), "channel", 403),
    (spec.ExchangeDeclare(exchange="x", type="unheard-of"), "channel", 406),
    (spec.ExchangeDeclare(exchange="ex", type="fanout"), "channel", 406),
    (spec.ExchangeDeclare(exchange="ex", type="direct", durable=True), "channel", 406),
    (
        spec.ExchangeDeclare(exchange="x", type="direct", arguments={"alternate-exchange": 1}),
        "channel",
        406,
    ),
    (spec.ExchangeDelete(exchange=""), "channel", 403),
    (spec.ExchangeDelete(exchange="amq.topic"), "channel", 403),
    (spec.ExchangeDelete(exchange="ex", if_unused=True), "channel", 406),
    (spec.ExchangeBind(destination="ex", source="none"), "channel", 404),
    (spec.ExchangeBind(destination="none", source="ex"), "channel", 404),
    (spec.ExchangeBind(destination="", source="ex"), "channel", 403),
    (spec.ExchangeUnbind(destination="ex", source=""), "channel", 403),
    (
        spec.ExchangeBind(destination="ex", source="amq.headers", arguments={"x-match": "some"}),
        "channel",
        406,
    ),
]
WRONG_QUEUE: list[tuple[Method, str, int]] = [
    (spec.QueueDeclare(queue="none", passive=True), "channel", 404),
    (spec.QueueDeclare(queue="", passive=True), "channel", 404),
    (spec.QueueDeclare(queue="amq.mine"), "channel", 403),
    (spec.QueueDeclare(queue="q", durable=True), "channel", 406),
    (spec.QueueDeclare(queue="q", arguments={"x-max-length": 1}), "channel", 406),
    (spec.QueueDeclare(queue="x", arguments={"x-queue-mode": "eager"}), "channel", 406),
    (spec.QueueDeclare(queue="x", arguments={"x-dead-letter-strategy": 1}), "channel", 406),
    (spec.QueueDeclare(queue="x", arguments={"x-consumer-timeout": 0}), "channel", 406),
    (spec.QueueDeclare(queue="x", arguments={"x-message-ttl": -1}), "channel", 406),
    (spec.QueueDeclare(queue="x", arguments={"x-queue-type": "stream"}), "channel", 406),
    (spec.QueueDeclare(queue="x", arguments={"x-expires": Decimal("1.5")}), "channel", 406),
    (spec.QueueDeclare(queue="mine", passive=True), "channel", 405),
    (spec.QueueBind(queue="none", exchange="ex"), "channel", 404),
    (spec.QueueBind(queue="q", exchange="none"), "channel", 404),
    (spec.QueueBind(queue="q", exchange=""), "channel", 403),
    (spec.QueueBind(queue="", exchange="ex"), "channel", 404),
    (spec.QueueUnbind(queue="q", exchange=""), "channel", 403),
    (spec.QueuePurge(queue="none"), "channel", 404),
    (spec.QueuePurge(queue="mine"), "channel", 405),
    (spec.QueueDelete(queue="mine"), "channel", 405),
    (spec.QueueDelete(queue="q", if_empty=True), "channel", 406),
    (spec.QueueDelete(queue="q", if_unused=True), "channel", 406),
]
WRONG_BASIC: list[tuple[Method, str, int]] = [
    (spec.BasicGet(queue="none"), "channel", 404),
    (spec.BasicGet(queue=""), "channel", 404),
    (spec.BasicGet(queue="mine"), "channel", 405),
    (spec.BasicConsume(queue="none"), "channel", 404),
    (spec.BasicConsume(queue="mine"), "channel", 405),
    (spec.BasicConsume(queue="q", arguments={"x-priority": "high"}), "channel", 406),
    (spec.BasicConsume(queue="q", arguments={"x-consumer-timeout": "1h"}), "channel", 406),
    (spec.BasicQos(prefetch_size=1), "connection", 540),
    (spec.BasicRecover(requeue=False), "connection", 540),
    (spec.BasicRecoverAsync(requeue=False), "connection", 540),
    (spec.ChannelFlow(active=False), "connection", 540),
    (spec.TxCommit(), "channel", 406),
    (spec.TxRollback(), "channel", 406),
]


@pytest.mark.parametrize(
    ("method", "scope", "code"), WRONG_EXCHANGE + WRONG_QUEUE + WRONG_BASIC, ids=str
)
def test_the_right_error_for_each_wrong_thing(
    bench: Bench, method: Method, scope: str, code: int
) -> None:
    """Given: exchange `ex` with a binding, queue `q` with a message and a consumer, and another
    connection's exclusive queue `mine`."""
    owner, worker, peer = bench.peer(1), bench.peer(1), bench.peer(1, 2)
    owner.ask(spec.QueueDeclare(queue="mine", exclusive=True))
    owner.ask(spec.QueueDeclare(queue="q"))
    owner.ask(spec.ExchangeDeclare(exchange="ex", type="direct"))
    owner.ask(spec.QueueBind(queue="q", exchange="ex", routing_key="k"))
    worker.ask(spec.BasicQos(prefetch_count=1))
    worker.ask(spec.BasicConsume(queue="q"))
    owner.send(wire.publish(1, "", "q", b"held"), wire.publish(1, "", "q", b"ready"))
    bench.step()
    peer.ask(method)
    found = peer.methods()[-1]
    assert isinstance(found, (spec.ChannelClose, spec.ConnectionClose)), found
    assert (found.NAME.split(".")[0], found.reply_code) == (scope, code)
    assert (found.class_id, found.method_id) == (method.CLASS_ID, method.METHOD_ID)
    if scope == "channel":  # the rest of the connection goes on
        peer.ask(spec.BasicQos(prefetch_count=1), 2)
        answer(peer, spec.BasicQosOk)


# --- queues --------------------------------------------------------------------------------------


def test_names_that_the_server_makes_up(bench: Bench) -> None:
    """An empty name later on means that queue, on that channel."""
    peer = bench.peer(1, 2)
    peer.ask(spec.QueueDeclare(exclusive=True))
    declared = answer(peer, spec.QueueDeclareOk)
    assert isinstance(declared, spec.QueueDeclareOk)
    assert declared.queue.startswith("amq.gen-")
    peer.send(wire.publish(1, "", declared.queue, b"x"))
    bench.step()
    assert fetch(bench, peer, "").body == b"x"
    ok(peer, spec.QueueBind(exchange="amq.direct"))
    peer.send(wire.publish(1, "amq.direct", declared.queue, b"by its own name"))
    bench.step()
    peer.ask(spec.QueuePurge())
    bench.step()
    assert answer(peer, spec.QueuePurgeOk) == spec.QueuePurgeOk(message_count=1)
    peer.ask(spec.QueueDelete())
    answer(peer, spec.QueueDeleteOk)


def test_counts_of_a_queue(bench: Bench) -> None:
    """Ready messages and consumers; what is unacknowledged is neither ready nor purged."""
    peer, worker = bench.peer(1), bench.peer(1)
    peer.ask(spec.QueueDeclare(queue="q"))
    peer.received()
    worker.ask(spec.BasicQos(prefetch_count=1))
    worker.ask(spec.BasicConsume(queue="q"))
    for body in (b"a", b"b", b"c"):
        peer.send(wire.publish(1, "", "q", body))
    bench.step()
    peer.ask(spec.QueueDeclare(queue="q"))
    bench.step()
    counts = spec.QueueDeclareOk(queue="q", message_count=2, consumer_count=1)
    assert answer(peer, spec.QueueDeclareOk) == counts
    peer.ask(spec.QueuePurge(queue="q"))
    assert answer(peer, spec.QueuePurgeOk) == spec.QueuePurgeOk(message_count=2)
    worker.client.lost()
    peer.ask(spec.QueueDelete(queue="q"))
    assert answer(peer, spec.QueueDeleteOk) == spec.QueueDeleteOk(message_count=1)
    peer.ask(spec.QueueDelete(queue="q"))
    assert answer(peer, spec.QueueDeleteOk) == spec.QueueDeleteOk(message_count=0)


def test_exclusive_queues_go_before_close_ok(bench: Bench) -> None:
    owner, other = bench.peer(1), bench.peer(1)
    owner.ask(spec.QueueDeclare(queue="mine", exclusive=True))
    owner.received()
    owner.ask(spec.ConnectionClose(), 0)
    answer(owner, spec.ConnectionCloseOk)
    assert owner.transport.abort_seconds == bench.limits.linger_seconds
    other.ask(spec.QueueDeclare(queue="mine", exclusive=True))
    answer(other, spec.QueueDeclareOk)
    other.client.lost()
    third = bench.peer(1)
    third.ask(spec.QueueDeclare(queue="mine", passive=True))
    assert closed(third)[:2] == ("channel", 404)


def test_auto_delete_queues_go_with_their_last_consumer(bench: Bench) -> None:
    peer, other = bench.peer(1), bench.peer(1)
    peer.ask(spec.QueueDeclare(queue="q", auto_delete=True))
    for tag in ("one", "two"):
        peer.ask(spec.BasicConsume(queue="q", consumer_tag=tag))
    peer.ask(spec.BasicCancel(consumer_tag="one"))
    other.ask(spec.QueueDeclare(queue="q", passive=True))
    answer(other, spec.QueueDeclareOk)
    peer.ask(spec.BasicCancel(consumer_tag="two"))
    other.ask(spec.QueueDeclare(queue="q", passive=True))
    assert closed(other)[:2] == ("channel", 404)


SAME: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = [
    ({"x-any": 1}, {}),
    ({}, {"x-any": 1, "my-own": "y"}),
    ({"x-any": 1}, {"x-any": 2}),
    ({"x-queue-type": "classic", "x-queue-mode": "default", "x-overflow": "drop-head"}, {}),
    ({"x-max-length": 5, "x-other": 1}, {"x-max-length": 5}),
    ({"x-bytes": b"\xff", "x-list": [Decimal("1.5"), {"of": b"\xff"}]}, {"x-bytes": Timestamp(1)}),
]


@pytest.mark.parametrize(("first", "second"), SAME)
def test_arguments_that_mean_nothing_are_not_compared(
    bench: Bench, first: Mapping[str, Any], second: Mapping[str, Any]
) -> None:
    peer = bench.peer(1)
    for arguments in (first, second):
        peer.ask(spec.QueueDeclare(queue="q", arguments=arguments))
        answer(peer, spec.QueueDeclareOk)
    for arguments in ({"x-any": 1}, {}, {"alternate": "y"}, {"x-any": [Decimal(1), b"\xff"]}):
        peer.ask(spec.ExchangeDeclare(exchange="ex", type="fanout", arguments=arguments))
        answer(peer, spec.ExchangeDeclareOk)
    alternate = {"alternate-exchange": "amq.fanout"}
    peer.ask(spec.ExchangeDeclare(exchange="ex", type="fanout", arguments=alternate))
    assert closed(peer)[:2] == ("channel", 406)


def test_nowait_says_nothing_but_errors(bench: Bench) -> None:
    peer = bench.peer(1)
    before: list[Method] = [
        spec.ExchangeDeclare(exchange="ex", type="topic", nowait=True),
        spec.QueueDeclare(queue="q", nowait=True),
        spec.QueueBind(queue="q", exchange="ex", routing_key="#", nowait=True),
        spec.BasicConsume(queue="q", consumer_tag="c", nowait=True),
        spec.ConfirmSelect(nowait=True),
    ]
    for method in before:
        peer.ask(method)
    assert peer.methods() == []
    peer.send(wire.publish(1, "ex", "any.key", b"x"))
    bench.step()
    assert {type(method) for method in peer.methods()} == {spec.BasicDeliver, spec.BasicAck}
    behind: list[Method] = [
        spec.BasicCancel(consumer_tag="c", nowait=True),
        spec.QueuePurge(queue="q", nowait=True),
        spec.QueueDelete(queue="q", nowait=True),
        spec.ExchangeDelete(exchange="ex", nowait=True),
    ]
    for method in behind:
        peer.ask(method)
    assert peer.methods() == []
    peer.ask(spec.QueueBind(queue="q", exchange="ex", nowait=True))
    assert closed(peer)[:2] == ("channel", 404)


def test_old_questions_get_their_answers(bench: Bench) -> None:
    peer = bench.peer(1)
    ok(peer, spec.AccessRequest(realm="/data"))
    ok(peer, spec.ChannelFlow(active=True))
    ok(peer, spec.ConfirmSelect())
    ok(peer, spec.ConfirmSelect())
    ok(peer, spec.QueueDeclare(queue="q", arguments={"x-queue-type": "quorum", "note": [1, {}]}))


# --- routing -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "binding", "key", "reached"),
    [
        ("direct", "a.b", "a.b", True),
        ("direct", "a.*", "a.b", False),
        ("direct", "a.*", "a.*", True),
        ("fanout", "", "anything", True),
        ("fanout", "x", "", True),
        ("topic", "a.*.c", "a.b.c", True),
        ("topic", "a.*.c", "a..c", True),
        ("topic", "a.*", "a", False),
        ("topic", "#", "", True),
        ("topic", "#", "a.b", True),
        ("topic", "a.#", "a", True),
        ("topic", "*", "", False),
        ("topic", "", "", True),
        ("topic", "", "a", False),
    ],
)
def test_exchanges_route(bench: Bench, kind: str, binding: str, key: str, reached: bool) -> None:
    peer = bench.peer(1)
    peer.ask(spec.ExchangeDeclare(exchange="ex", type=kind))
    peer.ask(spec.QueueDeclare(queue="q"))
    peer.ask(spec.QueueBind(queue="q", exchange="ex", routing_key=binding))
    peer.received()
    peer.send(wire.publish(1, "ex", key, b"x"))
    bench.step()
    got = fetch(bench, peer)
    assert isinstance(got.method, spec.BasicGetOk if reached else spec.BasicGetEmpty)
    if isinstance(got.method, spec.BasicGetOk):
        assert (got.method.exchange, got.method.routing_key) == ("ex", key)


@pytest.mark.parametrize(
    ("exchange", "key"),
    [
        ("", "q"),
        ("amq.topic", "sensors.room1.temp"),
        ("amq.topic", "sensors"),
        ("amq.topic", "a/b.c/d"),
        ("amq.direct", "a.b"),
        ("amq.direct", ""),
        ("amq.fanout", "ignored.key"),
        ("ex", "caf\u00e9.\udcff"),
    ],
)
def test_a_message_comes_back_under_the_names_that_it_went_by(
    bench: Bench, exchange: str, key: str
) -> None:
    peer = bench.peer(1)
    peer.ask(spec.QueueDeclare(queue="q"))
    peer.ask(spec.ExchangeDeclare(exchange="ex", type="topic"))
    if exchange:
        peer.ask(spec.QueueBind(queue="q", exchange=exchange, routing_key=key))
    peer.received()
    peer.send(wire.publish(1, exchange, key, b"x"))
    bench.step()
    got = fetch(bench, peer)
    assert isinstance(got.method, spec.BasicGetOk)
    assert (got.method.exchange, got.method.routing_key) == (exchange, key)


def test_unbinding_ends_the_way(bench: Bench) -> None:
    peer = bench.peer(1)
    peer.ask(spec.QueueDeclare(queue="q"))
    for key in ("a", "b"):
        peer.ask(spec.QueueBind(queue="q", exchange="amq.topic", routing_key=f"t.{key}"))
    peer.received()
    ok(peer, spec.QueueUnbind(queue="q", exchange="amq.topic", routing_key="t.a"))
    ok(peer, spec.QueueUnbind(queue="q", exchange="amq.topic", routing_key="t.never"))
    peer.send(wire.publish(1, "amq.topic", "t.a", b"a"), wire.publish(1, "amq.topic", "t.b", b"b"))
    bench.step()
    assert fetch(bench, peer).body == b"b"
    assert isinstance(fetch(bench, peer).method, spec.BasicGetEmpty)


# --- over a restart ------------------------------------------------------------------------------


def test_what_is_durable_is_there_after_a_restart(bench: Bench) -> None:
    """Unacknowledged messages come again, flagged; the binding still routes."""
    peer = bench.peer(1)
    peer.ask(spec.ExchangeDeclare(exchange="ex", type="direct", durable=True))
    peer.ask(spec.QueueDeclare(queue="q", durable=True))
    peer.ask(spec.QueueBind(queue="q", exchange="ex", routing_key="k"))
    persistent = wire.properties(delivery_mode=2, message_id="m1")
    peer.send(wire.publish(1, "ex", "k", b"one", properties=persistent))
    bench.step()
    peer.received()
    peer.ask(spec.BasicGet(queue="q"))
    peer.received()
    bench.broker.restart()
    again = Bench(bench.broker).peer(1)
    again.send(wire.publish(1, "ex", "k", b"two", properties=persistent))
    bench.step()
    for body, redelivered in ((b"one", True), (b"two", False)):
        again.ask(spec.BasicGet(queue="q"))
        (got,) = again.received()
        assert isinstance(got.method, spec.BasicGetOk)
        assert (got.body, got.properties) == (body, persistent)
        assert got.method.redelivered is redelivered
