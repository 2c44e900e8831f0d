"""Converted settings as a TOML file with comments."""

from __future__ import annotations

import json
import textwrap
import tomllib
from typing import Any

from polymq.mosquitto.listeners import Setting
from polymq.mosquitto.settings import Conversion
from polymq.settings import Settings
from polymq.terminal import printable

COLUMNS = 96


def write_toml(conversion: Conversion, file: str) -> str:
    """The file for `polymq serve --config`, checked with the model of the settings.

    Args:
        file: mosquitto's file, for the first line.
    """
    begin = f"{file}:"
    lines = [
        f"# Converted from {printable(file)}. The comments name the lines of mosquitto's file."
    ]
    for name, settings in conversion.sections.items():
        lines += ["", f"[{name}]", *_lines(settings, begin)]
    for name, tables in (("listeners", conversion.listeners), ("bridges", conversion.bridges)):
        for table in tables:
            lines += ["", f"[[mqtt.{name}]]", f"# {_comment(table.why, begin)}"]
            lines += _lines(table.settings, begin)
    if conversion.steps:
        lines += ["", "# To do when the server runs:"]
        for command, why in conversion.steps:
            lines += [f"#   {printable(command)}", *_wrapped(f"({_comment(why, begin)})")]
    text = "\n".join(lines) + "\n"
    Settings(**tomllib.loads(text))
    return text


def _comment(why: str, begin: str) -> str:
    """Lines of the main file by their number alone."""
    return printable(why.replace(begin, "line "))


def _lines(settings: dict[str, Setting], begin: str) -> list[str]:
    lines = []
    for key, setting in settings.items():
        comment = f"  # {_comment(setting.why, begin)}" if setting.why else ""
        lines.append(f"{key} = {_toml(setting.value)}{comment}")
    return lines


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(
        printable(text), COLUMNS, initial_indent="#     ", subsequent_indent="#     "
    )


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
