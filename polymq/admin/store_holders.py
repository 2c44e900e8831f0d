"""Everything that keeps the log from being deleted, in one list.

Theory. A segment goes when nobody needs it or what is before it (`broker/retention/retention.py`).
Retention asks only who needs the oldest place. An operator wants to know who is next: whose queue
has to be drained after this one, and how much that frees. So each holder is asked for the oldest
place that it needs. One entry of its queue says it, in memory for what is new, else read from the
index by a reader thread, many at a time.

Who reads by offset (consumer groups of RocketMQ, the Parquet sink), and a replica, hold nothing:
the topic's retention does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from time import perf_counter
from typing import Any, Final, Literal, NamedTuple

from polymq.admin.awaiting import in_reader
from polymq.admin.operations import Call, Operation, Value
from polymq.admin.pages import Page, PageQuery
from polymq.broker.engine import Engine
from polymq.broker.errors import Reason, Refused
from polymq.broker.named_queues.named_queues import SUBSCRIPTION_PREFIX
from polymq.broker.port import Address, display_name
from polymq.broker.queues.queue import Group
from polymq.broker.retention.entry_reads import positions_of
from polymq.broker.retention.holders import is_ours
from polymq.broker.sessions.flights import SessionGroup
from polymq.broker.sessions.shares import ShareGroup
from polymq.broker.topics.retained import position_of
from polymq.core_log.errors import CorruptRecord, StorageFailed, StorageShort
from polymq.core_log.queue_index import Index
from polymq.core_log.store import Store
from polymq.steps import SLICE_SECONDS

NOWHERE: Final = 1 << 63
READ_COUNT: Final = 128
"""Entries that are read from the disk at a time: some two milliseconds of another thread."""

Kind = Literal[
    "topic",
    "queue",
    "subscription",
    "session",
    "share",
    "group",
    "delayed",
    "retained",
    "backup",
    "unsaved",
]


class StoreHolder(Value):
    """What needs a part of the log.

    Attributes:
        id: its kind, a colon and its name.
        kind: `topic` (its retention), `queue` (AMQP), `subscription` (HTTP), `session` and `share`
            (MQTT), `group` (another cursor of the broker), `delayed` (delayed messages, and half
            messages of transactions), `retained` (messages of MQTT), `backup` (one that is being
            taken), or `unsaved` (what is not in the saved state and indexes yet).
        name: of the topic, queue, subscription, client, filter or backup; of retained messages the
            topic of the oldest one.
        position: the oldest position of the log that it needs.
        held_bytes: of the log from there to its end. Segments are deleted as a whole, from the
            oldest on, so a holder keeps nothing that an older one does not keep, too.
        since_ms: when the record there was stored, in milliseconds since the epoch; null: that
            cannot be read.
        age_seconds: how long ago that was.
    """

    id: str
    kind: Kind
    name: str
    position: int
    held_bytes: int
    since_ms: int | None
    age_seconds: float | None


class HoldersQuery(PageQuery):
    """Which holders.

    Attributes:
        prefix: only holders whose names begin with this text.
        kind: only holders of this kind.
        sort: by position, the oldest first, or by id.
    """

    kind: Kind | Literal["all"] = "all"
    sort: Literal["position", "id"] = "position"


class Claim(NamedTuple):
    """A queue whose entry at `offset` says what is needed."""

    queue_index: Index
    offset: int


class Held(NamedTuple):
    """A holder. It needs the oldest of all its places.

    Attributes:
        position: a place that is known without reading an index; NOWHERE: there is none.
    """

    kind: Kind
    name: str
    position: int
    claims: Sequence[Claim] = ()


class Best:
    """The holders of one page, and how many there are on all pages.

    Args:
        after: what the page before ends with; empty: this is the first one.
    """

    def __init__(self, limit: int, after: tuple[int | str, ...], *, by_id: bool) -> None:
        self.total = 0
        self._limit = limit
        self._after = after
        self._by_id = by_id
        self._found: list[tuple[Any, Held]] = []
        self._bound: tuple[int | str, ...] | None = None  # nothing behind it is on the page

    def offer(self, held: Held) -> None:
        """One more holder."""
        self.total += 1
        name = f"{held.kind}:{held.name}"
        key = (name,) if self._by_id else (held.position, name)
        if key > self._after and (self._bound is None or key < self._bound):
            self._found.append((key, held))
            if len(self._found) > 2 * self._limit:
                self._cut()

    def _cut(self) -> None:
        self._found.sort(key=itemgetter(0))
        del self._found[self._limit + 1 :]
        if len(self._found) > self._limit:
            self._bound = self._found[-1][0]

    def page(self) -> tuple[list[Held], str | None]:
        """The holders, and what `after` has to be for the next page."""
        self._cut()
        shown = self._found[: self._limit]
        more = len(self._found) > self._limit
        return [held for _, held in shown], " ".join(map(str, shown[-1][0])) if more else None


class HolderSurvey:
    """Asks all holders of one engine.

    Args:
        filter_name: the topic filter that an address stands for.
    """

    def __init__(self, engine: Engine, store: Store, filter_name: Callable[[Address], str]) -> None:
        self._engine = engine
        self._store = store
        self._filter_name = filter_name

    async def look(self, kind: Kind | Literal["all"], prefix: str, best: Best) -> None:
        """Offer all of a kind whose names begin with a text. The loop goes on meanwhile, and what
        is on no page is forgotten at once."""
        asked = self._asked(kind)
        is_over = False
        while not is_over:
            begin = perf_counter()
            cold: list[Held] = []
            count = 0
            while count < READ_COUNT and perf_counter() - begin < SLICE_SECONDS:
                try:
                    held = next(asked)
                except StopIteration:
                    is_over = True
                    break
                if held is None or not held.name.startswith(prefix):
                    continue
                if held.claims:
                    cold.append(held)
                    count += len(held.claims)
                elif held.position != NOWHERE:
                    best.offer(self._in_log(held))
            if cold:
                await self._read(cold, best)
            await asyncio.sleep(0)

    def _in_log(self, held: Held) -> Held:
        return held._replace(position=max(held.position, self._store.log.start))

    async def _read(self, cold: Sequence[Held], best: Best) -> None:
        """An entry that cannot be read holds everything, as retention sees it."""
        claims = [claim for held in cold for claim in held.claims]
        positions: list[int] = []
        for at in range(0, len(claims), READ_COUNT):
            some = claims[at : at + READ_COUNT]
            positions += await in_reader(self._engine, partial(positions_of, some))
        found = iter(positions)
        for held in cold:
            needed = [next(found) for _ in held.claims]
            best.offer(self._in_log(held._replace(position=min(held.position, *needed))))

    # --- who is asked ---------------------------------------------------------------------------

    def _asked(self, kind: Kind | Literal["all"]) -> Iterator[Held | None]:
        """Everybody of a kind, with None for those of others: a step for each."""
        parts: dict[tuple[Kind, ...], Callable[[], Iterator[Held | None]]] = {
            ("topic",): self._topics,
            ("queue", "subscription"): self._named_queues,
            ("session",): self._sessions,
            ("share",): self._shares,
            ("delayed", "group"): self._others,
            ("retained",): self._retained,
            ("backup",): self._backups,
            ("unsaved",): self._unsaved,
        }
        for kinds, part in parts.items():
            if kind == "all" or kind in kinds:
                for one in part():
                    yield one if one is None or kind in ("all", one.kind) else None

    def _topics(self) -> Iterator[Held | None]:
        topics = self._engine.topics.topics
        for name in list(topics):
            topic = topics.get(name)
            queues = () if topic is None else topic.queues
            yield _held(
                "topic",
                display_name(name),
                [(one.index, one.index.first_offset) for one in queues if not one.groups],
            )

    def _named_queues(self) -> Iterator[Held | None]:
        queues = self._engine.named_queues.queues
        for name in list(queues):
            found = queues.get(name)
            if found is None:
                yield None
                continue
            short = name.removeprefix(SUBSCRIPTION_PREFIX)
            kind: Kind = "queue" if short == name else "subscription"
            yield _held(kind, short, map(_floor, found.group.all_groups()))

    def _sessions(self) -> Iterator[Held | None]:
        state = self._engine.sessions.state
        in_flight: dict[str, int] = {}  # retained messages
        for position, flight in state.retained.positions():
            client_id = flight.session.client_id
            in_flight[client_id] = min(position, in_flight.get(client_id, NOWHERE))
        sessions = self._engine.sessions.by_client
        for client_id in list(sessions):
            session = sessions.get(client_id)
            groups = [
                one.group
                for one in (() if session is None else session.subscriptions.values())
                if one.group is not None and not one.is_shared
            ]
            position = in_flight.get(client_id, NOWHERE)
            yield _held("session", client_id, map(_floor, groups), position)

    def _shares(self) -> Iterator[Held | None]:
        for share in list(self._engine.sessions.shares.by_address.values()):
            yield _held("share", self._filter_name(share.address), [_floor(share)])

    def _others(self) -> Iterator[Held | None]:
        queue_store, delays = self._engine.queue_store, self._engine.delays
        for group in [*queue_store.groups.values(), *queue_store.volatile_groups]:
            if is_ours(group):
                what = "delayed messages" if group is delays.group else "half messages"
                yield _held("delayed", what, [_floor(group)])
            elif not group.queue.name and not isinstance(group, SessionGroup | ShareGroup):
                yield _held("group", str(group.number), [_floor(group)])
            else:
                yield None

    def _retained(self) -> Iterator[Held | None]:
        lowest: tuple[int, Address] | None = None
        for item in self._engine.retained.entries():
            if item is not None and (lowest is None or position_of(item[1]) < lowest[0]):
                lowest = position_of(item[1]), item[0]
            yield None
        if lowest is not None:
            yield Held("retained", self._filter_name(lowest[1]), lowest[0])

    def _backups(self) -> Iterator[Held]:
        for reserved in self._engine.retention.reservations:
            yield Held("backup", reserved.name, reserved.position)

    def _unsaved(self) -> Iterator[Held]:
        if self._store.checkpointed < self._store.log.appended:
            yield Held("unsaved", "state and indexes", self._store.checkpointed)


def _floor(group: Group) -> tuple[Index, int]:
    """From where on a cursor needs its queue."""
    index = group.queue.index
    return index, max(group.cursor.floor, index.first_offset)


def _held(
    kind: Kind, name: str, wanted: Iterable[tuple[Index, int]], position: int = NOWHERE
) -> Held:
    """A holder that needs its queues from these offsets on: what memory says of them, and claims
    for the rest."""
    claims: list[Claim] = []
    for index, offset in wanted:
        if offset >= index.end_offset:
            continue
        entry = index.read_hot(offset, 1)
        if entry is None:
            claims.append(Claim(index, offset))
        elif entry:  # else it is gone
            position = min(position, int.from_bytes(entry[:8]))
    return Held(kind, name, position, claims)


class HolderHandlers:
    """Carries out the operation that lists them.

    Args:
        filter_name: the topic filter that an address stands for.
    """

    def __init__(self, engine: Engine, store: Store, filter_name: Callable[[Address], str]) -> None:
        self._engine = engine
        self._store = store
        self._survey = HolderSurvey(engine, store, filter_name)

    def operation(self) -> Operation:
        """It."""
        return Operation(
            method="GET",
            path="/store/holders",
            name="listStoreHolders",
            summary="List everything that keeps the log from being deleted",
            about="Each holder with the oldest position that it needs. Consumer groups of "
            "RocketMQ, the Parquet sink and replicas hold nothing: the retention of a topic does.",
            right="monitor",
            handler=self._list,
            query=HoldersQuery,
            answer=Page[StoreHolder],
        )

    async def _list(self, call: Call[HoldersQuery]) -> Page[StoreHolder]:
        query = call.query
        best = Best(query.limit, _key_of(query), by_id=query.sort == "id")
        await self._survey.look(query.kind, query.prefix, best)
        held, following = best.page()
        times = await in_reader(
            self._engine, partial(_stored_ms, self._store, [one.position for one in held])
        )
        rows = list(map(self._row, held, times))
        return Page(items=rows, next=following, total=best.total)

    def _row(self, held: Held, stored_ms: int | None) -> StoreHolder:
        now_ms = self._engine.core.clock_ms()
        return StoreHolder(
            id=f"{held.kind}:{held.name}",
            kind=held.kind,
            name=held.name,
            position=held.position,
            held_bytes=self._store.log.appended - held.position,
            since_ms=stored_ms,
            age_seconds=None if stored_ms is None else max(0, now_ms - stored_ms) / 1000,
        )


def _key_of(query: HoldersQuery) -> tuple[int | str, ...]:
    """The key behind which the page begins. Raises Refused: BAD_ARGUMENT."""
    if query.after is None:
        return ()
    if query.sort == "id":
        return (query.after,)
    position, space, name = query.after.partition(" ")
    if not (space and position.isascii() and position.isdecimal() and len(position) < 20):
        raise Refused(Reason.BAD_ARGUMENT, "after has to be the text `next` of a page of this list")
    return int(position), name


def _stored_ms(store: Store, positions: Sequence[int]) -> list[int | None]:
    """When the records at these positions were stored; None where that cannot be read."""
    times: list[int | None] = []
    for position in positions:
        try:
            times.append(store.store_ms_at(position))
        except (CorruptRecord, StorageFailed, StorageShort):
            times.append(None)
    return times
