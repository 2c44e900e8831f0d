"""Who clients are, and what they may do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from polymq.broker.errors import Refused
from polymq.broker.port.connections import ConnectedClient
from polymq.broker.port.values import Address

if TYPE_CHECKING:
    from polymq.broker.port.broker import BrokerPort

Managing = Literal["monitor", "operate", "admin"]
"""What is done at the operators' listeners: the names of `permissions.MANAGING`. Each includes
those before it."""

LOGIN_EXPIRED: Final = "what it logged in with has expired"
"""Why a connection has to end, as `PrincipalPort.enter` says it: protocols may have a code for
it."""
RIGHTS_UNKNOWN: Final = "a service did not say whether it may have its subscriptions"
"""The same, where it may come again in a moment."""


def _no_certificate() -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a login comes from, beside its address: for a service that decides about logins.

    Attributes:
        protocol: `mqtt`, `amqp`, `http` or `admin`; empty: it is not known.
        client_id: of an MQTT client, as it or the server named it.
        mount_point: of the MQTT listener.
        certificate: returns the subject of the client's certificate (RFC 4514), which was
            verified; empty where there is none. It is read when somebody asks.
    """

    protocol: str = ""
    client_id: str = ""
    mount_point: str = ""
    certificate: Callable[[], str] = _no_certificate


UNKNOWN_ORIGIN: Final = Origin()


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedAs:
    """Who a service is asked about.

    Attributes:
        user: the name that it logged in with; empty if it named none.
        client_id: as the client or the server named it.
        address: the client's address without its port.
        mount_point: of its listener.
        name_of: the topic name or filter by which MQTT knows an address of the broker. Two
            addresses never have the same.
    """

    user: str
    client_id: str
    address: str
    mount_point: str
    name_of: Callable[[Address], str]


class LoginExchange(Protocol):
    """A login that takes more than one message of the client (SASL)."""

    last_message: bytes
    """What the client is sent when it has proven itself: it proves the server."""

    @property
    def user(self) -> str:
        """Who the client says it is."""

    @property
    def challenge(self) -> bytes:
        """What the client is sent in answer to its first message."""

    def finish(
        self, final: bytes, address: str, answer: Callable[[str | Refused], None]
    ) -> Callable[[], None]:
        """The client's last message. `answer` is called as by `AdmissionPort.authenticate`, and
        what is returned is the same, too.

        Args:
            address: the client's address without its port.
        """

    def end(self) -> None:
        """It is over, whatever came of it. Has to be called; safe to call again."""


class AdmissionPort(Protocol):
    """Who comes in."""

    def offers(self, method: str) -> bool:
        """Whether `begin_exchange` knows the method, which is the name of a SASL mechanism."""

    def begin_exchange(self, method: str, first: bytes, address: str) -> LoginExchange:
        """A client begins to log in by a method.

        Args:
            first: its first message.
            address: the client's address without its port.

        Raises:
            Refused: NOT_AUTHENTICATED (what it sent is no beginning), LIMIT (come again).
        """

    def authenticate(
        self,
        user: str | None,
        password: bytes | None,
        address: str,
        answer: Callable[[str | Refused], None],
        origin: Origin = UNKNOWN_ORIGIN,
    ) -> Callable[[], None]:
        """Who is it? `answer` is called once with the principal, or with Refused:
        NOT_AUTHENTICATED, LIMIT (come again). At once or later, for passwords are checked in
        threads and guesses wait: take nothing from the client meanwhile.

        The principal may know when its login ends. So the port has to be asked for with the very
        value that `answer` was called with.

        Args:
            user, password: None where the client named none.
            address: the client's address without its port.

        Returns:
            Call this when the client has gone before the answer: its password is not checked any
            more, and `answer` is not called. After the answer it does nothing.
        """

    def certified(self, user: str, address: str) -> str:
        """The principal of a client that has proven to be a user without a password, by a
        certificate that its gateway has checked.

        Args:
            address: the client's address without its port.

        Raises:
            Refused: NOT_AUTHENTICATED, there is no such user, or it may not log in.
        """

    def check_signature(self, access_key: str, content: bytes, digest: bytes, address: str) -> str:
        """The principal whose access key signed the content of a request. Answers at once, so it
        is asked for each request.

        Args:
            digest: HMAC-SHA1 of the content, as the client gave it.
            address: the client's address without its port.

        Raises:
            Refused: NOT_AUTHENTICATED.
        """

    def listener_principal(self, user: str) -> str:
        """The principal of who does not log in at a listener: the user that the configuration
        names for it, or nobody (an empty name)."""

    def for_principal(
        self, principal: str, client_id: str | None = None, *, asked_as: AskedAs | None = None
    ) -> BrokerPort:
        """The port that a client uses from its login on: its operations are those that it may do,
        and raise Refused: FORBIDDEN otherwise. Ask for it in the call that authenticated.

        Args:
            client_id: of an MQTT client; rules may name it.
            asked_as: of a client about whose permissions a service is asked, if there is one: then
                operations may raise Unanswered (`PrincipalPort.ask`).
        """

    def for_owner(self, owner: str) -> BrokerPort:
        """The same for what outlives its client's connection (an HTTP subscription): it goes on
        to be right when the first user comes or the last one goes.

        Args:
            owner: as `as_owner` gave it, or the name of a principal.
        """

    def check_connection(self, client_id: str, user: str | None, address: str) -> None:
        """Whether an MQTT client may connect now. Ask when its CONNECT is there, before its
        password is checked; what is allowed counts against the rates.

        Args:
            address: the client's address without its port.

        Raises:
            Refused: BANNED, RATE, LIMIT.
        """

    def client_came(self, client: ConnectedClient) -> Callable[[], None]:
        """An MQTT client has logged in. Call what is returned, once, when its connection ends."""

    def when_rights_change(self, callback: Callable[[Callable[[str], bool]], None]) -> None:
        """Call back after users or rules have changed, with a function that says whether the
        change may be one for a principal. For what a gateway keeps that needs a right to stay."""


