"""Every screen of the console, as its menu has them: as an administrator and as a reader, and with
ten thousand queues."""

from __future__ import annotations

import pika
import pytest

from interop_tests.api_operations import populate
from interop_tests.conftest import Server
from interop_tests.console_browser import Browser, browser, console, needs_chromium, until
from interop_tests.people import PASSWORD, Admin

__all__ = ["browser", "console"]

pytestmark = [pytest.mark.slow(seconds=60), needs_chromium]

QUEUES = 10_000
MENU = "return [...document.querySelectorAll('.q-drawer .q-item__label')].map(one => one.innerText)"
OPEN = (
    "[...document.querySelectorAll('.q-drawer .q-item__label')]"
    ".find(one => one.innerText === arguments[0]).click()"
)
CHANGING = """
const harmless = new Set(['Menu', 'Light or dark', 'Log out', 'Previous page', 'Next page', 'Ask',
                          'audit log', 'other lines', 'Clear', 'Copy']);
return [...document.querySelectorAll('.q-page button')]
  .filter(one => !one.disabled && one.offsetParent !== null)
  .map(one => one.getAttribute('aria-label') || one.innerText.replace(/^[a-z_]+\\n/, '').trim())
  .filter(name => !harmless.has(name));
"""
"""Buttons of a screen that are not known to change nothing."""
LOADED = "return [...document.querySelectorAll('.q-page')].some(one => one.innerText.trim())"
WRONG = """
return [...document.querySelectorAll('.bg-negative, .q-notification')]
  .filter(one => one.tagName !== 'BUTTON' && one.offsetParent !== null)
  .map(one => one.innerText);
"""
"""Errors that are shown: banners and messages."""
DETAILS = (
    "/topics/things",
    "/messages/things",
    "/queues/orders",
    "/waiting/orders",
    "/retained/things%2Fretained",
    "/consumers/queue%3Aorders",
    "/sessions/kept",
    "/users/victim",
    "/connect/things",
)
"""Screens about one object, which no menu has."""


def visit(browser: Browser, title: str) -> None:
    """Open a screen by the menu, and wait until it has asked the broker."""
    browser.driver.execute_script(OPEN, title)
    until(lambda: browser.driver.title.startswith(title), f"the screen {title}")
    settled(browser)


def settled(browser: Browser) -> None:
    """Until what is shown of the broker is there, and stays for a refresh."""
    until(lambda: browser.driver.execute_script(LOADED), "a screen")
    asked = "return performance.now()"
    begin = browser.driver.execute_script(asked)
    until(lambda: browser.driver.execute_script(asked) - begin > 2_500, "a refresh")
    assert browser.driver.execute_script(WRONG) == [], browser.text
    assert browser.severe() == []


@pytest.mark.parametrize("user", ["root", "eve"])
def test_every_screen(server: Server, browser: Browser, user: str) -> None:
    """None shows an error, and a reader finds no button that changes something. (The console's
    fixture looks for tracebacks.)"""
    people = populate(server)
    people.allow("eve", "subscribe", "#")
    browser.open("/")
    browser.log_in(user)
    browser.sees("Overview")
    titles = browser.driver.execute_script(MENU)
    assert len(titles) >= 17
    seen = set()
    for title in titles:
        visit(browser, title)
        seen.update(browser.driver.execute_script(CHANGING))
    for path in DETAILS:
        browser.open(path)
        settled(browser)
        seen.update(browser.driver.execute_script(CHANGING))
    if user == "eve":
        assert seen <= {"Messages", "Connect", "Queue", "Way"}, "they lead to other screens"
    else:
        assert {"Begin", "New topic", "Publish", "Purge", "Delete", "Change settings"} <= seen


def declare_queues(server: Server) -> None:
    """Ten thousand, without a round trip for each."""
    parameters = pika.ConnectionParameters(
        "127.0.0.1", server.amqp_port, credentials=pika.PlainCredentials("root", PASSWORD)
    )
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        for number in range(QUEUES):
            channel.queue_declare(f"q{number:05}", durable=True)


@pytest.mark.slow(seconds=120)
def test_every_screen_with_many_queues(server: Server, browser: Browser) -> None:
    """The same, where there is very much to show."""
    people = Admin(server)
    people.add("root", "admin")
    declare_queues(server)
    browser.open("/")
    browser.log_in("root")
    browser.sees("Overview")
    for title in browser.driver.execute_script(MENU):
        visit(browser, title)
    browser.open("/queues")
    browser.sees("1 to 50 of 10,000")
    browser.click("Next page")
    browser.sees("51 to 100 of 10,000")
