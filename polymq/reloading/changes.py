"""What has changed between two configurations, and what of it can be applied at run time. Pure.

Each setting says in its section whether a reload applies it (`setting_kinds.Reload`). A few
settings can be applied only as long as something else stays as it is: these are in `SWITCHES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import SecretStr, ValidationError

from polymq.errors import ExitCode, Failure
from polymq.render import toml_text
from polymq.setting_kinds import Reload, Section, reload_of
from polymq.settings import SECTIONS, Settings

APPLIED: Final = frozenset({Reload.AT_ONCE, Reload.NEW_CONNECTIONS})
SHOWN: Final = 200
"""Characters of a value, at most."""
SECRET: Final = "(secret)"
ABSENT: Final = "(none)"
PRESENT: Final = "(a table)"
TABLES: Final = ("listeners", "bridges")
"""Settings of `[mqtt]` that are lists of tables, each with a name."""

SWITCHES: Final[Mapping[str, Callable[[Settings], object]]] = {
    "tls": lambda settings: settings.tls.enabled,
    "jwt": lambda settings: (settings.jwt.enabled, bool(settings.jwt.jwks_url)),
    "login_service": lambda settings: _asked(settings.login_service),
    "permission_service": lambda settings: _asked(settings.permission_service),
    "telemetry": lambda settings: settings.telemetry.enabled,
    "mqtt.session_queue_max": lambda settings: bool(settings.mqtt.session_queue_max),
    "mqtt.session_queue_bytes_max": lambda settings: bool(settings.mqtt.session_queue_bytes_max),
    "mqtt.sys_interval_seconds": lambda settings: bool(settings.mqtt.sys_interval_seconds),
}
"""What has to stay the same for a change of these sections and settings to be applied: whether they
are used at all."""


def _asked(service: Any) -> tuple[bool, ...]:
    asked = (service.url, service.amqtt_plugin, getattr(service, "ldap_url", ""))
    return tuple(map(bool, asked))


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A setting that has another value.

    Attributes:
        name: `mqtt.inflight_max`, or `mqtt.listeners[plant].connections_max`.
        old, new: as in TOML; no secrets.
    """

    name: str
    old: str
    new: str
    reload: Reload

    @property
    def is_applied(self) -> bool:
        """Whether a reload applies it."""
        return self.reload in APPLIED


def changes_between(old: Settings, new: Settings) -> list[Change]:
    """All that differs, in the order of the documentation."""
    blocked = [name for name, switch in SWITCHES.items() if switch(old) != switch(new)]
    return [_unless(change, blocked) for change in _all_changes(old, new)]


def _unless(change: Change, blocked: Sequence[str]) -> Change:
    if not any(change.name == name or change.name.startswith(f"{name}.") for name in blocked):
        return change
    return Change(name=change.name, old=change.old, new=change.new, reload=Reload.RESTART)


def _all_changes(old: Settings, new: Settings) -> Iterator[Change]:
    for name in SECTIONS:
        before, after = getattr(old, name), getattr(new, name)
        yield from _of_section(name, before, after)
        if name == "mqtt":
            for tables in TABLES:
                yield from _of_tables(
                    f"mqtt.{tables}", getattr(before, tables), getattr(after, tables)
                )


def _of_section(name: str, old: Section, new: Section) -> Iterator[Change]:
    for key, field in type(old).model_fields.items():
        before, after = getattr(old, key), getattr(new, key)
        if before == after or (name == "mqtt" and key in TABLES):
            continue
        yield Change(
            name=f"{name}.{key}",
            old=shown(before),
            new=shown(after),
            reload=reload_of(type(old), field),
        )


def _of_tables(name: str, old: Sequence[Any], new: Sequence[Any]) -> Iterator[Change]:
    before, after = ({one.name: one for one in tables} for tables in (old, new))
    for key in dict.fromkeys((*before, *after)):
        owner = f"{name}[{key}]"
        if key in before and key in after:
            yield from _of_section(owner, before[key], after[key])
            continue
        yield Change(
            name=owner,
            old=PRESENT if key in before else ABSENT,
            new=PRESENT if key in after else ABSENT,
            reload=Reload.RESTART,
        )


def shown(value: object) -> str:
    """A value for people."""
    if isinstance(value, SecretStr):
        return SECRET
    text = toml_text(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def with_changes(settings: Settings, wanted: Settings, changes: Sequence[Change]) -> Settings:
    """The settings with those of the wanted ones that are applied.

    Raises:
        Failure: USAGE, they do not fit what stays as it is until a restart.
    """
    names = {change.name for change in changes if change.is_applied}
    if not names:
        return settings
    updated: dict[str, Section] = {}
    for name in SECTIONS:
        section = _updated(name, getattr(settings, name), getattr(wanted, name), names)
        if name == "mqtt":
            section = _with_tables(section, wanted.mqtt, names)
        updated[name] = section
    found = settings.model_copy(update=updated)
    _check(found)
    return found


def _updated(name: str, old: Section, new: Section, names: set[str]) -> Section:
    update = {key: getattr(new, key) for key in type(old).model_fields if f"{name}.{key}" in names}
    return old.model_copy(update=update) if update else old


def _with_tables(old: Any, new: Any, names: set[str]) -> Section:
    update = {}
    for tables in TABLES:
        wanted = {one.name: one for one in getattr(new, tables)}
        update[tables] = [
            _updated(f"mqtt.{tables}[{one.name}]", one, wanted.get(one.name, one), names)
            for one in getattr(old, tables)
        ]
    section: Section = old.model_copy(update=update)
    return section


def _check(settings: Settings) -> None:
    """Whether the parts fit together. Raises Failure."""
    try:
        for name, model in SECTIONS.items():
            model.model_validate(getattr(settings, name).model_dump())
    except ValidationError as error:
        message = error.errors()[0]["msg"].removeprefix("Value error, ")
        text = f"{name}: {message}, until the changes that need a restart apply: restart the server"
        raise Failure(ExitCode.USAGE, text) from error