class PrincipalPort(Protocol):
    """The principal whose port it is."""

    @property
    def as_owner(self) -> str:
        """How this port's principal is named by what it leaves behind. Who gets the name after
        the user was deleted is another owner. Empty while there are no users."""

    def enter(
        self,
        expelled: Callable[[str], None],
        *,
        access_key: str | None = None,
        address: str = "",
    ) -> Callable[[], None]:
        """A connection of this port's principal is there. Call what is returned when it is gone.

        Args:
            expelled: called, maybe within another operation, when the connection has to end.
            access_key: what it signs with; it has to end when this is removed.
            address: the client's without its port, for the audit log; with an access key.

        Raises:
            Refused: LIMIT, the user has too many connections.
        """

    @property
    def asks(self) -> bool:
        """Whether a service may have to be asked before some of its operations. They raise
        Unanswered then, and have done nothing."""

    def wanted_read(self, address: Address) -> object | None:
        """What the service has to be asked before everything is read that the filter matches;
        None: nothing."""

    def wanted_publish(self, topic: str, tag: str | None) -> object | None:
        """The same before something is published there."""

    def ask(self, wanted: Iterable[Any], answered: Callable[[Any], None]) -> Callable[[], None]:
        """Ask the service, a few questions at a time. `answered` is called once, maybe in this
        call, with the answers.

        Args:
            wanted: as the methods above returned it, or as `Unanswered` has it.

        Returns:
            Call this when the client has gone before that: `answered` is not called any more.
        """

    def know(self, answers: Any) -> Any:
        """From now on operations count with these answers of `ask`, whether or not they are
        remembered for others; None: with none. Returns those that they counted with."""

    @property
    def lasting(self) -> PrincipalPort:
        """The principal without permissions that came with its login alone: what goes on when the
        client has gone is judged by those that are stored."""

    def check_publish(self, topic: str, tag: str | None, *, every_tag: bool = False) -> None:
        """For what is published later, such as a will, or dead letters, which keep whatever tag
        they have (`every_tag`). Raises Refused: FORBIDDEN."""

    def check_read(self, address: Address) -> None:
        """Whether all that the filter matches may be read. Raises Refused: FORBIDDEN."""

    def check_known(self, topic: str) -> None:
        """Whether the client may know that a topic is there, and where: who may read or publish
        anything in it. Raises Refused: FORBIDDEN, for topics that are not there, too."""

    def check_admin(self, address: Address) -> None:
        """Whether everything may be administered that the filter matches. Raises Refused:
        FORBIDDEN."""

    def check_managing(self, least: Managing) -> None:
        """Whether it has this right, or one that includes it, on everything. Raises Refused:
        FORBIDDEN."""

    def may_manage(self, least: Managing) -> bool:
        """As `check_managing`, for who only wants to know: a no is no refusal."""

    def check_admitted(self) -> None:
        """Whether the principal may do anything at all: nobody, where no rule lets nobody in, may
        not. Raises Refused: NOT_AUTHENTICATED, FORBIDDEN (a user without a rule)."""

    def check_group(self, name: str) -> None:
        """Whether the principal may be a member of a consumer group, which is to subscribe to all
        of the group's retry topic. Raises Refused: FORBIDDEN."""

    def for_group(self, name: str) -> BrokerPort:
        """The port for what a member of the group gives back. The server may also make and publish
        to the group's retry topic and its dead-letter topic with it, which are closed to
        everybody. Raises Refused: FORBIDDEN, as `check_group`."""
