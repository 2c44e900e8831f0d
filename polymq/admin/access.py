"""Who may use the operators' listeners.

Two ways in: a user (HTTP Basic) with the right that an operation needs, or the operator's token
(`operator_token.py`), which is enough for all. While there are no users, everybody on this machine
may use the listener on loopback; another listener lets nobody in then.
"""

from __future__ import annotations

import asyncio
import binascii
import hmac
from base64 import b64decode
from contextlib import suppress
from typing import Final

from aiohttp import web

from polymq.admin.health import HEALTH_PATHS
from polymq.broker.admission.admission import Admission
from polymq.broker.errors import Reason, Refused
from polymq.broker.port import BrokerPort, Origin, parse_display_name

OPERATOR: Final = "(operator's token)"
"""What the audit log calls who came with the token; no user can be called so."""
OPEN: Final = "(nobody: there are no users)"
CALLER: Final = web.RequestKey("caller", str)
"""Who asks, for the audit log."""
PORT: Final = web.RequestKey("port", BrokerPort)
"""What the caller may do as a client."""
_FREE_PATHS: Final = frozenset({"/health", "/metrics", "/api/v1/openapi.json"}) | HEALTH_PATHS
"""Figures without names or contents, which monitoring asks for; and what the API looks like."""


class Access:
    """Lets requests in, or says why not.

    Args:
        token: the operator's.
    """

    def __init__(self, *, port: BrokerPort, admission: Admission, token: str) -> None:
        self._port = port
        self._admission = admission
        self._token = token

    async def check(self, request: web.Request, *, is_local: bool) -> None:
        """Note who asks, in `request[CALLER]` and `request[PORT]`.

        Args:
            is_local: the listener is on loopback.

        Raises:
            Refused: NOT_AUTHENTICATED, FORBIDDEN.
        """
        request[CALLER], request[PORT] = OPEN, self._port
        if request.path in _FREE_PATHS or (is_local and not self._admission.users.closed):
            return
        if not self._admission.users.closed:
            raise Refused(
                Reason.NOT_AUTHENTICATED,
                "this listener lets nobody in before there is a user: `polymq user add NAME` on "
                "the server's machine makes one",
            )
        scheme, _, value = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            if not hmac.compare_digest(value.encode("utf-8", "replace"), self._token.encode()):
                raise Refused(Reason.NOT_AUTHENTICATED, "the operator's token is wrong")
            request[CALLER] = OPERATOR
            return
        principal = await principal_of(self._port, request)
        port = self._port.admission.for_principal(principal)
        _check_right(request, port)
        request[CALLER], request[PORT] = principal, port


async def principal_of(port: BrokerPort, request: web.Request) -> str:
    """The user that a request names by HTTP Basic, or who one is without a login. Raises Refused:
    NOT_AUTHENTICATED."""
    user, password = basic_login(request.headers.get("Authorization", ""))
    return await logged_in(port, user, password, request.remote or "")


def basic_login(authorization: str) -> tuple[str | None, bytes | None]:
    """User and password of a header of HTTP Basic; None if it is of another scheme. What cannot be
    read is a user without a name, and there is none."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None, None
    try:
        name, _, password = b64decode(value.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return "", b""
    return name.decode("utf-8", "surrogateescape"), password


async def logged_in(
    port: BrokerPort, user: str | None, password: bytes | None, address: str
) -> str:
    """The principal that a login makes. Raises Refused: NOT_AUTHENTICATED, BANNED, UNDECIDED; RATE
    if its password was not checked, because it is slowed or there are too many of them."""
    known: asyncio.Future[str | Refused] = asyncio.get_running_loop().create_future()

    def answer(principal: str | Refused) -> None:
        if not known.done():  # the client may have gone
            known.set_result(principal)

    withdraw = port.admission.authenticate(
        user, password, address, answer, Origin(protocol="admin")
    )
    try:
        principal = await known
    finally:
        withdraw()  # if the client has gone
    if isinstance(principal, Refused):
        if principal.reason is Reason.LIMIT:  # the same login may be right in a moment
            raise Refused(Reason.RATE, principal.text)
        raise principal
    return principal


def _check_right(request: web.Request, port: BrokerPort) -> None:
    """Whether a user has the right that the operation needs. Raises Refused: FORBIDDEN."""
    handler = request.match_info.handler
    right = getattr(handler, "right", None)
    if right is None:
        return  # there is nothing at this path
    try:
        port.principal.check_managing(right)
    except Refused:
        if not getattr(handler, "on_topic", False):
            raise
        with suppress(Refused):
            port.principal.check_admin((parse_display_name(request.match_info["name"]),))
            return
        raise
