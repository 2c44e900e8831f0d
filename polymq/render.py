"""The configuration as a commented TOML file and as a table for the documentation."""

from __future__ import annotations

import json
import textwrap
from typing import Any

from polymq.settings import SECTIONS, Settings

COLUMNS = 96


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
            lines += textwrap.wrap(field.description or "", COLUMNS - 2, initial_indent="# ",
                                   subsequent_indent="# ")  # fmt: skip
            comment = "#" if value == field.default else ""
            lines.append(f"{comment}{key} = {_toml(value)}")
    return "\n".join(lines) + "\n"


def render_markdown() -> str:
    """One table a section, for docs/configuration.md."""
    parts = []
    for name, model in SECTIONS.items():
        parts += [f"## `[{name}]`", "", model.__doc__ or "", ""]
        parts += ["| key | default | meaning |", "|---|---|---|"]
        for key, field in model.model_fields.items():
            text = " ".join((field.description or "").split())
            parts.append(f"| `{key}` | `{_toml(field.default)}` | {text} |")
        parts.append("")
    return "\n".join(parts)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if not isinstance(value, str):
        value = str(value)  # a path, a network
    # A JSON string without characters beyond the basic plane is a TOML basic string.
    return json.dumps(value, ensure_ascii=False)
