"""What clients do, as messages below `$SYS/brokers/{name}/clients/{client id}/`, as EMQX has them.

Rules:

* Nothing is made while nobody subscribes to such a topic.
* An event is sent once to each receiver whose subscriptions match when it is sent, with all their
  Subscription Identifiers, with QoS 0 and without RETAIN. A receiver without room misses it.
* No more than `rate_max` events are taken in a second, and what waits to be sent has a bound in
  events and in bytes. So a flood of connections does not become a flood of messages. What is left
  out is counted.
* Events are sent in turns with the other work of the loop (`net/turns.py`).

A filter matches by two of its levels, the client's and the last: the others are the same in all
these topics. So events look their receivers up by the client identifier, and those with a wildcard
in its place are beside that.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from polymq.broker.port import (
    ONE_LEVEL,
    REST,
    SYS_TOPIC,
    Address,
    ConnectedClient,
    SubscriptionOptions,
)
from polymq.gateways.mqtt.fields import encode_field
from polymq.gateways.mqtt.login import ANONYMOUS
from polymq.gateways.mqtt.mapping import level_of, level_text
from polymq.gateways.mqtt.packets import MQTT_3_1, MQTT_3_1_1, MQTT_5
from polymq.gateways.mqtt.reason_codes import ReasonCode
from polymq.gateways.mqtt.sys_topics import Receiver, encode_publish
from polymq.net.connection import Context
from polymq.net.kernels.streams import clock_ms
from polymq.net.turns import Chore

Kind = Literal["connected", "disconnected", "subscribed", "unsubscribed"]
KINDS: Final[tuple[Kind, ...]] = ("connected", "disconnected", "subscribed", "unsubscribed")
WAITING_BYTES_MAX: Final = 1 << 20
"""Of the events that wait to be sent: a filter or a user name may have 65,535 bytes."""
NORMAL: Final = "normal"
LOST: Final = "tcp_closed"
"""Why a connection ended, if it was not the server: the client said DISCONNECT, or is gone."""
_REASONS: Final[Mapping[ReasonCode, str]] = {
    ReasonCode.KEEP_ALIVE_TIMEOUT: "keepalive_timeout",
    ReasonCode.SESSION_TAKEN_OVER: "takenover",
    ReasonCode.ADMINISTRATIVE_ACTION: "kicked",
}
"""EMQX's words. Other reasons have their name in MQTT 5."""
_PROTOCOLS: Final = {
    "3.1": ("MQIsdp", MQTT_3_1),
    "3.1.1": ("MQTT", MQTT_3_1_1),
    "5.0": ("MQTT", MQTT_5),
}
_SHAPE_LEVELS: Final = 6
_CLIENT_LEVEL: Final = 4


