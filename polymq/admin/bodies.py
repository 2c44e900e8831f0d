"""The JSON objects that requests to the operator's listener have as their body."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from aiohttp import web

from polymq.broker.errors import Reason, Refused


async def json_object(
    request: web.Request, known: Collection[str], *, default: bytes = b""
) -> dict[str, Any]:
    """The object, which has no other fields than those that are known. Raises Refused:
    BAD_ARGUMENT.

    Args:
        default: what an empty body stands for.
    """
    try:
        value = json.loads(await request.read() or default)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or not value.keys() <= set(known):
        raise Refused(
            Reason.BAD_ARGUMENT, f"send a JSON object with some of: {', '.join(sorted(known))}"
        )
    return value
