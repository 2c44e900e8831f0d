"""Hashing a new password: it takes a while, in a thread."""

from __future__ import annotations

import asyncio
import secrets

from polymq.broker.accounts.logins import Logins
from polymq.broker.accounts.passwords import SALT_BYTES
from polymq.broker.errors import Refused


async def hash_password(logins: Logins, password: str) -> str:
    """The stored form of a password. Raises Refused: it cannot be one, or too many wait."""
    hashed: asyncio.Future[str | Refused] = asyncio.get_running_loop().create_future()

    def done(result: str | Refused) -> None:
        if not hashed.done():  # the client may have gone
            hashed.set_result(result)

    raw = password.encode("utf-8", "surrogatepass")
    logins.hash_new(raw, secrets.token_bytes(SALT_BYTES), done)
    result = await hashed
    if isinstance(result, Refused):
        raise result
    return result
