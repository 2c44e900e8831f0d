"""Screens of the console that change something: traces, topics, the log, and a first message."""

from __future__ import annotations

import json

import pytest

from interop_tests import mqtt_wire
from interop_tests.conftest import Server
from interop_tests.console_browser import Browser, browser, console, needs_chromium, until
from interop_tests.mqtt_raw_client import RawClient
from interop_tests.people import Admin

__all__ = ["browser", "console"]

pytestmark = [pytest.mark.slow(seconds=40), needs_chromium]


def test_a_trace_shows_packets_and_ends_with_its_tab(server: Server, browser: Browser) -> None:
    """Packets of a client come while it sends them. The broker traces no more when the tab leaves
    the screen."""
    admin = Admin(server)
    client = RawClient.connected(server.mqtt_port, "device7")
    browser.open("/traces")
    browser.sees("No trace runs in this tab.")
    browser.click("Begin")
    browser.sees("name the client identifier to trace")
    browser.fill("Which", "device7")
    browser.click("Begin")
    browser.sees("TRACED")
    client.send(mqtt_wire.publish("things/a", b"secret body", qos=1, packet_id=1))
    client.expect(mqtt_wire.puback(1))
    browser.sees("PUBLISH  things/a")
    assert "secret body" not in browser.text, "payloads are shown only where they were asked for"
    assert admin.good("GET", "/api/v1/mqtt/traces")["total"] == 1
    browser.open("/limits")
    until(lambda: admin.good("GET", "/api/v1/mqtt/traces")["total"] == 0, "the end of the trace")
    browser.open("/traces")
    browser.fill("Which", "device7")
    browser.click("Begin")
    browser.sees("TRACED")
    browser.click("End")
    browser.sees("The trace has ended")
    until(lambda: admin.good("GET", "/api/v1/mqtt/traces")["total"] == 0, "the end of the trace")
    client.disconnect()


def test_a_flood_of_packets_is_cut(server: Server, browser: Browser) -> None:
    """What comes faster than a person reads is left out, and the tab keeps a bounded number."""
    client = RawClient.connected(server.mqtt_port, "flood")
    browser.open("/traces")
    browser.fill("Which", "flood")
    browser.click("Begin")
    browser.sees("TRACED")
    for number in range(1, 2_001):
        client.send(mqtt_wire.publish(f"things/{number}", b"x", qos=1, packet_id=number))
        client.expect(mqtt_wire.puback(number))
    browser.sees("left out because they came too fast")
    until(lambda: "4,001 lines" in browser.text, "all lines are counted")
    shown = browser.driver.execute_script(
        "return document.querySelectorAll('.nicegui-log > *').length"
    )
    assert 0 < shown <= 500
    client.disconnect()


def test_a_topic_from_its_creation_to_its_end(server: Server, browser: Browser) -> None:
    """An administrator creates a topic, changes a setting, takes it back, and deletes it, which
    wants the name typed."""
    admin = Admin(server)
    browser.open("/topics")
    browser.click("New topic")
    browser.fill("Name of the topic", "orders")
    browser.click("Create")
    browser.sees("Topic orders")
    assert admin.good("GET", "/api/v1/topics/orders")["own_settings"] == []
    browser.click("Change settings")
    browser.fill("retention_seconds", "many")
    browser.click("Save")
    browser.sees("retention_seconds is a whole number of seconds")
    browser.clear("retention_seconds")
    browser.fill("retention_seconds", "7200")
    browser.click("Save")
    browser.sees("The settings are stored.")
    row = admin.good("GET", "/api/v1/topics/orders")
    assert row["own_settings"] == ["retention_seconds"]
    assert row["settings"]["retention_seconds"] == 7200
    browser.sees("this topic")
    browser.click("Change settings")
    browser.clear("retention_seconds")
    browser.click("Save")
    until(lambda: "this topic" not in browser.text, "the broker's default")
    assert admin.good("GET", "/api/v1/topics/orders")["own_settings"] == []
    browser.click("Delete")
    browser.sees("Delete topic orders with 0 messages?")
    assert not browser.is_enabled("Delete", last=True)
    browser.fill("Type orders to go on", "orders")
    until(lambda: browser.is_enabled("Delete", last=True), "the button")
    browser.click("Delete", last=True)
    until(lambda: admin.ask("GET", "/api/v1/topics/orders")[0] == 404, "the topic is gone")


def test_a_ban_is_removed(server: Server, browser: Browser) -> None:
    """By the button of its row."""
    admin = Admin(server)
    admin.good("POST", "/api/v1/bans", {"kind": "client_id", "value": "bad one"})
    browser.open("/bans")
    browser.sees("bad one")
    browser.click("Remove")
    browser.sees("Remove the ban of client_id bad one?")
    browser.click("Remove", last=True)
    until(lambda: admin.good("GET", "/api/v1/bans")["total"] == 0, "the ban is gone")
    assert json.dumps(browser.severe()) == "[]"


def test_the_log_is_searched(server: Server, browser: Browser) -> None:
    """The audit log first, by user; then the rest by severity."""
    admin = Admin(server)
    browser.open("/log")
    admin.good("PUT", "/api/v1/topics/orders", {})
    browser.sees("topic created")
    admin.good("POST", "/api/v1/bans", {"kind": "user", "value": "mallory"})
    browser.sees("ban added")
    browser.fill("With the text", "MALLORY")
    until(lambda: "topic created" not in browser.text, "only lines with the text")
    browser.sees("ban added")
    browser.click("other lines")
    browser.sees("Logger")
    until(lambda: "ban added" not in browser.text, "the other lines")
    assert not browser.severe()
