"""The broker's side of name servers: what it sends, when, and what it does about failures."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from polymq.remoting.codes import RequestCode, ResponseCode
from polymq.remoting.errors import CallFailed
from polymq.remoting.frames import FRAME_BYTES_MAX, HEADER_BYTES_MAX, Command
from polymq.remoting.headers import read_fields
from polymq.remoting.name_fields import RegisterFields
from polymq.remoting.registrar import (
    ASK_FIRST_BYTES,
    JSON_TOPICS_MAX,
    Identity,
    Registrar,
    RegistrarSettings,
    ServerState,
)
from polymq.remoting.registration import (
    TopicConfig,
    body_checksum,
    decode_data_version,
    decode_registration,
)
from polymq.remoting.steps import Address, Call, Pause, Step, Steps

SERVER = Address("ns", 9876)
GOOD = Command(code=0, opaque=1)


class Broker:
    """A registrar, its topics, and what it told."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.on_change: list[tuple[bool, str]] = []
        self.registrar = Registrar(
            identity=Identity(cluster="c", broker="b", address="10.0.0.1:10911"),
            topics=lambda: [TopicConfig(topic_name=name, perm=4) for name in self.names],
            clock_ms=lambda: 1000,
            chance=lambda: 1.0,
            state_version=7,
            on_change=self.tell,
        )

    def tell(self, _server: Address, state: ServerState) -> None:
        self.on_change.append((state.registered, state.failure))


class Driven:
    """An operation under way, and the step that it waits for."""

    def __init__(self, steps: Steps[object]) -> None:
        self.steps = steps
        self.step: Step = next(steps)

    def call(self, answer: Command | Exception = GOOD) -> Call:
        """The call that it waits for, answered."""
        step = self.step
        assert isinstance(step, Call)
        if isinstance(answer, Exception):
            self.step = self.steps.throw(answer)
        else:
            self.step = self.steps.send(answer)
        return step

    def pause(self, meanwhile: Callable[[], None] = lambda: None) -> Pause:
        """The pause that it waits for, over."""
        step = self.step
        assert isinstance(step, Pause)
        meanwhile()
        self.step = self.steps.send(None)
        return step


def test_a_registration_has_all_that_name_servers_want() -> None:
    broker = Broker("t", "u")
    call = Driven(broker.registrar.keep_registered(SERVER)).call()
    assert (call.address, call.code) == (SERVER, RequestCode.REGISTER_BROKER)
    header = read_fields(RegisterFields, call.fields)
    assert (header.cluster_name, header.broker_name, header.broker_id) == ("c", "b", 0)
    assert header.broker_addr == "10.0.0.1:10911"
    assert header.body_crc32 == body_checksum(call.body)
    assert header.pmq_complete
    table = decode_registration(call.body).topics
    assert table.data_version.state_version == 7
    # RocketMQ refuses a first registration with one topic: the broker without any has two.
    assert set(table.topic_config_table) == {"b", "c", "t", "u"}
    assert table.topic_config_table["b"].perm == 1


def test_every_thirty_seconds_and_soon_after_a_change() -> None:
    broker = Broker("t")
    driven = Driven(broker.registrar.keep_registered(SERVER))
    first = driven.call()
    pause = driven.pause()
    assert pause.seconds == 30
    assert driven.call().body == first.body
    assert broker.on_change == [(True, "")]

    def change() -> None:
        broker.names.append("new")
        broker.registrar.topics_changed()

    waited = driven.step
    assert isinstance(waited, Pause)
    over = [waited.is_over]
    driven.pause(change)
    over.append(waited.is_over)
    assert over == [False, True], "the change ends the pause"
    gathering = driven.pause(change)
    assert gathering.seconds == broker.registrar.settings.gather_seconds
    changed = driven.call()
    assert "new" in decode_registration(changed.body).topics.topic_config_table
    versions = [
        decode_registration(body).topics.data_version for body in (first.body, changed.body)
    ]
    assert versions[0] != versions[1]
    assert isinstance(driven.step, Pause)
    assert not driven.step.is_over, "both changes were in that registration"


def test_a_change_during_a_registration_is_not_lost() -> None:
    broker = Broker("t")
    driven = Driven(broker.registrar.keep_registered(SERVER))
    broker.registrar.topics_changed()  # while the first one is under way
    driven.call()
    assert isinstance(driven.step, Pause)
    assert driven.step.is_over


def test_failures_are_tried_again_after_growing_pauses_and_told_once() -> None:
    broker = Broker("t")
    driven = Driven(broker.registrar.keep_registered(SERVER))
    pauses = []
    for number in range(9):
        driven.call(CallFailed("refused") if number % 2 else Command(code=1, opaque=1))
        pauses.append(driven.pause().seconds)
    assert pauses == [0.5, 1, 2, 4, 8, 16, 20, 20, 20]
    driven.call()
    assert driven.pause().seconds == 30
    driven.call(CallFailed("gone"))
    assert driven.pause().seconds == 0.5
    driven.call(CallFailed("gone"))
    assert [registered for registered, _ in broker.on_change] == [False, True, False]
    assert broker.registrar.states[SERVER].failure == "gone"


