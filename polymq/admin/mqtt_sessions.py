"""MQTT sessions, whether their clients are connected or not."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, Literal

from polymq.admin.commits import Committed
from polymq.admin.mqtt_names import MqttNames
from polymq.admin.operations import Call, Given, Group, Operation, Value
from polymq.admin.pages import Listing, Numbers, Page, PageQuery, each, page_of, values_of
from polymq.broker.accounts import audit
from polymq.broker.engine import Engine
from polymq.broker.errors import Reason, Refused
from polymq.broker.sessions.inspection import (
    inspect_session,
    inspect_subscriptions,
    waiting_count,
)
from polymq.broker.sessions.session import MqttSession
from polymq.steps import in_steps, stretches

STEP_SUBSCRIPTIONS: Final = 1_000
"""Subscriptions whose messages are counted in one step: below a millisecond."""


class MqttSubscription(Value):
    """A subscription of an MQTT session.

    Attributes:
        filter: its topic filter; that of a shared subscription begins with $share.
        qos: the highest quality of service with which messages are delivered.
        no_local: whether the client does not get what it publishes itself.
        retain_as_published: whether the flag RETAIN stays as the publisher set it.
        identifier: of the subscription (MQTT 5); null: none.
        durable: whether it survives a restart.
        queued: messages that wait for it, those in flight not included.
        queued_bytes: of these messages, as they are in the log.
    """

    filter: str
    qos: int
    no_local: bool
    retain_as_published: bool
    identifier: int | None
    durable: bool
    queued: int
    queued_bytes: int


class SessionFigures(Value):
    """The numbers of a session.

    Attributes:
        clean: whether it ends with its connection.
        expiry_seconds: how long it outlives its connection; null: for ever.
        subscriptions: how many it has.
        inflight: messages of QoS 1 and 2 that were sent and are not acknowledged.
        queued: messages that wait behind those.
        dropped: messages that it lost since the server started, because too many waited.
        will: whether there is a will.
    """

    clean: bool = True
    expiry_seconds: int | None = 0
    subscriptions: int = 0
    inflight: int = 0
    queued: int = 0
    dropped: int = 0
    will: bool = False


class Session(SessionFigures, kw_only=True):
    """An MQTT session.

    Attributes:
        client_id: the client identifier that it belongs to.
        user: who it belongs to.
        connected: whether its client is connected.
        away_ms: since when its client is away, in milliseconds since the epoch. Of a session that
            does not expire, and whose client was connected until a crash, the start after it. null:
            it is connected, or it has gone in the last second.
        ends_ms: when it ends if its client stays away; null: never, or that is not known.
    """

    client_id: str
    user: str
    connected: bool
    away_ms: int | None
    ends_ms: int | None


class SessionDetails(Session, kw_only=True):
    """An MQTT session with its subscriptions.

    Attributes:
        subscription_list: in the order of their topics.
        queued_bytes: of all messages that wait, as they are in the log.
        queued_bytes_complete: whether all of them were counted; false for very long queues.
    """

    subscription_list: list[MqttSubscription]
    queued_bytes: int
    queued_bytes_complete: bool


class SessionsQuery(PageQuery):
    """Which sessions.

    Attributes:
        sort: by client identifier, or by a number, the largest first.
        user: only sessions of this user.
        state: only sessions whose clients are connected, or are not.
    """

    sort: Literal["name", "queued", "inflight", "subscriptions"] = "name"
    user: str | None = None
    state: Literal["all", "connected", "disconnected"] = "all"


def _queued(sessions: Sequence[MqttSession]) -> Generator[None, None, list[int]]:
    """How many messages wait for each."""
    counts: list[int] = []
    looked_at = 0
    for session in sessions:
        count = 0
        for subscriptions in stretches(list(session.subscriptions.values()), STEP_SUBSCRIPTIONS):
            count += sum(map(waiting_count, subscriptions))
            looked_at += len(subscriptions)
            if looked_at >= STEP_SUBSCRIPTIONS:
                looked_at = 0
                yield
        counts.append(count)
    return counts


_NUMBERS: Final[Mapping[str, Numbers[MqttSession]]] = {
    "queued": _queued,
    "inflight": each(lambda session: session.unacked.count + len(session.releasing)),
    "subscriptions": each(lambda session: len(session.subscriptions)),
}
_CLIENT_ID: Final = attrgetter("client_id")


class SessionHandlers:
    """Carries out the operations on sessions.

    Args:
        committed: waits until a change is on the disk.
        names: of the MQTT listeners.
    """

    def __init__(self, engine: Engine, committed: Committed, names: MqttNames) -> None:
        self._engine = engine
        self._sessions = engine.sessions.by_client
        self._committed = committed
        self._names = names

    def group(self) -> Group:
        """The operations."""
        named = {"client_id": "the client identifier that the session belongs to"}
        return Group(
            name="sessions",
            about="MQTT sessions. Their clients need not be connected.",
            operations=[
                Operation(
                    method="GET",
                    path="/mqtt/sessions",
                    name="listSessions",
                    summary="List MQTT sessions with the numbers of their messages",
                    right="monitor",
                    handler=self._list,
                    query=SessionsQuery,
                    answer=Page[Session],
                ),
                Operation(
                    method="GET",
                    path="/mqtt/sessions/{client_id}",
                    name="getSession",
                    summary="Show an MQTT session and its subscriptions",
                    right="monitor",
                    handler=self._show,
                    answer=SessionDetails,
                    path_about=named,
                ),
                Operation(
                    method="DELETE",
                    path="/mqtt/sessions/{client_id}",
                    name="deleteSession",
                    summary="Delete an MQTT session with all that waits in it",
                    about="A client that is connected is disconnected. It may connect again, and "
                    "gets a new session.",
                    right="operate",
                    handler=self._delete,
                    path_about=named,
                ),
            ],
        )

    async def _list(self, call: Call[SessionsQuery]) -> Page[Session]:
        query = call.query
        user, connected = query.user, query.state == "connected"

        def wants(session: MqttSession) -> bool:
            if user is not None and session.principal != user:
                return False
            return query.state == "all" or (session.link is not None) == connected

        everything = user is None and query.state == "all"
        listing: Listing[MqttSession, Session] = Listing(
            names=self._sessions,
            find=self._sessions.get,
            row=lambda _, session: session_row(session),
            entries=values_of(self._sessions),
            names_of=lambda some: list(map(_CLIENT_ID, some)),
            numbers=_NUMBERS.get(query.sort),
            wants=None if everything else wants,
            walk=self._sessions.walk,
        )
        return await in_steps(page_of(listing, query))

    def _session(self, call: Call[Any]) -> MqttSession:
        name = call.path["client_id"]
        session = self._sessions.get(name)
        if session is None:
            raise Refused(Reason.NOT_FOUND, f"there is no session of client {name!r}")
        return session

    async def _show(self, call: Call[Given]) -> SessionDetails:
        session = self._session(call)
        row = await in_steps(_session_fields(session))
        return SessionDetails(
            **row, **await subscription_fields(self._engine, session, self._names)
        )

    async def _delete(self, call: Call[Given]) -> None:
        session = self._session(call)
        sessions, client_id = self._engine.sessions, session.client_id
        self._engine.core.check_writable(frees=True)
        client = self._engine.connections.clients.get(client_id)
        if client is not None:
            client.end("its session was deleted by an operator")
        audit.note("session deleted", client_id=client_id, by=call.caller)
        if sessions.by_client.get(client_id) is session and not session.clean:
            await self._committed(sessions.end_session(session))


def session_row(session: MqttSession) -> Generator[None, None, Session]:
    """What a list shows of a session."""
    return Session(**(yield from _session_fields(session)))


def _session_fields(session: MqttSession) -> Generator[None, None, dict[str, Any]]:
    info = yield from inspect_session(session)
    return {
        "client_id": info.client_id,
        "user": info.user,
        "connected": info.connected,
        "away_ms": info.away_ms or None,
        "ends_ms": info.ends_ms or None,
        "clean": info.clean,
        "expiry_seconds": info.expiry_seconds,
        "subscriptions": info.subscriptions_count,
        "inflight": info.inflight_count,
        "queued": info.waiting_count,
        "dropped": info.dropped_count,
        "will": info.has_will,
    }


def figure_fields(session: MqttSession | None) -> Generator[None, None, dict[str, Any]]:
    """The fields of SessionFigures for a session that may have gone."""
    if session is None:
        return {}
    found = yield from _session_fields(session)
    return {name: found[name] for name in SessionFigures.__struct_fields__}


async def subscription_fields(
    engine: Engine, session: MqttSession | None, names: MqttNames
) -> dict[str, Any]:
    """The fields that only details of a session have; it may have gone."""
    if session is None:
        return {"subscription_list": [], "queued_bytes": 0, "queued_bytes_complete": True}
    found, complete = await in_steps(inspect_subscriptions(session), engine.core.reading)
    rows = [
        MqttSubscription(
            filter=names.name(one.address),
            qos=one.options.qos,
            no_local=one.options.no_local,
            retain_as_published=one.options.retain_as_published,
            identifier=one.options.identifier or None,
            durable=one.durable,
            queued=one.waiting_count,
            queued_bytes=one.waiting_bytes,
        )
        for one in found
    ]
    return {
        "subscription_list": rows,
        "queued_bytes": sum(one.waiting_bytes for one in found),
        "queued_bytes_complete": complete,
    }
