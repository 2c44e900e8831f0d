"""Enhanced authentication (5.0 part 4.12): one exchange of AUTH packets, at CONNECT or later.

Rules:

* The client speaks first. A client that names its method and sends nothing with it is asked for its
  first message by an AUTH without data.
* What the messages say is the engine's business (`port.LoginExchange`); which packets may come is
  in the table of `protocol.py`.
* An exchange is ended once, whatever comes of it: the engine counts them.
"""

from __future__ import annotations

from collections.abc import Callable

from polymq.broker.port import LoginExchange, Reason, Refused
from polymq.broker.port.principals import AdmissionPort
from polymq.gateways.mqtt.errors import RemoteProtocolError

Answer = Callable[[str | Refused], None]


class Authentication:
    """One exchange.

    Args:
        method: one that the admission offers.
        address: the client's, without its port.
        until: when it has to be over, on the clock of the loop.
    """

    __slots__ = (
        "_address",
        "_admission",
        "_exchange",
        "_is_asked",
        "_method",
        "_withdraw",
        "until",
    )

    def __init__(
        self, admission: AdmissionPort, method: str, address: str, *, until: float
    ) -> None:
        self._admission = admission
        self._method = method
        self._address = address
        self._exchange: LoginExchange | None = None
        self._is_asked = False  # for its first message
        self._withdraw: Callable[[], None] | None = None  # once the last message is looked at
        self.until = until

    @property
    def proof(self) -> bytes:
        """What proves the server, once the client has proven itself."""
        return b"" if self._exchange is None else self._exchange.last_message

    def take(self, data: bytes, answer: Answer) -> bytes | None:
        """A message of the client.

        Returns:
            What the client is asked next. None: that was the last message, and `answer` is called
            with who it is, maybe in this call.

        Raises:
            Refused: the exchange has failed.
            RemoteProtocolError: the client goes on while its last message is looked at.
        """
        if self._withdraw is not None:
            raise RemoteProtocolError("5.0 part 4.12", "AUTH came before the last one was answered")
        if self._exchange is not None:
            self._withdraw = _nothing
            self._withdraw = self._exchange.finish(data, self._address, answer)
            return None
        if not data:
            if self._is_asked:
                raise Refused(Reason.NOT_AUTHENTICATED, "the client sends no first message")
            self._is_asked = True
            return b""
        self._exchange = self._admission.begin_exchange(self._method, data, self._address)
        return self._exchange.challenge

    def end(self) -> None:
        """It is over, or the client is gone. Safe to call again."""
        if self._withdraw is not None:
            self._withdraw()
        if self._exchange is not None:
            self._exchange.end()


def _nothing() -> None:
    """The answer came in the call that asked."""