def test_a_broken_connection_is_a_reason_to_register_but_not_while_that_fails() -> None:
    """The name server may have restarted, and know nobody. While it is away, the pauses hold."""
    broker = Broker("t")
    driven = Driven(broker.registrar.keep_registered(SERVER))
    driven.call()
    waited = driven.step
    assert isinstance(waited, Pause)
    broker.registrar.connection_lost(Address("another", 1))
    over = [waited.is_over]
    driven.pause(lambda: broker.registrar.connection_lost(SERVER))
    over.append(waited.is_over)
    assert over == [False, True]
    driven.pause()
    driven.call(CallFailed("refused"))
    retry = driven.step
    broker.registrar.connection_lost(SERVER)
    assert isinstance(retry, Pause)
    assert not retry.is_over


def test_chance_spreads_the_brokers_of_a_cluster() -> None:
    broker = Broker("t")
    broker.registrar.chance = lambda: 0.0
    driven = Driven(broker.registrar.keep_registered(SERVER))
    driven.call(CallFailed("refused"))
    assert driven.pause().seconds == 0.25


@pytest.mark.parametrize("changed", [True, False])
def test_a_large_table_is_sent_only_where_it_is_not_known(changed: bool) -> None:
    broker = Broker(*(f"topic-{number}" for number in range(1000)))
    driven = Driven(broker.registrar.keep_registered(SERVER))
    asked = driven.call(Command(code=0, opaque=1, fields={"changed": str(changed).lower()}))
    assert asked.code == RequestCode.QUERY_DATA_VERSION
    assert decode_data_version(asked.body).state_version == 7
    assert isinstance(driven.step, Call if changed else Pause)
    if changed:
        sent = driven.call()
        assert sent.code == RequestCode.REGISTER_BROKER
        assert len(sent.body) > ASK_FIRST_BYTES


def test_an_answer_that_makes_no_sense_is_a_failure() -> None:
    broker = Broker(*(f"topic-{number}" for number in range(1000)))
    driven = Driven(broker.registrar.keep_registered(SERVER))
    driven.call(Command(code=0, opaque=1))
    assert isinstance(driven.step, Pause)
    assert "changed" in broker.registrar.states[SERVER].failure


@pytest.mark.parametrize(
    "answer", [GOOD, CallFailed("gone"), Command(code=ResponseCode.SYSTEM_ERROR, opaque=1)]
)
def test_who_leaves_does_not_care_for_the_answer(answer: Command | Exception) -> None:
    broker = Broker()
    steps = broker.registrar.leave(SERVER)
    call = next(steps)
    assert isinstance(call, Call)
    assert call.code == RequestCode.UNREGISTER_BROKER
    assert call.seconds == RegistrarSettings().leave_seconds
    with pytest.raises(StopIteration):
        steps.throw(answer) if isinstance(answer, Exception) else steps.send(answer)


def written(driven: Driven) -> int:
    """Let a large table be written; how many turns others had meanwhile."""
    turns = 0
    while isinstance(driven.step, Pause) and driven.step.seconds == 0:
        driven.pause()
        turns += 1
    return turns


CHANGED = Command(code=0, opaque=1, fields={"changed": "true"})


def test_a_large_table_is_packed_in_slices_once_for_all_name_servers() -> None:
    """As JSON a hundred thousand topics were more than a frame takes, and nobody else had a turn
    while they were written."""
    names = [f"topic-{number:06d}" for number in range(100_000)]
    broker = Broker(*names)
    first = Driven(broker.registrar.keep_registered(SERVER))
    first.pause()
    second = Driven(broker.registrar.keep_registered(Address("other", 9876)))
    waiting = second.step
    assert isinstance(waiting, Pause)
    assert waiting.seconds > 0, "it waits for the table of the first"
    assert written(first) > 100
    second.pause()
    for driven in (first, second):
        assert driven.call(CHANGED).code == RequestCode.QUERY_DATA_VERSION
        register = driven.call()
        assert len(register.body) < 1_000_000
        header = read_fields(RegisterFields, register.fields)
        assert header.compressed
        assert header.body_crc32 == body_checksum(register.body)
        assert set(decode_registration(register.body).topics.topic_config_table) == {
            "b", "c", *names
        }  # fmt: skip


def test_what_changes_while_a_large_table_is_written_is_registered_next() -> None:
    broker = Broker(*(f"topic-{number}" for number in range(2 * JSON_TOPICS_MAX)))
    driven = Driven(broker.registrar.keep_registered(SERVER))
    driven.pause()
    broker.names.append("late")
    broker.registrar.topics_changed()
    written(driven)
    driven.call()
    driven.pause()
    gathering = driven.pause()
    settings = broker.registrar.settings
    assert gathering.seconds > 1.9 * settings.gather_seconds, "a large table waits longer"
    written(driven)
    assert "late" in decode_registration(driven.call().body).topics.topic_config_table


def test_a_table_that_no_frame_takes_is_told_and_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert FRAME_BYTES_MAX > HEADER_BYTES_MAX
    monkeypatch.setattr("polymq.remoting.registrar.FRAME_BYTES_MAX", HEADER_BYTES_MAX + 10)
    broker = Broker("t")
    driven = Driven(broker.registrar.keep_registered(SERVER))
    assert broker.on_change == [(False, "the names of 3 topics are more than a frame takes")]
    monkeypatch.undo()
    driven.pause()
    driven.call()
    assert broker.on_change[1:] == [(True, "")]
