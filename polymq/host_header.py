"""What the headers of a request say of the page that made a browser send it."""

from __future__ import annotations

from urllib.parse import urlsplit

from polymq.settings import is_loopback


def names_this_machine(host: str) -> bool:
    """Whether a `Host` header names loopback. A page whose name has been led here by its DNS server
    sends its own name (DNS rebinding)."""
    try:
        return is_loopback(urlsplit("//" + host).hostname or "")
    except ValueError:
        return False


def is_of_host(origin: str, host: str) -> bool:
    """Whether a page with this `Origin` came from the host that the request goes to."""
    try:
        return urlsplit(origin).netloc == host
    except ValueError:
        return False
