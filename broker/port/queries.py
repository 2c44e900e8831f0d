"""Reading without a consumer: by offset, by key, by position in the log, by time (RocketMQ, Spark,
pulls over HTTP)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class QueryPort(Protocol):
    """The operations."""

    @property
    def store_host(self) -> bytes:
        """Address and port that records have as their store host, 8 bytes: message ids begin with
        it."""

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
        """Records from `offset` on as they stand in the log: `callback(records, next_offset)`.

        At least one record if there is any, then as many as fit. Stops at the flushed point, or
        at the in-sync point if the topic asks for replicas.

        Args:
            tags: only messages with one of these tags. The others are passed over by their index
                entries; no records and a `next_offset` beyond `offset` mean that none of those
                looked at has one.

        Raises:
            Refused: NOT_FOUND (topic or queue id), BAD_ARGUMENT (offset below the minimum).
        """

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
        """Messages that have the key (a word of `KEYS`, `UNIQ_KEY`, AMQP's message id) and were
        stored in [begin_ms, end_ms]: `callback(records)`, newest first, as they stand in the log;
        None if the disk could not be read. All that was flushed at the call is looked at.

        Args:
            count_max: at most so many; the broker's own limits hold too.

        Raises:
            Refused: NOT_FOUND (topic), BAD_ARGUMENT (no key, or one with a space).
        """

    def by_position(self, position: int, callback: Callable[[str, bytes], None]) -> None:
        """The message at a position of the log (the last 16 digits of RocketMQ's message id):
        `callback(topic, record)`; empty if no message stands there that may be read."""

    def by_time(
        self, topic: str, queue_id: int, time_ms: int, callback: Callable[[int | None], None]
    ) -> None:
        """The first offset whose message was stored at or after a time, else the queue's end:
        `callback(offset)`; None if the disk could not be read.

        Raises:
            Refused: NOT_FOUND (topic or queue id).
        """

    def when_grown(self, topic: str, queue_id: int, callback: Callable[[], None]) -> None:
        """Call back once when readers by offset see more of the queue than now: for pulls that
        wait at its end. Never, if the topic is deleted.

        Raises:
            Refused: NOT_FOUND (topic or queue id).
        """
