"""Who may connect by MQTT, and who is connected: the ban list, the limits of connections, and the
list that operators page through.

Rules:

* Everything is asked when CONNECT is there, before its password is checked: the check is what costs
  most. Addresses that are banned are closed earlier, when they are accepted (`accounts/bans.py`).
* An address is an IPv4 address or the /64 of an IPv6 address (`net/newcomers.py`).
* Rates are token buckets with a second's burst. A client that is refused does not count.
* Memory is bounded: the buckets of the addresses that were not seen for longest give way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from polymq.broker.accounts import audit
from polymq.broker.accounts.bans import CLIENT, USER, Bans
from polymq.broker.admission.flapping import Flapping
from polymq.broker.bounded_cache import BoundedCache
from polymq.broker.errors import Reason, Refused
from polymq.broker.port.connections import ConnectedClient
from polymq.broker.sessions.client_table import ClientTable
from polymq.net.newcomers import network_of

BUCKETS_MAX: Final = 10_000
"""Addresses whose rate is remembered, some 300 bytes each."""
LIMITS: Final = ("rate", "address_rate", "address_connections", "flapping")
"""What `Connections.refused` counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """What an operator decides. 0: no limit.

    Attributes:
        per_address_max: clients from one address at a time.
        per_second: new clients in a second.
        per_address_per_second: of one address.
        flapping_count, flapping_window_seconds, flapping_ban_seconds: see `flapping.py`.
    """

    per_address_max: int = 0
    per_second: float = 0.0
    per_address_per_second: float = 0.0
    flapping_count: int = 0
    flapping_window_seconds: float = 60.0
    flapping_ban_seconds: float = 300.0


class Bucket:
    """A rate as a token bucket: it holds what comes in a second, and at least one.

    Args:
        per_second: tokens that come in a second.
        now: seconds, of any clock. One that is set back gives nothing for that.
    """

    __slots__ = ("_at", "_level", "_most", "_per_second")

    def __init__(self, per_second: float, now: float) -> None:
        self._per_second = per_second
        self._level = self._most = max(1.0, per_second)
        self._at = now

    def has_one(self, now: float) -> bool:
        """Whether there is a token."""
        passed = max(0.0, now - self._at)
        self._at = now
        self._level = min(self._most, self._level + passed * self._per_second)
        return self._level >= 1.0

    def take_one(self) -> None:
        """Take a token that is there."""
        self._level -= 1.0


class Connections:
    """The connected clients, and the limits of those that want to be.

    Args:
        clock_ms: the wall clock.

    Attributes:
        clients: those that have logged in, by client identifier.
        refused: how many CONNECTs each limit has refused since the start.
        when_came, when_went: called with each client that has logged in, and whose connection has
            ended, while somebody wants to know.
    """

    def __init__(
        self, bans: Bans, settings: ConnectionSettings | None, *, clock_ms: Callable[[], int]
    ) -> None:
        self.clients: ClientTable[ConnectedClient] = ClientTable()
        self.refused = dict.fromkeys(LIMITS, 0)
        self.when_came: list[Callable[[ConnectedClient], None]] = []
        self.when_went: list[Callable[[ConnectedClient], None]] = []
        self._bans = bans
        settings = self._settings = settings or ConnectionSettings()
        self._clock_ms = clock_ms
        self._by_network: dict[str, int] = {}
        self._bucket = self._new_bucket(settings.per_second)
        self._buckets: BoundedCache[str, Bucket] = BoundedCache(BUCKETS_MAX)
        self._flapping = Flapping(
            count=settings.flapping_count,
            window_seconds=settings.flapping_window_seconds,
            ban_seconds=settings.flapping_ban_seconds,
        )
        self._strangers = audit.Throttle(self._now)

    def _now(self) -> float:
        return self._clock_ms() / 1000

    def _new_bucket(self, per_second: float) -> Bucket | None:
        return Bucket(per_second, self._now()) if per_second else None

    def change(self, settings: ConnectionSettings) -> None:
        """Other limits from now on, for clients that connect."""
        before, self._settings = self._settings, settings
        if settings.per_second != before.per_second:
            self._bucket = self._new_bucket(settings.per_second)
        if settings.per_address_per_second != before.per_address_per_second:
            self._buckets.clear()
        self._flapping.change(
            count=settings.flapping_count,
            window_seconds=settings.flapping_window_seconds,
            ban_seconds=settings.flapping_ban_seconds,
        )

    # --- coming ---------------------------------------------------------------------------

    def check(self, client_id: str, user: str | None, address: str) -> None:
        """See `AdmissionPort.check_connection`."""
        try:
            self._check(client_id, user, address)
        except Refused as error:
            self._strangers.warn(
                audit.REFUSED, address, what="connection", client_id=client_id, reason=error.text
            )
            raise

    def _check(self, client_id: str, user: str | None, address: str) -> None:
        settings, now, network = self._settings, self._now(), network_of(address)
        self._bans.check(CLIENT, client_id)
        if user is not None:
            self._bans.check(USER, user)
        if not self._bans.accepts(address):  # a proxy said it after the socket was accepted
            raise Refused(Reason.BANNED, f"address {address} is banned")
        if self._flapping.is_out(client_id, now):
            text = f"client id {client_id!r} connected and vanished too often"
            self._refuse("flapping", Reason.BANNED, text)
        most = settings.per_address_max
        if most and self._by_network.get(network, 0) >= most:
            self._refuse("address_connections", Reason.LIMIT, f"{network} has {most} connections")
        own = self._bucket_of(network, now)
        if own is not None and not own.has_one(now):
            self._refuse("address_rate", Reason.RATE, f"too many new connections from {network}")
        if self._bucket is not None and not self._bucket.has_one(now):
            self._refuse("rate", Reason.RATE, "too many new connections")
        for bucket in (own, self._bucket):
            if bucket is not None:
                bucket.take_one()

    def _bucket_of(self, network: str, now: float) -> Bucket | None:
        per_second = self._settings.per_address_per_second
        if not per_second:
            return None
        bucket = self._buckets.pop(network, None) or Bucket(per_second, now)
        self._buckets.add(network, bucket)
        return bucket

    def _refuse(self, limit: str, reason: Reason, text: str) -> None:
        self.refused[limit] += 1
        raise Refused(reason, text)

    def came(self, client: ConnectedClient) -> Callable[[], None]:
        """See `AdmissionPort.client_came`."""
        network = network_of(client.address)
        self._by_network[network] = self._by_network.get(network, 0) + 1
        self.clients[client.client_id] = client
        for callback in list(self.when_came):
            callback(client)

        def went() -> None:
            left = self._by_network[network] - 1
            if left:
                self._by_network[network] = left
            else:
                del self._by_network[network]
            for callback in list(self.when_went):
                callback(client)
            if self.clients.get(client.client_id) is client:  # else another took it over
                del self.clients[client.client_id]
            if self._flapping.ended(client.client_id, self._now()):
                audit.warn(
                    "kept out",
                    client_id=client.client_id,
                    address=client.address,
                    seconds=self._settings.flapping_ban_seconds,
                    reason="connected and vanished too often",
                )

        return went
