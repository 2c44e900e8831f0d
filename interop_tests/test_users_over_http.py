"""What users have over HTTP, and what is left of it when rights, passwords or names change."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from interop_tests.conftest import Server, StartServer
from interop_tests.people import Admin, basic, http_ask, http_publish
from interop_tests.test_http_webhooks import LOOPBACK, Receiver, receiver, webhook_metrics

__all__ = ["receiver"]  # a fixture


@pytest.fixture
def server(start_server: StartServer) -> Server:
    """A server that may reach webhooks on this machine, with an administrator and ann, who has
    all rights in the topic `a`."""
    found = start_server(**LOOPBACK)
    people = Admin(found)
    people.add("root", "admin")
    add_ann(people)
    return found


def add_ann(people: Admin) -> None:
    people.add("ann")
    people.allow("ann", "subscribe,publish,create", "a.#")


def put(server: Server, user: str, name: str, **members: Any) -> int:
    body = json.dumps({"topic": "a", **members}).encode()
    return http_ask(server, "PUT", f"/subscriptions/{name}", body, basic(user))[0]


@pytest.mark.parametrize(
    ("how", "status"), [("deny", 403), ("disable", 401), ("password", 401), ("another", 401)]
)
@pytest.mark.slow
def test_an_answer_that_waited_is_for_who_may_have_it_then(
    server: Server, how: str, status: int
) -> None:
    """A request that waits for messages is checked again before it gets some: its right, and
    whether it is still of that user. They go to the next that asks."""
    people = Admin(server)
    assert put(server, "ann", "s") == 201
    path = "/topics/a/subscriptions/s:receive?maxWaitTime={}"
    with socket.create_connection((server.host, server.http_port), timeout=20) as waiting:
        head = f"POST {path.format(20)} HTTP/1.1\r\nHost: x\r\nAuthorization: {basic('ann')}\r\n"
        waiting.sendall(f"{head}Content-Length: 0\r\n\r\n".encode())
        # A second request, answered, says that the first was taken up.
        assert http_ask(server, "POST", path.format(0), None, basic("ann"))[0] == 200
        if how == "deny":
            people.deny("ann", "subscribe", "a.#")
        elif how == "disable":
            people.change("ann", disabled=True)
        elif how == "password":
            people.change("ann", password="another")
        else:
            people.good("DELETE", "/api/v1/users/ann")
            people.add("ann", password="another")
            people.allow("ann", "subscribe", "a.#")
        assert http_publish(server, "a", "x", b"secret", basic("root")) == 204
        answer = waiting.recv(10_000)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer
    assert b"secret" not in answer
    _, _, received = http_ask(server, "POST", path.format(5), None, basic("root"))
    assert [one["event"]["data"] for one in received["value"]] == ["secret"]


@pytest.mark.slow
def test_subscriptions_of_a_deleted_user_are_not_its_namesakes(
    server: Server, receiver: Receiver
) -> None:
    """Who is called as their owner was may not change or delete them, and does not see the keys in
    the URL of a webhook; nor does that deliver in the new user's name."""
    people = Admin(server)
    sink = f"{receiver.url}?sig=key"
    assert put(server, "ann", "pulled") == 201
    assert put(server, "ann", "hook", sink=sink) == 201
    assert put(server, "ann", "hook", sink=sink) == 200  # while it is its owner's
    people.good("DELETE", "/api/v1/users/ann")
    add_ann(people)
    for restart in (False, True):
        if restart:
            server.restart()
        for name in ("pulled", "hook"):
            assert put(server, "ann", name) == 403
            path = f"/subscriptions/{name}"
            assert http_ask(server, "DELETE", path, None, basic("ann"))[0] == 403
        shown = http_ask(server, "GET", "/subscriptions/hook", None, basic("ann"))[2]
        assert "sig=key" not in json.dumps(shown)
        assert shown["status"]["state"] == "disabled"


def test_a_webhook_has_the_rights_of_who_stored_it(server: Server, receiver: Receiver) -> None:
    """Without them it is disabled and its queue goes on collecting; who stores it again, and may
    read it, gets what waited."""
    people = Admin(server)
    assert put(server, "ann", "hook", sink=receiver.url) == 201
    assert http_publish(server, "a", "x", b"1", basic("ann")) == 204
    assert receiver.next_event().get_data() == "1"
    delivered = 'polymq_webhook_requests_total{result="delivered"}'
    while webhook_metrics(server).get(delivered, 0) < 1:
        pass  # an answer that is on its way when the right goes no longer counts
    people.deny("ann", "subscribe", "a.secret")
    shown = http_ask(server, "GET", "/subscriptions/hook", None, basic("root"))[2]
    assert shown["status"]["state"] == "disabled"
    assert "store it again" in shown["status"]["reason"]
    assert http_publish(server, "a", "x", b"2", basic("ann")) == 204
    people.forget({"subject": "ann", "action": "subscribe", "topic": "a.secret"})
    assert http_publish(server, "a", "x", b"3", basic("ann")) == 204
    server.restart()
    assert receiver.deliveries.empty()  # the right alone does not make it work again
    assert put(server, "root", "hook", sink=receiver.url) == 200
    assert [receiver.next_event().get_data() for _ in range(2)] == ["2", "3"]
