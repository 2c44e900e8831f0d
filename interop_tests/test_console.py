"""The console in a browser: what an operator sees and does, and what a reader cannot do."""

from __future__ import annotations

import os
import subprocess
import sys

import pika
import pytest

from interop_tests.conftest import Server
from interop_tests.console_browser import Browser, browser, console, needs_chromium, until
from interop_tests.people import PASSWORD, Admin, MqttClient, polymq

__all__ = ["browser", "console"]

pytestmark = [pytest.mark.slow(seconds=20), needs_chromium]


def fill_queue(server: Server, user: str = "", name: str = "orders") -> None:
    credentials = pika.PlainCredentials(user or "guest", PASSWORD)
    parameters = pika.ConnectionParameters(
        host="127.0.0.1", port=server.amqp_port, credentials=credentials
    )
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare(name, durable=True)
        for _ in range(3):
            channel.basic_publish("", name, b"x")


def test_an_operator_purges_a_queue_and_a_reader_cannot(server: Server, browser: Browser) -> None:
    """From the login to the queue that is empty. A reader sees the same screen without buttons."""
    people = Admin(server)
    people.add("root", "admin")
    people.add("olga", "operator")
    people.add("eve", "reader")
    fill_queue(server, "root")
    browser.open("/queues/orders")
    browser.sees("Log in")
    browser.log_in("eve", "wrong")
    browser.sees("wrong")
    browser.driver.refresh()
    browser.log_in("eve")
    browser.sees("eve")
    browser.open("/queues/orders")
    browser.sees("3 messages")
    assert not browser.has_button("Purge")
    browser.click("Log out")
    browser.log_in("olga")
    browser.sees("olga")
    browser.open("/queues")
    browser.sees("1 to 1 of 1")
    browser.open("/queues/orders")
    browser.sees("3 messages")
    browser.click("Purge")
    browser.sees("Remove 3 messages from queue orders?")
    browser.click("Purge", last=True)
    browser.sees("0 messages")
    browser.click("Pause")
    browser.sees("by olga")
    browser.click("Resume")
    until(lambda: "by olga" not in browser.text, "the queue that is not paused")


def test_who_administers_one_topic_has_its_buttons(server: Server, browser: Browser) -> None:
    """And those of no other; a path that is no screen is said in words."""
    people = Admin(server)
    for topic in ("orders", "bills"):
        people.good("PUT", f"/api/v1/topics/{topic}")
    people.add("eve", "reader")
    ended = polymq(server, "permission", "allow", "eve", "admin", "orders")
    assert ended.returncode == 0, ended.stderr
    browser.open("/topics/orders")
    browser.sees("Log in")
    browser.log_in("eve")
    browser.sees("eve")
    browser.open("/topics/orders")
    browser.sees("Settings")
    assert browser.has_button("Change settings")
    assert browser.has_button("Delete")
    browser.open("/topics/bills")
    browser.sees("Settings")
    assert not browser.has_button("Change settings")
    assert not browser.has_button("Delete")
    browser.open("/nowhere")
    browser.sees("There is no such screen")
    assert "HTTPException" not in browser.text


def test_a_session_that_is_away_is_not_disconnected(server: Server, browser: Browser) -> None:
    """The button is there while the client is."""
    device = MqttClient(server, client_id="pump-1", clean=False)
    browser.open("/sessions/pump-1")
    browser.sees("connected")
    until(lambda: browser.has_button("Disconnect"), "the button")
    device.close()
    browser.sees("away")
    until(lambda: not browser.has_button("Disconnect"), "no button")
    assert browser.has_button("Delete")


def test_a_broker_that_is_gone_is_said_and_comes_back(server: Server, browser: Browser) -> None:
    """The console goes on, and shows the broker again when it is there again."""
    fill_queue(server)
    browser.open("/queues")
    browser.sees("orders")
    server.kill()
    browser.sees("cannot be asked")
    server.start()
    until(lambda: "cannot be asked" not in browser.text, "the broker again")
    browser.sees("orders")
    assert not [line for line in browser.driver.get_log("browser") if line["level"] == "SEVERE"]


def test_a_page_of_another_name_is_refused(server: Server, console: str) -> None:
    """A name that leads to this machine is not enough (DNS rebinding)."""
    import http.client
    from urllib.parse import urlsplit

    connection = http.client.HTTPConnection(urlsplit(console).netloc)
    connection.request("GET", "/queues", headers={"Host": "evil.example"})
    assert connection.getresponse().status == 403
    connection.close()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--url", "ftp://a"], "--url begins with http:// or https://"),
        (["--ca", os.devnull], "--ca /dev/null has no certificates"),
        (["--host", "192.0.2.1", "--allow-plain"], "192.0.2.1 is not an address of this machine"),
    ],
)
def test_mistakes(options: list[str], text: str) -> None:
    """One line and an exit code."""
    command = [sys.executable, "-m", "polymq", "console", *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode in (2, 71, 74, 73, 69), ended
    assert text in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_the_way_of_a_message(server: Server, browser: Browser) -> None:
    """From a message to its dead letter and back, without the contents of either."""
    parameters = pika.ConnectionParameters("127.0.0.1", server.amqp_port)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.exchange_declare("shop", "topic", durable=True)
        channel.queue_declare("dead", durable=True)
        channel.queue_declare(
            "orders",
            durable=True,
            arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
        )
        channel.queue_bind("orders", "shop", "#")
        channel.basic_publish("shop", "new", b"x", pika.BasicProperties(delivery_mode=2))
        method, _, _ = channel.basic_get("orders")
        channel.basic_reject(method.delivery_tag, requeue=False)
        channel.queue_declare("dead", passive=True)
    browser.open("/messages/shop")
    browser.sees("new")
    browser.click("Way")
    browser.sees("queue:orders")
    browser.sees("dead-lettered")
    browser.sees("The log was read to its end.")
    (linked,) = {line for line in browser.text.splitlines() if "Way of message" in line}
    browser.click(linked)
    browser.sees("Takes the place of")
    browser.sees("dead-lettered (rejected) out of queue:orders")


def test_a_message_is_shown_as_it_is(server: Server, browser: Browser) -> None:
    """With its blanks, and not as a page: it could have pictures that tell its author who looks."""
    body = 'one\n```\n\n<img src="/planted.png">  two\n'
    parameters = pika.ConnectionParameters("127.0.0.1", server.amqp_port)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("texts", durable=True)
        channel.exchange_declare("shop", "topic", durable=True)
        channel.queue_bind("texts", "shop", "#")
        channel.basic_publish("shop", "new", body.encode(), pika.BasicProperties(delivery_mode=2))
    browser.open("/messages/shop")
    browser.sees("new")
    browser.driver.find_element("css selector", ".q-expansion-item .q-item").click()
    browser.sees('```\n\n<img src="/planted.png">  two')
    assert not browser.driver.find_elements("css selector", 'img[src*="planted"]')
