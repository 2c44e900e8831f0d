"""The engine: `BrokerPort` in one process, over one store.

It only puts the parts together; each part has a file: `topics.py` (the publish path), `queues/`
(delivery), `exchanges.py` and `named_queues.py` (AMQP's entities, handed on to by
`amqp_operations.py`), `sessions.py` (MQTT), `retained.py`, `journal.py` (state as records),
`fold.py` (the state of all parts, and a start), `core.py` (pace and commit points).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from polymq.broker.access.admission import Admission
from polymq.broker.access.logins import Hashers, Logins
from polymq.broker.access.owners import Owners
from polymq.broker.access.readers import QueueReaders
from polymq.broker.access.users import Users
from polymq.broker.amqp_operations import AmqpOperations
from polymq.broker.core import SYSTEM_FLAG_STATE, Core, Scheduler
from polymq.broker.disk import Disk, DiskSettings
from polymq.broker.documents import Documents
from polymq.broker.entities import NamedQueue
from polymq.broker.errors import Refused, StorageFailed
from polymq.broker.exchanges import Exchanges
from polymq.broker.fold import Fold
from polymq.broker.group_names import name_of
from polymq.broker.groups import ConsumerGroups
from polymq.broker.half_messages import HalfMessages
from polymq.broker.header_routing import HeaderReader
from polymq.broker.journal import Entity
from polymq.broker.later.delay import Delays
from polymq.broker.later.delayed import deliver_ms
from polymq.broker.limits import Limits
from polymq.broker.moves import QOS2_PROPERTY, Moves
from polymq.broker.named_queues import NamedQueues
from polymq.broker.plain import PlainBody
from polymq.broker.port import (
    FLUSHED,
    IN_SYNC,
    BrokerPort,
    Durability,
    Placed,
    Position,
    Publishing,
    QueueConsumer,
    Route,
    Session,
    SessionLink,
    Settlement,
    Template,
    TopicInfo,
    Words,
)
from polymq.broker.queries import Queries, places_of
from polymq.broker.reading import Readers
from polymq.broker.retained import Retained
from polymq.broker.retention import Retention
from polymq.broker.rocketmq_port import GroupInfo
from polymq.broker.session import MqttSession
from polymq.broker.session_settings import SessionSettings
from polymq.broker.sessions import Sessions
from polymq.broker.set_aside import SetAside
from polymq.broker.standby import Standby
from polymq.broker.state_db import StateDb
from polymq.broker.state_saving import StateSaving
from polymq.broker.topic_routes import TopicRoute
from polymq.broker.topic_settings import TopicSettings
from polymq.broker.topics import Topics, TopicTemplate
from polymq.broker.transaction_port import HalfMessage, Prepared
from polymq.broker.transactions import Transactions, place_of
from polymq.core_log.kernels.batch import EXTRA_NONE, Batch
from polymq.core_log.store import Store


class Engine(AmqpOperations):
    """`broker.port.BrokerPort` over a store.

    Args:
        store: open, recovered.
        clock_ms: wall clock in milliseconds since the epoch.
        scheduler: the loop (`call_soon`, `call_later`).
        readers: threads for reading history.
        new_name: makes random names (server-named queues).
        state_db: where the folded state is cached; None to fold the log at each start.
        topic_defaults: the settings of topics for which nothing else was chosen.
        disk_settings: how much of the disk is kept free, and what happens then.
        session_settings: how long MQTT sessions wait for their clients, and with what.
        hashers: threads for passwords; by default those that read.
        random_bytes: for secrets that last as long as the process.
        strangers: whether clients are let in while there are no users.
        min_in_sync: how many brokers must have a change of state on their disks before it is
            answered; 1 is this one alone.
        in_sync: how far replicas are known to have the log (what topics with `min_in_sync` have
            behind it is not shown before they do); None: as far as it goes.
        header_reader: finds the headers of messages for headers exchanges.
        follows: of a slave, whose store was opened to follow: what clients are told that want to
            change something. Empty: this broker leads.
        shown: of a slave: how far its master is known to have had the log on its disk.
    """

    def __init__(
        self,
        *,
        store: Store,
        clock_ms: Callable[[], int],
        scheduler: Scheduler,
        readers: Readers,
        new_name: Callable[[], str],
        limits: Limits | None = None,
        state_db: StateDb | None = None,
        topic_defaults: TopicSettings | None = None,
        disk_settings: DiskSettings | None = None,
        session_settings: SessionSettings | None = None,
        hashers: Hashers | None = None,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
        strangers: bool = True,
        min_in_sync: int = 1,
        in_sync: int | None = None,
        header_reader: HeaderReader | None = None,
        plain_body: PlainBody | None = None,
        follows: str = "",
        shown: int = 0,
    ) -> None:
        self.core = Core(
            store=store,
            clock_ms=clock_ms,
            scheduler=scheduler,
            readers=readers,
            limits=limits or Limits(),
            disk=Disk(segment_bytes=store.segment_bytes, settings=disk_settings or DiskSettings()),
            min_in_sync=min_in_sync,
            in_sync=in_sync,
            follows=follows,
            plain_body=plain_body,
        )
        self.retained = Retained(self.core.limits.retained_max)
        self.topics_ = Topics(self.core, self.retained, topic_defaults or TopicSettings())
        if header_reader is not None:
            self.topics_.header_reader = header_reader
        # What `publish` below does, with a call less for each run.
        self.publish = self.topics_.publish_run  # type: ignore[method-assign, assignment]
        # See `BrokerPort`: what every gateway asks for every run.
        self.when_committed = self.core.when_committed
        self.committed = self.core.committed
        self.queries = Queries(self.core, self.topics_)
        self.moves = Moves(self.core, self.topics_)
        self.set_aside = SetAside(self.core, self.topics_, self.moves)
        queues: dict[str, NamedQueue] = {}
        self.users = Users(self.core)
        self.owners = Owners(self.users)
        self.exchanges = Exchanges(self.core, self.topics_, queues, self.owners)
        core, topics, moves = self.core, self.topics_, self.moves
        self.named_queues = NamedQueues(
            core, topics, moves, self.exchanges, self.set_aside, queues=queues, new_name=new_name
        )
        dead_letters = self.named_queues.dead_letters
        self.sessions = Sessions(
            core, topics, self.retained, dead_letters, session_settings or SessionSettings()
        )
        self.delays = Delays(self.core, self.topics_, self.moves, self.set_aside)
        self.half_messages = HalfMessages(self.core, self.topics_, self.moves)
        self.transactions = Transactions(self.core, self.topics_, self.delays)
        self.logins = Logins(
            users=self.users,
            scheduler=scheduler,
            hashers=hashers or readers,
            now=lambda: clock_ms() / 1000,
            limits=self.core.limits,
            secret=random_bytes(32),
        )
        self.readers = QueueReaders()
        self.admission = Admission(self, self.users, self.logins, strangers=strangers)
        self.retention = Retention(
            core=self.core,
            topics=self.topics_,
            retained=self.retained,
            flights=self.sessions.state.retained,
            state_db=state_db,
            name_of=lambda group: name_of(group, self.exchanges),
        )
        self.documents_ = Documents(self.core)
        self.consumer_groups = ConsumerGroups(self.core, self.topics_)
        self._state_db = state_db
        self._saved = -1  # log position of the last snapshot
        self.fold = self._make_fold()
        self.fold.restore()
        if follows:
            self._stand_by(flushed=shown, in_sync=in_sync or 0)

    def _stand_by(self, **bounds: int) -> None:
        forget_settled = self.sessions.state.forget_settled
        self.core.standby = Standby(
            self.core,
            self.topics_,
            fold=self.fold.apply,
            forget_settled=forget_settled,
            **bounds,
        )

    def _make_fold(self) -> Fold:
        sessions = self.sessions
        parts = (  # each behind those that its rows refer to
            *(self.core, self.topics_, self.exchanges, self.named_queues, self.delays),
            *(self.half_messages, sessions.state, self.retained, self.users, self.documents_),
            *(self.consumer_groups, self.retention),
        )
        return Fold(
            self.core,
            self.topics_,
            self._state_db,
            kinds=[kind for part in parts for kind in part.state_kinds()],
            messages=(
                partial(self.retained.take_message, metas=self.core.metas),
                sessions.state.take_message,
                self.moves.take_message,
            ),
            numbers=sessions.state.index_numbers,
            reopen=(
                *(self.retention.forget_drops, self.named_queues.reopen, self.exchanges.reopen),
                *(sessions.state.reopen, self.core.forget_settled),
                *(self.delays.reopen, self.half_messages.reopen, sessions.start),
            ),
        )

    @property
    def state_durability(self) -> Durability:
        """See `BrokerPort.state_durability`."""
        return self.core.state_durability

    @property
    def standby(self) -> Standby | None:
        """The part that follows a master; None where this broker leads."""
        return self.core.standby

    # --- publishing -----------------------------------------------------------------------

    def route(self, topic: str, tag: str | None) -> Route:
        """See `BrokerPort.route`."""
        return self.topics_.route(topic, tag)

    def exchange_route(self, exchange: str, routing_key: str) -> Route | None:
        """See `BrokerPort.exchange_route`."""
        return self.exchanges.route(exchange, routing_key)

    def template(
        self,
        route: Route,
        *,
        properties: Mapping[str, str],
        extra_kind: int = EXTRA_NONE,
        extra_name: str = "",
        extra_keyed: bool = True,
        durability: Durability = FLUSHED,
        retain: bool = False,
        sharding: str = "",
        queue_id: int | None = None,
    ) -> Template:
        """See `BrokerPort.template`."""
        assert isinstance(route, TopicRoute)
        return self.topics_.template(
            route,
            properties=properties,
            extra_kind=extra_kind,
            extra_name=extra_name,
            extra_keyed=extra_keyed,
            durability=durability,
            retain=retain,
            sharding=sharding,
            queue_id=queue_id,
        )

    def publish(self, template: Template, batch: Batch, first: int, last: int) -> Position:
        """See `BrokerPort.publish`."""
        assert isinstance(template, TopicTemplate)
        position: Position = self.topics_.publish_run(template, batch, first, last)
        return position

    def publish_placed(
        self, template: Template, batch: Batch, first: int, last: int, *, born_ms: int
    ) -> Placed:
        """See `RocketmqPort.publish_placed`."""
        assert isinstance(template, TopicTemplate)
        index = template.queue.index
        offset = index.end_offset
        position = self.topics_.publish(template, batch, first, last, born_ms=born_ms)
        return Placed(position, offset, places_of(index, offset, last - first))

    def publish_later(
        self,
        template: Template,
        batch: Batch,
        first: int,
        last: int,
        *,
        delay_ms: int = 0,
        deliver_ms: int = 0,
        by_exchange: bool = False,
    ) -> Position:
        """See `BrokerPort.publish_later`."""
        assert isinstance(template, TopicTemplate)
        due_ms = deliver_ms or self.core.clock_ms() + delay_ms
        return self.delays.publish(template, batch, first, last, due_ms, by_exchange=by_exchange)

    def deliver_ms(self, properties: Mapping[str, str]) -> int | None:
        """See `BrokerPort.deliver_ms`."""
        return deliver_ms(properties, self.core.clock_ms())

    def publish_once(
        self,
        template: Template,
        batch: Batch,
        row: int,
        session: Session,
        packet_id: int,
        *,
        delay_ms: int = 0,
    ) -> Position:
        """See `BrokerPort.publish_once`."""
        assert isinstance(template, TopicTemplate)
        assert isinstance(session, MqttSession)
        if session.clean:
            position = self.publish_later(template, batch, row, row + 1, delay_ms=delay_ms)
            session.inbound.add(packet_id)
            return position
        # The property stands behind the constant part, which all messages of the kind share.
        mark = f"{QOS2_PROPERTY}\x01{session.number:x}.{packet_id:x}\x02".encode()
        position = self.delays.publish(
            template,
            batch,
            row,
            row + 1,
            self.core.clock_ms() + delay_ms,
            properties=mark,
            system_flag=SYSTEM_FLAG_STATE,
        )
        self.sessions.state.took_inbound(session.number, packet_id)
        return position

    def publish_settling(
        self, template: Template, batch: Batch, row: int, consumer: QueueConsumer, offset: int
    ) -> Position:
        """See `BrokerPort.publish_settling`."""
        assert isinstance(template, TopicTemplate)
        return self.moves.publish(template, batch, row, row + 1, *place_of(consumer, offset))

    def prepare(
        self,
        template: Template,
        batch: Batch,
        row: int,
        *,
        check_after_ms: int = 0,
        owner: str = "",
    ) -> Prepared:
        """See `TransactionPort.prepare`, and `HalfMessages.prepare` for the owner."""
        assert isinstance(template, TopicTemplate)
        return self.half_messages.prepare(
            template, batch, row, check_after_ms=check_after_ms, owner=owner
        )

    def end_half(self, offset: int, place: int, **decision: Any) -> None:
        """See `TransactionPort.end_half`."""
        self.half_messages.end(offset, place, **decision)

    def may_end_half(self, owner: str) -> bool:
        """See `TransactionPort.may_end_half`."""
        return True

    @property
    def as_owner(self) -> str:
        """See `BrokerPort.as_owner`."""
        return ""

    def when_half_unresolved(self, callback: Callable[[HalfMessage], None]) -> None:
        """See `TransactionPort.when_half_unresolved`."""
        self.half_messages.when_unresolved(callback)

    def commit_batch(
        self, publishes: Sequence[Publishing], settlements: Sequence[Settlement]
    ) -> Position:
        """See `TransactionPort.commit_batch`."""
        return self.transactions.commit(publishes, settlements)

    def appended(self) -> Position:
        """See `BrokerPort.appended`."""
        return Position(self.core.log.appended)

    def overloaded(self, resume: Callable[[], None]) -> bool:
        """See `BrokerPort.overloaded`."""
        core = self.core
        behind = core.log.appended - core.commits.points[FLUSHED]
        held, core.held_published = core.held_published, False
        if held and core.held_bytes > core.limits.held_bytes_pause:
            # What this publisher sent waits for replicas; others are not kept waiting.
            self.when_committed(Position(core.log.appended), IN_SYNC, resume)
            return True
        if behind < core.limits.unflushed_bytes_pause or core.failure is not None:
            return False
        self.when_committed(Position(core.log.appended), FLUSHED, resume)
        return True

    def when_flushed(self, position: Position, callback: Callable[[], None]) -> None:
        """Call back when this broker itself has the position on its disk, whatever others have."""
        if self.core.standby is not None:
            self.core.standby.when_flushed(position, callback)
        else:
            self.when_committed(position, FLUSHED, callback)

    def when_storage_blocks(self, callback: Callable[[str], None]) -> None:
        """See `BrokerPort.when_storage_blocks`."""
        self.core.disk.watch(callback)

    def when_topics_change(self, callback: Callable[[], None]) -> None:
        """Call back whenever a topic was made or deleted. One caller: the last."""
        self.topics_.on_change = callback

    def when_storage_fails(self, callback: Callable[[StorageFailed], None]) -> None:
        """See `BrokerPort.when_storage_fails`."""
        self.core.on_failure.append(callback)

    # --- MQTT -----------------------------------------------------------------------------

    def connect_session(
        self,
        client_id: str,
        *,
        clean: bool,
        link: SessionLink,
        principal: str,
        inflight_max: int | None = None,
    ) -> Session:
        """See `BrokerPort.connect_session`."""
        self.core.check_leads()
        return self.sessions.connect(
            client_id, clean=clean, link=link, principal=principal, inflight_max=inflight_max
        )

    # --- documents --------------------------------------------------------------------------

    def put_document(self, kind: str, key: str, value: Mapping[str, Any] | None) -> Position:
        """See `BrokerPort.put_document`."""
        return self.documents_.put(kind, key, value)

    def documents(self, kind: str) -> Mapping[str, Mapping[str, Any]]:
        """See `BrokerPort.documents`."""
        return self.documents_.of_kind(kind)

    # --- RocketMQ's consumer groups ---------------------------------------------------------

    @property
    def store_host(self) -> bytes:
        """See `RocketmqPort.store_host`."""
        return self.core.log.host

    def when_grown(self, topic: str, queue_id: int, callback: Callable[[], None]) -> None:
        """See `RocketmqPort.when_grown`."""
        self.queries.when_grown(topic, queue_id, callback)

    def group(self, name: str) -> GroupInfo | None:
        """See `RocketmqPort.group`."""
        return self.consumer_groups.group(name)

    def groups(self) -> Sequence[GroupInfo]:
        """See `RocketmqPort.groups`."""
        return self.consumer_groups.groups()

    def put_group(self, name: str, settings: Mapping[str, Any]) -> Position:
        """See `RocketmqPort.put_group`."""
        return self.consumer_groups.put(name, settings)

    def delete_group(self, name: str) -> Position:
        """See `RocketmqPort.delete_group`."""
        return self.consumer_groups.delete(name)

    def group_offset(self, name: str, topic: str, queue_id: int) -> int | None:
        """See `RocketmqPort.group_offset`."""
        return self.consumer_groups.offset(name, topic, queue_id)

    def group_offsets(self, name: str) -> Mapping[tuple[str, int], int]:
        """See `RocketmqPort.group_offsets`."""
        return self.consumer_groups.offsets(name)

    def commit_group_offset(self, name: str, topic: str, queue_id: int, offset: int) -> None:
        """See `RocketmqPort.commit_group_offset`."""
        self.consumer_groups.commit(name, topic, queue_id, offset)

    # --- reading by offset ------------------------------------------------------------------

    def topics(self) -> Sequence[TopicInfo]:
        """See `BrokerPort.topics`."""
        return [topic.info() for topic in self.topics_.shown()]

    def topic_sizes(self) -> Iterator[tuple[str, int]]:
        """The name in the log, and the number of queues, of each topic that there is now. It may be
        read in slices, between which topics come and go."""
        topics = list(self.topics_.shown())
        return ((topic.stored, len(topic.queues)) for topic in topics)

    @property
    def topics_count(self) -> int:
        """How many topics clients may know of."""
        return sum(1 for _ in self.topics_.shown())

    @property
    def stored_count(self) -> int:
        """Messages that were ever stored in the topics that there are (a metric)."""
        return sum(
            queue.flushed for topic in self.topics_.topics.values() for queue in topic.queues
        )

    @property
    def page_cache_count(self) -> int:
        """Topics whose acks do not wait for the disk (a metric)."""
        appended = Durability.APPENDED
        topics = self.topics_.shown()
        return sum(topic.settings.durability is appended for topic in topics)

    def topic(self, name: str) -> TopicInfo | None:
        """See `BrokerPort.topic`."""
        topic = self.topics_.find(name)
        return None if topic is None else topic.info()

    def create_topic(
        self, name: str, queue_count: int, settings: Mapping[str, str] | None = None
    ) -> Position:
        """See `BrokerPort.create_topic`."""
        return self.topics_.create(name, queue_count, settings)

    def set_topic(self, name: str, settings: Mapping[str, str]) -> Position:
        """See `BrokerPort.set_topic`."""
        return self.topics_.set(name, settings)

    def delete_topic(self, name: str) -> Position:
        """See `BrokerPort.delete_topic`."""
        return self.topics_.delete(name)

    def pull(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        count_max: int,
        bytes_max: int,
        callback: Callable[[bytes, int], None],
        tags: frozenset[str] | None = None,
    ) -> None:
        """See `BrokerPort.pull`."""
        self.queries.pull(
            topic,
            queue_id,
            offset,
            count_max=count_max,
            bytes_max=bytes_max,
            callback=callback,
            tags=tags,
        )

    def query_by_key(
        self,
        topic: str,
        key: str,
        *,
        count_max: int,
        begin_ms: int,
        end_ms: int,
        callback: Callable[[bytes | None], None],
    ) -> None:
        """See `BrokerPort.query_by_key`."""
        self.queries.by_key(
            topic, key, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms, callback=callback
        )

    def message_by_position(self, position: int, callback: Callable[[str, bytes], None]) -> None:
        """See `BrokerPort.message_by_position`."""
        self.queries.by_position(position, callback)

    def offset_by_time(
        self, topic: str, queue_id: int, time_ms: int, callback: Callable[[int | None], None]
    ) -> None:
        """See `BrokerPort.offset_by_time`."""
        self.queries.by_time(topic, queue_id, time_ms, callback)

    # --- users ----------------------------------------------------------------------------

    def authenticate(
        self,
        user: str | None,
        password: bytes | None,
        address: str,
        answer: Callable[[str | Refused], None],
    ) -> Callable[[], None]:
        """See `BrokerPort.authenticate`."""
        return self.admission.authenticate(user, password, address, answer)

    def check_signature(self, access_key: str, content: bytes, digest: bytes, address: str) -> str:
        """See `BrokerPort.check_signature`."""
        return self.admission.check_signature(access_key, content, digest, address)

    def listener_principal(self, user: str) -> str:
        """See `BrokerPort.listener_principal`."""
        return self.admission.listener_principal(user)

    def for_principal(self, principal: str, client_id: str | None = None) -> BrokerPort:
        """See `BrokerPort.for_principal`."""
        return self.admission.for_principal(principal, client_id)

    def for_owner(self, owner: str) -> BrokerPort:
        """See `BrokerPort.for_owner`."""
        return self.admission.for_owner(owner)

    def enter(
        self,
        expelled: Callable[[str], None],
        *,
        access_key: str | None = None,
        address: str = "",
    ) -> Callable[[], None]:
        """See `BrokerPort.enter`: a connection that came in while there were no users."""
        return self.admission.enter(None, expelled, access_key, address)

    def check_publish(self, topic: str, tag: str | None, *, every_tag: bool = False) -> None:
        """See `BrokerPort.check_publish`."""

    def check_read(self, words: Words) -> None:
        """See `BrokerPort.check_read`."""

    def check_known(self, topic: str) -> None:
        """See `BrokerPort.check_known`."""

    def check_admin(self, words: Words) -> None:
        """See `BrokerPort.check_admin`."""

    def check_admitted(self) -> None:
        """See `BrokerPort.check_admitted`."""

    def when_rights_change(self, callback: Callable[[Callable[[str], bool]], None]) -> None:
        """See `RocketmqPort.when_rights_change`."""
        self.admission.when_rights_change(callback)

    def check_group(self, name: str) -> None:
        """See `RocketmqPort.check_group`."""

    def for_group(self, name: str) -> BrokerPort:
        """See `RocketmqPort.for_group`."""
        return self

    # --- the end --------------------------------------------------------------------------

    def begin_stop(self) -> None:
        """The server is about to take leave of its clients. What they give back from now on goes
        to its place, flagged redelivered, and does not count against a delivery limit."""
        self.core.is_stopping = True

    # --- snapshots ------------------------------------------------------------------------

    def flush_finished(self) -> None:
        """The flusher reported: call on the loop when `store.flusher.fileno()` is readable."""
        self.core.flush_finished()

    def begin_snapshot(self) -> StateSaving | None:
        """Begin to save what has changed in the folded state since the last snapshot.

        Call on the loop. None: nothing to do.
        """
        if self._state_db is None or self.core.failure is not None:
            return None
        self.core.write_gathered()
        if self.core.log.appended == self._saved:
            return None
        if self.core.standby is not None:
            self.core.standby.forget_settled()
        self._saved = self.core.log.appended
        return StateSaving(self.core, self._state_db, self.fold.row)

    def snapshot(self) -> Callable[[], None] | None:
        """The same, gathered at once."""
        self.core.sweeper.finish()
        saving = self.begin_snapshot()
        while saving is not None and not saving.gather(1 << 30):
            pass
        return saving

    def snapshot_failed(self, entities: Iterable[Entity]) -> None:
        """The snapshot was not saved: these entities belong in the next."""
        self._saved = -1
        self.core.journal.dirty.update(entities)
