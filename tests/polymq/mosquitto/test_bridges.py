"""Bridges of a mosquitto.conf as bridges of ours."""

from __future__ import annotations

from typing import Any

import pytest

from polymq.mosquitto.conf import Kind
from polymq.settings import Settings
from tests.polymq.mosquitto.test_conf import assert_accounted, remarks, settings_of, written, wrong

BEGIN = "connection up\naddress 10.0.0.1\n"
CARRIED = {"direction": "out", "qos": 0, "local_prefix": "", "remote_prefix": ""}


def bridge_of(text: str) -> dict[str, Any]:
    """The settings of the one bridge; all of them load."""
    settings = settings_of(text)
    Settings(**settings)
    (bridge,) = settings["mqtt"]["bridges"]
    return dict(bridge)


def test_a_bridge_with_everything() -> None:
    """Values, and what mosquitto has by default."""
    text = """connection Plant 7/cloud
address mqtt.example.com:8883
topic sensors/# out 1 "" plant7/
topic "" in 2 alarm plant7/alarm
topic shared both
remote_username ann
remote_password secret
remote_clientid plant7
local_username bridge
bridge_cafile /ca.pem
bridge_certfile /c.pem
bridge_keyfile /k.pem
bridge_protocol_version mqttv50
cleansession true
keepalive_interval 30
restart_timeout 5 40
"""
    conversion = assert_accounted(text)
    assert conversion.remarks == []
    assert written(conversion)["mqtt"]["bridges"] == [
        {
            "name": "plant-7-cloud",
            "host": "mqtt.example.com",
            "port": 8883,
            "topics": [
                {**CARRIED, "pattern": "sensors/#", "qos": 1, "remote_prefix": "plant7/"},
                {
                    "pattern": "",
                    "direction": "in",
                    "qos": 2,
                    "local_prefix": "alarm",
                    "remote_prefix": "plant7/alarm",
                },
                {**CARRIED, "pattern": "shared", "direction": "both"},
            ],
            "tls": True,
            "tls_ca": "/ca.pem",
            "tls_certificate": "/c.pem",
            "tls_key": "/k.pem",
            "notifications": True,
            "user": "ann",
            "password": "secret",
            "client_id": "plant7",
            "local_user": "bridge",
            "protocol_version": "5",
            "clean_start": True,
            "keep_alive_seconds": 30,
            "retry_seconds_max": 40,
        }
    ]
    Settings(**written(conversion))


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("10.0.0.1", ("10.0.0.1", 1883, [])),
        ("10.0.0.1:1884", ("10.0.0.1", 1884, [])),
        ("[::1]:1884", ("::1", 1884, [])),
        ("b.example.com 10.0.0.2:1", ("b.example.com", 1883, ["10.0.0.2:1"])),
        ("b:1 [::1] c", ("b", 1, ["[::1]:1883", "c:1883"])),
    ],
)
def test_where_the_remote_broker_is(address: str, expected: tuple[str, int, list[str]]) -> None:
    bridge = bridge_of(f"connection up\naddress {address}\ntopic a\n")
    assert (bridge["host"], bridge["port"], bridge.get("fallbacks", [])) == expected


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("notifications false\n", None),
        ("notifications_local_only true\n", None),
        ("", True),
        ("notification_topic a/b\n", True),
    ],
)
def test_notifications_are_on_unless_they_were_off(text: str, left: bool | None) -> None:
    assert bridge_of(f"{BEGIN}topic a\n{text}").get("notifications") is left


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("address b:x\ntopic a\n", "the port is not a number"),
        ("address 10.0.0.1\ntopic a\nbridge_identity i\nbridge_psk 1234\n", "pre-shared keys"),
        ("address 10.0.0.1\ntopic a\nbridge_certfile /c.pem\n", "tls_certificate and tls_key"),
        ("address 10.0.0.1\ntopic a/#/b\n", "bridge up"),
        ("address 10.0.0.1\ntopic a\nremote_password p\n", "a password needs a user"),
    ],
)
def test_a_bridge_that_cannot_be_the_same_is_left_out(text: str, reason: str) -> None:
    """It would connect without what kept others out, or carry nothing."""
    conversion = assert_accounted(f"connection up\n{text}")
    assert "bridges" not in written(conversion)["mqtt"]
    (remark,) = remarks(conversion, Kind.MISSING)
    assert remark.startswith("m.conf:1: connection: the bridge 'up' (to line ")
    assert reason in remark


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("connection up\ntopic a\n", 1, "connection: wrong: the bridge has no address"),
        ("connection up\ntopic a\naddress\n", 3, "address: wrong: the bridge has no address"),
        ("connection up\naddress 10.0.0.1\n", 1, "connection: wrong: the bridge has no topic"),
        (f"{BEGIN}topic a\n{BEGIN}topic b\n", 4, "connection: wrong: m.conf:1 has this name, too"),
    ],
)
def test_a_bridge_that_mosquitto_does_not_take_is_wrong(text: str, line: int, problem: str) -> None:
    """As for each line that it does not take, nothing is written."""
    assert remarks(assert_accounted(text), Kind.WRONG) == [f"m.conf:{line}: {problem}"]


@pytest.mark.parametrize(
    "line",
    [
        "topic a to",
        "topic a out 3",
        "topic",
        "bridge_protocol_version mqttv6",
        "keepalive_interval 4",
        "cleansession maybe",
    ],
)
def test_a_wrong_line_is_named(line: str) -> None:
    (found,) = wrong(f"{BEGIN}topic b\n{line}\n")
    assert found.startswith(f"m.conf:4: {line.split(maxsplit=1)[0]}: wrong: ")


def test_names_are_made_to_fit() -> None:
    """Two bridges may have names that become the same."""
    bridges = "".join(
        f"connection {name}\naddress h\ntopic a\n" for name in ("A/B", "a b", "+", "x" * 99)
    )
    found = [one["name"] for one in settings_of(bridges)["mqtt"]["bridges"]]
    assert found == ["a-b", "a-b-2", "bridge", "x" * 32]


def test_what_is_not_the_same_is_said() -> None:
    text = f"{BEGIN}topic a\nbridge_insecure true\nstart_type lazy\ntry_private true\n"
    conversion = assert_accounted(text)
    missing = remarks(conversion, Kind.MISSING)
    assert [remark.split(":")[2].strip() for remark in missing] == ["bridge_insecure", "start_type"]
    assert len(remarks(conversion, Kind.NOTE)) == 1
    assert "tls_insecure" not in written(conversion)["mqtt"]["bridges"][0]
