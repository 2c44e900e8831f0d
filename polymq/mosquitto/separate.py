"""Which of mosquitto's listeners cannot be converted beside each other. Pure.

With `per_listener_settings`, listeners have password files and access control lists of their own.
Here users and rules are for all listeners. Rules:

* A listener is left out if a user of another file could log in there, or if the rules of another
  file would allow more there.
* Of two listeners that cannot be beside each other, the first is converted. But one that nobody can
  log in at gives way to all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from polymq.mosquitto.conf import Given, ListenerSection
from polymq.mosquitto.listeners import ConvertedTable, NotConverted

PLUGINS: Final = ("auth_plugin", "plugin", "global_plugin", "plugin_load", "plugin_use")


class Access:
    """Who may do what at a listener, as far as it is said there."""

    def __init__(self, given: ListenerSection, made: ConvertedTable) -> None:
        self.given = given
        self.passwords: Given | None = given.single.get("password_file")
        self.rules: Given | None = given.single.get("acl_file")
        self._plugins = [each for name in PLUGINS for each in given.many.get(name, [])]
        self._names_by_certificate = "user_from_certificate" in made.settings
        self._anonymous = bool(made.settings["allow_anonymous"].value)

    @property
    def is_shut(self) -> bool:
        """Whether nobody can log in."""
        decider = self.passwords or self._plugins or self._names_by_certificate
        return not (decider or self._anonymous)

    @property
    def _takes_passwords(self) -> bool:
        """Whether it is of importance which users there are: it is not where a certificate names
        them, and where any name comes in without a check."""
        if self._names_by_certificate:
            return False
        return not self._anonymous or bool(self.passwords or self._plugins)

    def opened_by(self, other: Access) -> str | None:
        """What would be open here that was not, with the users and rules of the other one; None:
        nothing."""
        found = other.passwords
        if found is not None and self._takes_passwords and not _same(found, self.passwords):
            return f"users of the password_file of {found.line.where} could log in here"
        found = other.rules
        if found is not None and self.rules is not None and not _same(found, self.rules):
            return f"rules of the acl_file of {found.line.where} would count here"
        return None


def _same(one: Given, other: Given | None) -> bool:
    return other is not None and one.value == other.value


def refuse_mixed(listeners: Sequence[Access]) -> dict[int, NotConverted]:
    """Why listeners have to be left out, by their index."""
    order = sorted(range(len(listeners)), key=lambda index: listeners[index].is_shut)
    converted: list[Access] = []
    refused: dict[int, NotConverted] = {}
    for index in order:
        one = listeners[index]
        error = _why_not(one, converted)
        if error is None:
            converted.append(one)
        else:
            refused[index] = error
    return refused


def _why_not(one: Access, others: Sequence[Access]) -> NotConverted | None:
    for other in others:
        text = one.opened_by(other)
        if text is None and (back := other.opened_by(one)) is not None:
            back = back.removesuffix("here")
            text = f"{back}at {_shown(other.given)}, which is converted"
        if text is not None:
            own = one.rules if "acl_file" in text else one.passwords or one.rules
            line = one.given.line if own is None else own.line
            reason = "users and rules are for all listeners here, not for one"
            return NotConverted(line, f"{text}: {reason}")
    return None


def _shown(given: ListenerSection) -> str:
    return f"port {given.port}" if given.port else given.host
