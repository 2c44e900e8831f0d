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


LONG = "\u00e4" * 32_768
"""One byte more than a text of MQTT may have."""


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"user": LONG}, "bridge up: user has 65536 bytes: MQTT has no room for more"),
        ({"user": "a\0"}, "bridge up: user has the character U+0000"),
        ({"user": "u", "password": LONG}, "bridge up: password has 65536 bytes"),
        ({"user": "u", "password": "\ud800"}, "bridge up: password is not UTF-8"),
        ({"client_id": "c\0"}, "bridge up: client_id has the character U+0000"),
        ({"client_id": "c" * 257}, "client_id: string should have at most 256"),
        (
            {"notifications": True, "notification_topic": LONG},
            "bridge up: notification_topic has 65536 bytes",
        ),
        ({"topics": [{"pattern": LONG}]}, "is no topic filter: a topic filter has 1 to 65,535"),
        (
            {"topics": [{"pattern": "#", "remote_prefix": "p" * 65_532 + "/"}]},
            "is no topic filter: a topic filter has 1 to 65,535",
        ),
    ],
)
def test_what_no_packet_can_have(more: dict[str, Any], reason: str) -> None:
    text = refusal(bridge(**more))
    assert reason in text
    assert "\u00e4" * 101 not in text


def test_what_a_packet_can_just_have() -> None:
    most = "\u00e4" * 32_767 + "x"
    topics = [{"pattern": "#", "remote_prefix": "p" * 65_531 + "/"}]
    state = {"notifications": True, "notification_topic": most}
    load(bridge(user=most, password=most, topics=topics, **state))
    load(bridge(user="u", password="a\0"))


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("", "'' names no host"),
        ("mqtt://x", "'mqtt://x' is a URL: the name of the host is wanted, without a scheme"),
        ("x:1883", "nor an IP address: the port is a setting of its own, and an"),
        ("[::1]", "an IPv6 address has no brackets"),
        ("::1]", "is neither"),
        ("a b", "'a b' names no host: it has a character that no name has"),
        ("a\nb", "names no host: it has a character"),
        ("a/b", "names no host: it has a character"),
        ("user@host", "names no host: it has a character"),
        ("a..b", "names no host: a part of it is empty or too long"),
        ("a" * 64, "names no host: a part of it is empty or too long"),
        ("a" * 300, "names no host: a part of it is empty or too long"),
        ("a." * 127, "names no host: a part of it is empty or too long"),
    ],
)
def test_what_is_no_host(host: str, reason: str) -> None:
    text = refusal(bridge(host=host))
    assert text.startswith("option: mqtt.bridges[0]: bridge up: host: ")
    assert reason in text
    if host and ":" not in host:
        assert "bridge up: fallbacks: " in refusal(bridge(fallbacks=[host]))


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "b.example.com.",
        "10.0.0.1",
        "::1",
        "fe80::1%eth0",
        "a_b",
        "xn--4ca",
        "\u00e4.de",
    ],
)
def test_hosts(host: str) -> None:
    load(bridge(host=host, fallbacks=[host]))


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ({"client_id": "c"}, {"client_id": "c"}),
        ({}, {"client_id": "polymq-up"}),
        ({"client_id": "c", "host": "B.x"}, {"client_id": "c", "host": "b.x.", "port": 1883}),
        ({"client_id": "c", "host": "b.x"}, {"client_id": "c", "fallbacks": ["a", "b.x"]}),
    ],
)
def test_one_client_id_at_one_remote(one: dict[str, Any], two: dict[str, Any]) -> None:
    """The remote broker would disconnect the one when the other connects, for ever."""
    other = {**two, "name": "other"}
    text = refusal(bridge(**one), bridge(**other))
    assert text.startswith("option: mqtt.bridges: the bridges up and other have the client id ")
    for free in ({"enabled": False}, {"client_id": "d"}, {"port": 7, "fallbacks": []}):
        load(bridge(**one), bridge(**{**other, **free}))
    load(bridge(fallbacks=["localhost"]))
