"""Logging in: what the mechanisms' responses say (AMQP 4.2.2, RFC 4616)."""

from __future__ import annotations

from typing import Final

from polymq.gateways.amqp.errors import Malformed
from polymq.gateways.amqp.tables import decode_table

MECHANISMS: Final = b"PLAIN AMQPLAIN"


def credentials(mechanism: str, response: bytes) -> tuple[str, bytes]:
    """User and password of start-ok's response.

    Raises:
        Malformed: it is not what the mechanism asks for, or there is no such mechanism.
    """
    if mechanism == "PLAIN":  # RFC 4616: authzid NUL authcid NUL password
        parts = response.split(b"\x00")
        if len(parts) != 3:
            raise Malformed("a PLAIN response has three parts")
        user, password = parts[1], parts[2]
    elif mechanism == "AMQPLAIN":  # a table without its length
        table = decode_table(response, 0, len(response))
        login, secret = table.get("LOGIN"), table.get("PASSWORD")
        if not isinstance(login, (str, bytes)) or not isinstance(secret, (str, bytes)):
            raise Malformed("an AMQPLAIN response has LOGIN and PASSWORD")
        user = login if isinstance(login, bytes) else login.encode()
        password = secret if isinstance(secret, bytes) else secret.encode()
    else:
        raise Malformed(f"unknown mechanism {mechanism!r}")
    return user.decode("utf-8", "surrogateescape"), password
