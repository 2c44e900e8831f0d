"""Wills: what is published for an MQTT client that goes without saying goodbye.

A will is a state of the log from CONNECT on (the op `will+`, which CONNACK waits for). So it is
published also if the server is killed and the client does not come back.

Theory. A will is in one of two states. Its client is connected, or was until the server ended; or
it *waits* since its client has gone, until the time that the op `will=` says. Publishing it ends
it: the record of the message says so itself (`PMQ_WILL`, the number of the will), as moves do with
what they settle (`moves/moves.py`). A record is in the log whole or not at all, so after a crash
exactly one of both is there: the will, or its message.

When it is published:

* At once if its client has gone and either its delay is 0 or the session has ended, else when its
  delay is over [MQTT-3.1.3-9], or when the session ends before that [MQTT-3.1.2-8].
* Not at all if the client said DISCONNECT with reason 0 [MQTT-3.14.4-3], or came back before.
* After a start nobody is connected. Clients have `will_grace_seconds` to come back, or the delay of
  their will if that is longer.

Rules:

* The rights of the client's user count at CONNECT and again at the publication. A right that was
  granted with the login only (`accounts/granting.py`), or by a service that was asked
  (`admission/asking.py`), is the will's until then.
* What the broker does not take now (a full disk) is offered again. What it can never take is lost,
  and said in the log.
* A stop in order publishes nothing: the clients did not go away.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, Protocol

from polymq.broker.accounts.granting import GrantedPrincipal, publisher_of
from polymq.broker.core import SYSTEM_FLAG_STATE, Core
from polymq.broker.durability import APPENDED, FLUSHED
from polymq.broker.errors import PASSING, Reason, Refused
from polymq.broker.kernels.delivery import QOS_PROPERTY
from polymq.broker.messages.mqtt_properties import MQTT5_PROPERTY
from polymq.broker.messages.records import constant_properties
from polymq.broker.messages.time_to_live import TTL_PROPERTY, ttl_property
from polymq.broker.moves.moves import WILL_PROPERTY
from polymq.broker.pacing.due_groups import DueGroups
from polymq.broker.port.sessions import PUBLISHER_PROPERTY, Will
from polymq.broker.port.values import Position
from polymq.broker.routing.trie import address_of
from polymq.broker.state.journal import Op, Touched
from polymq.broker.state.kinds import StateKind, each
from polymq.broker.topics.topics import Topics
from polymq.core_log.kernels.batch import EXTRA_VERBATIM, PROPERTIES_SIZE_MAX, Batch
from polymq.core_log.record import Record

PUBLISHED_AT_ONCE: Final = 64
"""Wills that are published in one iteration of the loop, about 50 us each."""
PROPERTIES_ROOM: Final = 8_192
"""Bytes of a record's properties that are kept for the queues that it goes to."""

MayPublish = Callable[[str, str, str, "str | None"], None]
"""Whether a user may publish to a topic and tag, as this client. Raises Refused."""


class Testament:
    """A client's will, and what has become of it.

    Attributes:
        number: its own, never used again.
        client_id, principal: whose it is.
        due_ms: when it is published, as the log has it; 0 while its client is connected.
        due_group: with which others it waits.
        waits: its client has gone, and it is published unless that comes back.
    """

    __slots__ = ("client_id", "due_group", "due_ms", "number", "principal", "waits", "will")

    def __init__(self, number: int, client_id: str, principal: str, will: Will) -> None:
        self.number = number
        self.client_id = client_id
        self.principal = principal
        self.will = will
        self.due_ms = 0
        self.due_group = 0
        self.waits = False

    @property
    def size(self) -> int:
        """What it takes of memory, about."""
        will = self.will
        return 500 + len(will.body) + len(will.properties) + len(will.topic) + len(will.tag or "")


class Owner(Protocol):
    """What is needed of a session.

    Attributes:
        will: of its client, while that is connected.
    """

    client_id: str
    principal: str
    will: Testament | None

    @property
    def expiry_seconds(self) -> int | None:
        """See `port.Session`."""


