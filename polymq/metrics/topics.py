"""What the topics have: totals, and figures of the largest ones if the operator wants them."""

from __future__ import annotations

from collections.abc import Generator
from heapq import heappush, heapreplace
from typing import Final

from polymq.broker.durability import APPENDED
from polymq.broker.engine import Engine
from polymq.broker.port import display_name
from polymq.metrics.labels import label_value
from polymq.metrics.registry import Probe, counter, gauge

AT_ONCE: Final = 256
"""Topics that are looked at in one step: some 100 us."""


class TopicSurvey:
    """Looks at all topics. A `Survey` of `exposition.py`.

    Args:
        shown_max: how many topics are shown by themselves; 0: none.
    """

    def __init__(self, engine: Engine, *, shown_max: int = 0) -> None:
        self._engine = engine
        self._shown_max = shown_max
        self._count = self._page_cache_count = self._stored = 0
        self._shown: dict[str, tuple[int, int]] = {}  # messages that are there, and ever were

    def steps(self) -> Generator[None, None, None]:
        """See `Survey`."""
        topics = self._engine.topics
        count = page_cache_count = stored = 0
        largest: list[tuple[int, str, int]] = []
        for at, topic in enumerate(list(topics.topics.values()), 1):
            end = sum(queue.flushed for queue in topic.queues)
            stored += end
            if topics.find(topic.name) is not None:
                count += 1
                page_cache_count += topic.settings.durability is APPENDED
                if self._shown_max:
                    first = sum(queue.index.first_offset for queue in topic.queues)
                    entry = (max(0, end - first), topic.name, end)
                    if len(largest) < self._shown_max:
                        heappush(largest, entry)
                    elif entry > largest[0]:
                        heapreplace(largest, entry)
            if at % AT_ONCE == 0:
                yield
        self._count, self._page_cache_count, self._stored = count, page_cache_count, stored
        self._shown = {
            label_value(display_name(name)): (messages, end) for messages, name, end in largest
        }

    def probes(self) -> list[Probe]:
        """See `Survey`."""
        probes = [
            counter(
                "polymq_messages_stored",
                "Messages stored in all topics since the topics were created.",
                lambda: self._stored,
            ),
            gauge("polymq_topics", "Topics.", lambda: self._count),
            gauge(
                "polymq_page_cache_topics",
                "Topics whose acknowledgements do not wait for the disk.",
                lambda: self._page_cache_count,
            ),
        ]
        if not self._shown_max:
            return probes
        return [
            *probes,
            gauge(
                "polymq_topic_messages",
                "Messages of the topic that can be read by offset.",
                lambda: {name: messages for name, (messages, _) in self._shown.items()},
                label="topic",
            ),
            counter(
                "polymq_topic_messages_stored",
                "Messages stored in the topic since it was created.",
                lambda: {name: stored for name, (_, stored) in self._shown.items()},
                label="topic",
            ),
            gauge(
                "polymq_topics_left_out",
                "Topics that have no series of their own, because there are more than "
                "metrics.objects_max.",
                lambda: self._count - len(self._shown),
            ),
        ]
