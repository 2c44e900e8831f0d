"""Who asks: each request of a connection is one of a user that signed it, or of nobody.

Rules:

* The signature of each request is checked. What follows from it, a port with that user's rights,
  is made once for each access key of a connection, and counts as a connection of its user.
* A request without a signature has the rights of the user that the configuration names for this
  listener, or nobody's, whatever else came over the connection.
* A signature that is wrong is an error, never nobody's request: its client thinks that it is
  somebody, and is told why it is not.
* While the broker is open (it has no users) nothing is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from polymq.broker.port import BoundedCache, BrokerPort, Reason, Refused
from polymq.gateways.rocketmq.sending import Sender
from polymq.remoting.signing import Signature

RETURNS_MAX: Final = 16
"""Groups of one connection for which is remembered how their messages come back: a process has
few."""


@dataclass(slots=True)
class Caller:
    """A user, as one connection has it.

    Attributes:
        port: the engine as this user may use it.
        sender: stores what it sends.
        leave: to be called when the connection is gone.
    """

    principal: str
    port: BrokerPort
    sender: Sender
    leave: Callable[[], None]


def _gone(_why: str) -> None:
    """The connection has ended already."""


class Callers:
    """The users of one connection.

    Args:
        user: whose rights a request without a signature has; empty for nobody's.
        address: the client's, without its port.
        expelled: ends the connection.
        keys_max: access keys that a connection may sign with.
    """

    def __init__(
        self,
        port: BrokerPort,
        *,
        user: str,
        address: str,
        expelled: Callable[[str], None],
        keys_max: int,
    ) -> None:
        self._port = port
        self._user = user
        self._address = address
        self._expelled = expelled
        self._keys_max = keys_max
        self._unsigned: Caller | None = None
        self._signed: dict[str, Caller] = {}  # by access key
        # By principal and group.
        self._returns: BoundedCache[tuple[str, str], Sender] = BoundedCache(RETURNS_MAX)

    def __iter__(self) -> Iterator[Caller]:
        if self._unsigned is not None:
            yield self._unsigned
        yield from self._signed.values()

    def caller(self, signature: Signature | None) -> Caller:
        """Who sent a request. Raises Refused: NOT_AUTHENTICATED, LIMIT."""
        if signature is None:
            if self._unsigned is None:
                principal = self._port.admission.listener_principal(self._user)
                self._unsigned = self._made(principal, None)
            return self._unsigned
        key = signature.access_key
        principal = self._port.admission.check_signature(
            key, signature.content, signature.digest, self._address
        )
        known = self._signed.get(key)
        if known is not None and known.principal == principal:
            return known
        if known is None and len(self._signed) >= self._keys_max:
            raise Refused(
                Reason.LIMIT,
                f"this connection signs with more than {self._keys_max} access keys: open another",
            )
        if known is not None:  # the key is somebody else's now
            self._signed.pop(key).leave()
        made = self._signed[key] = self._made(principal, key)
        return made

    def returns(self, principal: str, group: str) -> Sender:
        """Stores what the members of a group give back, as this caller of the connection may.
        Raises Refused: FORBIDDEN."""
        found = self._returns.pop((principal, group), None)
        if found is None:
            found = Sender(self._port.admission.for_principal(principal).principal.for_group(group))
        self._returns.add((principal, group), found)
        return found

    def _made(self, principal: str, access_key: str | None) -> Caller:
        port = self._port.admission.for_principal(principal)
        leave = port.principal.enter(self._expelled, access_key=access_key, address=self._address)
        return Caller(principal, port, Sender(port), leave)

    def leave(self) -> None:
        """The connection is gone."""
        for caller in self:
            caller.leave()
        self._expelled = _gone  # else the two would keep each other