class Wills:
    """The wills of all clients.

    Args:
        session_of: the session of a client id, if there is one.

    Attributes:
        may_publish: what a user may do now; the engine sets it.
        published_count, lost_count: since the start.
    """

    def __init__(
        self,
        core: Core,
        topics: Topics,
        session_of: Callable[[str], Owner | None],
    ) -> None:
        self._core = core
        self._topics = topics
        self._session_of = session_of
        self.may_publish: MayPublish = _may_anything
        self._by_number: dict[int, Testament] = {}
        self._of_client: dict[str, Testament] = {}
        self._bytes = 0
        self._waiting: DueGroups[Testament] = DueGroups(core.timers, self._are_due)
        self._due: deque[Testament] = deque()
        self._void: deque[Testament] = deque()  # of which the log could not be told
        self._working = False
        self.published_count = 0
        self.lost_count = 0
        core.journal.handle("will+", self._apply_made)
        core.journal.handle("will=", self._apply_waits)
        core.journal.handle("will-", self._apply_ended)

    # --- what the log has of it ---------------------------------------------------------------

    def _apply_made(self, op: Op) -> Touched:
        self._load(str(op["n"]), op)
        return [("will", str(op["n"]))]

    def _apply_waits(self, op: Op) -> Touched:
        found = self._by_number.get(op["n"])
        if found is None:
            return []
        found.due_ms = op["t"]
        return [("will", str(op["n"]))]

    def _apply_ended(self, op: Op) -> Touched:
        return self._forget(op["n"])

    def take_message(self, record: Record) -> Touched:
        """A message of the log that changes state: it may have been a will."""
        number = record.properties.get(WILL_PROPERTY)
        return () if number is None else self._forget(int(number, 16))

    def _forget(self, number: int) -> Touched:
        found = self._by_number.pop(number, None)
        if found is None:
            return []
        self._bytes -= found.size
        self._waiting.remove(found, found.due_group)
        if self._of_client.get(found.client_id) is found:
            del self._of_client[found.client_id]
        return [("will", str(number))]

    def state_kinds(self) -> tuple[StateKind, ...]:
        """See `state/kinds.py`."""
        return (StateKind("will", self._row, each(self._load)),)

    def _load(self, key: str, value: Mapping[str, Any]) -> None:
        number = int(key)
        self._core.saw_number(number)
        will, principal = _will_of(value), value["u"]
        if value.get("g"):
            principal = publisher_of(principal, address_of(will.topic, will.tag))
        found = Testament(number, value["c"], principal, will)
        found.due_ms = value.get("due", 0)
        self._by_number[number] = self._of_client[found.client_id] = found
        self._bytes += found.size

    def _row(self, key: str) -> Mapping[str, Any] | None:
        found = self._by_number.get(int(key))
        if found is None:
            return None
        due = {"due": found.due_ms} if found.due_ms else {}
        user = _row_of_user(found.principal)
        return {"c": found.client_id, **user, **_row_of(found.will), **due}

    # --- clients ------------------------------------------------------------------------------

    def make(self, session: Owner, will: Will, principal: str) -> Position:
        """The client of the session leaves this will.

        Args:
            principal: in whose name it is published: that of the session, maybe with another right
                that was granted to it.

        Raises:
            Refused: TOO_LARGE, FORBIDDEN, LIMIT, or the log takes nothing.
        """
        core = self._core
        self.may_publish(principal, session.client_id, will.topic, will.tag)
        address = self._topics.address(will.topic, will.tag)
        try:
            properties = constant_properties(will.tag, _properties_of(will, session.client_id))
        except ValueError as error:
            raise Refused(Reason.BAD_ARGUMENT, str(error)) from error
        if len(properties) + len(_extra_of(will)) > PROPERTIES_SIZE_MAX - PROPERTIES_ROOM:
            raise Refused(Reason.TOO_LARGE, "the properties of the will are too large")
        core.check_writable()
        number = core.take_number()
        if isinstance(principal, GrantedPrincipal):  # what else it was granted ends with its login
            principal = publisher_of(principal, address)
        found = Testament(number, session.client_id, principal, will)
        if self._bytes + found.size > core.limits.will_bytes_max:
            raise Refused(
                Reason.LIMIT,
                f"the wills of all clients may have {core.limits.will_bytes_max} bytes together",
            )
        op: Op = {"op": "will+", "n": number, "c": found.client_id, **_row_of_user(found.principal)}
        position = core.journal.write({**op, **_row_of(will)})
        session.will = self._by_number[number]
        return position

    def clear(self, session: Owner) -> None:
        """The client said DISCONNECT: nothing is published for it."""
        if session.will is not None:
            self._end(session.will)
            session.will = None

    def connection_ended(self, session: Owner) -> None:
        """The connection is gone, and its client did not say so."""
        core, found = self._core, session.will
        session.will = None
        if found is None or core.is_stopping or core.failure is not None or core.follows:
            return  # as if it were connected still: the next start sees to it
        wait_ms = self._delay_ms(found, session)
        if not wait_ms:
            self._publish_soon(found, now=True)
            return
        due_ms = core.clock_ms() + wait_ms
        try:
            core.journal.write({"op": "will=", "n": found.number, "t": due_ms})
        except Refused:  # the log takes nothing: a start before it does gives the client more time
            found.due_ms = due_ms
        self._wait(found, due_ms, wait_ms)

    def _delay_ms(self, found: Testament, session: Owner | None) -> int:
        """How long the will waits: no longer than its client's session."""
        delay_ms = 1000 * found.will.delay_seconds
        if session is None:
            return 0
        expiry = session.expiry_seconds
        return delay_ms if expiry is None else min(delay_ms, 1000 * expiry)

    def session_ends(self, session: Owner, *, by_client: bool) -> None:
        """A session without a connection is about to end: its will does not wait longer. Of a
        client that was connected when the server ended it waits on, unless the client itself ends
        the session."""
        found = self._of_client.get(session.client_id)
        if found is not None and found.principal == session.principal:
            if found.due_ms or (by_client and found.waits):
                self._publish_soon(found, now=by_client)

    def client_came(self, session: Owner) -> None:
        """The client is there: a will that waits is not published."""
        found = self._of_client.get(session.client_id)
        if found is not None and found.waits and found.principal == session.principal:
            self._end(found)

    def _end(self, found: Testament) -> None:
        """Nothing is published."""
        self._waiting.remove(found, found.due_group)
        found.waits = False
        try:
            self._core.journal.write({"op": "will-", "n": found.number})
        except Refused:  # the log takes nothing now
            self._void.append(found)
            self._work_later()

    # --- publishing ---------------------------------------------------------------------------

    def start(self) -> None:
        """A start's fold has ended: nobody is connected."""
        grace_ms = round(1000 * self._core.limits.will_grace_seconds)
        now_ms = self._core.clock_ms()
        for found in self._by_number.values():
            wait_ms = grace_ms
            session = self._session_of(found.client_id)
            if session is not None:  # else it has ended, and the will does not wait longer for it
                left_ms = found.due_ms - now_ms if found.due_ms else self._delay_ms(found, session)
                wait_ms = max(wait_ms, left_ms)
            self._wait(found, now_ms + wait_ms, wait_ms)

    def _wait(self, found: Testament, due_ms: int, wait_ms: int) -> None:
        found.waits = True
        found.due_group = self._waiting.add(found, due_ms, wait_ms)

    def _are_due(self, wills: Iterable[Testament]) -> None:
        for found in wills:
            found.waits = False
        self._due.extend(wills)
        self._work()

    def _publish_soon(self, found: Testament, *, now: bool) -> None:
        self._waiting.remove(found, found.due_group)
        found.waits = False
        self._due.append(found)
        if now and len(self._due) == 1:
            self._work()
        else:
            self._work_soon()

    def _work_soon(self) -> None:
        if (self._due or self._void) and not self._working:
            self._working = True
            self._core.scheduler.call_soon(self._work_on)

    def _work_later(self) -> None:
        if not self._working:
            self._working = True
            self._core.scheduler.call_later(self._core.limits.lazy_flush_seconds, self._work_on)

    def _work_on(self) -> None:
        self._working = False
        self._work()

    def _work(self) -> None:
        """Publish what is due, some of it now."""
        core = self._core
        if core.failure is not None or core.follows:
            return
        try:
            for _ in range(min(PUBLISHED_AT_ONCE, len(self._void))):
                core.journal.write({"op": "will-", "n": self._void[0].number})
                self._void.popleft()
            for _ in range(min(PUBLISHED_AT_ONCE, len(self._due))):
                self._publish(self._due[0])
                self._due.popleft()
        except Refused:
            if self._due:
                self._due.rotate(-1)  # another one may have more luck
            self._work_later()
            return
        self._work_soon()

    def _publish(self, found: Testament) -> None:
        """Publish a will, or lose it for good. Raises Refused: not now."""
        if self._by_number.get(found.number) is not found:
            return
        try:
            self._append(found)
        except Refused as error:
            if error.reason in PASSING:
                raise
            self.lost_count += 1
            self._core.notices.warn(
                "a will is lost",
                f"will {found.client_id}",
                client=found.client_id,
                topic=found.will.topic,
                reason=error.text,
            )
            self._core.journal.write({"op": "will-", "n": found.number})
            return
        self._core.journal.dirty.update(self._forget(found.number))
        self.published_count += 1

    def _append(self, found: Testament) -> None:
        """The message, which says of which will it is."""
        will = found.will
        self.may_publish(found.principal, found.client_id, will.topic, will.tag)  # now
        self._core.check_writable()
        route, retained = self._topics.route(will.topic, will.tag), self._topics.retained
        is_retained = will.retain and retained.has_room(route.address, len(will.body))
        template = self._topics.template(
            route,
            properties=_properties_of(will, found.client_id),
            durability=FLUSHED if will.qos else APPENDED,
            retain=is_retained,
        )
        extra = _extra_of(will) + f"{WILL_PROPERTY}\x01{found.number:x}\x02".encode()
        batch = Batch(1)
        batch.buffer = b"w" + will.body + extra
        body_end = 1 + len(will.body)
        batch.add((0, 1), (1, len(will.body)), (body_end, len(extra)))
        record = replace(
            template.record,
            extra_kind=EXTRA_VERBATIM,
            extra_name=b"",
            system_flag=template.record.system_flag | SYSTEM_FLAG_STATE,
        )
        self._topics.publish(template, batch, 0, 1, record=record)
        retained.unretained_count += will.retain and not is_retained


