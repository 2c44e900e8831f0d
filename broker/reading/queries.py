"""Reading messages without a consumer: by offset, by key, by position in the log, by time.

Rules:

* Only what readers by offset may see is found: flushed messages of topics that there are, from the
  topic's first offset on.
* What is found was compared with the record itself, its checksum included; an index is only a hint.
* The disk is read in reader threads; answers come through a callback on the loop.
"""

from __future__ import annotations

from collections.abc import Callable

from polymq.broker.core import Core
from polymq.broker.durability import Durability
from polymq.broker.errors import Reason, Refused
from polymq.broker.names import display_name
from polymq.broker.pacing.scheduler import Scheduler
from polymq.broker.queues.queue import Queue
from polymq.broker.reading.tag_filter import pull_tagged
from polymq.broker.topics.topic import Topic
from polymq.broker.topics.topics import Topics
from polymq.core_log.kernels.batch import RECORD_STORE_MS_AT
from polymq.core_log.kernels.layout import RECORD_SIZE_MIN
from polymq.core_log.record import Record, decode_record


class Watch:
    """Who wants to be told when a queue grows; told once, in the iteration behind that, for it
    happens in the middle of a commit."""

    __slots__ = ("_queue", "_scheduler", "callbacks")

    def __init__(self, queue: Queue, scheduler: Scheduler) -> None:
        self._queue = queue
        self._scheduler = scheduler
        self.callbacks: list[Callable[[], None]] = []

    def __call__(self) -> None:
        """The queue has grown."""
        self._queue.on_grown = None
        for callback in self.callbacks:
            self._scheduler.call_soon(callback)


