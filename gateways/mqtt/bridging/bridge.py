"""One bridge: a session here, a connection to a remote broker, and what happens when that is away.

Rules:

* The session is there from the start of the server, so what is published while the remote broker is
  away waits in the log. While the bridge is not connected a `Holder` is its link: such a session
  does not expire, and gets nothing.
* The bridge connects for ever, with growing waits. Each failure counts. The log has the same one
  once a minute. Where connections come more often than that, it has those that last.
* A version of MQTT that the remote broker refuses is followed by the next older one, at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from polymq.broker.port import (
    Address,
    BrokerError,
    BrokerPort,
    Position,
    RecordRun,
    Session,
    SessionLink,
    StorageFailed,
    TakesApart,
)
from polymq.gateways.mqtt.bridging.backoff import STEADY_SECONDS, Backoff
from polymq.gateways.mqtt.bridging.connection import PRINCIPAL, BridgeConnection
from polymq.gateways.mqtt.bridging.failures import AGAIN, Failure, system_text
from polymq.gateways.mqtt.bridging.mapping import BridgeMapping
from polymq.gateways.mqtt.bridging.packets import Greeting, Request, reason_text
from polymq.gateways.mqtt.bridging.remotes import Remote, Remotes
from polymq.gateways.mqtt.bridging.rules import BridgeRule
from polymq.gateways.mqtt.bridging.strikes import Strikes, Suspect
from polymq.gateways.mqtt.packets import BRIDGE_BIT, MQTT_3_1_1, MQTT_5, NEVER
from polymq.gateways.mqtt.reason_codes import ReasonCode
from polymq.gateways.mqtt.rules import BRIDGE_PREFIX
from polymq.gateways.mqtt.shared import Shared
from polymq.gateways.mqtt.topic_filters import shortened
from polymq.net.connection import SocketConnection

log = logging.getLogger(__name__)

DOCUMENTS: Final = "mqtt-bridge"
"""The kind of the documents that say what a bridge has subscribed to at its remote broker."""
RECEIVE_MAX: Final = 1_000
"""Messages of QoS 1 and 2 that the remote broker may send before they are acknowledged, of MQTT 5.
The packet ids of QoS 2 among them are kept in the log."""
EXACTLY_ONCE: Final = 2
INFLIGHT_OF_3: Final = 20
"""Messages in flight before MQTT 5, if QoS 2 is among them: mosquitto closes a connection with
more."""
SAME_SECONDS: Final = 60.0
"""How often the same failure is logged."""
SAID_MAX: Final = 100
"""Texts that are remembered for that: they are the remote broker's, in part."""
REFUSED_VERSIONS: Final = frozenset({ReasonCode.UNSUPPORTED_PROTOCOL_VERSION})
LEVELS: Final = {
    "5": (MQTT_5,),
    "3.1.1": (MQTT_3_1_1 | BRIDGE_BIT, MQTT_3_1_1),
    "auto": (MQTT_5, MQTT_3_1_1 | BRIDGE_BIT, MQTT_3_1_1),
}
"""The protocol levels that are tried, by the configured version."""