def _properties_of(will: Will, client_id: str) -> dict[str, str]:
    """The constant properties of the message."""
    properties = {
        "PMQ_PROTO": "mqtt5" if will.properties else "mqtt",
        QOS_PROPERTY: str(will.qos),
        PUBLISHER_PROPERTY: client_id,
    }
    if will.ttl_ms is not None:
        properties[TTL_PROPERTY] = ttl_property(will.ttl_ms, 0)
    return properties


def _extra_of(will: Will) -> bytes:
    """The property of the message that has those of MQTT 5."""
    if not will.properties:
        return b""
    return b"%b\x01%b\x02" % (MQTT5_PROPERTY.encode(), b64encode(will.properties))


def _row_of_user(principal: str) -> dict[str, Any]:
    row: dict[str, Any] = {"u": principal}
    if isinstance(principal, GrantedPrincipal):
        row["g"] = 1
    return row


def _row_of(will: Will) -> dict[str, Any]:
    row: dict[str, Any] = {"t": will.topic, "k": will.tag, "q": will.qos, "r": int(will.retain)}
    row["b"] = b64encode(will.body).decode("ascii")
    if will.properties:
        row["p"] = b64encode(will.properties).decode("ascii")
    if will.ttl_ms is not None:
        row["x"] = will.ttl_ms
    if will.delay_seconds:
        row["d"] = will.delay_seconds
    return row


def _will_of(row: Mapping[str, Any]) -> Will:
    return Will(
        topic=row["t"],
        tag=row["k"],
        body=b64decode(row["b"]),
        qos=row["q"],
        retain=bool(row["r"]),
        properties=b64decode(row.get("p", "")),
        ttl_ms=row.get("x"),
        delay_seconds=row.get("d", 0),
    )


def _may_anything(principal: str, client_id: str, topic: str, tag: str | None) -> None:
    """Where nobody said anything else."""
