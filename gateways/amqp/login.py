"""Who a client is: from start-ok to the engine's port that is its own (AMQP 4.2.2).

Rules:

* A failed login says nothing about which part was wrong, and costs three seconds (RabbitMQ's way).
  Only a limit is told: there not the password is wrong.
* Passwords take their time. Until the answer is there the connection takes no more frames, and
  little that stands behind start-ok is kept (`asking`).
* The answer may come in the call that asks. When the client goes before, the login is withdrawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol

from polymq.broker.port import BrokerPort, Origin, Reason, Refused
from polymq.gateways.amqp import spec
from polymq.gateways.amqp.errors import Malformed, RemoteProtocolError, ReplyCode
from polymq.gateways.amqp.limits import Limits
from polymq.gateways.amqp.sasl import credentials
from polymq.gateways.amqp.transport import Transport
from polymq.net.flow import LOGIN

VHOST: Final = "/"
"""The one virtual host that there is."""
MECHANISM_SHOWN_MAX: Final = 32
"""Characters of a mechanism's name that are repeated to who asked for it."""


class Host(Protocol):
    """The client that logs in."""

    port: BrokerPort
    limits: Limits

    def pause(self, wait: int) -> Callable[[], None]:
        """Take no more frames until what is returned is called.

        Args:
            wait: why (`net.flow`).
        """

    @property
    def is_over(self) -> bool:
        """Whether nobody waits for an answer any more."""

    def entered(self, principal: str, port: BrokerPort) -> None:
        """It is this one, whose port this is: go on with tune."""

    def refuse(self, abort_seconds: float) -> None:
        """Drop whatever comes, say nothing, and end the connection then."""

    def fail(self, error: RemoteProtocolError) -> None:
        """Close with this error."""


class Login:
    """The login of one client.

    Attributes:
        asking: the engine was asked, and has not answered.
        client_properties: what the client says of itself.
        mechanism: by which it logs in.
        client_name: `connection_name` of what the client says of itself; empty: it says none.
    """

    def __init__(self, host: Host, transport: Transport) -> None:
        self._host = host
        self._transport = transport
        self.asking = False
        self.client_properties: Mapping[str, Any] = {}
        self.mechanism = ""
        self.client_name = ""
        self._capabilities: Mapping[str, Any] = {}
        self._leave: Callable[[], None] | None = None  # takes it off the list of its user
        self._withdraw: Callable[[], None] | None = None  # what the engine was asked

    def has_capability(self, name: str) -> bool:
        """Whether the client said in start-ok that it knows this extension."""
        return self._capabilities.get(name) is True

    def begin(self, method: spec.ConnectionStartOk) -> None:
        """Ask the engine who it is. Raises RemoteProtocolError."""
        self.client_properties, self.mechanism = method.client_properties, method.mechanism
        capabilities = method.client_properties.get("capabilities")
        self._capabilities = capabilities if isinstance(capabilities, Mapping) else {}
        name = method.client_properties.get("connection_name")
        self.client_name = name if isinstance(name, str) else ""
        try:
            user, password = credentials(method.mechanism, method.response)
        except Malformed:
            self._refuse(method)
            return
        self._transport.spoke()
        release = self._host.pause(LOGIN)
        self.asking = True
        withdraw = self._host.port.admission.authenticate(
            user,
            password,
            self._transport.address,
            partial(self._known, method, release),
            Origin(protocol="amqp", certificate=self._transport.certificate_subject),
        )
        if self.asking:
            self._withdraw = withdraw

    def sent_ahead(self, size: int) -> bool:
        """So many bytes wait behind start-ok. Returns whether that is too much for a client that is
        not known yet: then it is refused."""
        if not self.asking or size <= self._host.limits.early_bytes_max:
            return False
        self._host.refuse(0.0)
        return True

    def is_overdue(self) -> bool:
        """The handshake took too long. Returns whether that was the wait for the password: then the
        client is told, and has the time of a close to read it."""
        if not self.asking:
            return False
        self.withdraw()
        text = "the password was not checked in time: try again"
        self._host.fail(RemoteProtocolError(ReplyCode.NOT_ALLOWED, text))
        return True

    def withdraw(self) -> None:
        """Nobody waits for the engine's answer any more."""
        self.asking = False
        if self._withdraw is not None:
            self._withdraw()
            self._withdraw = None

    def _known(
        self, method: spec.ConnectionStartOk, release: Callable[[], None], principal: str | Refused
    ) -> None:
        """The engine's answer."""
        self.asking, self._withdraw = False, None
        if self._host.is_over:
            return
        release()
        try:
            if isinstance(principal, Refused):
                raise principal
            port = self._host.port.admission.for_principal(principal)
            self._leave = port.principal.enter(self.expelled)
        except Refused as error:
            try:
                self._refuse(method, error)
            except RemoteProtocolError as fault:
                self._host.fail(fault)
            return
        self._host.entered(principal, port)

    def expelled(self, why: str) -> None:
        """The user may not be here any more."""
        self._host.fail(RemoteProtocolError(ReplyCode.CONNECTION_FORCED, why))

    def _refuse(self, method: spec.ConnectionStartOk, error: Refused | None = None) -> None:
        if error is not None and error.reason is Reason.LIMIT:
            raise RemoteProtocolError(ReplyCode.NOT_ALLOWED, error.text)
        if self.has_capability("authentication_failure_close"):
            mechanism = method.mechanism[:MECHANISM_SHOWN_MAX]
            raise RemoteProtocolError(
                ReplyCode.ACCESS_REFUSED,
                f"Login was refused using authentication mechanism {mechanism}",
            )
        self._host.refuse(self._host.limits.penalty_seconds)

    def leave(self) -> None:
        """The client is gone."""
        self.withdraw()
        if self._leave is not None:
            self._leave()
            self._leave = None


def check_vhost(method: spec.ConnectionOpen) -> None:
    """Raises RemoteProtocolError: it asks for a virtual host that is not there."""
    if method.virtual_host != VHOST:
        raise RemoteProtocolError(
            ReplyCode.NOT_ALLOWED,
            f"vhost {method.virtual_host} not found",
            class_id=method.CLASS_ID,
            method_id=method.METHOD_ID,
        )


def tune_of(limits: Limits) -> spec.ConnectionTune:
    """What a client is offered when it has logged in."""
    return spec.ConnectionTune(
        channel_max=limits.channel_max,
        frame_max=limits.frame_bytes_max,
        heartbeat=limits.heartbeat_seconds,
    )
