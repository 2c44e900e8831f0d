"""Settings of bridges to other MQTT brokers, and what a user reads who got them wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from polymq.errors import ExitCode, Failure
from polymq.settings import load_settings


@pytest.fixture(autouse=True)
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No polymq.toml of the tree takes part."""
    monkeypatch.chdir(tmp_path)


def bridge(**more: Any) -> dict[str, Any]:
    return {"name": "up", "topics": [{"pattern": "a/#"}], **more}


def load(*bridges: dict[str, Any], **mqtt: Any) -> None:
    load_settings(flags={"mqtt": {"bridges": list(bridges), **mqtt}})


def refusal(*bridges: dict[str, Any], **mqtt: Any) -> str:
    """One line, which is not long."""
    with pytest.raises(Failure) as caught:
        load(*bridges, **mqtt)
    assert caught.value.code == ExitCode.USAGE
    assert "\n" not in caught.value.text
    assert len(caught.value.text) < 350
    return caught.value.text


def test_a_pattern_has_as_many_levels_as_topics_may_have() -> None:
    """Behind its local prefix. What the remote broker takes is its own matter."""
    for direction in ("out", "in"):
        rule = {"direction": direction, "local_prefix": "p/", "pattern": "/".join("a" * 127)}
        load(bridge(topics=[rule]))
        load(bridge(topics=[{**rule, "remote_prefix": "x/" * 9}]))
        rule["pattern"] += "/b"
        text = refusal(bridge(topics=[rule]))
        assert "bridge up: 'p/a/a" in text
        assert "...' has more than 128 levels (mqtt.topic_levels_max)" in text
    text = refusal(bridge(), topic_levels_max=1)
    assert text == "option: mqtt: bridge up: 'a/#' has more than 1 levels (mqtt.topic_levels_max)"
