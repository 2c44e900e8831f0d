"""mosquitto.conf as mosquitto reads it.

Rules, found with 2.0.11 (which values are valid is as in 2.1, where the two differ):

* A line is a comment only if its first character is `#`. A line of blanks is empty.
* The name and its value are divided by blanks, not by tabs. A text is the rest of the line without
  blanks around it, `#` included. Of a number, a truth value or a word, what follows is ignored.
* A text may stand once in its section. Of the others, the last counts.
* `listener` begins a listener. What stands above the first one is the default listener's, on port
  1883, which is opened if there is anything for it. If there is nothing for any listener, clients
  of this machine may connect to port 1883.
* In each file of `include_dir` sections begin anew, and then go on as before in the main file.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from polymq.mosquitto.options import LISTENER_DEFAULTS, Form, Option, Scope, option_named

DEFAULT_PORT: Final = 1883
_PERIODS: Final = {
    "s": 1, "h": 3600, "d": 86_400, "w": 7 * 86_400, "m": 30 * 86_400, "y": 365 * 86_400,
}  # fmt: skip
_BLANKS: Final = " \t\n\v\f\r"

FilesOf = Callable[[str], Sequence[tuple[str, str]]]
"""The files of a directory that mosquitto would include, in its order: name and text. It raises
OSError."""


class Kind(enum.Enum):
    """What a remark is about."""

    NOTE = "note"
    """Nothing is lost."""
    MISSING = "not converted"
    """Clients or operators may notice."""
    WRONG = "wrong"
    """Mosquitto does not know it, or does not take the value."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line with an option.

    Attributes:
        number: from 1.
        rest: what follows the name, as it stands there.
    """

    file: str
    number: int
    name: str
    rest: str

    @property
    def where(self) -> str:
        """File and number."""
        return f"{self.file}:{self.number}"


@dataclass(frozen=True, slots=True)
class Remark:
    """One sentence about a line."""

    kind: Kind
    line: Line
    text: str

    def __str__(self) -> str:
        wrong = "wrong: " if self.kind is Kind.WRONG else ""
        return f"{self.line.where}: {self.line.name}: {wrong}{self.text}"


@dataclass(frozen=True, slots=True)
class Given:
    """A value, and the line that it comes from."""

    value: str | int | bool
    line: Line


@dataclass(slots=True)
class Section:
    """The options of the server, or of one listener. `many` has those that may be repeated."""

    single: dict[str, Given] = field(default_factory=dict)
    many: dict[str, list[Given]] = field(default_factory=dict)

    def text(self, name: str) -> str:
        """A text or word, or nothing."""
        given = self.single.get(name)
        return str(given.value) if given is not None else ""

    def is_true(self, name: str) -> bool:
        """Whether a truth value is given and true."""
        given = self.single.get(name)
        return given is not None and given.value is True

    def all(self) -> Iterator[Given]:
        """Every value."""
        yield from self.single.values()
        for values in self.many.values():
            yield from values


@dataclass(slots=True)
class ListenerSection(Section):
    """A listener.

    Attributes:
        line: where it begins; None: the default listener, or the one of this machine.
        port: 0: a Unix socket.
        host: address or path; empty: all addresses.
    """

    line: Line | None = None
    port: int = DEFAULT_PORT
    host: str = ""


@dataclass(slots=True)
class Bridge:
    """A section `connection`: its first line, and the lines that belong to it."""

    line: Line
    options: list[Line] = field(default_factory=list)


@dataclass(slots=True)
class Conf:
    """What a file says.

    Attributes:
        listeners: in their order, the default listener last.
        local_only: whether there is none, and mosquitto listens for clients of this machine.
        names_listener: whether there is `listener`, `port` or `bind_address`.
        per_listener: whether options of security belong to listeners.
        read: lines that say how the file is read.
    """

    general: Section = field(default_factory=Section)
    listeners: list[ListenerSection] = field(default_factory=list)
    bridges: list[Bridge] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)
    read: list[Line] = field(default_factory=list)
    local_only: bool = False
    names_listener: bool = False
    per_listener: bool = False


class BadValue(ValueError):
    """A value that mosquitto does not take; the text says what it is."""


def lines_of(file: str, text: str) -> Iterator[Line]:
    """The lines of a file that are neither empty nor a comment."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith("#"):
            continue
        name, _, rest = line.rstrip("\r").lstrip(" ").partition(" ")
        if name:
            yield Line(file, number, name, rest)


def read_conf(file: str, text: str, files_of: FilesOf) -> Conf:
    """Read the main file, and those that it includes.

    Args:
        file: its name, for remarks.
        text: bytes that are no UTF-8 as lone surrogates (`surrogateescape`).
    """
    reader = _Reader(files_of)
    reader.read(file, text, is_main=True)
    return reader.finish()


