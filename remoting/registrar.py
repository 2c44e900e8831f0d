"""A broker's side of name servers: to be in their tables as long as it lives. Pure.

For each name server there is one operation without an end (`keep_registered`), so that one that
does not answer holds up none of the others. Rules:

* All topics are registered every `interval_seconds`, and within `gather_seconds` of a change: many
  topics that are made at once are one registration. A large table waits longer, in proportion.
* A large table is written in slices, between which others have their turn.
* What fails is tried again after a pause that doubles up to `pause_seconds_max`, shortened by
  chance so that the brokers of a cluster do not come all at once to a name server that has come
  back. A connection that breaks is a reason to register, too.
* A large table is sent only where it is not known: its data version is asked for first (322). That
  counts as a sign of life.
* A name server of RocketMQ refuses a first registration with a single topic. The names of the
  cluster and of the broker are always registered too, as RocketMQ's brokers do, without any
  permission.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Final, Never

from polymq.remoting.codes import PERMISSION_INHERIT, RequestCode
from polymq.remoting.errors import BadFields, CallFailed, LocalProtocolError, RequestFailed
from polymq.remoting.frames import FRAME_BYTES_MAX, HEADER_BYTES_MAX
from polymq.remoting.headers import read_fields, write_fields
from polymq.remoting.name_fields import BrokerFields, DataVersionAnswer, RegisterFields
from polymq.remoting.registration import (
    DataVersion,
    Registration,
    TopicConfig,
    TopicTable,
    encode_data_version,
    encode_registration,
    pack_registration,
)
from polymq.remoting.steps import Address, Call, Pause, Signal, Steps, ask

ASK_FIRST_BYTES: Final = 64 * 1024
"""A registration that is larger is sent only after the question whether it is needed."""
JSON_TOPICS_MAX: Final = 2_000
"""Tables with more topics are packed: 2,000 are a third of a megabyte of JSON."""
BUILD_SECONDS: Final = 0.05
"""How long one name server's registration waits for the table that another's is writing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrarSettings:
    """How often, and how patient."""

    interval_seconds: float = 30.0
    """RocketMQ's `registerNameServerPeriod`; name servers wait for four of them."""
    call_seconds: float = 6.0
    """RocketMQ's `registerBrokerTimeoutMills` is 24 s, for a table of a hundred thousand topics."""
    pause_first_seconds: float = 0.5
    pause_seconds_max: float = 20.0
    """A name server that is back has all brokers within 30 seconds, calls that hang included."""
    gather_seconds: float = 0.2
    """After a change of topics. Five a second are half of what our name server takes.
    For each `JSON_TOPICS_MAX` topics, as far as there are more: so 100,000 topics wait 10 s, and
    writing their table costs a few hundredths of a core."""
    leave_seconds: float = 1.0
    """What a stopping broker gives a name server. Its closed connection says the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a broker is called, and where clients reach it."""

    cluster: str
    broker: str
    address: str
    broker_id: int = 0
    ha_address: str = ""


@dataclass(slots=True)
class ServerState:
    """How a broker stands with one name server.

    Attributes:
        registered: it has our table, as far as we know.
        failure: why the last attempt failed; empty after one that did not.
        failed_count: attempts since the last that succeeded.
        wake: ends the pause before the next registration.
    """

    registered: bool = False
    failure: str = ""
    failed_count: int = 0
    wake: Signal = field(default_factory=Signal)


