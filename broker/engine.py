"""The engine: all parts of a broker in one process, over one store.

It makes the parts, puts them into a port (`open_port.py`), and saves their state. Each part has a
folder, and `README.md` says what is where.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, cast

from polymq.broker.accounts.bans import Bans
from polymq.broker.accounts.logins import Hashers, Logins
from polymq.broker.accounts.outside import Outside
from polymq.broker.accounts.owners import Owners
from polymq.broker.accounts.queue_readers import QueueReaders
from polymq.broker.accounts.scram_logins import ScramLogins
from polymq.broker.accounts.service_logins import ServiceLogins
from polymq.broker.accounts.service_permissions import ServicePermissions
from polymq.broker.accounts.token_logins import TokenLogins
from polymq.broker.accounts.users import Users
from polymq.broker.admission.admission import Admission
from polymq.broker.admission.connections import Connections, ConnectionSettings
from polymq.broker.admission.expiries import Expiries
from polymq.broker.admission.principal import Anybody
from polymq.broker.core import Core
from polymq.broker.delays.delay import Delays
from polymq.broker.disk import Disk, DiskSettings
from polymq.broker.documents import Documents
from polymq.broker.exchanges.entities import NamedQueue
from polymq.broker.exchanges.exchanges import Exchanges
from polymq.broker.following.standby import Standby
from polymq.broker.limits import Limits
from polymq.broker.messages.compressed import PlainBody
from polymq.broker.messages.readers import Readers
from polymq.broker.moves.moves import Moves
from polymq.broker.moves.redrives import Redrives
from polymq.broker.moves.set_aside import SetAside
from polymq.broker.named_queues.named_queues import NamedQueues
from polymq.broker.open_port import OpenPort
from polymq.broker.pacing.scheduler import Scheduler
from polymq.broker.port.publishing import Publish
from polymq.broker.queues.store import QueueStore
from polymq.broker.reading.consumer_groups import ConsumerGroups
from polymq.broker.reading.queries import Queries
from polymq.broker.recovery.fold import Fold
from polymq.broker.recovery.saving import StateSaving
from polymq.broker.retention.holders import name_of
from polymq.broker.retention.retention import Retention
from polymq.broker.sessions.sessions import Sessions
from polymq.broker.sessions.settings import SessionSettings
from polymq.broker.state.database import StateDb
from polymq.broker.state.journal import Entity
from polymq.broker.topics.header_routing import HeaderReader
from polymq.broker.topics.retained import Retained
from polymq.broker.topics.settings import TopicSettings
from polymq.broker.topics.topics import Topics
from polymq.broker.transactions.half_messages import HalfMessages
from polymq.broker.transactions.transactions import Transactions
from polymq.core_log.store import Store

NOTHING_OUTSIDE: Final = Outside()


class Engine:
    """The parts of a broker over a store.

    Attributes:
        port: everything that gateways may ask, without checks. Clients get theirs from
            `port.admission`.
        standby: the slave's part; None while this broker leads.

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
        connection_settings: the limits of MQTT connections.
        hashers: threads for passwords; by default those that read.
        random_bytes: for secrets that last as long as the process.
        outside: what decides about logins beside the stored users.
        strangers: whether clients are let in while there are no users, nor outsiders.
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
        connection_settings: ConnectionSettings | None = None,
        hashers: Hashers | None = None,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
        outside: Outside = NOTHING_OUTSIDE,
        strangers: bool = True,
        min_in_sync: int = 1,
        in_sync: int | None = None,
        header_reader: HeaderReader | None = None,
        plain_body: PlainBody | None = None,
        follows: str = "",
        shown: int = 0,
    ) -> None:
        core = self.core = Core(
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
        queue_store = self.queue_store = QueueStore(core)
        self.retained = Retained(core.limits.retained_max, core.limits.retained_bytes_max)
        core.journal.handle("retained-", self.retained.apply_clear)
        defaults = topic_defaults or TopicSettings()
        topics = self.topics = Topics(core, queue_store, self.retained, defaults)
        if header_reader is not None:
            topics.header_reader = header_reader
        moves = self.moves = Moves(core, queue_store, topics)
        self.set_aside = SetAside(core, topics, moves)
        self.redrives = Redrives(core, topics)
        queues: dict[str, NamedQueue] = {}
        self.users = Users(core, outsiders=outside.outsiders)
        owners = Owners(self.users)
        self.exchanges = Exchanges(core, topics, queues, owners)
        self.named_queues = NamedQueues(
            core,
            queue_store,
            topics,
            moves,
            self.exchanges,
            self.set_aside,
            queues=queues,
            new_name=new_name,
        )
        self.delays = Delays(core, queue_store, topics, moves, self.set_aside)
        self.sessions = Sessions(
            core,
            queue_store,
            topics,
            self.retained,
            self.named_queues.dead_letters,
            self.delays,
            session_settings or SessionSettings(),
        )
        self.half_messages = HalfMessages(core, queue_store, topics, moves)
        self.documents = Documents(core)
        self.admission = self._make_admission(
            scheduler,
            hashers or readers,
            random_bytes,
            outside,
            connection_settings,
            strangers,
        )
        self.retention = self._make_retention(state_db)
        self.groups = ConsumerGroups(core, topics)
        self.port = self.admission.port = self._make_port(owners)
        self._state_db = state_db
        self.standby: Standby | None = None
        self._saved = -1  # log position of the last snapshot
        self.fold = self._make_fold()
        self.fold.restore()
        if follows:
            self._stand_by(flushed=shown, in_sync=in_sync or 0)

    def _make_admission(
        self,
        scheduler: Scheduler,
        hashers: Hashers,
        random_bytes: Callable[[int], bytes],
        outside: Outside,
        connection_settings: ConnectionSettings | None,
        strangers: bool,
    ) -> Admission:
        clock_ms = self.core.clock_ms
        self.logins = Logins(
            users=self.users,
            scheduler=scheduler,
            hashers=hashers,
            now=lambda: clock_ms() / 1000,
            limits=self.core.limits,
            secret=random_bytes(32),
            random_bytes=random_bytes,
        )
        self.bans = Bans(self.core)
        self.connections = Connections(self.bans, connection_settings, clock_ms=clock_ms)
        self.scram_logins = ScramLogins(
            users=self.users,
            logins=self.logins,
            documents=self.documents,
            random_bytes=random_bytes,
            pending_max=self.core.limits.exchanges_pending_max,
            iterations=self.core.limits.scram_iterations,
        )
        token_logins: TokenLogins | None = None
        self.service_logins: ServiceLogins | None = None
        if outside.token_checker is not None:
            token_logins = TokenLogins(
                users=self.users,
                logins=self.logins,
                checker=outside.token_checker,
                now=lambda: clock_ms() / 1000,
            )
        if outside.service is not None:
            self.service_logins = ServiceLogins(
                service=outside.service,
                limits=outside.service_limits,
                logins=self.logins,
                scheduler=scheduler,
                now=lambda: clock_ms() / 1000,
                secret=random_bytes(32),
            )
        self.service_permissions: ServicePermissions | None = None
        if outside.permission_service is not None:
            self.service_permissions = ServicePermissions(
                service=outside.permission_service,
                limits=outside.permission_limits,
                scheduler=scheduler,
                now=lambda: clock_ms() / 1000,
                secret=random_bytes(32),
                notices=self.core.notices,
            )
        return Admission(
            self.users,
            self.logins,
            self.scram_logins,
            token_logins,
            self.service_logins,
            self.service_permissions,
            Expiries(scheduler, lambda: clock_ms() / 1000),
            self.bans,
            self.connections,
            strangers=strangers,
            ports_cached_max=self.core.limits.ports_cached_max,
        )

    def _make_retention(self, state_db: StateDb | None) -> Retention:
        return Retention(
            core=self.core,
            queue_store=self.queue_store,
            topics=self.topics,
            retained=self.retained,
            flights=self.sessions.state.retained,
            state_db=state_db,
            name_of=lambda group: name_of(group, self.exchanges),
        )

    def _make_port(self, owners: Owners) -> OpenPort:
        core, topics = self.core, self.topics
        self.sessions.wills.may_publish = self.admission.check_publish
        return OpenPort(
            # It takes templates of `Topics` only: others do not come this way.
            publish=cast(Publish, topics.publish_run),
            when_committed=core.when_committed,
            committed=core.committed,
            overloaded=core.overloaded,
            state_durability=core.state_durability,
            topics=topics,
            exchanges=self.exchanges,
            queues=self.named_queues,
            sessions=self.sessions,
            delays=self.delays,
            transactions=Transactions(core, self.queue_store, topics, self.delays, self.moves),
            half_messages=self.half_messages,
            queries=Queries(core, topics),
            groups=self.groups,
            documents=self.documents,
            storage=core,
            admission=self.admission,
            principal=Anybody(self.admission),
            readers=QueueReaders(),
            owners=owners,
        )

    def _stand_by(self, **bounds: int) -> None:
        forget_settled = self.sessions.state.forget_settled
        self.standby = self.core.standby = Standby(
            self.core,
            self.topics,
            fold=self.fold.apply,
            forget_settled=forget_settled,
            **bounds,
        )

    def _make_fold(self) -> Fold:
        sessions = self.sessions
        parts = (  # each behind those that its rows refer to
            *(self.core, self.topics, self.exchanges, self.named_queues, self.delays),
            *(
                self.half_messages,
                sessions.state,
                sessions.expiry,
                sessions.wills,
                self.retained,
                self.users,
                self.bans,
                self.documents,
            ),
            *(self.groups, self.redrives, self.retention),
        )
        return Fold(
            self.core,
            self.queue_store,
            self.topics,
            self._state_db,
            kinds=[kind for part in parts for kind in part.state_kinds()],
            messages=(
                partial(self.retained.take_message, metas=self.core.metas),
                sessions.state.take_message,
                sessions.wills.take_message,
                self.moves.take_message,
                self.redrives.take_message,
            ),
            numbers=sessions.state.index_numbers,
            reopen=(
                *(self.retention.forget_drops, self.named_queues.reopen, self.exchanges.reopen),
                *(sessions.state.reopen, self.queue_store.forget_settled),
                *(self.delays.reopen, self.half_messages.reopen, sessions.start),
            ),
        )

    # --- snapshots ------------------------------------------------------------------------

    def begin_snapshot(self) -> StateSaving | None:
        """Begin to save what has changed in the folded state since the last snapshot.

        Call on the loop. None: nothing to do.
        """
        core = self.core
        if self._state_db is None or core.failure is not None or core.unknown is not None:
            return None
        self.core.write_gathered()
        if self.core.log.appended == self._saved:
            return None
        if self.standby is not None:
            self.standby.forget_settled()
        self._saved = self.core.log.appended
        return StateSaving(self.core, self._state_db, self.fold.row)

    def snapshot(self) -> Callable[[], None] | None:
        """The same, gathered at once."""
        self.core.sweeper.finish()
        saving = self.begin_snapshot()
        while saving is not None and not saving.gather(1 << 30):
            pass
        return saving

    def state_bytes(self) -> int:
        """The size of the saved state. Any thread. Raises OSError."""
        return 0 if self._state_db is None else self._state_db.size_bytes()

    def snapshot_failed(self, entities: Iterable[Entity]) -> None:
        """The snapshot was not saved: these entities belong in the next."""
        self._saved = -1
        self.core.journal.dirty.update(entities)
