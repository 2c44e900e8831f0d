"""Mosquitto's listeners as tables `[[mqtt.listeners]]`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from polymq.listener_settings import MIB, SOCKET_PATH_BYTES_MAX
from polymq.mosquitto.conf import Conf, Given, Kind, Line, ListenerSection, Remark
from polymq.mosquitto.options import OPTIONS, Fate
from polymq.setting_kinds import is_origin

ALL_IPV4: Final = "0.0.0.0"
LOOPBACK: Final = "127.0.0.1"
PACKET_OVERHEAD_BYTES: Final = 64 * 1024
"""What a packet may have beside its message (`packet_bytes_max`)."""
MESSAGE_BYTES_MAX: Final = 16 * MIB
"""Of a message over MQTT."""
CA_FILE: Final = "polymq-client-ca.pem"
"""The authorities of a `capath` in one file, which the operator makes."""
SAME: Final = "this server does the same"
_OF_CLIENTS: Final = ("cafile", "capath", "crlfile")
_USERS: Final = {"use_identity_as_username": "cn", "use_subject_as_username": "subject"}
_VERSIONS: Final = {"3": "3.1", "4": "3.1.1", "5": "5"}


@dataclass(frozen=True, slots=True)
class Setting:
    """A value, and what its comment says: the line that it comes from, or a reason."""

    value: Any
    why: str


@dataclass(frozen=True, slots=True)
class ConvertedTable:
    """A table, and where its listener or bridge begins in mosquitto's file."""

    settings: dict[str, Setting]
    why: str


class NotConverted(Exception):
    """A listener that is not opened here, or a bridge that is left out; the text says why."""

    def __init__(self, line: Line | None, text: str) -> None:
        super().__init__(text)
        self.line = line
        self.text = text


@dataclass(slots=True)
class Report:
    """What is said about lines, which lines became settings, and which are covered by what is said
    about another one."""

    remarks: list[Remark] = field(default_factory=list)
    used: set[Line] = field(default_factory=set)
    covered: set[Line] = field(default_factory=set)

    def note(self, line: Line, text: str) -> None:
        """Nothing is lost."""
        self.remarks.append(Remark(Kind.NOTE, line, text))

    def missing(self, line: Line, text: str) -> None:
        """Something is not as it was."""
        self.remarks.append(Remark(Kind.MISSING, line, text))

    def setting(self, given: Given, value: Any) -> Setting:
        """A setting that comes from this line."""
        self.used.add(given.line)
        return Setting(value, given.line.where)

    def generic(self, given: Given) -> None:
        """What the table says about an option that is not converted."""
        option = OPTIONS[_table_name(given.line.name)]
        if option.fate is Fate.NOT_NEEDED:
            self.note(given.line, f"not needed: {option.text}")
        elif _plain(given.value) == option.same:
            self.note(given.line, f"not needed: {SAME}")
        else:
            self.missing(given.line, f"no counterpart: {option.text}")


def _table_name(name: str) -> str:
    for prefix in ("auth_opt_", "plugin_opt_"):
        if name.startswith(prefix):
            return f"{prefix}*"
    return name