@dataclass(slots=True)
class Registrar:
    """Registers one broker.

    Args:
        topics: all topics of the broker, now. Read in slices: topics may come and go meanwhile.
        clock_ms: the wall clock.
        chance: a number from 0 to 1.
        state_version: of the broker's master: the epoch. A name server refuses lower ones.
        on_change: called when a name server takes the broker in, and when it stops to answer.
    """

    identity: Identity
    topics: Callable[[], Iterable[TopicConfig]]
    clock_ms: Callable[[], int]
    chance: Callable[[], float]
    settings: RegistrarSettings = field(default_factory=RegistrarSettings)
    state_version: int = 0
    on_change: Callable[[Address, ServerState], None] = lambda _address, _state: None
    states: dict[Address, ServerState] = field(default_factory=dict)
    _changed_count: int = 0
    _built: int = -1  # the count of changes that `_body` holds
    _building: bool = False
    _body: bytes = b""
    _crc: int = 0
    _packed: bool = False
    _topic_count: int = 0
    _version: DataVersion = field(default_factory=DataVersion)

    def topics_changed(self) -> None:
        """Register anew, soon."""
        self._changed_count += 1
        for state in self.states.values():
            state.wake.give()

    def connection_lost(self, name_server: Address) -> None:
        """For drivers: a connection broke. The name server took us out, or it has restarted and
        knows nobody; so register anew, soon."""
        state = self.states.get(name_server)
        if state is not None and state.registered:
            state.wake.give()

    # --- operations -----------------------------------------------------------------------

    def keep_registered(self, name_server: Address) -> Steps[Never]:
        """Register with one name server, again and again."""
        settings = self.settings
        state = self.states.setdefault(name_server, ServerState())
        while True:
            seen = state.wake.count
            try:
                yield from self._register(name_server)
            except (CallFailed, RequestFailed, BadFields, LocalProtocolError) as error:
                self._failed(name_server, state, error)
                pause = settings.pause_first_seconds * 2 ** min(state.failed_count - 1, 30)
                pause = min(pause, settings.pause_seconds_max) * (0.5 + self.chance() / 2)
                yield Pause(seconds=pause)
                continue
            if not state.registered:
                state.registered = True
                state.failure, state.failed_count = "", 0
                self.on_change(name_server, state)
            yield Pause(seconds=settings.interval_seconds, signal=state.wake, seen=seen)
            if state.wake.count != seen:
                gatherings = max(self._topic_count / JSON_TOPICS_MAX, 1)
                yield Pause(seconds=settings.gather_seconds * gatherings)

    def leave(self, name_server: Address) -> Steps[None]:
        """Take leave of one name server. Whether it heard does not matter."""
        call = Call(
            address=name_server,
            code=RequestCode.UNREGISTER_BROKER,
            fields=write_fields(self._broker()),
            seconds=self.settings.leave_seconds,
        )
        try:
            yield from ask(call)
        except (CallFailed, RequestFailed):
            pass

    # --- parts ----------------------------------------------------------------------------

    def _failed(self, name_server: Address, state: ServerState, error: Exception) -> None:
        state.failure = str(error)
        state.failed_count += 1
        if state.registered or state.failed_count == 1:
            state.registered = False
            self.on_change(name_server, state)

    def _register(self, name_server: Address) -> Steps[None]:
        yield from self._build()
        if len(self._body) > FRAME_BYTES_MAX - HEADER_BYTES_MAX:
            raise LocalProtocolError(
                f"the names of {self._topic_count} topics are more than a frame takes"
            )
        identity, seconds = self.identity, self.settings.call_seconds
        if len(self._body) > ASK_FIRST_BYTES:
            question = Call(
                address=name_server,
                code=RequestCode.QUERY_DATA_VERSION,
                fields=write_fields(self._broker()),
                body=encode_data_version(self._version),
                seconds=seconds,
            )
            answer = yield from ask(question)
            if not read_fields(DataVersionAnswer, answer.fields).changed:
                return
        header = RegisterFields(
            cluster_name=identity.cluster,
            broker_name=identity.broker,
            broker_addr=identity.address,
            broker_id=identity.broker_id,
            ha_server_addr=identity.ha_address,
            compressed=self._packed,
            body_crc32=self._crc,
            pmq_complete=True,
        )
        registration = Call(
            address=name_server,
            code=RequestCode.REGISTER_BROKER,
            fields=write_fields(header),
            body=self._body,
            seconds=seconds,
        )
        yield from ask(registration)

    def _broker(self) -> BrokerFields:
        identity = self.identity
        return BrokerFields(
            cluster_name=identity.cluster,
            broker_name=identity.broker,
            broker_addr=identity.address,
            broker_id=identity.broker_id,
        )

    def _build(self) -> Steps[None]:
        """The body, once for each change and for all name servers."""
        while self._building:
            yield Pause(seconds=BUILD_SECONDS)
        if self._built == self._changed_count:
            return
        self._building = True
        try:
            yield from self._write_table(self._changed_count)
        finally:
            self._building = False

    def _write_table(self, changes: int) -> Steps[None]:
        version = DataVersion(
            counter=changes, state_version=self.state_version, timestamp=self.clock_ms()
        )
        names = (self.identity.cluster, self.identity.broker)
        topics = chain(
            (
                TopicConfig(
                    topic_name=name, read_queue_nums=1, write_queue_nums=1, perm=PERMISSION_INHERIT
                )
                for name in names
            ),
            self.topics(),
        )
        some = list(islice(topics, JSON_TOPICS_MAX))
        count, packed = len(some), len(some) == JSON_TOPICS_MAX
        if packed:
            body, crc, count = yield from pack_registration(version, chain(some, topics))
        else:
            table = {topic.topic_name: topic for topic in some}
            body, crc = encode_registration(
                Registration(topics=TopicTable(data_version=version, topic_config_table=table))
            )
        self._built, self._version = changes, version
        self._body, self._crc, self._packed, self._topic_count = body, crc, packed, count
