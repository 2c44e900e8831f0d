"""What HTTP and RocketMQ clients do while the paced clients are measured."""

from __future__ import annotations

import socket
import threading
from typing import Final

from benchmarks.errors import BenchmarkFailed
from benchmarks.fairness_stage import LARGE_BYTES, Measured, Stage
from benchmarks.fairness_wire import RECEIVE_BYTES, rocketmq_send
from benchmarks.machine import HOST
from polymq.gateways.amqp import spec

BATCHED: Final = "application/cloudevents-batch+json"
STRUCTURED: Final = "application/cloudevents+json"
HTTP_COUNT: Final = 10


def batches(stage: Stage) -> Measured:
    """Ten batches of 4,000 events, each of a type of its own."""
    events = ",".join(
        f'{{"specversion":"1.0","id":"{number}","source":"/bench","type":"t{number}","data":1}}'
        for number in range(stage.sized(4_000))
    )
    return _posts(stage, BATCHED, f"[{events}]".encode())


def large_texts(stage: Stage) -> Measured:
    """Ten events of 16 MiB in JSON, half of whose characters are escaped."""
    text = rb"x\n.." * ((LARGE_BYTES - 1024) // 5 // stage.scale)
    return _posts(stage, STRUCTURED, _event(b'"' + text + b'"'))


def many_values(stage: Stage) -> Measured:
    """Ten events of 16 MiB in JSON, of millions of small values within one another."""
    values = b'[{"a":[1]},{}],' * ((LARGE_BYTES - 1024) // 15 // stage.scale)
    return _posts(stage, STRUCTURED, _event(b"[" + values + b"1]"))


def events_to_amqp(stage: Stage) -> Measured:
    """One AMQP consumer gets a backlog of 40,000 events, whose properties have to be translated."""
    count = 4_000
    batches = stage.sized(10)
    reader = stage.amqp()
    reader.declare("fairness-events-read", durable=True)
    bind = spec.QueueBind(
        queue="fairness-events-read", exchange="fairness-events", routing_key="event"
    )
    reader.call(spec.ExchangeDeclare(exchange="fairness-events", type="topic", durable=True), bind)
    events = ",".join(
        f'{{"specversion":"1.0","id":"{number}","source":"/bench","type":"event","data":"last."}}'
        for number in range(count)
    )
    post = _posts(stage, BATCHED, f"[{events}]".encode(), batches)
    post()
    consume = spec.BasicConsume(queue="fairness-events-read", consumer_tag="c", no_ack=True)

    def measured() -> None:
        reader.call(consume)
        reader.receive(batches * count, b'last."')

    return measured


def _event(data: bytes) -> bytes:
    return b'{"specversion":"1.0","id":"1","source":"/bench","type":"large","data":' + data + b"}"


def _posts(stage: Stage, content_type: str, body: bytes, count: int = HTTP_COUNT) -> Measured:
    """Requests, one after the other."""
    head = (
        f"POST /topics/fairness-events HTTP/1.1\r\nHost: {HOST}\r\n"
        f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    opened = stage.connect("http")
    request = head.encode() + body

    def measured() -> None:
        for _ in range(count):
            opened.sendall(request)
            answer = _answer(opened)
            if not answer.startswith(b"HTTP/1.1 204"):
                raise BenchmarkFailed(f"the server did not take events: {answer[:200]!r}")

    return measured


def _answer(opened: socket.socket) -> bytes:
    """The head of an answer, which has no body where it is good."""
    got = b""
    while b"\r\n\r\n" not in got:
        data = opened.recv(RECEIVE_BYTES)
        if not data:
            raise BenchmarkFailed("the server closed an HTTP connection of the load")
        got += data
    return got


def sends(stage: Stage) -> Measured:
    """20,000 messages in one piece."""
    count = stage.sized(20_000)
    opened = stage.connect("rocketmq")
    sends = b"".join(rocketmq_send("fairness-sends", b"x" * 20, number) for number in range(count))

    def measured() -> None:
        writer = threading.Thread(target=opened.sendall, args=(sends,))
        writer.start()
        got = 0
        rest = b""
        while got < count:
            data = opened.recv(RECEIVE_BYTES)
            if not data:
                raise BenchmarkFailed("the server closed a connection of the load")
            rest += data
            at = 0
            while len(rest) - at >= (size := 4 + int.from_bytes(rest[at : at + 4], "big")) > 4:
                at += size
                got += 1
            rest = rest[at:]
        writer.join()

    return measured