def _plain(value: str | int | bool) -> str:
    """As it stands in the table."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value).partition(" ")[0]


def convert_listener(
    conf: Conf, given: ListenerSection, name: str, report: Report
) -> ConvertedTable:
    """One listener as a table.

    Args:
        name: its name here.
        report: gets remarks about its lines.

    Raises:
        NotConverted: it would let in clients that mosquitto keeps out.
    """
    maker = _Maker(conf, given, report)
    settings = {"name": Setting(name, ""), **maker.settings()}
    where = given.line.where if given.line is not None else "mosquitto's default listener"
    if conf.local_only:
        where = "mosquitto without a listener is open to this machine"
    return ConvertedTable(settings, where)


class _Maker:
    def __init__(self, conf: Conf, given: ListenerSection, report: Report) -> None:
        self._conf = conf
        self._given = given
        self._report = report
        self._single = given.single
        self._type = self._kind()
        self._has_tls = "certfile" in self._single and "keyfile" in self._single

    def settings(self) -> dict[str, Setting]:
        """All keys but the name."""
        self._check()
        made: dict[str, Setting] = {}
        for part in (self._where, self._tls, self._clients, self._proxies, self._limits):
            made.update(part())
        for given in self._given.all():
            if OPTIONS[_table_name(given.line.name)].fate is not Fate.CONVERTED:
                self._report.generic(given)
        return made

    def _kind(self) -> str:
        protocol = self._given.text("protocol")
        if protocol == "http_api":
            raise NotConverted(
                self._single["protocol"].line,
                "mosquitto's HTTP API is not served: use the commands, or the listener [admin]",
            )
        if self._given.port == 0:
            if protocol == "websockets":
                raise NotConverted(
                    self._single["protocol"].line, "a Unix socket is served without WebSocket"
                )
            return "unix"
        return "websocket" if protocol == "websockets" else "tcp"

    def _check(self) -> None:
        """Whether leaving something out would let in more clients. Raises NotConverted."""
        single = self._single
        for name in ("psk_hint", "tls_keyform"):
            if name in single and single[name].value != "pem":
                raise NotConverted(single[name].line, OPTIONS[name].text)
        if self._given.is_true("proxy_protocol_v2_require_tls"):
            given = single["proxy_protocol_v2_require_tls"]
            raise NotConverted(given.line, OPTIONS[given.line.name].text)
        for one, other in (("certfile", "keyfile"), ("keyfile", "certfile")):
            if one in single and other not in single:
                raise NotConverted(single[one].line, f"{other} is missing, too: TLS needs both")
        if self._type == "unix":
            self._check_unix()
        elif " " in self._given.host:
            by = self._single.get("bind_address")
            line = by.line if by is not None else self._given.line
            raise NotConverted(line, f"{self._given.host!r} is not an address")
        mount = single.get("mount_point")
        if mount is not None:
            text = str(mount.value)
            if not text.endswith("/") or text == "/" or text.startswith("$"):
                raise NotConverted(
                    mount.line,
                    f"{text!r} is not whole levels: a mount point ends with / here, and does not "
                    "begin with $",
                )
        asking = self._asks_for_certificates()
        if asking is not None and "cafile" not in single and "capath" not in single:
            raise NotConverted(
                asking.line, "there is neither cafile nor capath, so mosquitto lets nobody in"
            )

    def _check_unix(self) -> None:
        path = self._given.host
        if not os.path.isabs(path) or len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
            raise NotConverted(
                self._given.line,
                f"the path of a Unix socket begins with / and has at most {SOCKET_PATH_BYTES_MAX} "
                "bytes",
            )
        for name in ("certfile", "enable_proxy_protocol"):
            if name in self._single:
                raise NotConverted(self._single[name].line, "a Unix socket has none here")

    def _asks_for_certificates(self) -> Given | None:
        """The option for which every client needs a certificate."""
        if not self._has_tls:
            return None
        for name in ("require_certificate", *_USERS):
            if self._given.is_true(name):
                return self._single[name]
        return None

    def _where(self) -> Iterator[tuple[str, Setting]]:
        given, line = self._given, self._given.line
        source = line.where if line is not None else ""
        if line is not None:
            self._report.used.add(line)
        if self._type != "tcp":
            by = self._single.get("protocol")
            yield "type", self._report.setting(by, self._type) if by else Setting("unix", source)
        elif "protocol" in self._single:
            self._report.note(self._single["protocol"].line, f"not needed: {SAME}")
        if self._type == "unix":
            yield "path", Setting(given.host, source)
            self._unused(("bind_interface", "socket_domain"), "it is not for a Unix socket")
            return
        yield "host", self._host(source)
        port = self._single.get("port")
        yield (
            "port",
            self._report.setting(port, given.port) if port else Setting(given.port, source),
        )

    def _host(self, source: str) -> Setting:
        report, interface = self._report, self._single.get("bind_interface")
        domain = self._single.get("socket_domain")
        if interface is not None:
            return Setting(LOOPBACK, f"not {interface.value} ({interface.line.where})")
        if self._given.host:
            if domain is not None:
                report.note(domain.line, "not needed: the address says it")
            by = self._single.get("bind_address")
            return report.setting(by, by.value) if by else Setting(self._given.host, source)
        if domain is not None:
            return report.setting(domain, "::" if domain.value == "ipv6" else ALL_IPV4)
        port = self._single.get("port")
        line = port.line if port is not None else self._given.line
        if line is not None:
            report.note(line, 'it is written for IPv4; for IPv6 add one with host = "::"')
        return Setting(ALL_IPV4, "all addresses of IPv4")

    def _tls(self) -> Iterator[tuple[str, Setting]]:
        report, single = self._report, self._single
        if not self._has_tls:
            self._unused(
                (*_OF_CLIENTS, "require_certificate", *_USERS),
                "it has no effect without certfile and keyfile",
            )
            return
        yield "tls", report.setting(single["certfile"], True)
        yield "tls_certificate", report.setting(single["certfile"], single["certfile"].value)
        yield "tls_key", report.setting(single["keyfile"], single["keyfile"].value)
        asking = self._asks_for_certificates()
        if asking is None:
            self._unused(_OF_CLIENTS, "it has no effect without require_certificate true")
            self._unused(("require_certificate", *_USERS), f"not needed: {SAME}")
            return
        yield "tls_client_ca", self._authorities()
        yield "tls_client_certificates", report.setting(asking, "required")
        if "crlfile" in single:
            yield "tls_crl", report.setting(single["crlfile"], single["crlfile"].value)
        for name, part in _USERS.items():
            if self._given.is_true(name):
                yield "user_from_certificate", report.setting(single[name], part)
                break
        self._unused(("require_certificate", *_USERS), f"not needed: {SAME}")

    def _authorities(self) -> Setting:
        file, directory = self._single.get("cafile"), self._single.get("capath")
        if file is None:
            assert directory is not None, "was checked"
            path = os.path.join(str(directory.value), CA_FILE)
            self._report.missing(
                directory.line,
                f"the authorities have to be in one file: put those of {directory.value} into "
                f"{path}, or the server does not start",
            )
            return self._report.setting(directory, path)
        if directory is not None:
            self._report.missing(
                directory.line, f"only {file.value} is used: append the authorities in there"
            )
        return self._report.setting(file, file.value)

    def _clients(self) -> Iterator[tuple[str, Setting]]:
        report, single = self._report, self._single
        yield "allow_anonymous", self.anonymous()
        if "mount_point" in single:
            yield "mount_point", report.setting(single["mount_point"], single["mount_point"].value)
        if "accept_protocol_versions" in single:
            given = single["accept_protocol_versions"]
            listed = str(given.value).replace(",", " ").replace("\t", " ").split()
            versions = [_VERSIONS[word] for word in dict.fromkeys(listed) if word in _VERSIONS]
            if not versions:
                raise NotConverted(given.line, "it names none of 3, 4 and 5, so nobody may connect")
            yield "protocol_versions", report.setting(given, versions)
        origins = self._given.many.get("websockets_origin", [])
        if self._type == "websocket" and origins:
            for given in origins:
                if not is_origin(str(given.value)):
                    text = f"{given.value!r} is no origin, as in https://app.example.com"
                    raise NotConverted(given.line, text)
                report.used.add(given.line)
            where = ", ".join(given.line.where for given in origins)
            yield "websocket_origins", Setting([given.value for given in origins], where)
        else:
            for given in origins:
                report.note(given.line, "it has no effect without protocol websockets")

    def anonymous(self) -> Setting:
        """Whether clients may do without a login."""
        report = self._report
        own = self._single.get("listener_allow_anonymous")
        given = self._conf.general.single.get("allow_anonymous")
        if self._conf.per_listener:
            given = self._single.get("allow_anonymous")
        if given is not None and own is not None:
            report.used.add(given.line)
        given = own or given
        if given is not None:
            return report.setting(given, given.value)
        if self._conf.names_listener:
            return Setting(False, "mosquitto's default")
        return Setting(True, "mosquitto's default if no listener is named")

    def _proxies(self) -> Iterator[tuple[str, Setting]]:
        given = self._single.get("enable_proxy_protocol")
        if given is not None:
            yield "proxy_protocol", self._report.setting(given, True)
            yield "proxy_networks", Setting([f"{LOOPBACK}/32"], "set this to where the proxies are")
            self._report.missing(
                given.line,
                "set proxy_networks to the networks of your proxies: others are closed, and "
                f"{LOOPBACK} is written",
            )

    def _limits(self) -> Iterator[tuple[str, Setting]]:
        report = self._report
        count = self._single.get("max_connections")
        if count is not None and int(count.value) > 0:
            yield "connections_max", report.setting(count, count.value)
        elif count is not None:
            report.missing(
                count.line, "there is always a limit: raise connections_max if 10,000 are too few"
            )
        size = self._conf.general.single.get("max_packet_size")
        if size is not None:
            message = self._conf.general.single.get("message_size_limit")
            most = (int(message.value) if message else 0) or MESSAGE_BYTES_MAX
            most = min(most, MESSAGE_BYTES_MAX) + PACKET_OVERHEAD_BYTES
            if int(size.value) <= most:
                yield "packet_bytes_max", report.setting(size, size.value)

    def _unused(self, names: tuple[str, ...], text: str) -> None:
        """Say of those that are given and not used that they have no effect."""
        for name in names:
            given = self._single.get(name)
            if given is not None and given.line not in self._report.used:
                self._report.note(given.line, text)


def unknown_values(given: ListenerSection) -> Iterator[tuple[Line, str]]:
    """Options of a listener whose word mosquitto does not know."""
    known = {
        "protocol": ("mqtt", "websockets", "http_api"),
        "socket_domain": ("ipv4", "ipv6"),
    }
    for name, values in known.items():
        found = given.single.get(name)
        if found is not None and found.value not in values:
            yield found.line, f"{found.value!r} is none of {', '.join(values)}"
