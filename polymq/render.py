"""The configuration as a commented TOML file and as a table for the documentation."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel

from polymq.bridge_settings import BridgeTopic, MqttBridge
from polymq.listener_settings import MqttListener
from polymq.setting_kinds import Section, reload_of
from polymq.settings import SECTIONS, Settings

COLUMNS = 96
EXAMPLES: Final[Mapping[str, Any]] = {
    "name": "plant",
    "topics": [BridgeTopic(pattern="sensors/#", remote_prefix="plant7/")],
}
"""What stands for a key without a default, where there are no tables."""


def render_toml(settings: Settings) -> str:
    """Every key with its description. What equals the default is commented out."""
    lines = [
        "# PolyMQ's configuration, with every key. Commented lines show the defaults.",
        "# A flag wins over an environment variable (POLYMQ_MQTT__PORT=1884), and that over this",
        "# file. Sizes are in bytes, times in seconds.",
    ]
    for name, model in SECTIONS.items():
        lines += ["", f"# {model.__doc__}", f"[{name}]"]
        for key, field in model.model_fields.items():
            value = getattr(getattr(settings, name), key)
            if _is_tables(value):
                continue
            lines += _wrapped(field.description or "")
            comment = "#" if value == field.default else ""
            lines.append(f"{comment}{key} = {toml_text(value)}")
        if name == "mqtt":
            lines += _tables("mqtt.listeners", MqttListener, settings.mqtt.listeners)
            lines += _tables("mqtt.bridges", MqttBridge, settings.mqtt.bridges)
    return "\n".join(lines) + "\n"


def _is_tables(value: Any) -> bool:
    """Whether the value is a list of tables, which follow their section."""
    return isinstance(value, list) and any(isinstance(item, Section) for item in value)


def _tables(name: str, model: type[Section], tables: Sequence[Section]) -> list[str]:
    """The tables of a list, each with all that is not the default; where there are none, the keys
    that there are."""
    lines = []
    for table in tables:
        lines += ["", f"[[{name}]]"]
        for key, field in model.model_fields.items():
            value = getattr(table, key)
            if value != field.default:
                lines.append(f"{key} = {toml_text(value)}")
    if tables:
        return lines
    lines += ["", *_wrapped(_text_of(model)), f"#   [[{name}]]"]
    for key, field in model.model_fields.items():
        lines += _wrapped(field.description or "")
        default = EXAMPLES.get(key) if field.is_required() else field.default
        lines.append(f"#   {key} = {toml_text(default)}")
    return lines


def _text_of(model: type[Section]) -> str:
    return " ".join((model.__doc__ or "").split())


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, COLUMNS - 2, initial_indent="# ", subsequent_indent="# ")


def render_markdown() -> str:
    """One table a section, for docs/configuration.md."""
    parts = []
    for name, model in SECTIONS.items():
        parts += _markdown_table(f"[{name}]", model)
        if name == "mqtt":
            parts += _markdown_table("[[mqtt.listeners]]", MqttListener)
            parts += _markdown_table("[[mqtt.bridges]]", MqttBridge)
    return "\n".join(parts)


def _markdown_table(name: str, model: type[Section]) -> list[str]:
    parts = [f"## `{name}`", "", _text_of(model), ""]
    parts += ["| key | default | reload | meaning |", "|---|---|---|---|"]
    for key, field in model.model_fields.items():
        text = " ".join((field.description or "").split())
        default = "" if field.is_required() else f"`{toml_text(field.default)}`"
        reload = reload_of(model, field).value
        parts.append(f"| `{key}` | {default} | {reload} | {text} |")
    parts.append("")
    return parts


def toml_text(value: Any) -> str:
    """A value as TOML has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, BaseModel):
        pairs = (f"{key} = {toml_text(item)}" for key, item in value.model_dump().items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(toml_text(item) for item in value) + "]"
    if not isinstance(value, str):
        value = str(value)  # a path, a network
    # A JSON string without characters beyond the basic plane is a TOML basic string.
    return json.dumps(value, ensure_ascii=False)
