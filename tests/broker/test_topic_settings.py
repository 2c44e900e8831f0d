"""Settings of topics: a topic's own value wins over the broker's default, and survives."""

from __future__ import annotations

import pytest

from polymq.broker.errors import Reason, Refused
from polymq.broker.port import Durability
from polymq.broker.topics.settings import (
    DEFAULT,
    SECONDS_MAX,
    SETTING_NAMES,
    TopicSettings,
    parse_settings,
)
from tests.harness.broker import Broker


def settings_of(broker: Broker, name: str = "t") -> TopicSettings:
    return broker.engine.topics.topics[name].settings


def test_a_new_topic_has_the_brokers_defaults(broker: Broker) -> None:
    broker.port.topics.create("t", 1)
    info = broker.port.topics.info("t")
    assert info is not None
    assert info.settings == {
        "durability": "fsync",
        "retention_seconds": 259_200,
        "retention_bytes": 0,
        "min_in_sync": 1,
    }
    assert info.own_settings == ()


def test_nobody_speaks_in_the_servers_name(broker: Broker) -> None:
    """MQTT's `$SYS` is no topic, whoever publishes there."""
    with pytest.raises(Refused) as made:
        broker.port.topics.create("$SYS", 1, {})
    with pytest.raises(Refused) as published:
        broker.template("$SYS", "broker.uptime")
    assert made.value.reason is published.value.reason is Reason.FORBIDDEN
    broker.template("$other", "x")


def test_every_setting_is_told_and_can_be_typed(broker: Broker) -> None:
    """What `values` writes, `parse_settings` and `with_values` take."""
    settings = TopicSettings(
        durability=Durability.APPENDED,
        retention_seconds=60,
        retention_bytes=1 << 30,
        min_in_sync=2,
    )
    texts = {name: str(value) for name, value in settings.values().items()}
    assert tuple(texts) == SETTING_NAMES
    broker.port.topics.create("t", 1, texts)
    assert settings_of(broker) == settings


@pytest.mark.parametrize("saved", [True, False], ids=["from state.db", "from the log"])
def test_what_was_chosen_survives_a_restart(broker: Broker, saved: bool) -> None:
    broker.port.topics.create("t", 2, {"retention_bytes": "5"})
    broker.port.topics.set("t", {"retention_seconds": "60", "durability": "page_cache"})
    broker.port.topics.set("t", {"durability": DEFAULT})
    broker.step(1)
    if saved:
        broker.restart()
    else:
        broker.kill()
        broker.open()
    assert settings_of(broker) == TopicSettings(retention_seconds=60, retention_bytes=5)
    info = broker.port.topics.info("t")
    assert info is not None
    assert set(info.own_settings) == {"retention_seconds", "retention_bytes"}


def test_a_changed_default_reaches_topics_that_nobody_touched(broker: Broker) -> None:
    broker.port.topics.create("t", 1)
    broker.port.topics.create("own", 1, {"retention_seconds": "60"})
    broker.topic_defaults = TopicSettings(retention_seconds=7, retention_bytes=8)
    broker.restart()
    assert settings_of(broker) == TopicSettings(retention_seconds=7, retention_bytes=8)
    assert settings_of(broker, "own") == TopicSettings(retention_seconds=60, retention_bytes=8)


def test_a_setting_of_a_later_version_is_ignored_and_kept(broker: Broker) -> None:
    broker.port.topics.create("t", 1)
    broker.engine.core.journal.write({"op": "topic=", "name": "t", "set": {"colour": "red"}})
    assert settings_of(broker) == TopicSettings()
    broker.restart()
    row = broker.engine.topics.row("t")
    assert row is not None
    assert row["set"] == {"colour": "red"}


def test_a_change_of_a_topic_that_is_gone_is_refused(broker: Broker) -> None:
    with pytest.raises(Refused) as refusal:
        broker.port.topics.set("t", {"retention_seconds": "1"})
    assert refusal.value.reason is Reason.NOT_FOUND


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("retention", "1", "a topic has no setting 'retention': use durability, retention_seconds"),
        ("durability", "disk", "durability is fsync or page_cache, not 'disk'"),
        ("retention_seconds", "72h", "retention_seconds is a whole number of seconds up to"),
        ("retention_seconds", "-1", "not '-1'"),
        ("retention_seconds", str(SECONDS_MAX + 1), "up to"),
        ("retention_bytes", "9" * 5000, "retention_bytes is a whole number of bytes up to"),
        ("retention_bytes", "٣", "not '٣'"),
    ],
)
def test_a_wrong_setting_is_one_sentence(
    broker: Broker, name: str, text: str, sentence: str
) -> None:
    """And nothing of the request happens, also not what was right in it."""
    with pytest.raises(Refused) as refusal:
        broker.port.topics.create("t", 1, {"retention_bytes": "5", name: text})
    assert refusal.value.reason is Reason.BAD_ARGUMENT
    assert sentence in refusal.value.text
    assert broker.port.topics.info("t") is None
    broker.port.topics.create("t", 1)
    with pytest.raises(Refused):
        broker.port.topics.set("t", {name: text})
    assert settings_of(broker) == TopicSettings()


def test_default_means_no_own_value() -> None:
    assert parse_settings({"retention_bytes": DEFAULT}) == {"retention_bytes": None}
