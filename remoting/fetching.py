"""The address server: an HTTP endpoint whose answer is a list of name servers.

Asked seldom, and by drivers only: in the thread that waits, or in one of their own.
"""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from typing import Final

from polymq.remoting.errors import CallFailed
from polymq.remoting.frames import Command

ANSWER_BYTES_MAX: Final = 64 * 1024
"""A list of some thousand addresses."""


def fetch(url: str, seconds: float) -> Command:
    """The answer to a GET: the status as the code, and the body. Raises CallFailed."""
    if not url.startswith(("http://", "https://")):
        raise CallFailed(f"{url}: an address server is reached by http:// or https://")
    try:
        with urllib.request.urlopen(url, timeout=seconds) as answer:
            return Command(code=answer.status, opaque=0, body=answer.read(ANSWER_BYTES_MAX))
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise CallFailed(f"{url}: {error}") from error