class Queries:
    """Searches of one engine."""

    def __init__(self, core: Core, topics: Topics) -> None:
        self._core = core
        self._topics = topics

    @property
    def store_host(self) -> bytes:
        """See `QueryPort.store_host`."""
        return self._core.log.host

    def when_grown(self, topic: str, queue_id: int, callback: Callable[[], None]) -> None:
        """See `QueryPort.when_grown`."""
        queue = self._need_queue(topic, queue_id)
        if queue.on_grown is None:
            queue.on_grown = Watch(queue, self._core.scheduler)
        assert isinstance(queue.on_grown, Watch)
        queue.on_grown.callbacks.append(callback)

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
        """See `QueryPort.pull`."""
        queue = self._need_queue(topic, queue_id)
        if offset < queue.index.first_offset:
            raise Refused(
                Reason.BAD_ARGUMENT, f"offsets begin at {queue.index.first_offset} in this queue"
            )
        if tags is not None:
            pull_tagged(
                self._core,
                queue,
                offset,
                tags=tags,
                end=queue.flushed,
                count_max=count_max,
                bytes_max=bytes_max,
                callback=callback,
            )
            return
        count = min(count_max, queue.flushed - offset)
        if count <= 0:
            callback(b"", offset)
            return
        reading = self._core.reading

        def took(records: bytes | None, found: int) -> None:
            if not records:
                callback(b"", offset)
                return
            if reading.delivery_times.due:
                reading.delivery_times.note_pull(records, found)
            callback(records, offset + found)

        reading.read(queue.index, offset, count, bytes_max, took)

    def by_key(
        self,
        topic: str,
        key: str,
        *,
        count_max: int,
        begin_ms: int,
        end_ms: int,
        callback: Callable[[bytes | None], None],
    ) -> None:
        """See `QueryPort.by_key`."""
        found = self._need_topic(topic)
        if not key or " " in key:
            raise Refused(Reason.BAD_ARGUMENT, "a key must not be empty or contain spaces")
        core = self._core
        limits = core.limits
        store, end = core.store, core.commits.points[found.settings.read_point]
        firsts = {queue.number: queue.index.first_offset for queue in found.queues}

        def find() -> bytes:
            records = store.keys.find(
                found.stored.encode(),
                key.encode("utf-8", "surrogateescape"),
                count_max=max(1, min(count_max, limits.query_count_max)),
                bytes_max=limits.query_bytes_max,
                begin_ms=begin_ms,
                end_ms=end_ms,
                end=end,
                accept=lambda record: _is_there(record, firsts),
            )
            return b"".join(record.raw for record in records)

        core.reading.readers.submit(
            find, lambda records, error: self._tell(callback, error, records)
        )

    def by_position(self, position: int, callback: Callable[[str, bytes], None]) -> None:
        """See `QueryPort.by_position`."""
        core = self._core
        if (
            not core.log.start
            <= position
            <= core.commits.points[Durability.FLUSHED] - RECORD_SIZE_MIN
        ):
            callback("", b"")
            return
        store = core.store

        def read() -> bytes:
            record = store.find_record(position)
            return b"" if record is None else record.raw

        def finished(found: bytes | None, error: Exception | None) -> None:
            if error is not None:
                core.read_failed(error)
            callback(*self._visible(found or b""))

        core.reading.readers.submit(read, finished)

    def _visible(self, raw: bytes) -> tuple[str, bytes]:
        """The topic's name and the record, if a reader may see it; else nothing."""
        if not raw:
            return "", b""
        record = decode_record(raw, verify=False)
        name = self._core.metas.user_name(record.topic)
        topic = self._topics.find(name)
        if topic is None or record.position >= self._core.commits.points[topic.settings.read_point]:
            return "", b""
        firsts = {queue.number: queue.index.first_offset for queue in topic.queues}
        return (name, raw) if _is_there(record, firsts) else ("", b"")

    def by_time(
        self, topic: str, queue_id: int, time_ms: int, callback: Callable[[int | None], None]
    ) -> None:
        """See `QueryPort.by_time`."""
        _TimeSearch(self._core, self._need_queue(topic, queue_id), time_ms, callback).step()

    def _need_queue(self, topic: str, queue_id: int) -> Queue:
        found = self._topics.find(topic)
        if found is None or not 0 <= queue_id < len(found.queues):
            raise Refused(Reason.NOT_FOUND, f"there is no queue {queue_id} of topic {topic!r}")
        return found.queues[queue_id]

    def _need_topic(self, name: str) -> Topic:
        found = self._topics.find(name)
        if found is None:
            raise Refused(Reason.NOT_FOUND, f"there is no topic {display_name(name)!r}")
        return found

    def _tell(
        self,
        callback: Callable[[bytes | None], None],
        error: Exception | None,
        records: bytes | None,
    ) -> None:
        if error is not None:
            self._core.read_failed(error)
        callback(records)


class _TimeSearch:
    """The first offset of a queue whose message is not older than a time: halving, one read after
    the other. Messages of a queue are stored in the order of their times, as far as the clock was
    not set back."""

    def __init__(
        self, core: Core, queue: Queue, time_ms: int, callback: Callable[[int | None], None]
    ) -> None:
        self._core = core
        self._queue = queue
        self._time_ms = time_ms
        self._callback = callback
        self._low = queue.index.first_offset
        self._high = queue.flushed  # the answer is in [low, high]

    def step(self) -> None:
        """Look at the middle of what is left, or answer."""
        if self._low >= self._high:
            self._callback(self._low)
            return
        middle = (self._low + self._high) // 2
        self._core.reading.read(
            self._queue.index,
            middle,
            1,
            1,
            lambda records, _found: self._looked(middle, records),
        )

    def _looked(self, offset: int, records: bytes | None) -> None:
        if not records:
            self._callback(None)
            return
        at = RECORD_STORE_MS_AT
        if int.from_bytes(records[at : at + 8], "big") < self._time_ms:
            self._low = offset + 1
        else:
            self._high = offset
        self.step()


def _is_there(record: Record, firsts: dict[int, int]) -> bool:
    """Whether a record is a message of one of these queues (their first offsets by number)."""
    targets = record.targets
    if not targets:
        return False
    number, offset = targets[0]
    return number in firsts and offset >= firsts[number]