class _Reader:
    def __init__(self, files_of: FilesOf) -> None:
        self._files_of = files_of
        self._conf = Conf()
        self._default = ListenerSection()
        self._has_security = False

    def read(self, file: str, text: str, *, is_main: bool) -> None:
        listener, bridge = self._default, None
        for line in lines_of(file, text):
            option = option_named(line.name)
            try:
                if option is None:
                    raise BadValue("mosquitto has no such option")
                if line.name == "listener":
                    listener = self._listener(line)
                elif line.name in ("port", "bind_address"):
                    listener = self._default
                    self._conf.names_listener = True
                    self._take(listener, option, line)
                elif line.name == "include_dir":
                    self._include(line, is_main=is_main)
                elif line.name == "connection":
                    bridge = self._bridge(line)
                elif option.scope is Scope.BRIDGE:
                    if bridge is None:
                        raise BadValue(
                            "it belongs to a bridge, and no `connection` stands above it"
                        )
                    bridge.options.append(line)
                else:
                    self._take(self._section_of(option, listener), option, line)
            except BadValue as error:
                self._remark(Kind.WRONG, line, str(error))

    def finish(self) -> Conf:
        """What was read, with the default listener if mosquitto opens one."""
        conf = self._conf
        if "port" in self._default.single:
            self._default.port = int(self._default.single["port"].value)
        self._default.host = self._default.text("bind_address")
        if self._opens_default():
            conf.listeners.append(self._default)
        elif not conf.listeners:
            conf.local_only = True
            self._default.host = "127.0.0.1"
            conf.listeners.append(self._default)
        else:
            for given in self._default.all():
                self._remark(
                    Kind.NOTE, given.line, "it has no effect: it stands above the first listener"
                )
        return conf

    def _opens_default(self) -> bool:
        zero = self._default.single.get("allow_zero_length_clientid")
        for given in self._default.all():
            option = option_named(given.line.name)
            if option is None or option.scope is Scope.LISTENER:
                return True
            if given.line.name in LISTENER_DEFAULTS:
                return True
        return zero is not None and zero.value is False

    def _listener(self, line: Line) -> ListenerSection:
        values = [value for value in line.rest.split(" ") if value]
        port = _number(values[0] if values else "", 0, 65_535)
        host = values[1] if len(values) > 1 and not values[1].startswith("#") else ""
        if port == 0 and not host:
            raise BadValue("port 0 is for a Unix socket, and needs its path")
        if len(values) > 2 and host and not values[2].startswith("#"):
            host = " ".join(values[1:])  # mosquitto 2.0 takes it all
        self._conf.names_listener = True
        listener = ListenerSection(line=line, port=port, host=host.strip(_BLANKS))
        self._conf.listeners.append(listener)
        return listener

    def _bridge(self, line: Line) -> Bridge:
        if not line.rest.strip(_BLANKS):
            raise BadValue("there is no name")
        bridge = Bridge(line)
        for other in self._conf.bridges:
            if other.line.rest.strip(_BLANKS) == line.rest.strip(_BLANKS):
                self._remark(Kind.WRONG, line, f"{other.line.where} has this name, too")
        self._conf.bridges.append(bridge)
        return bridge

    def _include(self, line: Line, *, is_main: bool) -> None:
        directory = line.rest.strip(_BLANKS)
        if not directory:
            raise BadValue("there is no value")
        if not is_main:
            raise BadValue("it is valid in the main file only")
        try:
            files = self._files_of(directory)
        except OSError as error:
            raise BadValue(f"cannot read {directory}: {error.strerror or error}") from error
        self._conf.read.append(line)
        for file, text in files:
            self.read(file, text, is_main=False)

    def _section_of(self, option: Option, listener: ListenerSection) -> Section:
        if option.scope is Scope.LISTENER:
            if option.name == "mount_point" and listener is self._default:
                raise BadValue("no `listener` stands above it")
            return listener
        if option.scope is Scope.SECURITY:
            self._has_security = True
            return listener if self._conf.per_listener else self._conf.general
        return self._conf.general

    def _take(self, section: Section, option: Option, line: Line) -> None:
        value = parse_value(option, line.rest)
        given = Given(value, line)
        if line.name == "per_listener_settings":
            if value is True and self._has_security:
                raise BadValue("it has to stand before the other options of security")
            self._conf.per_listener = bool(value)
            self._conf.read.append(line)
        elif option.many:
            section.many.setdefault(option.name, []).append(given)
        else:
            name = "max_qos" if line.name == "maximum_qos" else line.name
            before = section.single.get(name)
            if before is not None and option.form is Form.TEXT:
                raise BadValue(f"it stands in line {before.line.number} already")
            if before is not None:
                text = f"line {line.number} replaces it"
                self._remark(Kind.NOTE, before.line, text)
            section.single[name] = given

    def _remark(self, kind: Kind, line: Line, text: str) -> None:
        self._conf.remarks.append(Remark(kind, line, text))


def parse_value(option: Option, rest: str) -> str | int | bool:
    """The value of an option. Raises BadValue."""
    text = rest.strip(_BLANKS)
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise BadValue("the value is not UTF-8")
    if "\0" in text:
        raise BadValue("the value has a NUL")
    if not text:
        raise BadValue("there is no value")
    if option.name == "mount_point" and {"+", "#"} & set(text):
        raise BadValue("it has a wildcard")
    if option.form in (Form.TEXT, Form.OTHER):
        return text
    word = rest.lstrip(" ").partition(" ")[0]
    if option.form is Form.BOOL:
        if word not in ("true", "false", "1", "0"):
            raise BadValue(f"{word!r} is neither true nor false")
        return word in ("true", "1")
    if option.form is Form.NUMBER:
        return _number(word, option.low, option.high)
    if option.form is Form.PERIOD:
        return _period(word)
    return word


def _number(word: str, low: int, high: int) -> int:
    if re.fullmatch(r"[+-]?[0-9]{1,19}", word) is None:
        raise BadValue(f"{word!r} is not a number")
    value = int(word)
    if not low <= value <= high:
        raise BadValue(f"{value} is not from {low} to {high}")
    return value


def _period(word: str) -> int:
    match = re.fullmatch(r"([0-9]{1,6})([shdwmy])", word)
    if match is None or not int(match[1]):
        raise BadValue(f"{word!r} is no number (1 to 999999) with h, d, w, m or y")
    return int(match[1]) * _PERIODS[match[2]]
