"""What a mosquitto.conf says as settings of ours, with remarks and what is left to do. Pure.

`conf.py` reads the file as mosquitto does, `options.py` knows every option,
`listeners.py` makes the tables of listeners, `bridges.py` those of bridges, and
`toml.py` writes the result.
Rules:

* Every line is accounted for: it is the source of a setting, or there is a remark about it.
* What was closed is not opened. A listener whose certificates, pre-shared keys, prefixes of client
  ids or mount point cannot be converted is left out, and one that users or rules of another one
  would open (`separate.py`). With a wrong line, there are no settings at all.
* What is written loads with the model of the settings.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from polymq.mosquitto.bridges import convert_bridge
from polymq.mosquitto.conf import (
    Conf,
    FilesOf,
    Given,
    Kind,
    Line,
    ListenerSection,
    Remark,
    Section,
    read_conf,
)
from polymq.mosquitto.listeners import (
    MESSAGE_BYTES_MAX,
    PACKET_OVERHEAD_BYTES,
    ConvertedTable,
    NotConverted,
    Report,
    Setting,
    convert_listener,
    unknown_values,
)
from polymq.mosquitto.options import OPTIONS, Fate
from polymq.mosquitto.separate import PLUGINS, Access, refuse_mixed
from polymq.settings import SECTIONS, is_loopback

INFLIGHT_MAX: Final = 16_384
"""The most that `mqtt.inflight_max` may be, and what it is by default."""
ALIASES_OUT_MAX: Final = 1_000
OUR_PORTS: Final = ("amqp", "http", "rocketmq", "names", "admin")
"""Sections with ports that are open by default."""
EVERYBODY: Final = "role:mosquitto"
"""The role that `polymq user import mosquitto-passwords` gives every user."""
_LEVELS: Final = {
    "all": "debug", "debug": "debug", "internal": "debug", "information": "info", "notice": "info",
    "subscribe": "info", "unsubscribe": "info", "websockets": "info", "warning": "warning",
    "error": "error",
}  # fmt: skip
_SEVERITIES: Final = ("debug", "info", "warning", "error")


@dataclass(slots=True)
class Conversion:
    """The result.

    Attributes:
        sections: by name, the settings of each.
        remarks: one line each, in the order of the lines.
        steps: commands that the operator has to run, each with a reason.
        used: the lines that became a setting or a step.
        covered: lines that a remark about another line is about, too.
    """

    sections: dict[str, dict[str, Setting]] = field(default_factory=dict)
    listeners: list[ConvertedTable] = field(default_factory=list)
    bridges: list[ConvertedTable] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)
    steps: list[tuple[str, str]] = field(default_factory=list)
    used: set[Line] = field(default_factory=set)
    covered: set[Line] = field(default_factory=set)

    def has(self, kind: Kind) -> bool:
        """Whether there is a remark of this kind."""
        return any(remark.kind is kind for remark in self.remarks)


def convert(file: str, text: str, files_of: FilesOf) -> Conversion:
    """A mosquitto.conf as settings.

    Args:
        file: the name of the file, for remarks and comments.
        text: what it contains (`surrogateescape`).
        files_of: reads the directories that it includes.

    Returns:
        If there is a remark of kind WRONG, the settings are not to be used: mosquitto would not
        start with this file, and what is wrong may be what kept clients out.
    """
    conf = read_conf(file, text, files_of)
    return _Converter(conf).convert()


class _Converter:
    def __init__(self, conf: Conf) -> None:
        self._conf = conf
        self._report = Report(remarks=conf.remarks, used=set(conf.read))
        self._result = Conversion()
        self._opened: list[tuple[ListenerSection, ConvertedTable]] = []

    def convert(self) -> Conversion:
        self._check_values()
        self._set("mqtt", "enabled", Setting(False, "every listener is a table below"))
        self._listeners()
        self._of_all_listeners()
        self._general()
        self._users()
        self._ports()
        self._bridges()
        self._unaccounted()
        result = self._result
        result.used, result.covered = self._report.used, self._report.covered
        files = {each.line.file: None for each in self._report.remarks}
        order = {file: index for index, file in enumerate(files)}
        result.remarks = sorted(
            self._report.remarks, key=lambda each: (order[each.line.file], each.line.number)
        )
        result.sections = {
            name: result.sections[name] for name in SECTIONS if name in result.sections
        }
        return result

    def _set(self, section: str, key: str, setting: Setting) -> None:
        self._result.sections.setdefault(section, {})[key] = setting

    def _wrong(self, line: Line, text: str) -> None:
        self._report.remarks.append(Remark(Kind.WRONG, line, text))

    def _check_values(self) -> None:
        for listener in self._conf.listeners:
            for line, text in unknown_values(listener):
                self._wrong(line, text)
        for given in self._conf.general.many.get("log_type", []):
            if given.value not in (*_LEVELS, "none"):
                self._wrong(given.line, f"{given.value!r} is not a type of log lines")

    def _listeners(self) -> None:
        names: Counter[str] = Counter()
        prefixes = self._conf.general.single.get("clientid_prefixes")
        found: list[tuple[ListenerSection, ConvertedTable, Report]] = []
        for given in self._conf.listeners:
            name = f"port-{given.port}" if given.port else "unix"
            names[name] += 1
            if names[name] > 1:
                name += f"-{names[name]}"
            report = Report()
            try:
                if prefixes is not None:
                    raise NotConverted(prefixes.line, OPTIONS["clientid_prefixes"].text)
                made = convert_listener(self._conf, given, name, report)
                self._check_address(given, made, [other for _, other, _ in found])
            except NotConverted as error:
                self._dropped(given, error)
                continue
            found.append((given, made, report))
        refused = {}
        if self._conf.per_listener:
            refused = refuse_mixed([Access(given, made) for given, made, _ in found])
        for index, (given, made, report) in enumerate(found):
            if index in refused:
                self._dropped(given, refused[index])
                continue
            self._report.remarks += report.remarks
            self._report.used |= report.used
            self._result.listeners.append(made)
            self._opened.append((given, made))

    def _bridges(self) -> None:
        taken: set[str] = set()
        for bridge in self._conf.bridges:
            report = Report()
            try:
                made = convert_bridge(bridge, taken, report)
            except NotConverted as error:
                name = bridge.line.rest.strip()
                last = max([bridge.line.number, *(line.number for line in bridge.options)])
                text = f"the bridge {name!r} (to line {last}) is not converted: {error.text}"
                self._report.missing(bridge.line, text)
                self._report.remarks += [each for each in report.remarks if each.kind is Kind.WRONG]
                self._report.covered.update(bridge.options)
                continue
            self._report.remarks += report.remarks
            self._report.used |= report.used
            self._result.bridges.append(made)

    def _check_address(
        self, given: ListenerSection, made: ConvertedTable, others: Sequence[ConvertedTable]
    ) -> None:
        """Whether no listener before has the same port or path. Raises NotConverted."""
        keys = ("host", "port", "path")
        own = [made.settings[key].value for key in keys if key in made.settings]
        for other in others:
            if own == [other.settings[key].value for key in keys if key in other.settings]:
                raise NotConverted(given.line, f"{other.why} has the same address")

    def _dropped(self, given: ListenerSection, error: NotConverted) -> None:
        where = f"port {given.port}" if given.port else given.host
        lines = [each.line for each in given.all()] + ([given.line] if given.line else [])
        line = error.line or lines[-1]
        text = f"the listener ({where}) is not converted: {error.text}"
        self._report.missing(line, text)
        for other in lines:
            if other is not line:
                self._report.missing(other, f"not converted, because the listener ({where}) is not")

    def _of_all_listeners(self) -> None:
        """Options of listeners that are settings of all of them here."""
        self._highest("max_qos", "qos_max", default=2, most=2)
        self._highest("max_topic_alias_broker", "topic_aliases_out_max", 10, ALIASES_OUT_MAX)

    def _highest(self, name: str, key: str, default: int, most: int) -> None:
        values = [
            int(given.single[name].value) if name in given.single else default
            for given, _ in self._opened
        ]
        chosen = min(max(values, default=default), most)
        for given, _ in self._opened:
            found = given.single.get(name)
            if found is None:
                continue
            if found.value == chosen:
                self._set("mqtt", key, self._report.setting(found, chosen))
            else:
                self._report.missing(
                    found.line, f"mqtt.{key} is for all listeners, and is {chosen}"
                )

    def _general(self) -> None:
        general = self._conf.general
        direct = {
            "queue_qos0_messages": "queue_qos0_messages",
            "retain_available": "retain_available",
            "sys_interval": "sys_interval_seconds",
            "max_keepalive": "keep_alive_seconds_max",
            "persistent_client_expiration": "session_expiry_seconds",
        }
        for name, key in direct.items():
            if name in general.single:
                given = general.single[name]
                self._set("mqtt", key, self._report.setting(given, given.value))
        self._inflight()
        self._queues()
        self._sizes()
        self._directory()
        self._log()
        said = {remark.line for remark in self._report.remarks}
        for given in general.all():
            if given.line.name == "clientid_prefixes" and given.line in said:
                continue
            if OPTIONS.get(given.line.name) is None:
                self._report.generic(given)  # of a plugin
            elif OPTIONS[given.line.name].fate is not Fate.CONVERTED and (
                given.line.name != "log_dest"
            ):
                self._report.generic(given)

    def _inflight(self) -> None:
        given = self._conf.general.single.get("max_inflight_messages")
        if given is None:
            return
        count = int(given.value)
        if count <= 0 or count >= INFLIGHT_MAX:
            self._report.note(given.line, f"not needed: the limit is {INFLIGHT_MAX:,} by default")
        else:
            self._set("mqtt", "inflight_max", self._report.setting(given, count))

    def _queues(self) -> None:
        limits = {
            "max_queued_messages": "session_queue_max",
            "max_queued_bytes": "session_queue_bytes_max",
        }
        for option, key in limits.items():
            given = self._conf.general.single.get(option)
            if given is None:
                continue
            limit = max(int(given.value), 0)
            self._set("mqtt", key, self._report.setting(given, limit))
            overflow = Setting("drop_newest", "mosquitto drops what arrives")
            self._set("mqtt", "session_queue_overflow", overflow)

    def _sizes(self) -> None:
        single = self._conf.general.single
        message, packet = single.get("message_size_limit"), single.get("max_packet_size")
        most = MESSAGE_BYTES_MAX
        if message is not None:
            limit = int(message.value)
            if limit == 0:
                self._report.note(message.line, "not needed: the limit is 16 MiB by default")
            elif limit > MESSAGE_BYTES_MAX:
                self._report.missing(message.line, "a message over MQTT has at most 16 MiB")
            else:
                most = limit
                self._set("storage", "message_bytes_max", self._report.setting(message, limit))
        if packet is not None and int(packet.value) > most + PACKET_OVERHEAD_BYTES:
            text = f"a packet has at most {most + PACKET_OVERHEAD_BYTES:,} bytes"
            self._report.missing(packet.line, text)

    def _directory(self) -> None:
        given = self._conf.general.single.get("persistence_location")
        if given is not None:
            path = os.path.join(str(given.value), "polymq")
            self._set("server", "data_directory", self._report.setting(given, path))

    def _log(self) -> None:
        many = self._conf.general.many
        types = many.get("log_type", [])
        levels = [_LEVELS[str(given.value)] for given in types if given.value in _LEVELS]
        for given in types:
            if given.value == "none":
                self._report.missing(given.line, "errors are always logged")
            else:
                self._report.used.add(given.line)
        if types:
            level = min(levels, key=_SEVERITIES.index, default="error")
            where = ", ".join(given.line.where for given in types)
            self._set("log", "level", Setting(level, where))
        for given in many.get("log_dest", []):
            self._report.generic(given)

    # --- users and ports ------------------------------------------------------------------

    def _sections(self) -> Iterator[Section]:
        yield self._conf.general
        yield from self._conf.listeners

    def _given(self, *names: str) -> list[Given]:
        """The values of these options, of the server and of listeners that are converted."""
        sections = [self._conf.general, *(given for given, _ in self._opened)]
        return [
            given for section in sections for given in section.all() if given.line.name in names
        ]

    def _unaccounted(self) -> None:
        """What nothing was said about, and became nothing, has no effect beside the others."""
        said = {remark.line for remark in self._report.remarks} | self._report.used
        for section in self._sections():
            for given in section.all():
                if given.line not in said:
                    self._report.note(given.line, "it has no effect beside the other options")

    def _users(self) -> None:
        """Whether there are to be users, and what to do for it."""
        passwords, rules = self._given("password_file"), self._given("acl_file")
        by_certificate = any("user_from_certificate" in made.settings for _, made in self._opened)
        plugins = self._given(*PLUGINS)
        anonymous = [
            made
            for _, made in self._opened
            if made.settings["allow_anonymous"].value
            and "user_from_certificate" not in made.settings
        ]
        for given in self._given("allow_anonymous"):
            self._report.used.add(given.line)
        self._report.used.update(given.line for given in (*passwords, *rules))
        if not (passwords or rules or by_certificate or plugins):
            self._without_users(anonymous)
            return
        step = self._result.steps.append
        self._imports("polymq user import mosquitto-passwords", passwords)
        if by_certificate:
            step((
                "polymq user add NAME --role mosquitto",
                "for the name in each certificate: here its user has to exist",
            ))  # fmt: skip
        if not passwords and not by_certificate:
            step(("polymq user add NAME --role admin", "rules count once there is a user"))
        self._imports("polymq permission import mosquitto-acl", rules)
        if not rules and not plugins:
            allow = "publish,create,subscribe '#'"
            step((f"polymq permission allow {EVERYBODY} {allow}", "there is no acl_file"))
            if anonymous:
                step((
                    f"polymq permission allow role:anonymous {allow}",
                    "clients without a login, as before; for all listeners with allow_anonymous",
                ))  # fmt: skip
        if self._conf.per_listener and len(self._opened) > 1:
            for given in (*passwords, *rules):
                self._report.missing(given.line, "it is for all listeners here, not for one")

    def _imports(self, command: str, files: Sequence[Given]) -> None:
        """A step for each file."""
        lines: dict[str, list[str]] = {}
        for given in files:
            lines.setdefault(shlex.quote(str(given.value)), []).append(given.line.where)
        for path, where in lines.items():
            self._result.steps.append((f"{command} {path}", ", ".join(where)))

    def _without_users(self, open_to_all: list[ConvertedTable]) -> None:
        """There are no users: say that everybody may do everything, if it was so."""
        settings = [made.settings for made in open_to_all]
        hosts = [str(each["host"].value) for each in settings if "host" in each]
        proxied = any("proxy_protocol" in each for each in settings)
        if proxied or not all(map(is_loopback, hosts)):
            self._set(
                "server", "allow_insecure",
                Setting(True, "mosquitto has no users and lets everybody in"),
            )  # fmt: skip
        if not open_to_all and self._opened:
            self._result.steps.append((
                "polymq user add NAME --role admin",
                "clients have to log in, and there is nobody yet",
            ))  # fmt: skip

    def _ports(self) -> None:
        """Move ports of other protocols that a listener of mosquitto has."""
        taken = {given.port for given, _ in self._opened if given.port}
        ours = {name: SECTIONS[name].model_fields["port"].default for name in OUR_PORTS}
        for name, port in ours.items():
            if port in taken:
                free = next(
                    other
                    for other in range(port + 1, 65_536)
                    if other not in taken and other not in ours.values()
                )
                taken.add(free)
                self._set(name, "port", Setting(free, f"{port} is one of mosquitto's"))
