"""A trace of messages: each time that one is handed out, and when it is settled.

The log knows what was published and what was settled in the end (`way.py`). It does not know each
attempt, messages of QoS 0, and whom a session's client got them from. That is what such a trace
shows while it runs.

Theory. Nothing on the way of a message asks whether a trace runs. Queues look at one flag for a
batch anyway, whether the time of its delivery is to be measured, and a trace keeps it set
(`DeliveryTimes.watch`). An MQTT session sends through its link, so a trace puts an object before
the links of all sessions. That a cursor has moved is told to one function of its group, so a trace
puts another one before it, in the groups that have what it has shown. All of it is taken away in
the end.

Rules:

* One such trace at a time. A line is made of messages that are about the topic and in the sample
  only; a sample is by the number that a message has in its topic, so it is the same everywhere.
* A second has a bound in messages that are looked at and in lines; the rest is counted.
* No line has what is in a message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from struct import Struct
from typing import Annotated, Any, Final

import msgspec

from polymq.admin.mqtt_names import MqttNames
from polymq.admin.operations import Given
from polymq.admin.trace_lines import TraceLines
from polymq.broker.engine import Engine
from polymq.broker.messages.message import Delivery
from polymq.broker.messages.records import TAGS
from polymq.broker.named_queues.named_queues import SUBSCRIPTION_PREFIX
from polymq.broker.port import ConnectedClient, display_name
from polymq.broker.queues.queue import Group
from polymq.broker.sessions.flights import SessionGroup
from polymq.broker.sessions.session import MqttSession
from polymq.broker.sessions.shares import ShareGroup
from polymq.core_log.kernels.batch import RECORD_QUEUE_OFFSET_AT
from polymq.core_log.record import Record, decode_record
from polymq.gateways.mqtt.packet_lines import PacketLines
from polymq.gateways.mqtt.topic_filters import matches

LINES_A_SECOND: Final = 1_000
"""More than anybody reads; a line takes some 20 us."""
LOOKED_AT_A_SECOND: Final = 20_000
"""Messages of topics that the trace is about: some 10 ms of each second."""
AT_ONCE: Final = 128
"""Messages of one batch that are looked at, so that no batch holds the loop up."""
WAITING_MAX: Final = 64
"""Messages of one queue or client that are waited for; the oldest give way."""
WATCHED_MAX: Final = 1_000
"""Queues and clients whose settlements are waited for."""
LINKS_MAX: Final = 50_000
"""Sessions that are looked at: all of a listener."""
LINKS_AT_ONCE: Final = 256
TOPICS_MAX: Final = 1_000
"""Topics with their tags of which it is remembered whether the trace is about them."""
PACKET_IDS: Final = 65_535
SAMPLE_MAX: Final = 1_000_000
_ANSWERS: Final = {"PUBACK": "acknowledged", "PUBREC": "received", "PUBCOMP": "acknowledged"}
_SIZE: Final = Struct(">i")
_OFFSET: Final = Struct(">q")


class NewMessageTrace(Given):
    """Which messages are traced.

    Attributes:
        topic: those whose topics match this topic filter, in MQTT's words, whatever protocol they
            came by; null: all.
        sample: one in so many of each queue of a topic. 1: each.
        seconds: for how long, at most a day.
    """

    topic: str | None = None
    sample: Annotated[int, msgspec.Meta(ge=1, le=SAMPLE_MAX)] = 1
    seconds: Annotated[int, msgspec.Meta(ge=1, le=86_400)] = 60


class MessageTrace:
    """A trace of messages that runs, from `start` to `end`.

    Attributes:
        lines: for who reads it.
        watched: sessions that it looks at now.
    """

    def __init__(
        self, engine: Engine, names: MqttNames, asked: NewMessageTrace, lines: TraceLines
    ) -> None:
        self.lines = lines
        self._engine = engine
        self._names = names
        self._asked = asked
        self._pattern = None if asked.topic is None else asked.topic.split("/")
        self._about: dict[tuple[str, str | None], bool] = {}
        self._links: dict[MqttSession, _WatchedLink] = {}
        self._groups: dict[Group, _Waiting] = {}
        self._clients: dict[str, _Answers] = {}
        self._unwatch: Callable[[], None] | None = None
        self._second = 0
        self._lines_left = self._looks_left = 0

    @property
    def watched(self) -> int:
        """See above."""
        return len(self._links)

    async def start(self) -> None:
        """Begin to look. Sessions whose clients come meanwhile are looked at, too."""
        self._unwatch = self._engine.core.reading.delivery_times.watch(self)
        connections = self._engine.connections
        connections.when_came.append(self._came)
        connections.when_went.append(self._went)
        sessions = iter(list(self._engine.sessions.by_client.values()))
        while some := list(islice(sessions, LINKS_AT_ONCE)):
            for session in some:
                if not self.lines.is_over:
                    self._watch(session)
            await asyncio.sleep(0)

    def end(self) -> None:
        """Look no more. Safe to call again, and before `start`."""
        self.lines.close()
        if self._unwatch is None:
            return
        self._unwatch()
        self._unwatch = None
        self._engine.connections.when_came.remove(self._came)
        self._engine.connections.when_went.remove(self._went)
        for waiting in self._groups.values():
            waiting.stop()
        for answers in self._clients.values():
            answers.stop()
        self._groups.clear()
        self._clients.clear()
        self._let_go_of_links()

    def _let_go_of_links(self) -> None:
        """Take what is before the links away, in steps."""
        for session in list(islice(self._links, LINKS_AT_ONCE)):
            link = self._links.pop(session)
            if session.link is link:
                session.link = link.inner
        if self._links:
            asyncio.get_running_loop().call_soon(self._let_go_of_links)

    def _came(self, client: ConnectedClient) -> None:
        def look() -> None:  # when its session has its link
            session = self._engine.sessions.by_client.get(client.client_id)
            if session is not None and not self.lines.is_over:
                self._watch(session)

        asyncio.get_running_loop().call_soon(look)

    def _went(self, client: ConnectedClient) -> None:
        answers = self._clients.pop(client.client_id, None)
        if answers is not None:
            answers.stop()
        session = self._engine.sessions.by_client.get(client.client_id)
        if session is not None and session.link is None:
            self._links.pop(session, None)

    def _watch(self, session: MqttSession) -> None:
        link = session.link
        if link is None or isinstance(link, _WatchedLink) or len(self._links) >= LINKS_MAX:
            return
        watched = _WatchedLink(link, lambda run, sent: self._sent(session, run, sent))
        self._links[session] = session.link = watched

    # --- what is handed out -----------------------------------------------------------------------

    def delivered(self, group: Group, delivery: Delivery) -> None:
        """See `Watch`. What sessions are handed is seen at their links."""
        if isinstance(group, SessionGroup | ShareGroup):
            return
        offset = delivery.first_offset
        name = group.queue.name
        short = name.removeprefix(SUBSCRIPTION_PREFIX)
        to = {"kind": "queue" if short == name else "subscription", "name": short}
        for run in delivery.runs:
            for index, record in self._of_run(run):
                self._add("delivered", record, to | {"redelivered": delivery.redelivered})
                self._wait_for(group, offset + index, record, to)
            offset += run.count

    def pulled(self, records: bytes, count: int) -> None:
        """See `Watch`."""
        first = decode_record(records, 0, verify=False)
        topic = self._engine.core.metas.user_name(first.topic)
        if self._pattern is None or matches(self._pattern[:1], [self._names.name((topic,))]):
            for _, record in self._sampled(records, 0, count):
                if self._is_about(topic, record.properties.get(TAGS)):
                    self._add("pulled", record, {"kind": "reader", "name": "by offset"})

    def _sent(self, session: MqttSession, run: Any, sent: dict[str, Any]) -> None:
        to = {"kind": "client", "name": session.client_id}
        for index, record in self._of_run(run):
            qos, packet_id = sent["qos"], sent["first_packet_id"]
            more: dict[str, Any] = {"redelivered": sent["duplicate"], "qos": qos}
            if qos:
                packet_id = (packet_id + index - 1) % PACKET_IDS + 1
                more["packet_id"] = packet_id
                self._wait_for_answer(session.client_id, packet_id, record)
            self._add("delivered", record, to | more)

    def _of_run(self, run: Any) -> Iterable[tuple[int, Record]]:
        """The messages of a run that are shown, and which each is in the run."""
        meta = run.meta
        if not self._is_about(meta.topic, meta.tag):
            return ()
        return self._sampled(run.memory, run.start, run.count)

    def _sampled(self, memory: Any, at: int, count: int) -> Iterator[tuple[int, Record]]:
        self._refill()
        sample = self._asked.sample
        looks = min(count, AT_ONCE, self._looks_left)
        self._looks_left -= looks
        for index in range(looks):
            if _OFFSET.unpack_from(memory, at + RECORD_QUEUE_OFFSET_AT)[0] % sample == 0:
                yield index, decode_record(memory, at, verify=False)
            at += _SIZE.unpack_from(memory, at)[0]
        if looks < count:
            self.lines.drop(count - looks)

    def _refill(self) -> None:
        second = self._engine.core.clock_ms() // 1000
        if second != self._second:
            self._second = second
            self._lines_left, self._looks_left = LINES_A_SECOND, LOOKED_AT_A_SECOND

    def _is_about(self, topic: str, tag: str | None) -> bool:
        if self._pattern is None:
            return True
        found = self._about.get((topic, tag))
        if found is None:
            if len(self._about) >= TOPICS_MAX:
                self._about.clear()
            levels = () if tag is None else tag.split(".")
            name = self._names.name((topic, *levels))
            found = self._about[topic, tag] = matches(self._pattern, name.split("/"))
        return found

    def _add(self, event: str, record: Record, more: dict[str, Any]) -> None:
        now_ms = self._engine.core.clock_ms()
        head = {"time_ms": now_ms, "event": event, **self._named(record), **more}
        self._line({**head, "age_ms": max(0, now_ms - record.store_ms)})

    def _line(self, line: dict[str, Any]) -> None:
        if self._lines_left <= 0:
            self.lines.drop(1)
            return
        self._lines_left -= 1
        self.lines.add(line)

    def _named(self, record: Record) -> dict[str, Any]:
        """What names a message in all of its lines."""
        topic = self._engine.core.metas.user_name(record.topic)
        tag = record.properties.get(TAGS)
        return {"position": record.position, "topic": display_name(topic), "tag": tag}

    # --- what is settled --------------------------------------------------------------------------

    def _wait_for(self, group: Group, offset: int, record: Record, to: dict[str, Any]) -> None:
        waiting = self._groups.get(group)
        if waiting is None:
            if len(self._groups) >= WATCHED_MAX:
                return
            waiting = self._groups[group] = _Waiting(group, self._settled)
        waiting.add(offset, self._named(record) | to)

    def _settled(self, known: dict[str, Any]) -> None:
        self._refill()
        self._line({"time_ms": self._engine.core.clock_ms(), "event": "settled", **known})

    def _wait_for_answer(self, client_id: str, packet_id: int, record: Record) -> None:
        answers = self._clients.get(client_id)
        if answers is None:
            client = self._engine.connections.clients.get(client_id)
            if client is None or len(self._clients) >= WATCHED_MAX:
                return
            answers = self._clients[client_id] = _Answers(client, self._answered)
        answers.add(packet_id, self._named(record) | {"kind": "client", "name": client_id})

    def _answered(self, event: str, packet_id: int, known: dict[str, Any]) -> None:
        self._refill()
        now_ms = self._engine.core.clock_ms()
        self._line({"time_ms": now_ms, "event": event, **known, "packet_id": packet_id})


class _WatchedLink:
    """A session's link with somebody who looks at what is sent."""

    def __init__(self, inner: Any, look: Callable[[Any, dict[str, Any]], None]) -> None:
        self.inner = inner
        self._look = look

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def send_publishes(self, run: Any, **sent: Any) -> None:
        """See `SessionLink`."""
        self._look(run, sent)
        self.inner.send_publishes(run, **sent)


