"""The ban list: client identifiers, user names, addresses and networks that may not connect.

A ban is in the log, so it holds after a crash and on replicas. It is in force from the moment it is
written, which is before the command that asked for it is answered.

Rules:

* A ban with an end has no effect from that time on, by the wall clock. It is taken out of the log's
  state when the list is next changed.
* A banned address is not accepted at any listener for clients; a banned user cannot log in by any
  protocol; a banned client identifier cannot connect by MQTT.
* Who is connected when a ban comes is the business of `on_ban`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final

from polymq.broker.core import Core
from polymq.broker.errors import Reason, Refused
from polymq.broker.port.values import Position
from polymq.broker.state.journal import Op, Touched
from polymq.broker.state.kinds import StateKind, each

CLIENT: Final = "client_id"
USER: Final = "user"
ADDRESS: Final = "address"
KINDS: Final = (CLIENT, USER, ADDRESS)
VALUE_BYTES_MAX: Final = 512
"""Of a client identifier or user name."""
REASON_CHARACTERS_MAX: Final = 256
EXPIRED_AT_ONCE: Final = 64
"""Bans without effect that one change of the list removes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ban:
    """One entry of the list.

    Attributes:
        kind: `client_id`, `user` or `address`.
        value: a client identifier, a user name, or an address or network in its usual notation.
        reason: why, in the operator's words; may be empty.
        until_ms: when it ends, in milliseconds since the epoch; None: it does not.
        since_ms: when it was added.
        by: who added it.
    """

    kind: str
    value: str
    reason: str
    until_ms: int | None
    since_ms: int
    by: str

    @property
    def key(self) -> str:
        """Of its row."""
        return f"{self.kind}\x00{self.value}"