class Dial(Protocol):
    """How a connection is made (`net/outgoing.py`)."""

    async def __call__(
        self,
        connection: SocketConnection,
        host: str,
        port: int,
        tls: ssl.SSLContext | None,
        seconds: float,
    ) -> None:
        """Connect. Raises OSError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeOptions:
    """What the operator says of a bridge.

    Attributes:
        remotes: where the remote broker is: at least one address, the preferred one first.
        tls: None: without TLS.
        version: a key of `LEVELS`.
        clean_start: the remote broker is to forget the session with the connection.
        local_user: in whose name the bridge publishes and subscribes here; empty: as the broker
            itself, which may do everything.
        state_topic: where the remote broker is told whether the bridge is connected; or empty.
        inflight_max: messages of QoS 1 and 2 that the remote broker has not acknowledged; 0: as
            many as it takes.
        marks_messages: MQTT 5: messages get a User Property, by which they are known when they come
            back.
        connect_seconds: for connecting and TLS, and as much until CONNACK.
        retry_seconds_max: the longest wait between two attempts.
    """

    name: str
    remotes: Sequence[Remote]
    rules: Sequence[BridgeRule]
    client_id: str
    tls: ssl.SSLContext | None = None
    user: str | None = None
    password: bytes | None = field(default=None, repr=False)
    version: str = "auto"
    keep_alive_seconds: int = 60
    clean_start: bool = False
    local_user: str = ""
    state_topic: str = ""
    inflight_max: int = 0
    marks_messages: bool = True
    connect_seconds: float = 10.0
    retry_seconds_max: float = 60.0


@dataclass(slots=True)
class BridgeCounters:
    """What a bridge counted since the start."""

    connects: int = 0
    """CONNACKs that said yes."""
    dropped: int = 0
    """Messages that came in and could not be stored, whatever had been done."""
    not_taken: int = 0
    """Messages that the remote broker acknowledged with an error, or that were set aside because it
    closed the connection each time: it does not have them."""
    not_granted: int = 0
    """Filters that it did not grant."""
    failures: Counter[str] = field(default_factory=Counter)
    """By kind (`failures.py`)."""


class Holder:
    """The link of a session whose bridge is not connected."""

    takes_apart: TakesApart | None = None

    def credit(self) -> int:
        """See `SessionLink`."""
        return 0

    def send_publishes(
        self,
        run: RecordRun,
        *,
        qos: int,
        first_packet_id: int,
        duplicate: bool,
        retain: bool,
        identifiers: tuple[int, ...] = (),
    ) -> None:
        """See `SessionLink`: not called without credit."""

    def send_pubrels(self, first_packet_id: int, count: int) -> None:
        """See `SessionLink`."""

    def taken_over(self) -> None:
        """See `SessionLink`."""

    def expelled(self, why: str) -> None:
        """See `SessionLink`."""


class Bridge:
    """One bridge.

    Args:
        port: in whose name it acts here.
        shared: what its connections share, one after the other. Its mapping is a `BridgeMapping`,
            and its port the broker's own.
        dial: makes connections.
        random: from 0 up to 1.
        marker: what all its messages get, and what is dropped where it comes in (`loops.py`).
    """

    def __init__(
        self,
        options: BridgeOptions,
        *,
        port: BrokerPort,
        shared: Shared,
        dial: Dial,
        random: Callable[[], float],
        marker: bytes = b"",
    ) -> None:
        assert isinstance(shared.mapping, BridgeMapping)
        self.settings = options
        self.name = options.name
        self.port = port
        if options.marks_messages:
            shared.drop_looped(marker)
        self.counters = BridgeCounters()
        self.strikes = Strikes()
        self.client_id = BRIDGE_PREFIX + options.name
        self.requests = [
            Request(rule.remote_filter, rule.qos) for rule in options.rules if rule.comes_in
        ]
        self.qos_max = max((rule.qos for rule in options.rules if rule.goes_out), default=0)
        self.failure: Failure | None = None
        """Why it is not connected; None: it is, or has not tried yet."""
        self._shared = shared
        self._subscriptions = shared.mapping.subscriptions()
        self._dial = dial
        self._backoff = Backoff(options.retry_seconds_max, random)
        self._remotes = Remotes(options.remotes)
        self._levels = LEVELS[options.version]
        self._level = 0  # which of them is next
        self._purges = False
        self._owed: dict[Address, Position] = {}
        self._connection: BridgeConnection | None = None
        self._opened_at: float | None = None
        self._over: asyncio.Future[Failure | None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._stops = False
        self._said: dict[tuple[Remote, str], float] = {}  # why it was not connected, and when
        self._said_connected: dict[str, float] = {}  # to what, and when
        self._noted: dict[str, float] = {}

    # --- from outside -----------------------------------------------------------------------

    def start(self, *, connects: bool = True) -> None:
        """Let messages wait for the remote broker from now on, and connect to it. Returns at
        once. Where messages cannot wait, that is tried again, too."""
        if self._attach_holder() is None and not connects:
            return
        self._shared.port.storage.when_failed(self._storage_failed)
        self._task = self._shared.context.loop.create_task(self._run(connects=connects))
        self._task.add_done_callback(self._report)

    def _report(self, task: asyncio.Task[None]) -> None:
        """A bug has ended the bridge: say so."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._shared.context.report(f"bridge {self.name} has ended", error)

    async def stop(self, drain_seconds: float) -> None:
        """Take leave of the remote broker. Takes no longer than that, and a little."""
        self._stops = True
        connection, over = self._connection, self._over
        if connection is not None and over is not None and connection.transport is not None:
            connection.leave()
            for seconds in (drain_seconds, self._shared.limits.close_seconds_max):
                await asyncio.wait([over], timeout=seconds)
                if over.done():
                    break
                connection.abort()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    @property
    def is_connected(self) -> bool:
        """Whether the remote broker has accepted the connection, and it goes on."""
        return self._opened_at is not None

    @property
    def sent(self) -> int:
        """PUBLISH packets to the remote broker, those that were sent again among them."""
        return self._shared.counters.publishes_sent

    @property
    def looped(self) -> int:
        """Messages from it that had been here before, and were dropped."""
        return self._shared.counters.publishes_looped

    @property
    def too_large(self) -> int:
        """Messages that were not sent, because the remote broker takes no packets of that size."""
        return self._shared.counters.publishes_too_large

    @property
    def received(self) -> int:
        """PUBLISH packets from it."""
        return self._shared.counters.publishes_received

    # --- the session ------------------------------------------------------------------------

    def connect_session(self, link: SessionLink, inflight_max: int | None = None) -> Session:
        """The session, with the subscriptions that the rules want, and with this link. Without the
        right to have them, what waits for it is kept. Raises Refused."""
        for address in self._subscriptions:
            self.port.principal.check_read(address)
        session = self.port.sessions.connect(
            self.client_id,
            clean=False,
            expiry_seconds=None,
            link=link,
            principal=PRINCIPAL,
            inflight_max=inflight_max,
            one_copy=False,  # each rule has topic names of its own at the remote broker
        )
        if not session.present:
            self._purges = True  # what the remote broker knows of a session is of another
        there = dict(session.options())
        for address, options in self._subscriptions.items():
            if there.get(address) != options:
                position = session.subscribe(address, options)
                if address not in there and not options.qos:
                    self._owed[address] = position
        for address in there.keys() - self._subscriptions.keys():
            session.unsubscribe(address)
        return session

    def replay(self, session: Session) -> None:
        """Send the retained messages that new rules of QoS 0 match. (Of others the log knows.)"""
        owed, self._owed = self._owed, {}
        for address, since in owed.items():
            session.replay_retained(address, since)

    def _attach_holder(self) -> Failure | None:
        """Let messages wait. Returns why they do not."""
        try:
            self.connect_session(Holder())
        except BrokerError as error:
            return Failure("local", f"its session cannot be made: {error}")
        return None

    # --- what a connection asks and says ----------------------------------------------------

    def greeting(self) -> Greeting:
        """What CONNECT says."""
        options = self.settings
        limits = self._shared.limits
        return Greeting(
            level=self._levels[self._level],
            client_id=options.client_id,
            clean=options.clean_start or self._purges,
            expiry_seconds=0 if options.clean_start else NEVER,
            keep_alive_seconds=options.keep_alive_seconds,
            user=options.user,
            password=options.password,
            receive_max=RECEIVE_MAX,
            packet_bytes_max=limits.packet_bytes_max,
            alias_max=limits.topic_aliases_max,
            state_topic=options.state_topic,
            marks_messages=options.marks_messages,
        )

    def inflight_max(self, level: int, receive_max: int) -> int:
        """How many messages may be in flight to the remote broker.

        Args:
            receive_max: what that says; before MQTT 5 it cannot.
        """
        known = min(self._shared.limits.inflight_max, receive_max)
        if self.settings.inflight_max:
            return min(self.settings.inflight_max, known)
        if level < MQTT_5 and self.qos_max == EXACTLY_ONCE:
            return min(INFLIGHT_OF_3, known)
        return known

    def has_purged(self) -> bool:
        """The remote broker has accepted a connection. Returns whether that was only to end the
        session that it had: one that begins clean ends with its connection before MQTT 5, and is
        not kept by mosquitto over a restart in MQTT 5."""
        purged, self._purges = self._purges, False
        return purged and not self.settings.clean_start

    def was_refused(self, reason: int) -> None:
        """CONNACK says no."""
        if reason in REFUSED_VERSIONS:
            self._step_down()

    def _step_down(self) -> bool:
        """Try the next older version. Returns whether there is one."""
        self._level += 1
        if self._level < len(self._levels):
            return True
        self._level = 0  # the remote broker may become another
        return False

    def stale_filters(self) -> list[str]:
        """What was subscribed to at the remote broker, and is not wanted any more."""
        known = self._shared.port.documents.of_kind(DOCUMENTS).get(self.name, {})
        wanted = {request.pattern for request in self.requests}
        return [name for name in known.get("filters", ()) if name not in wanted]

    def store_filters(self) -> None:
        """What is subscribed to at the remote broker from now on."""
        wanted = [request.pattern for request in self.requests]
        documents = self._shared.port.documents
        if documents.of_kind(DOCUMENTS).get(self.name, {}).get("filters", []) != wanted:
            documents.put(DOCUMENTS, self.name, {"filters": wanted})

    def opened(self, connection: BridgeConnection) -> None:
        """Messages go both ways from now on."""
        self.counters.connects += 1
        self.failure = None
        now = self._opened_at = self._shared.context.now()
        level = self._levels[self._level]
        version = "5" if level == MQTT_5 else "3.1.1"
        text = f"connected to {connection.peer} with MQTT {version}"
        if now - self._said_connected.get(text, -SAME_SECONDS) >= SAME_SECONDS:
            self._say_connected(now, text)
        else:
            loop = self._shared.context.loop
            loop.call_later(STEADY_SECONDS, self._say_connected, now, text)
        if level == MQTT_3_1_1 and any(rule.direction == "both" for rule in self.settings.rules):
            self._note(
                "echo",
                "what it sends comes back from the remote broker: that knows neither MQTT 5 nor "
                "mosquitto's bridge bit",
            )

    def _say_connected(self, since: float, text: str) -> None:
        """Log that it is connected, if it still is. What it says after that is new."""
        if self._opened_at == since:
            if len(self._said_connected) >= SAID_MAX:
                self._said_connected.clear()
            self._said_connected[text] = self._shared.context.now()
            self._said.clear()
            log.info("bridge %s: %s", self.name, text)

    def ended(self, connection: BridgeConnection, failure: Failure | None) -> None:
        """The socket is gone."""
        if self._connection is not connection:
            return
        if self._over is not None and not self._over.done():
            self._over.set_result(failure)

    def dropped(self, count: int, topic: bytes, text: str) -> None:
        """Messages that came in were not stored, and will not come again."""
        self.counters.dropped += count
        shown = shortened(topic.decode("utf-8", "replace"))
        self._note("dropped", f"messages that came in are dropped, such as to {shown!r}: {text}")

    def not_taken(self, count: int, reason: int) -> None:
        """The remote broker acknowledged messages with an error."""
        self.counters.not_taken += count
        self._note("not taken", f"the remote broker did not take messages: {reason_text(reason)}")

    def set_aside(self, message: Suspect) -> None:
        """A message is not sent any more (`strikes.py`)."""
        self.counters.not_taken += 1
        log.warning(
            "bridge %s: a message is set aside, because the remote broker closed %d connections "
            "before it acknowledged it: topic %r, QoS %d, %d bytes, position %d of the log. The "
            "last time: %s",
            self.name,
            self.strikes.count,
            shortened(message.topic),
            message.qos,
            message.size,
            message.position,
            self.strikes.reason,
        )
        self.strikes.clear()

    def not_granted(self, pattern: str, code: int) -> None:
        """The remote broker did not grant a filter."""
        self.counters.not_granted += 1
        self._note(
            f"filter {pattern}",
            f"the remote broker does not grant the filter {shortened(pattern)!r}: "
            f"{reason_text(code)}",
        )

    def _note(self, about: str, text: str) -> None:
        """Log a line, but no more than one a minute about the same."""
        now = self._shared.context.now()
        if now - self._noted.get(about, -SAME_SECONDS) >= SAME_SECONDS:
            self._noted[about] = now
            log.warning("bridge %s: %s", self.name, text)

    # --- connecting -------------------------------------------------------------------------

    async def _run(self, *, connects: bool) -> None:
        while not self._has_ended():
            if not connects and self._attach_holder() is None:
                return
            level = self._level
            failure, lasted = await self._attempt()
            if self._has_ended():
                return
            is_refused = failure.kind in ("refused", "closed")
            if failure.kind == AGAIN or (is_refused and self._level > level):
                continue  # that was for the session, or an older version is next
            self.failure = failure
            self.counters.failures[failure.kind] += 1
            remote = self._remotes.current
            if lasted or failure.kind == "local":
                self._remotes.begin_again()
            elif self._remotes.has_next():
                self._level = 0
                self._say(remote, failure.text, f"It tries {self._remotes.current} now")
                continue
            seconds = self._backoff.next_seconds(lasted)
            self._say(
                remote, failure.text, f"It tries again in {seconds:.0f} s, and goes on trying"
            )
            await asyncio.sleep(seconds)

    async def _attempt(self) -> tuple[Failure, float]:
        """One attempt, with its connection. Returns why that ended, and how long it was open, in
        seconds. Where messages cannot wait here, such as at a follower, nothing is connected."""
        failure = self._attach_holder()
        if failure is not None:
            return failure, 0.0
        failure = await self._connect()
        lasted = self._lasted()
        if lasted:
            self._level = 0  # the remote broker may know more when it is back
        if not self._has_ended():
            failure = self._attach_holder() or failure
        return failure or Failure("closed", "the connection ended"), lasted

    def _has_ended(self) -> bool:
        return self._stops

    async def _connect(self) -> Failure | None:
        """One connection, from its beginning to its end. Returns why it ended."""
        options, remote = self.settings, self._remotes.current
        over: asyncio.Future[Failure | None] = self._shared.context.loop.create_future()
        self._over = over
        connection = self._connection = BridgeConnection(self._shared, self)
        try:
            await self._dial(
                connection, remote.host, remote.port, options.tls, options.connect_seconds
            )
            failure = await over
        except ssl.SSLError as error:
            return Failure("tls", _tls_text(error))
        except OSError as error:
            return Failure("unreachable", system_text(error))
        finally:
            self._connection = None
            if not over.done():
                over.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                if connection.transport is not None and not connection.closing:
                    connection.abort()
        bit_level = self._levels[self._level] == MQTT_3_1_1 | BRIDGE_BIT
        if failure is not None and failure.kind == "closed" and bit_level and not self.is_connected:
            self._step_down()  # some close at a protocol level that they do not know
        return failure

    def _lasted(self) -> float:
        """Seconds since the connection was accepted; 0: it was not."""
        opened_at, self._opened_at = self._opened_at, None
        return 0.0 if opened_at is None else self._shared.context.now() - opened_at

    def _say(self, remote: Remote, text: str, then: str) -> None:
        now = self._shared.context.now()
        if now - self._said.get((remote, text), -SAME_SECONDS) < SAME_SECONDS:
            return
        if len(self._said) >= SAID_MAX:
            self._said.clear()
        self._said[remote, text] = now
        log.warning("bridge %s: not connected to %s: %s. %s", self.name, remote, text, then)

    def _storage_failed(self, _error: StorageFailed) -> None:
        """Nothing can be acknowledged any more."""
        self._stops = True
        if self._connection is not None:
            self._connection.storage_failed()
        if self._task is not None and not self.is_connected:
            self._task.cancel()


def _tls_text(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    return f"TLS failed: {error.reason or error}"
