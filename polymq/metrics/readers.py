"""How far readers are: what waits in queues, sessions and consumer groups, and since when.

Rules:

* Which readers there are, and how far each is, is said by `polymq/readers.py`. A subscription of
  HTTP is a webhook or is pulled, and a consumer group is a reader of each topic.
* Each scrape looks at all of them, in steps (`exposition.py`). Nothing is counted meanwhile.
* How old a message is, is in its queue's entry, in memory for what is new. What has to be read from
  the disk is read for `READS_MAX` messages of each scrape, and remembered as long as its reader
  stands there. Readers for which that was not enough are counted, and their age is known after one
  of the next scrapes.
* A series for each reader exists only if the operator wants it, for a bounded number of readers of
  each kind: those that have the most before them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Set
from dataclasses import dataclass
from heapq import heappush, heapreplace
from itertools import count
from typing import Final

from polymq.broker.engine import Engine
from polymq.broker.exchanges.entities import NamedQueue
from polymq.broker.port import Address, display_name
from polymq.broker.queues.inspection import Need, NeedRecord, stored_ms
from polymq.broker.queues.queue import Queue
from polymq.broker.sessions.session import MqttSession
from polymq.core_log.kernels.layout import PRIVATE_ENTRY_SIZE
from polymq.metrics.labels import label_value
from polymq.metrics.registry import Probe, Value, gauge
from polymq.readers import Kind, Progress, Readers, Source, in_flight_count, is_idle, kind_of

QUEUE: Final = "amqp_queue"
SUBSCRIPTION: Final = "http_subscription"
WEBHOOK: Final = "webhook"
SESSION: Final = "mqtt_session"
SHARE: Final = "mqtt_share"
CONSUMERS: Final = "rocketmq_group"
KINDS: Final[Mapping[Kind, str]] = {
    "queue": QUEUE,
    "subscription": SUBSCRIPTION,
    "session": SESSION,
    "share": SHARE,
    "group": CONSUMERS,
}
AT_ONCE: Final = 32
"""Readers, and queues of one, that are looked at in one step: some 100 us."""
READS_MAX: Final = 500
"""Reads from the disk of one scrape, some 100 us each, in another thread."""
KNOWN_MAX: Final = 100_000
"""Times that are remembered, of about 200 bytes each."""

Steps = Generator[Need | NeedRecord | None, bytes | None, None]


@dataclass(slots=True)
class Reader:
    """One reader, or all of a kind.

    Attributes:
        source: the reader; None: many. A name is made of it for few.
        topic: of a consumer group, as it is stored.
        lag: messages that it has not got.
        unacknowledged: messages that it has got and not settled.
        lag_ms: when the oldest of the former was stored, in milliseconds since the epoch; 0: there
            is none, or that is not known.
        oldest_ms: the same of both.
    """

    kind: str
    source: Source | None
    topic: str = ""
    lag: int = 0
    unacknowledged: int = 0
    lag_ms: int = 0
    oldest_ms: int = 0


@dataclass(slots=True)
class Total(Reader):
    """All readers of a kind together; the times are those of the oldest message of any."""

    readers: int = 0

    def add(self, reader: Reader) -> None:
        """One more."""
        self.readers += 1
        self.lag += reader.lag
        self.unacknowledged += reader.unacknowledged
        self.lag_ms = _earlier(self.lag_ms, reader.lag_ms)
        self.oldest_ms = _earlier(self.oldest_ms, reader.oldest_ms)


def _earlier(one: int, other: int) -> int:
    """The earlier of two times, of which 0 is none."""
    return min(one, other) if one and other else one or other


class Found:
    """What one look finds.

    Args:
        shown_max: how many readers of each kind are shown by themselves.
    """

    def __init__(self, shown_max: int = 0) -> None:
        self.totals = {kind: Total(kind, None) for kind in (*KINDS.values(), WEBHOOK)}
        self.unknown_count = 0
        """Messages whose age is not known yet."""
        self._shown_max = shown_max
        self._largest: dict[str, list[tuple[int, int, Reader]]] = {kind: [] for kind in self.totals}
        self._number = count()  # orders readers of one size

    def add(self, reader: Reader) -> None:
        """A reader was looked at."""
        self.totals[reader.kind].add(reader)
        if not self._shown_max:
            return
        largest = self._largest[reader.kind]
        entry = (reader.lag + reader.unacknowledged, -next(self._number), reader)
        if len(largest) < self._shown_max:
            heappush(largest, entry)
        elif entry > largest[0]:
            heapreplace(largest, entry)

    def shown(self) -> Iterable[Reader]:
        """Those that are shown by themselves."""
        return (reader for largest in self._largest.values() for _, _, reader in largest)

    def left_out(self) -> dict[str, float]:
        """How many of each kind are not."""
        return {kind: self.totals[kind].readers - len(self._largest[kind]) for kind in self.totals}


class ReaderSurvey:
    """Looks at all readers. A `Survey` of `exposition.py`.

    Args:
        webhooks: the names of the subscriptions that have a sink.
        filter_name: the topic filter that an address stands for.
        shown_max: how many readers of each kind are shown by themselves; 0: none.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        clock_ms: Callable[[], int],
        webhooks: Callable[[], Set[str]] = frozenset,
        filter_name: Callable[[Address], str],
        shown_max: int = 0,
    ) -> None:
        self._readers = Readers(engine, filter_name=filter_name)
        self._clock_ms = clock_ms
        self._webhooks = webhooks
        self._shown_max = shown_max
        self._found = Found()
        self._shown: list[tuple[tuple[str, ...], Reader]] = []  # with their labels
        self._known: dict[tuple[int, int], int] = {}  # by queue and offset, from the disk
        self._next: dict[tuple[int, int], int] = {}  # the same for the next scrape
        self._reads_left = 0

    # --- looking ------------------------------------------------------------------------------

    def steps(self) -> Steps:
        """See `Survey`."""
        found = Found(self._shown_max)
        self._reads_left = READS_MAX
        self._next = {}
        webhooks = self._webhooks()
        for some in self._readers.walk(step=AT_ONCE):
            for source in some:
                yield from self._look(source, webhooks, found)
            yield None
        self._known, self._next = self._next, {}
        shown: list[tuple[tuple[str, ...], Reader]] = []
        for at, reader in enumerate(found.shown()):
            shown.append((self._labels(reader), reader))
            if at % AT_ONCE == 0:
                yield None
        self._found, self._shown = found, shown

    def _look(self, source: Source, webhooks: Set[str], found: Found) -> Steps:
        """Add a reader; a consumer group is one of each topic."""
        kind = KINDS[kind_of(source)]
        if kind == SUBSCRIPTION and self._readers.name(source) in webhooks:
            kind = WEBHOOK
        if isinstance(source, NamedQueue) and is_idle(source):
            found.add(Reader(kind, source))
            return
        readers: dict[str, Reader] = {}
        if not isinstance(source, str):
            readers[""] = Reader(kind, source)
        for at, progress in enumerate(self._readers.progress(source), 1):
            reader = readers.get(progress.topic)
            if reader is None:
                reader = readers[progress.topic] = Reader(kind, source, progress.topic)
            reader.lag += progress.waiting
            reader.unacknowledged += progress.unacknowledged
            if progress.waiting or progress.unacknowledged:
                yield from self._date(reader, progress, found)
            if at % AT_ONCE == 0:
                yield None
        for reader in readers.values():
            if isinstance(source, MqttSession):
                reader.unacknowledged = in_flight_count(source)
            found.add(reader)

    def _date(self, reader: Reader, progress: Progress, found: Found) -> Steps:
        """Look how old the messages are that are before a reader in one queue."""
        queue, first = progress.queue, progress.first
        if progress.waiting:
            time = yield from self._stored_ms(queue, first, found)
            reader.lag_ms = _earlier(reader.lag_ms, time)
            reader.oldest_ms = _earlier(reader.oldest_ms, time)
        if queue.index.first_offset <= progress.floor < first:
            time = yield from self._stored_ms(queue, progress.floor, found)
            reader.oldest_ms = _earlier(reader.oldest_ms, time)

    def _stored_ms(
        self, queue: Queue, offset: int, found: Found
    ) -> Generator[Need | NeedRecord | None, bytes | None, int]:
        """When a message was stored; 0: that is not known."""
        index, key = queue.index, (queue.number, offset)
        in_memory = index.entry_size == PRIVATE_ENTRY_SIZE and index.read_hot(offset, 1) is not None
        if not in_memory:
            known = self._known.get(key)
            if known is not None:
                self._next[key] = known
                return known
            if not self._reads_left:
                found.unknown_count += 1
                return 0
            self._reads_left -= 1
        time = yield from stored_ms(index, offset)
        if time is None:
            return 0
        if not in_memory and len(self._next) < KNOWN_MAX:
            self._next[key] = time
        return time

    # --- telling ------------------------------------------------------------------------------

    def probes(self) -> list[Probe]:
        """See `Survey`."""
        of_kinds: list[tuple[str, str, Callable[[Total], float]]] = [
            (
                "polymq_readers",
                "Readers of messages. Consumer groups of RocketMQ count once for each topic.",
                lambda total: total.readers,
            ),
            (
                "polymq_reader_lag_messages",
                "Messages that wait for a reader.",
                lambda total: total.lag,
            ),
            (
                "polymq_reader_unacknowledged_messages",
                "Messages that a reader has got and not acknowledged.",
                lambda total: total.unacknowledged,
            ),
            (
                "polymq_reader_lag_seconds",
                "How long the oldest message waits that a reader of the kind has not got.",
                lambda total: self._age(total.lag_ms),
            ),
            (
                "polymq_reader_oldest_message_seconds",
                "How old the oldest message is that a reader of the kind has not acknowledged.",
                lambda total: self._age(total.oldest_ms),
            ),
        ]
        return [
            *(gauge(name, text, self._by_kind(get), label="kind") for name, text, get in of_kinds),
            gauge(
                "polymq_reader_ages_unknown",
                "Messages whose age is not known yet, because the last scrape would have had to "
                "read too much from the disk.",
                lambda: self._found.unknown_count,
            ),
            *(self._shown_probes() if self._shown_max else ()),
        ]

    def _shown_probes(self) -> list[Probe]:
        of_readers: list[tuple[str, str, Callable[[Reader], float]]] = [
            ("lag_messages", "Messages that wait for the reader.", lambda reader: reader.lag),
            (
                "unacknowledged_messages",
                "Messages that the reader has got and not acknowledged.",
                lambda reader: reader.unacknowledged,
            ),
            (
                "lag_seconds",
                "How long the oldest message waits that the reader has not got.",
                lambda reader: self._age(reader.lag_ms),
            ),
            (
                "oldest_message_seconds",
                "How old the oldest message is that the reader has not acknowledged.",
                lambda reader: self._age(reader.oldest_ms),
            ),
        ]
        labels = ("kind", "name", "topic")
        return [
            *(
                gauge(f"polymq_object_{name}", text, self._by_reader(read), labels=labels)
                for name, text, read in of_readers
            ),
            gauge(
                "polymq_objects_left_out",
                "Readers that have no series of their own, because there are more than "
                "metrics.objects_max.",
                lambda: self._found.left_out(),
                label="kind",
            ),
        ]

    def _by_kind(self, read: Callable[[Total], float]) -> Callable[[], Value]:
        return lambda: {kind: read(total) for kind, total in self._found.totals.items()}

    def _by_reader(self, read: Callable[[Reader], float]) -> Callable[[], Value]:
        return lambda: {labels: read(reader) for labels, reader in self._shown}

    def _age(self, stored: int) -> float:
        """In seconds."""
        return max(0, self._clock_ms() - stored) / 1000 if stored else 0.0

    def _labels(self, reader: Reader) -> tuple[str, str, str]:
        assert reader.source is not None
        topic = display_name(reader.topic) if reader.topic else ""
        return reader.kind, label_value(self._readers.name(reader.source)), label_value(topic)