class Bans:
    """The ban list of one broker.

    Attributes:
        on_ban: called after a ban was added now (not by a fold at the start).
        refused: how many connections and logins each kind of ban has refused since the start.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self.on_ban: Callable[[Ban], None] = lambda ban: None
        self.refused = dict.fromkeys(KINDS, 0)
        self._bans: dict[str, Ban] = {}  # by key
        # (IP version, length of the prefix) -> prefix as a number -> ban
        self._networks: dict[tuple[int, int], dict[int, Ban]] = {}
        core.journal.handle("ban+", self._apply_ban)
        core.journal.handle("ban-", self._apply_end)

    # --- changing the list ----------------------------------------------------------------

    def add(
        self,
        kind: str,
        value: str,
        *,
        reason: str = "",
        until_ms: int | None = None,
        by: str = "",
        since_ms: int | None = None,
    ) -> Position:
        """Add a ban, or replace the one with the same kind and value.

        Args:
            since_ms: when it was added, if that was at another time, at another broker.

        Raises:
            Refused: BAD_ARGUMENT (an unknown kind, no address, an end that has passed), LIMIT, or
                the log takes nothing.
        """
        value = self.check_new(kind, value, reason)
        now = self._core.clock_ms()
        if until_ms is not None and until_ms <= now:
            raise Refused(Reason.BAD_ARGUMENT, "the end of the ban is in the past")
        since = now if since_ms is None else since_ms
        ban = Ban(kind=kind, value=value, reason=reason, until_ms=until_ms, since_ms=since, by=by)
        self._core.check_writable()
        self._forget_expired(now)
        limit = self._core.limits.bans_max
        if ban.key not in self._bans and len(self._bans) >= limit:
            raise Refused(Reason.LIMIT, f"there are {limit} bans, which is the limit: remove some")
        position = self._core.journal.write({"op": "ban+", "k": kind, "v": value, **_row(ban)})
        self.on_ban(ban)
        return position

    @staticmethod
    def check_new(kind: str, value: str, reason: str) -> str:
        """Whether there can be such a ban; returns the value as it is listed. Raises Refused:
        BAD_ARGUMENT."""
        value = normal_value(kind, value)
        _check_text("the reason", reason)
        if len(reason) > REASON_CHARACTERS_MAX:
            raise Refused(
                Reason.BAD_ARGUMENT, f"a reason has at most {REASON_CHARACTERS_MAX} characters"
            )
        return value

    def remove(self, kind: str, value: str) -> Position:
        """Remove a ban. Raises Refused: NOT_FOUND, BAD_ARGUMENT, or the log takes nothing."""
        value = normal_value(kind, value)
        ban = self._bans.get(f"{kind}\x00{value}")
        if ban is None or not self._in_force(ban):
            what = kind.replace("_", " ")
            raise Refused(Reason.NOT_FOUND, f"there is no ban of {what} {value!r}")
        self._core.check_writable(frees=True)
        return self._core.journal.write({"op": "ban-", "k": kind, "v": value})

    def _forget_expired(self, now: int) -> None:
        ended = [
            ban for ban in self._bans.values() if ban.until_ms is not None and ban.until_ms <= now
        ]
        for ban in ended[:EXPIRED_AT_ONCE]:
            self._core.journal.write({"op": "ban-", "k": ban.kind, "v": ban.value})

    # --- asking ---------------------------------------------------------------------------

    def entries(self) -> Iterable[Ban]:
        """All entries in no order, those without effect included. Look at them at once."""
        return self._bans.values()

    def find(self, key: str) -> Ban | None:
        """The entry of a key, whether it has effect or not."""
        return self._bans.get(key)

    @property
    def count(self) -> int:
        """How many entries the list has, those without effect included."""
        return len(self._bans)

    def named(self, kind: str, value: str) -> Ban | None:
        """The ban of a client identifier or a user name that is in force."""
        ban = self._bans.get(f"{kind}\x00{value}")
        return ban if ban is not None and self._in_force(ban) else None

    def check(self, kind: str, value: str) -> None:
        """Whether a client identifier or a user name is free of bans; counts if it is not. Raises
        Refused: BANNED."""
        if self._bans and (ban := self.named(kind, value)) is not None:
            self.refused[kind] += 1
            raise Refused(
                Reason.BANNED, f"{kind.replace('_', ' ')} {value!r} is banned: {ban.reason}"
            )

    def accepts(self, address: str) -> bool:
        """Whether a new connection from this address, without a port, is accepted; counts if it is
        not."""
        if not self._networks or self.of_address(address) is None:
            return True
        self.refused[ADDRESS] += 1
        return False

    def of_address(self, address: str) -> Ban | None:
        """The ban in force of an address, or of a network that it is in."""
        return next(self._of_address(address), None)

    def _of_address(self, address: str) -> Iterator[Ban]:
        found = parse_address(address)
        if found is None:
            return
        number = int(found)
        for (version, length), networks in self._networks.items():
            if version == found.version:
                ban = networks.get(number >> found.max_prefixlen - length)
                if ban is not None and self._in_force(ban):
                    yield ban

    def _in_force(self, ban: Ban) -> bool:
        return ban.until_ms is None or ban.until_ms > self._core.clock_ms()

    # --- state ----------------------------------------------------------------------------

    def _apply_ban(self, op: Op) -> Touched:
        key = f"{op['k']}\x00{op['v']}"
        self._load(key, op)
        return [("ban", key)]

    def _apply_end(self, op: Op) -> Touched:
        key = f"{op['k']}\x00{op['v']}"
        ban = self._bans.pop(key, None)
        if ban is not None and ban.kind == ADDRESS:
            prefix, number = _network_key(ban.value)
            networks = self._networks[prefix]
            del networks[number]
            if not networks:
                del self._networks[prefix]
        return [("ban", key)]

    def state_kinds(self) -> tuple[StateKind, ...]:
        """See `state/kinds.py`."""
        return (StateKind("ban", self._saved_row, each(self._load)),)

    def _saved_row(self, key: str) -> dict[str, Any] | None:
        ban = self._bans.get(key)
        return None if ban is None else _row(ban)

    def _load(self, key: str, row: dict[str, Any]) -> None:
        kind, _, value = key.partition("\x00")
        ban = self._bans[key] = Ban(
            kind=kind,
            value=value,
            reason=row["r"],
            until_ms=row["x"],
            since_ms=row["t"],
            by=row["b"],
        )
        if kind == ADDRESS:
            prefix, number = _network_key(value)
            self._networks.setdefault(prefix, {})[number] = ban


def normal_value(kind: str, value: str) -> str:
    """The form in which a value is listed: of an address, its usual notation, and a network of one
    address without its length. Raises Refused: BAD_ARGUMENT."""
    if kind not in KINDS:
        raise Refused(Reason.BAD_ARGUMENT, f"a ban is of one of: {', '.join(KINDS)}")
    if not value:
        raise Refused(Reason.BAD_ARGUMENT, f"name the {kind.replace('_', ' ')} to ban")
    if kind != ADDRESS:
        if _check_text("the value", value) > VALUE_BYTES_MAX:
            raise Refused(Reason.BAD_ARGUMENT, f"the value has more than {VALUE_BYTES_MAX} bytes")
        return value
    network = parse_network(value)
    return str(network.network_address) if network.num_addresses == 1 else str(network)


def _check_text(what: str, text: str) -> int:
    """How many bytes a text has. Raises Refused: BAD_ARGUMENT: it cannot be written as UTF-8."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise Refused(Reason.BAD_ARGUMENT, f"{what} is not UTF-8") from None


def parse_address(text: str) -> IPv4Address | IPv6Address | None:
    """The address of a socket; one of IPv4 that is mapped into IPv6 as what it is. None: the socket
    has none."""
    try:
        found = ip_address(text.strip("[]").partition("%")[0])
    except ValueError:
        return None
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        return found.ipv4_mapped
    return found


def parse_network(value: str) -> IPv4Network | IPv6Network:
    """An address or a network in its usual notation. Raises Refused: BAD_ARGUMENT."""
    try:
        network = ip_network(value)
    except ValueError as error:
        hint = f" ({error})" if "host bits" in str(error) else ""
        raise Refused(
            Reason.BAD_ARGUMENT,
            f"{value!r} is neither an address nor a network such as 10.1.0.0/16{hint}",
        ) from None
    mapped = getattr(network.network_address, "ipv4_mapped", None)
    if mapped is not None and network.prefixlen >= 96:
        return IPv4Network((mapped, network.prefixlen - 96))
    return network


def _network_key(value: str) -> tuple[tuple[int, int], int]:
    """Where a network is in the table."""
    network = parse_network(value)
    number = int(network.network_address) >> network.max_prefixlen - network.prefixlen
    return (network.version, network.prefixlen), number


def _row(ban: Ban) -> dict[str, Any]:
    return {"r": ban.reason, "x": ban.until_ms, "t": ban.since_ms, "b": ban.by}
