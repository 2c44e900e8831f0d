"""A bridge of mosquitto, a section `connection`, as a table `[[mqtt.bridges]]`. Pure.

Rules, beside those of `settings.py`:

* A bridge that would be less safe is left out: without its TLS.
* A bridge that mosquitto does not take, without an address, without a topic or with the name of
  another one, is wrong.
* Where mosquitto has another default, the setting is written: QoS 0, port 1883, notifications.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Final

from pydantic import ValidationError

from polymq.bridge_settings import BridgeTopic, MqttBridge
from polymq.gateways.mqtt.bridging.remotes import parse_remote
from polymq.mosquitto.conf import DEFAULT_PORT, BadValue, Bridge, Given, Kind, Line, Remark
from polymq.mosquitto.listeners import (
    CA_FILE,
    ConvertedTable,
    NotConverted,
    Report,
    Setting,
)
from polymq.mosquitto.options import OPTIONS, Fate

NAME_MAX: Final = 32
KEEP_ALIVE_MIN: Final = 5
DIRECTIONS: Final = ("out", "in", "both")
VERSIONS: Final = {"mqttv31": "3.1.1", "mqttv311": "3.1.1", "mqttv50": "5"}
_SAME_AS: Final = {
    "addresses": "address",
    "username": "remote_username",
    "password": "remote_password",
    "clientid": "remote_clientid",
}
_TEXTS: Final = {
    "remote_username": "user",
    "remote_password": "password",
    "remote_clientid": "client_id",
    "local_username": "local_user",
    "notification_topic": "notification_topic",
}
_TLS: Final = ("bridge_cafile", "bridge_capath", "bridge_certfile", "bridge_tls_use_os_certs")


def convert_bridge(bridge: Bridge, taken: set[str], report: Report) -> ConvertedTable:
    """One bridge as a table.

    Args:
        taken: the names of those before; its own is added.

    Raises:
        NotConverted: it has to be left out.
    """
    return _Bridge(bridge, report).convert(taken)


class _Bridge:
    def __init__(self, bridge: Bridge, report: Report) -> None:
        self._line = bridge.line
        self._report = report
        self._topics = [line for line in bridge.options if line.name == "topic"]
        self._single: dict[str, Line] = {}
        for line in bridge.options:
            if line.name == "topic":
                continue
            name = _SAME_AS.get(line.name, line.name)
            before = self._single.get(name)
            if before is not None:
                report.note(before, f"line {line.number} replaces it")
            self._single[name] = line

    def convert(self, taken: set[str]) -> ConvertedTable:
        for name in ("bridge_psk", "bridge_identity"):
            if name in self._single:
                raise NotConverted(self._single[name], OPTIONS[name].text)
        settings = {"name": self._report.setting(self._given(self._line), self._name(taken))}
        settings |= dict(self._address())
        settings["topics"] = self._carried()
        settings |= dict(self._tls())
        settings |= dict(self._others())
        for name, line in self._single.items():
            if OPTIONS[name].fate is not Fate.CONVERTED:
                self._generic(name, line)
        table = ConvertedTable(settings, self._line.where)
        try:
            MqttBridge.model_validate({name: one.value for name, one in settings.items()})
        except ValidationError as error:
            text = error.errors()[0]["msg"].removeprefix("Value error, ")
            raise NotConverted(self._line, text) from error
        return table

    def _given(self, line: Line) -> Given:
        return Given(line.rest.strip(), line)

    def _setting(self, name: str, value: object) -> Setting:
        return self._report.setting(self._given(self._single[name]), value)

    def _text(self, name: str) -> str:
        line = self._single.get(name)
        return "" if line is None else line.rest.strip()

    def _word(self, name: str) -> str:
        return self._text(name).partition(" ")[0]

    def _wrong(self, line: Line, text: str) -> None:
        self._report.remarks.append(Remark(Kind.WRONG, line, text))

    def _is_true(self, name: str, *, default: bool = False) -> bool:
        """A truth value. One that is none is said, and is the default."""
        if name not in self._single:
            return default
        word = self._word(name)
        if word not in ("true", "false", "1", "0"):
            self._wrong(self._single[name], f"{word!r} is neither true nor false")
            return default
        return word in ("true", "1")

    def _number(self, name: str, word: str, low: int) -> int | None:
        if not re.fullmatch(r"[0-9]{1,9}", word) or int(word) < low:
            self._wrong(self._single[name], f"{word!r} is not a number from {low} on")
            return None
        return int(word)

    def _name(self, taken: set[str]) -> str:
        base = re.sub(r"[^a-z0-9_-]+", "-", self._line.rest.strip().lower()).strip("-_")
        base = name = base[:NAME_MAX] or "bridge"
        number = 1
        while name in taken:
            number += 1
            name = f"{base[: NAME_MAX - 4]}-{number}"
        taken.add(name)
        return name

    def _address(self) -> Iterator[tuple[str, Setting]]:
        line = self._single.get("address")
        parts = [] if line is None else line.rest.split()
        if line is None or not parts:
            self._wrong(line or self._line, "the bridge has no address")
            raise NotConverted(line or self._line, "it has no address")
        try:
            first, *others = [parse_remote(part, DEFAULT_PORT) for part in parts]
        except ValueError as error:
            raise NotConverted(line, str(error)) from error
        yield "host", self._setting("address", first.host)
        yield "port", Setting(first.port, line.where)
        if others:
            yield "fallbacks", Setting([str(other) for other in others], line.where)

    # --- topics -----------------------------------------------------------------------------

    def _carried(self) -> Setting:
        topics = []
        for line in self._topics:
            try:
                topics.append(_topic(line.rest))
                self._report.used.add(line)
            except BadValue as error:
                self._wrong(line, str(error))
        if not self._topics:
            self._wrong(self._line, "the bridge has no topic")
            raise NotConverted(self._line, "it has no topic")
        where = ", ".join(line.where for line in self._topics)
        return Setting([topic.model_dump() for topic in topics], where)

    # --- TLS --------------------------------------------------------------------------------

    def _tls(self) -> Iterator[tuple[str, Setting]]:
        with_os = self._is_true("bridge_tls_use_os_certs")
        found = [name for name in _TLS if name in self._single]
        if found == ["bridge_tls_use_os_certs"] and not with_os:
            found = []
        if not found:
            for name in ("bridge_keyfile", "bridge_tls_use_os_certs"):
                if name in self._single:
                    self._report.note(self._single[name], "it has no effect without TLS")
            return
        yield "tls", self._setting(found[0], True)
        if "bridge_tls_use_os_certs" in self._single:
            self._report.used.add(self._single["bridge_tls_use_os_certs"])
        if "bridge_cafile" in self._single:
            yield "tls_ca", self._setting("bridge_cafile", self._text("bridge_cafile"))
        if "bridge_capath" in self._single:
            yield from self._authorities()
        for name, key in (("bridge_certfile", "tls_certificate"), ("bridge_keyfile", "tls_key")):
            if name in self._single:
                yield key, self._setting(name, self._text(name))

    def _authorities(self) -> Iterator[tuple[str, Setting]]:
        line, directory = self._single["bridge_capath"], self._text("bridge_capath")
        if "bridge_cafile" in self._single:
            text = f"only {self._text('bridge_cafile')} is used: append the authorities in there"
            self._report.missing(line, text)
            return
        path = os.path.join(directory, CA_FILE)
        self._report.missing(
            line,
            f"the authorities have to be in one file: put those of {directory} into {path}, or the "
            "server does not start",
        )
        yield "tls_ca", self._setting("bridge_capath", path)

    # --- the rest ---------------------------------------------------------------------------

    def _others(self) -> Iterator[tuple[str, Setting]]:
        yield from self._notifications()
        for name, key in _TEXTS.items():
            if name in self._single and (key != "notification_topic" or self._notifies()):
                yield key, self._setting(name, self._text(name))
        if "bridge_protocol_version" in self._single:
            yield from self._version()
        if "cleansession" in self._single:
            value = self._is_true("cleansession")
            yield "clean_start", self._setting("cleansession", value)
        if "keepalive_interval" in self._single:
            word = self._word("keepalive_interval")
            seconds = self._number("keepalive_interval", word, KEEP_ALIVE_MIN)
            if seconds is not None:
                yield "keep_alive_seconds", self._setting("keepalive_interval", seconds)
        if "restart_timeout" in self._single:
            word = (self._text("restart_timeout").split() or [""])[-1]
            seconds = self._number("restart_timeout", word, 1)
            if seconds is not None:
                yield "retry_seconds_max", self._setting("restart_timeout", seconds)

    def _notifies(self) -> bool:
        return self._is_true("notifications", default=True) and not self._is_true(
            "notifications_local_only"
        )

    def _notifications(self) -> Iterator[tuple[str, Setting]]:
        names = ("notifications", "notifications_local_only")
        given = [self._single[name] for name in names if name in self._single]
        self._report.used.update(given)
        if self._notifies():
            why = ", ".join(line.where for line in given) or "mosquitto's default"
            yield "notifications", Setting(True, why)
        elif "notification_topic" in self._single:
            text = "it has no effect without notifications to the remote broker"
            self._report.note(self._single["notification_topic"], text)

    def _version(self) -> Iterator[tuple[str, Setting]]:
        line, word = self._single["bridge_protocol_version"], self._word("bridge_protocol_version")
        version = VERSIONS.get(word)
        if version is None:
            self._wrong(line, f"{word!r} is none of {', '.join(VERSIONS)}")
            return
        if word == "mqttv31":
            self._report.missing(line, "MQTT 3.1 is not spoken to others: it is 3.1.1")
        yield "protocol_version", self._setting("bridge_protocol_version", version)

    def _generic(self, name: str, line: Line) -> None:
        self._report.generic(Given(line.rest.strip().partition(" ")[0], line))


def _topic(rest: str) -> BridgeTopic:
    """An entry from `pattern [[[out|in|both] qos] local-prefix remote-prefix]`; more parts are
    ignored. Raises BadValue."""
    parts = rest.split()
    if not parts:
        raise BadValue("there is no value")
    defaults = ("", "out", "0", "", "")
    pattern, direction, qos, local, remote = (*parts[:5], *defaults[len(parts) :])
    if direction not in DIRECTIONS:
        raise BadValue(f"{direction!r} is none of {', '.join(DIRECTIONS)}")
    if qos not in ("0", "1", "2"):
        raise BadValue(f"{qos!r} is no QoS")
    pattern, local, remote = (_unquoted(word) for word in (pattern, local, remote))
    return BridgeTopic.model_validate(
        {
            "pattern": pattern,
            "direction": direction,
            "qos": int(qos),
            "local_prefix": local,
            "remote_prefix": remote,
        }
    )


def _unquoted(word: str) -> str:
    return "" if word == '""' else word
