"""Logins over HTTP that are slowed, because many before them failed: every listener answers
alike."""

from __future__ import annotations

import base64
import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from interop_tests.conftest import Server, StartServer
from interop_tests.people import PASSWORD, polymq

FAILURES = 6
"""More than a user may have at an address before its logins are checked one by one."""
AT_ONCE = 8
LISTENERS = {
    "http": "/subscriptions/none",
    "admin": "/api/v1/queues",
    "api": "/api/v1/queues",
    "metrics": "/metrics",
    "management": "/api/whoami",
}


@pytest.fixture
def server(start_server: StartServer) -> Server:
    """With a user, and all listeners of HTTP."""
    settings: dict[str, object] = {"metrics.login": True}
    for name in ("api", "metrics", "management"):
        settings |= {f"{name}.enabled": True, f"{name}.port": 0}
    started = start_server(**settings)
    added = polymq(started, "user", "add", "ann", text=f"{PASSWORD}\n")
    assert added.returncode == 0, added.stderr
    return started


def ask(server: Server, listener: str, password: str) -> tuple[int, str | None]:
    """Status and Retry-After."""
    port = json.loads((server.data_directory / "server.json").read_text())[listener]
    login = base64.b64encode(f"ann:{password}".encode()).decode()
    with closing(http.client.HTTPConnection(server.host, port, timeout=60)) as connection:
        connection.request("GET", LISTENERS[listener], headers={"Authorization": f"Basic {login}"})
        answer = connection.getresponse()
        answer.read()
        return answer.status, answer.getheader("Retry-After")


@pytest.mark.parametrize("listener", LISTENERS)
def test_a_slowed_login_may_try_again_later(server: Server, listener: str) -> None:
    """Its password was not checked, so the answer is neither that it is wrong nor that the request
    is."""
    for number in range(FAILURES):
        status, _ = ask(server, listener, f"wrong-{number}")
        assert status in (401, 429)
    with ThreadPoolExecutor(AT_ONCE) as threads:
        answers = list(
            threads.map(lambda number: ask(server, listener, f"other-{number}"), range(AT_ONCE))
        )
    assert (429, "1") in answers
    assert set(answers) <= {(401, None), (429, "1")}