class Subscribed(NamedTuple):
    """A filter that was granted, or that the client does not have any more."""

    pattern: str
    options: SubscriptionOptions | None = None
    handling: int = 0
    """Retain Handling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    """One event that waits to be sent."""

    kind: Kind
    client: str
    """Its level of the topic, as filters have it."""
    topic: bytes
    """The field of a PUBLISH."""
    body: bytes

    @property
    def size(self) -> int:
        return len(self.topic) + len(self.body)


class _Wanted(NamedTuple):
    """What one subscription matches."""

    client: str | None
    """The level of a client; None: of all."""
    kinds: Collection[str]
    identifier: int


_Receivers = dict[Receiver, dict[Address, _Wanted]]


class ClientEvents:
    """These topics, for all MQTT listeners of a server: a `SysPart`.

    Args:
        name: of the broker.
        kinds: the events that there are; none: nobody gets any.
        rate_max: how many are taken in a second.

    Attributes:
        sent_count: messages that were sent.
        omitted: events that were left out because of the bounds (`rate`), and messages that were
            because their receivers had no room (`slow`).
    """

    def __init__(
        self, *, context: Context, name: str, kinds: Collection[Kind] = (), rate_max: int = 100
    ) -> None:
        self._now = context.now
        self._kinds = frozenset(kinds)
        self._begin = f"$SYS/brokers/{level_text(name)}/clients/"
        self._shape = (SYS_TOPIC, "brokers", level_of(level_text(name)), "clients")
        self._rate_max = rate_max
        self._second = 0.0  # when the current one began
        self._taken = 0  # events in it
        self._of: dict[Receiver, dict[Address, _Wanted]] = {}
        self._all: _Receivers = {}  # those with a wildcard in the place of the client
        self._some: dict[str, _Receivers] = {}  # by the level of the client
        self._of_all = Counter[str]()  # how many of `_all` there are of each kind
        self._waiting: deque[_Event] = deque()
        self._waiting_bytes = 0
        self._chore = Chore(context.turns, self._steps)
        self.sent_count = 0
        self.omitted = {"rate": 0, "slow": 0}

    # --- who gets them ----------------------------------------------------------------------

    def came(self) -> None:
        """See `SysPart`."""

    def subscribed(
        self, receiver: Receiver, address: Address, options: SubscriptionOptions, *, replay: bool
    ) -> None:
        """See `SysPart`. There is nothing to replay."""
        self.unsubscribed(receiver, address)
        wanted = self._wanted(address, options.identifier)
        if wanted is None:
            return
        self._of.setdefault(receiver, {})[address] = wanted
        if wanted.client is None:
            table = self._all
            self._of_all.update(wanted.kinds)
        else:
            table = self._some.setdefault(wanted.client, {})
        table.setdefault(receiver, {})[address] = wanted

    def _wanted(self, address: Address, identifier: int) -> _Wanted | None:
        """What of these events a filter matches; None: nothing."""
        client: str | None = None
        kinds: Collection[str] = self._kinds
        for index, level in enumerate(address):
            if level == REST:
                break
            if index >= _SHAPE_LEVELS:
                return None
            if level == ONE_LEVEL:
                continue
            if index < _CLIENT_LEVEL and level != self._shape[index]:
                return None
            if index == _CLIENT_LEVEL:
                client = level
            elif index > _CLIENT_LEVEL:
                kinds = self._kinds & {level}
        else:
            if len(address) != _SHAPE_LEVELS:
                return None
        return _Wanted(client, kinds, identifier) if kinds else None

    def unsubscribed(self, receiver: Receiver, address: Address) -> None:
        """See `SysPart`."""
        mine = self._of.get(receiver)
        wanted = None if mine is None else mine.pop(address, None)
        if wanted is not None:
            self._forget(receiver, address, wanted)
            if not mine:
                del self._of[receiver]

    def left(self, receiver: Receiver) -> None:
        """See `SysPart`."""
        for address, wanted in self._of.pop(receiver, {}).items():
            self._forget(receiver, address, wanted)

    def _forget(self, receiver: Receiver, address: Address, wanted: _Wanted) -> None:
        client = wanted.client
        table = self._all if client is None else self._some[client]
        del table[receiver][address]
        if not table[receiver]:
            del table[receiver]
        if client is None:
            self._of_all.subtract(wanted.kinds)
        elif not table:
            del self._some[client]

    # --- what happens -----------------------------------------------------------------------

    @property
    def noted_max(self) -> int:
        """How many filters of one packet are worth noting; 0: nobody is interested."""
        return self._rate_max if self._of else 0

    def connected(
        self, client: ConnectedClient, *, clean: bool, expiry_seconds: int | None
    ) -> None:
        """A client has its CONNACK.

        Args:
            clean: it asked for a new session.
            expiry_seconds: how long the session outlives the connection; None: it does not expire.
        """
        if self._takes("connected", client):
            self._add(
                "connected",
                client,
                {
                    **_whence(client),
                    "keepalive": client.keep_alive_seconds,
                    "clean_start": clean,
                    "expiry_interval": expiry_seconds,
                    "connack": 0,
                    "connected_at": client.connected_ms,
                },
            )

    def disconnected(
        self, client: ConnectedClient, reason: ReasonCode | None, *, said: bool
    ) -> None:
        """A client's connection has ended.

        Args:
            reason: why the server ended it; None: it did not.
            said: the client sent DISCONNECT.
        """
        if self._takes("disconnected", client):
            text = NORMAL if said else LOST
            if reason is not None:
                text = _REASONS.get(reason, reason.name.lower())
            fields = {**_whence(client), "reason": text, "disconnected_at": clock_ms()}
            self._add("disconnected", client, fields)

    def filters_changed(
        self,
        kind: Literal["subscribed", "unsubscribed"],
        client: ConnectedClient,
        noted: Sequence[Subscribed],
        count: int,
    ) -> None:
        """A client has subscribed or unsubscribed.

        Args:
            noted: the first of the filters, up to `noted_max`.
            count: how many they are.
        """
        if not self._is_wanted(kind, client):
            return
        self.omitted["rate"] += count - len(noted)
        for pattern, options, handling in noted:
            if not self._takes(kind, client):
                continue
            fields: dict[str, Any] = {"topic": pattern, "protocol": "mqtt"}
            if options is not None:
                fields["subopts"] = {
                    "qos": options.qos,
                    "nl": int(options.no_local),
                    "rap": int(options.retain_as_published),
                    "rh": handling,
                }
            self._add(kind, client, fields)

    def _is_wanted(self, kind: Kind, client: ConnectedClient) -> bool:
        """Whether a subscription may match. What nobody wants does not use up the rate."""
        if not self._of or kind not in self._kinds:
            return False
        if self._of_all[kind] > 0:
            return True
        return bool(self._some) and level_of(level_text(client.client_id)) in self._some

    def _takes(self, kind: Kind, client: ConnectedClient) -> bool:
        """Whether one more event is made now; else it is counted, if somebody wants it."""
        if not self._is_wanted(kind, client):
            return False
        now = self._now()
        if now - self._second >= 1:
            self._second, self._taken = now, 0
        room = len(self._waiting) < self._rate_max and self._waiting_bytes < WAITING_BYTES_MAX
        if self._taken >= self._rate_max or not room:
            self.omitted["rate"] += 1
            return False
        self._taken += 1
        return True

    def _add(self, kind: Kind, client: ConnectedClient, fields: dict[str, Any]) -> None:
        user = None if client.user == ANONYMOUS else client.user
        client_fields = {"clientid": client.client_id, "username": user}
        body = json.dumps({**client_fields, **fields, "ts": clock_ms()}, ensure_ascii=False)
        level = level_text(client.client_id)
        event = _Event(
            kind=kind,
            client=level_of(level),
            topic=encode_field(f"{self._begin}{level}/{kind}".encode()),
            body=body.encode(errors="replace"),
        )
        self._waiting.append(event)
        self._waiting_bytes += event.size
        self._chore.wake()

    # --- sending ----------------------------------------------------------------------------

    def _steps(self) -> Iterator[None]:
        while self._waiting:
            event = self._waiting.popleft()
            self._waiting_bytes -= event.size
            made: dict[tuple[int, ...], bytes] = {}
            for receiver in list(self._all | self._some.get(event.client, {})):
                self._send(event, receiver, made)
                yield

    def _send(self, event: _Event, receiver: Receiver, made: dict[tuple[int, ...], bytes]) -> None:
        """Send an event to one receiver, if it matches.

        Args:
            made: packets of this event by their Subscription Identifiers; -1: before MQTT 5.
        """
        tables = self._all, self._some.get(event.client, {})
        matching = [
            (address, wanted.identifier)
            for table in tables
            for address, wanted in table.get(receiver, {}).items()
            if event.kind in wanted.kinds
        ]
        identifiers = set()
        for address, identifier in matching:
            if receiver.session is None or not receiver.session.is_subscribed(address):
                self.unsubscribed(receiver, address)
            else:
                identifiers.add(identifier)
        if not identifiers:
            return
        if receiver.credit() <= 0:
            self.omitted["slow"] += 1
            return
        key = tuple(sorted(identifiers)) if receiver.five else (-1,)
        packet = made.get(key)
        if packet is None:
            packet = made[key] = encode_publish(
                event.topic, event.body, five=receiver.five, identifiers=identifiers
            )
        if len(packet) <= receiver.sent_bytes_max:  # [MQTT-3.1.2-24]
            receiver.send_encoded(packet, 1)
            self.sent_count += 1


def _whence(client: ConnectedClient) -> dict[str, Any]:
    """Where a client is, and how it speaks."""
    name, version = _PROTOCOLS[client.version]
    return {
        "ipaddress": client.address,
        "listener": client.listener,
        "proto_name": name,
        "proto_ver": version,
    }
