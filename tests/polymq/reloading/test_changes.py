"""What of a changed configuration a reload applies, and what it only names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import SecretStr

from polymq.bridge_settings import BridgeTopic, MqttBridge
from polymq.errors import Failure
from polymq.listener_settings import MqttListener
from polymq.reloading.changes import TABLES, changes_between, with_changes
from polymq.setting_kinds import Reload, Section, reload_of
from polymq.settings import SECTIONS, Settings, TlsSettings

BASE = Settings.model_validate(
    {
        "mqtt": {
            "session_queue_max": 10,
            "session_queue_bytes_max": 10,
            "listeners": [MqttListener(name="plant")],
            "bridges": [MqttBridge(name="up", topics=[BridgeTopic()])],
        }
    }
)
ELSE = object()
"""A value that no setting has: what is compared need not be valid."""


def all_settings() -> Iterator[tuple[str, type[Section], str]]:
    """(section, its model, key) of every setting, those of tables included."""
    for section, model in SECTIONS.items():
        for key in model.model_fields:
            if section != "mqtt" or key not in TABLES:
                yield section, model, key
    for key in MqttListener.model_fields:
        yield "mqtt.listeners[plant]", MqttListener, key
    for key in MqttBridge.model_fields:
        yield "mqtt.bridges[up]", MqttBridge, key


def changed(section: str, key: str, value: Any) -> Settings:
    """The base with one other value."""
    top, _, table = section.partition(".")
    old = getattr(BASE, top)
    if not table:
        return BASE.model_copy(update={top: old.model_copy(update={key: value})})
    name = table.partition("[")[0]
    tables = [getattr(old, name)[0].model_copy(update={key: value})]
    return BASE.model_copy(update={top: old.model_copy(update={name: tables})})


@pytest.mark.parametrize(("section", "model", "key"), list(all_settings()))
def test_every_setting_is_applied_or_named(section: str, model: type[Section], key: str) -> None:
    """None is forgotten: a change of any setting is found, by its name, once, and as its mark
    says."""
    if key == "name" and section != "replication":
        wanted = changed(section, key, "other")
        names = [change.name for change in changes_between(BASE, wanted)]
        assert names == [section, section.partition("[")[0] + "[other]"]
        return
    (change,) = changes_between(BASE, changed(section, key, ELSE))
    assert change.name == f"{section}.{key}"
    switches_on = change.name in SWITCHED_ON
    expected = Reload.RESTART if switches_on else reload_of(model, model.model_fields[key])
    assert change.reload is expected


SWITCHED_ON = {
    *(f"tls.{key}" for key in ("certificate", "key", "client_ca", "crl")),
    *(f"jwt.{key}" for key in ("secret_file", "public_key_file", "jwks_file", "jwks_url")),
    *(f"{name}.{key}" for name in ("login_service", "permission_service") for key in ("url",)),
    "telemetry.endpoint",
}
"""Settings of parts that the base does not have: one of them switches the part on."""


def test_what_is_the_same_is_no_change() -> None:
    assert changes_between(BASE, BASE) == []
    assert with_changes(BASE, changed("mqtt", "port", 7), []) is BASE


def test_a_table_that_comes_or_goes_needs_a_restart() -> None:
    gone = BASE.model_copy(
        update={"mqtt": BASE.mqtt.model_copy(update={"listeners": [], "bridges": []})}
    )
    for old, new in ((BASE, gone), (gone, BASE)):
        found = changes_between(old, new)
        assert [change.name for change in found] == ["mqtt.listeners[plant]", "mqtt.bridges[up]"]
        assert not any(change.is_applied for change in found)


def test_only_what_is_applied_is_taken_over() -> None:
    """Of a section and of a table in it."""
    wanted = Settings.model_validate(
        {
            "mqtt": {
                "port": 1999,
                "inflight_max": 7,
                "session_queue_max": 20,
                "session_queue_bytes_max": 30,
                "listeners": [
                    MqttListener(name="new"),
                    MqttListener(name="plant", port=1998, connections_max=3),
                ],
            }
        }
    )
    found = with_changes(BASE, wanted, changes_between(BASE, wanted)).mqtt
    assert (found.port, found.inflight_max, found.session_queue_max) == (1883, 7, 20)
    (listener,) = found.listeners
    assert (listener.name, listener.port, listener.connections_max) == ("plant", 0, 3)
    assert [bridge.name for bridge in found.bridges] == ["up"]


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("tls", "certificate", "/new.pem"),
        ("jwt", "secret_file", "/secret"),
        ("login_service", "url", "http://127.0.0.1/"),
        ("mqtt", "session_queue_max", 0),
        ("mqtt", "session_queue_bytes_max", 0),
        ("mqtt", "sys_interval_seconds", 0.0),
    ],
)
def test_what_is_switched_on_or_off_needs_a_restart(section: str, key: str, value: object) -> None:
    """Though another value of the same setting would be applied."""
    (change,) = changes_between(BASE, changed(section, key, value))
    assert change.reload is Reload.RESTART
    assert with_changes(BASE, changed(section, key, value), [change]) is BASE


def test_files_of_tls_that_is_on_are_applied() -> None:
    old = BASE.model_copy(update={"tls": TlsSettings(certificate="/a.pem", key="/a.key")})
    new = BASE.model_copy(update={"tls": TlsSettings(certificate="/b.pem", key="/a.key")})
    (change,) = changes_between(old, new)
    assert change.reload is Reload.NEW_CONNECTIONS
    assert with_changes(old, new, [change]).tls.certificate == "/b.pem"


def test_secrets_are_not_shown() -> None:
    (change,) = changes_between(BASE, changed("mqtt.bridges[up]", "password", SecretStr("hunter2")))
    assert (change.old, change.new) == ("(secret)", "(secret)")


def test_of_a_long_value_the_beginning_is_shown() -> None:
    (change,) = changes_between(BASE, changed("sink", "topics", ["x" * 9_000]))
    assert len(change.new) < 250
    assert change.new.endswith("...")


def test_what_does_not_fit_together_is_refused() -> None:
    """A bridge with four levels, and a new limit of two: the bridge changes with a restart only."""
    deep = BridgeTopic(pattern="a/b/c/d")
    mqtt = BASE.mqtt.model_copy(update={"bridges": [MqttBridge(name="up", topics=[deep])]})
    old = BASE.model_copy(update={"mqtt": mqtt})
    new = changed("mqtt", "topic_levels_max", 2)
    with pytest.raises(Failure, match=r"mqtt: .*topic_levels_max.*restart the server"):
        with_changes(old, new, changes_between(old, new))
