"""Dialogs of the console in a real browser: one of each kind. All others are gone through in
`tests/polymq/cells`, without a browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from interop_tests.conftest import Server
from interop_tests.console_browser import Browser, browser, console, needs_chromium, until
from interop_tests.people import Admin

__all__ = ["browser", "console"]

pytestmark = [pytest.mark.slow(seconds=40), needs_chromium]


def queue(admin: Admin, name: str) -> Any:
    """A queue, or None."""
    status, row = admin.ask("GET", admin.path("queues", name))
    return row if status == 200 else None


def test_a_queue_is_made_and_deleted(server: Server, browser: Browser) -> None:
    """A refusal of the server leaves the dialog with what was typed; then the queue is shown."""
    admin = Admin(server)
    browser.open("/queues")
    browser.click("New queue")
    browser.click("Create")
    browser.sees("Name of the queue is missing")
    browser.fill("Name of the queue", "amq.own")
    browser.click("Create")
    browser.sees("reserved")
    browser.clear("Name of the queue")
    browser.fill("Name of the queue", "orders")
    browser.fill("Messages at most", "7")
    browser.click("Create")
    browser.sees("x-max-length=7")
    assert queue(admin, "orders")["durable"]
    browser.click("Move")
    browser.fill("To the queue", "nowhere")
    browser.click("Move", last=True)
    browser.sees("there is no queue")
    browser.click("Cancel", last=True)
    browser.click("Delete")
    browser.sees("Delete queue orders with 0 messages")
    browser.click("Delete", last=True)
    until(lambda: queue(admin, "orders") is None, "the queue is gone")


def test_a_secret_is_shown_once(server: Server, browser: Browser) -> None:
    """The dialog with a new access key stays until it is closed."""
    admin = Admin(server)
    admin.add("root", "admin")
    browser.open("/login")
    browser.log_in("root")
    browser.sees("Overview")
    browser.open("/users/root")
    browser.sees("Quotas")
    browser.click("New access key")
    browser.click("Create")
    browser.sees("which is not shown again")
    key = admin.good("GET", "/api/v1/users/root")["access_keys"][0]["access_key"]
    browser.sees(key)
    browser.click("Close")
    until(lambda: "not shown again" not in browser.text, "the end of the dialog")
    browser.sees(key)


def test_definitions_are_tried_and_imported(
    server: Server, browser: Browser, tmp_path: Path
) -> None:
    """A file goes from the browser through the console to the broker."""
    admin = Admin(server)
    document = {"format": "polymq-definitions", "version": 1, "topics": [{"name": "imported"}]}
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps(document))
    browser.open("/configuration")
    browser.sees("Definitions")
    (chooser,) = browser.driver.find_elements("css selector", "input[type=file]")
    chooser.send_keys(str(file))
    until(lambda: browser.is_enabled("Try what an import would do"), "the file")
    browser.click("Try what an import would do")
    browser.sees("1 created. Nothing was changed")
    assert admin.ask("GET", "/api/v1/topics/imported")[0] == 404
    browser.click("Import")
    browser.sees("Import the document of")
    browser.click("Import", last=True)
    until(lambda: admin.ask("GET", "/api/v1/topics/imported")[0] == 200, "the topic")
    file.write_text("no definitions")
    browser.open("/configuration")
    browser.sees("Definitions")
    (chooser,) = browser.driver.find_elements("css selector", "input[type=file]")
    chooser.send_keys(str(file))
    until(lambda: browser.is_enabled("Try what an import would do"), "the file")
    browser.click("Try what an import would do")
    until(lambda: browser.driver.find_elements("css selector", ".q-notification"), "a refusal")
