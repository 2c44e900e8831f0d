"""What `polymq user` and `polymq permission` say to the operator's listener."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

from polymq.admin_client import OperatorClient
from polymq.ports import Ports


class UserClient:
    """Users and permissions of a server. Every method raises Failure.

    Args:
        credentials: value of the Authorization header.
    """

    def __init__(self, ports: Ports, credentials: str | None) -> None:
        self._client = OperatorClient(ports, credentials)

    # --- users ----------------------------------------------------------------------------

    def all(self) -> list[dict[str, Any]]:
        """All users."""
        users: list[dict[str, Any]] = self._client.ask("GET", "/users")["users"]
        return users

    def show(self, name: str) -> dict[str, Any]:
        """One user."""
        return self._client.ask("GET", _path(name))

    def add(self, name: str, password: str, roles: list[str]) -> dict[str, Any]:
        """Make a user."""
        return self._client.ask("PUT", _path(name), {"password": password, "roles": roles})

    def change(self, name: str, changes: dict[str, Any]) -> dict[str, Any]:
        """Change what the changes name; returns the user."""
        return self._client.ask("PATCH", _path(name), changes)

    def delete(self, name: str) -> None:
        """Delete a user."""
        self._client.request("DELETE", _path(name))

    def add_access_key(self, name: str) -> dict[str, Any]:
        """Make an access key: its name and its secret, which is told this once."""
        return self._client.ask("POST", _path(name) + "/access-keys")

    def remove_access_key(self, name: str, key: str) -> None:
        """Remove an access key."""
        self._client.request("DELETE", f"{_path(name)}/access-keys/{quote(key, safe='')}")

    # --- permissions ----------------------------------------------------------------------

    def rules(self, subject: str | None) -> list[dict[str, Any]]:
        """All rules, or those of one subject."""
        query = "" if subject is None else "?" + urlencode({"subject": subject})
        return self._permissions(self._client.ask("GET", "/permissions" + query))

    def add_rules(
        self, effect: str, subject: str, actions: list[str], topic: str
    ) -> list[dict[str, Any]]:
        """Add a rule for each action."""
        body = {"effect": effect, "subject": subject, "actions": actions, "topic": topic}
        return self._permissions(self._client.ask("POST", "/permissions", body))

    def remove_rules(self, subject: str, actions: list[str], topic: str) -> list[dict[str, Any]]:
        """Remove the rules of either effect."""
        body = {"subject": subject, "actions": actions, "topic": topic}
        return self._permissions(self._client.ask("DELETE", "/permissions", body))

    def check(self, user: str, action: str, topic: str, client_id: str | None) -> dict[str, Any]:
        """What holds, and by which rule."""
        query = {"user": user, "action": action, "topic": topic}
        if client_id is not None:
            query["client_id"] = client_id
        return self._client.ask("GET", "/permissions/check?" + urlencode(query))

    def _permissions(self, answer: dict[str, Any]) -> list[dict[str, Any]]:
        rules: list[dict[str, Any]] = answer["permissions"]
        return rules


def _path(name: str) -> str:
    return "/users/" + quote(name, safe="")
