"""The pages about coming from another broker name settings that exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from polymq.listener_settings import MqttListener
from polymq.settings import Settings, setting_paths

DOCS = Path(__file__).resolve().parents[2] / "docs"
MOSQUITTO, EMQX = DOCS / "migrating-from-mosquitto.md", DOCS / "migrating-from-emqx.md"
SETTING = re.compile(r"`((?:mqtt|server|storage|tls|login)\.[a-z0-9_]+)")


def columns(page: Path, heading: str) -> list[list[str]]:
    """The rows of the table below a heading."""
    text = page.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2]
    rows = [line for line in text.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[1:]]


@pytest.mark.parametrize(
    ("page", "heading", "column"),
    [
        (MOSQUITTO, "Options", 1),
        (MOSQUITTO, "What differs", 2),
        (EMQX, "Keys of the configuration", 1),
        (EMQX, "What differs", 2),
        (EMQX, "Users and permissions", 1),
    ],
)
def test_settings_of_the_tables_exist(page: Path, heading: str, column: int) -> None:
    rows = columns(page, heading)
    assert len(rows) > 10
    found = {name for row in rows for name in SETTING.findall(row[column])}
    assert found
    assert found - set(setting_paths()) == set()


def test_keys_of_listeners_exist() -> None:
    """EMQX's options of listeners begin with dots or with `listeners`."""
    for row in columns(EMQX, "Keys of the configuration"):
        if row[0].startswith(("`...", "`listeners")):
            for name in re.findall(r"`([a-z_]+)`", row[1]):
                assert name in MqttListener.model_fields or name == "websocket", row


@pytest.mark.parametrize("page", [MOSQUITTO, EMQX])
def test_blocks_of_settings_load(page: Path) -> None:
    for block in re.findall(r"```toml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        Settings(**tomllib.loads(block))
