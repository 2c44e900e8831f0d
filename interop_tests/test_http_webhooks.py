"""Webhooks from outside: a receiver of the standard library, events by the cloudevents SDK."""

from __future__ import annotations

import http.client
import json
import queue
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from cloudevents.core.bindings import http as ce

from interop_tests.conftest import Server, StartServer

WAIT_SECONDS_MAX = 20.0
EVENT = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "order.created"}
BATCH = {"Content-Type": "application/cloudevents-batch+json"}
LOOPBACK = {
    "http.webhook_allow_http": True,
    "http.webhook_allow_networks": '["127.0.0.0/8"]',
    "http.webhook_origin": "broker.example",
}


@dataclass
class Receiver:
    """A webhook receiver; `answers` are the statuses of the next deliveries, then 204."""

    url: str = ""
    answers: list[int] = field(default_factory=list)
    deliveries: queue.Queue[tuple[dict[str, str], bytes]] = field(default_factory=queue.Queue)
    handshakes: queue.Queue[dict[str, str]] = field(default_factory=queue.Queue)

    def next_event(self) -> Any:
        """The next delivery as the SDK reads it."""
        headers, body = self.deliveries.get(timeout=WAIT_SECONDS_MAX)
        return ce.from_http_event(ce.HTTPMessage(headers=headers, body=body))

    def next_ids(self, count: int) -> list[str]:
        return [self.next_event().get_id() for _ in range(count)]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_OPTIONS(self) -> None:
            found.handshakes.put({name.lower(): value for name, value in self.headers.items()})
            self.send_response(200)
            self.send_header("WebHook-Allowed-Origin", "broker.example")
            self.send_header("WebHook-Allowed-Rate", "*")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status = found.answers.pop(0) if found.answers else 204
            found.deliveries.put((headers, body))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found.url = f"http://127.0.0.1:{server.server_port}/hook"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield found
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def broker(start_server: StartServer) -> Server:
    """A server that may reach receivers on this machine."""
    return start_server(**LOOPBACK)


def call(
    server: Server, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    try:
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, headers or {})
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text else None
    finally:
        connection.close()


def subscribe(server: Server, receiver: Receiver, **config: Any) -> None:
    body = {"topic": "orders", "sink": receiver.url, "config": config}
    status, answer = call(server, "PUT", "/subscriptions/hook", body)
    assert status in (200, 201), answer


def publish(server: Server, *ids: str) -> None:
    events = [{**EVENT, "id": one, "data": {"id": one}} for one in ids]
    assert call(server, "POST", "/topics/orders", events, BATCH) == (204, None)


def test_events_are_delivered_in_order(broker: Server, receiver: Receiver) -> None:
    """After the handshake; the SDK reads each delivery as the event that was published."""
    subscribe(broker, receiver)
    assert receiver.handshakes.get_nowait()["webhook-request-origin"] == "broker.example"
    ids = [str(n) for n in range(100)]
    publish(broker, *ids)
    for one in ids:
        event = receiver.next_event()
        assert (event.get_id(), event.get_data()) == (one, {"id": one})
        assert event.get_type() == "order.created"


def test_batches_are_delivered(broker: Server, receiver: Receiver) -> None:
    subscribe(broker, receiver, mode="batch", maxBatch=40)
    publish(broker, *(str(n) for n in range(100)))
    got: list[str] = []
    while len(got) < 100:
        headers, body = receiver.deliveries.get(timeout=WAIT_SECONDS_MAX)
        assert headers["content-type"].startswith("application/cloudevents-batch+json")
        ids = [one["id"] for one in json.loads(body)]
        assert len(ids) <= 40
        got += ids
    assert got == [str(n) for n in range(100)]


def test_any_subject_reaches_an_sdk_unchanged(broker: Server, receiver: Receiver) -> None:
    """Spaces, letters outside ASCII, percent signs and a lone double quote."""
    subscribe(broker, receiver)
    subjects = ["s\u00fc bj", "50%", 'q"uo', "plain/one"]
    events = [{**EVENT, "id": str(n), "subject": one, "data": n} for n, one in enumerate(subjects)]
    assert call(broker, "POST", "/topics/orders", events, BATCH) == (204, None)
    assert [receiver.next_event().get_subject() for _ in subjects] == subjects


