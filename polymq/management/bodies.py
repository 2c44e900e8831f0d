"""What clients send: JSON objects, read as RabbitMQ reads them.

`rabbitmqadmin` sends true and numbers as texts, so both are accepted. Fields that nobody knows are
ignored, as RabbitMQ does. An empty body is an empty object.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from polymq.management.errors import bad


class Body:
    """The body of one request. Its methods raise Problem."""

    def __init__(self, content: bytes, content_type: str = "") -> None:
        self.content = content
        self.content_type = content_type
        self._value: dict[str, Any] | None = None

    @property
    def value(self) -> dict[str, Any]:
        """The JSON object."""
        if self._value is None:
            try:
                found = msgspec.json.decode(self.content or b"{}")
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                found = None
            if not isinstance(found, dict):
                raise bad("the body has to be a JSON object")
            self._value = found
        return self._value

    def text(self, name: str, default: str | None = None) -> str:
        """A text; without a default it has to be there."""
        return text_of(self.value, name, default)

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        return flag_of(self.value, name, default)

    def number(self, name: str, default: int | None = None) -> int:
        """A whole number from 0 on; without a default it has to be there."""
        found = self.value.get(name, default)
        if isinstance(found, str) and found.isascii() and found.isdecimal() and len(found) < 16:
            found = int(found)
        if isinstance(found, bool) or not isinstance(found, int) or found < 0:
            if name not in self.value:
                raise bad(f"key_missing: {name}")
            raise bad(f"{name} has to be a number from 0 on, not {shown(found)}")
        return found

    def table(self, name: str) -> Mapping[str, Any]:
        """An object; an empty one if it is not there."""
        return table_of(self.value, name)


def text_of(value: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """A text of an object. Raises Problem."""
    found = value.get(name, default)
    if isinstance(found, str):
        return found
    raise bad(
        f"{name} has to be a text, not {shown(found)}" if name in value else f"key_missing: {name}"
    )


def flag_of(value: Mapping[str, Any], name: str, default: bool) -> bool:
    """True or false, which may be written as texts. Raises Problem."""
    found = value.get(name, default)
    if isinstance(found, bool):
        return found
    if found in ("true", "false"):
        return bool(found == "true")
    raise bad(f"{name} has to be true or false, not {shown(found)}")


def table_of(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object in an object. Raises Problem. (An empty one may come as an empty list: that is how
    Erlang writes it.)"""
    found = value.get(name)
    if found is None or found == []:
        return {}
    if not isinstance(found, dict):
        raise bad(f"{name} has to be an object, not {shown(found)}")
    return found


def shown(value: object) -> str:
    """The beginning of a wrong value."""
    return json.dumps(value, default=str)[:100]