class _Waiting:
    """Messages that a group has handed out and not settled.

    Args:
        settled: told what is known of one that is settled now.
    """

    def __init__(self, group: Group, settled: Callable[[dict[str, Any]], None]) -> None:
        self._group = group
        self._moved, group.moved = group.moved, self._look
        self._settled = settled
        self._offsets: dict[int, dict[str, Any]] = {}

    def add(self, offset: int, known: dict[str, Any]) -> None:
        """One more."""
        self._offsets[offset] = known
        if len(self._offsets) > WAITING_MAX:
            del self._offsets[next(iter(self._offsets))]

    def stop(self) -> None:
        """Nobody wants to know any more."""
        self._group.moved = self._moved

    def _look(self, group: Group) -> None:
        self._moved(group)
        for offset in [one for one in self._offsets if group.cursor.is_settled(one)]:
            self._settled(self._offsets.pop(offset))


class _Answers:
    """Packet ids that a client of MQTT has to answer.

    Args:
        answered: told the event, the packet id, and what is known of the message.
    """

    def __init__(
        self, client: ConnectedClient, answered: Callable[[str, int, dict[str, Any]], None]
    ) -> None:
        self._answered = answered
        self._ids: dict[int, dict[str, Any]] = {}
        self._lines = PacketLines(is_five=client.version == "5.0", payload_max=0)
        self.stop = client.trace(self._look)

    def add(self, packet_id: int, known: dict[str, Any]) -> None:
        """One more."""
        self._ids[packet_id] = known
        if len(self._ids) > WAITING_MAX:
            del self._ids[next(iter(self._ids))]

    def _look(self, came: bool, data: bytes) -> None:
        if not came:
            return
        for line in self._lines.feed(data):
            event = _ANSWERS.get(line["packet"])
            if event is None:
                continue
            first = line["packet_id"]
            for packet_id in [one for one in self._ids if 0 <= one - first < line.get("count", 1)]:
                known = self._ids[packet_id]
                if event == "acknowledged":
                    del self._ids[packet_id]
                self._answered(event, packet_id, known)