@pytest.mark.slow
def test_hundreds_of_hung_sinks_delay_no_other_webhook(
    start_server: StartServer, receiver: Receiver
) -> None:
    """As many as there may be requests at once, of one host that takes connections and is silent:
    a webhook that has answered before gets its event while all of them wait."""
    broker = start_server(**LOOPBACK, **{"http.webhook_handshake": False})
    subscribe(broker, receiver)
    publish(broker, "first")
    assert receiver.next_ids(1) == ["first"]
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        config = {"timeoutSeconds": 120}
        for number in range(256):
            body = {"topic": "hung", "sink": url, "config": config}
            assert call(broker, "PUT", f"/subscriptions/hung{number}", body)[0] == 201
        event = {**EVENT, "id": "for all"}
        assert call(broker, "POST", "/topics/hung", [event], BATCH) == (204, None)
        waiting = 0.0
        while waiting < 256 - 32:  # one host has 32 requests under way
            waiting = webhook_metrics(broker)["polymq_webhook_requests_waiting"]
        publish(broker, "a", "b")
        assert receiver.next_ids(2) == ["a", "b"]
        found: dict[str, float] = {}
        while found.get('polymq_webhook_requests_total{result="delivered"}', 0) < 3:
            found = webhook_metrics(broker)  # the last answer may be on its way
        assert found["polymq_webhook_requests_waiting"] == waiting


def webhook_metrics(server: Server) -> dict[str, float]:
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    found = [line.rpartition(" ") for line in lines if line.startswith("polymq_webhook")]
    return {name: float(value) for name, _, value in found}


def test_failures_are_retried_before_the_next(broker: Server, receiver: Receiver) -> None:
    receiver.answers = [500, 503, 204]
    subscribe(broker, receiver, retry={"firstSeconds": 0.05})
    publish(broker, "a", "b")
    assert receiver.next_ids(4) == ["a", "a", "a", "b"]


def test_a_refused_event_is_a_dead_letter(broker: Server, receiver: Receiver) -> None:
    """It can be received from the dead-letter topic, unchanged, with the reason beside it."""
    receiver.answers = [400]
    body = {"topic": "dead", "id": "letters"}
    assert call(broker, "POST", "/subscriptions", body)[0] == 201
    subscribe(broker, receiver, deadLetterTopic="dead")
    publish(broker, "bad", "good")
    assert receiver.next_ids(2) == ["bad", "good"]
    path = "/topics/dead/subscriptions/letters:receive?maxWaitTime=20"
    _, answer = call(broker, "POST", path)
    (letter,) = answer["value"]
    assert letter["event"] == {**EVENT, "id": "bad", "data": {"id": "bad"}}
    assert letter["brokerProperties"]["deadLetter"]["status"] == "400"


def test_delivery_goes_on_after_a_crash(broker: Server, receiver: Receiver) -> None:
    """SIGKILL while the receiver refuses: nothing is lost, the order is kept."""
    subscribe(broker, receiver, retry={"firstSeconds": 0.05, "attemptsMax": 1000})
    receiver.answers = [204, *[503] * 10_000]
    publish(broker, *"abcd")
    assert receiver.next_ids(3) == ["a", "b", "b"]
    broker.kill()
    while not receiver.deliveries.empty():
        assert receiver.next_event().get_id() == "b"
    receiver.answers = []
    broker.restart()
    got = receiver.next_ids(3)
    while got[-1] != "d":
        got += receiver.next_ids(1)
    assert [one for one in got if one != "a"] == ["b", "c", "d"]


def test_stop_and_start(broker: Server, receiver: Receiver) -> None:
    """SIGTERM while it retries: a clean end, and the rest after the start, nothing twice."""
    subscribe(broker, receiver, retry={"firstSeconds": 0.05, "attemptsMax": 1000})
    receiver.answers = [204, *[503] * 10_000]
    publish(broker, *"abc")
    assert receiver.next_ids(2) == ["a", "b"]
    assert broker.terminate() == 0
    while not receiver.deliveries.empty():
        receiver.next_event()
    receiver.answers = []
    broker.restart()
    assert receiver.next_ids(2) == ["b", "c"]


def test_nothing_inside_is_reached_by_default(server: Server, receiver: Receiver) -> None:
    """A server without an allow-list: no spelling of an address in the network is a sink."""
    port = receiver.url.split(":")[2].split("/")[0]
    for host in (
        "http://127.0.0.1",
        "https://127.0.0.1",
        "https://[::1]",
        "https://[::ffff:127.0.0.1]",
        "https://2130706433",
        "https://0x7f.1",
        "https://0177.0.0.1",
        "https://localhost",
        "https://169.254.169.254",
        "https://10.0.0.1",
    ):
        body = {"topic": "orders", "sink": f"{host}:{port}/"}
        status, problem = call(server, "PUT", "/subscriptions/hook", body)
        assert status in (400, 422), problem
        assert receiver.handshakes.empty(), host
    assert call(server, "GET", "/subscriptions") == (200, [])
