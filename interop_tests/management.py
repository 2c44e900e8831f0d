"""RabbitMQ's management API of a started server, as a client of it sees it."""

from __future__ import annotations

import base64
import http.client
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from interop_tests.conftest import Server

VHOST = "%2F"
SETTINGS: dict[str, object] = {"management.enabled": True, "management.port": 0}


def port_of(server: Server) -> int:
    """Where a server with `SETTINGS` has the API."""
    ready = json.loads((Path(server.data_directory) / "server.json").read_text(encoding="utf-8"))
    return int(ready["management"])


class Api:
    """The API, for one user."""

    def __init__(self, server: Server, user: str = "guest", password: str = "guest") -> None:
        self.port = port_of(server)
        login = base64.b64encode(f"{user}:{password}".encode()).decode()
        self.headers = {"Authorization": f"Basic {login}", "Content-Type": "application/json"}

    def ask(
        self, method: str, path: str, body: object = None, **headers: str
    ) -> tuple[int, Any, dict[str, str]]:
        """Status, JSON value and headers of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        content = body if isinstance(body, (bytes, type(None))) else json.dumps(body)
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, f"/api{path}", body=content, headers={**self.headers, **more})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, json.loads(text) if text else None, dict(answer.getheaders())

    def get(self, path: str) -> Any:
        """A good answer."""
        status, value, _ = self.ask("GET", path)
        assert status == 200, value
        return value

    def put(self, path: str, body: object = None) -> int:
        """The status of a good answer."""
        status, value, _ = self.ask("PUT", path, body)
        assert status in (201, 204), value
        return status

    def delete(self, path: str) -> None:
        """Has to be good."""
        status, value, _ = self.ask("DELETE", path)
        assert status == 204, value

    def post(self, path: str, body: object) -> Any:
        """A good answer."""
        status, value, _ = self.ask("POST", path, body)
        assert status in (200, 201, 204), value
        return value

    def refused(self, method: str, path: str, body: object = None) -> tuple[int, str]:
        """Status and reason of an answer that is not good."""
        status, value, _ = self.ask(method, path, body)
        assert status >= 400, value
        return status, str(value["reason"])

    def queue(self, name: str) -> Any:
        """A queue."""
        return self.get(f"/queues/{VHOST}/{quote(name, safe='')}")
