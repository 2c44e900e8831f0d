"""What AMQP clients do while the paced clients are measured."""

from __future__ import annotations

from typing import Final

from benchmarks.fairness_stage import LARGE_BYTES, LARGE_COUNT, Measured, Stage
from benchmarks.fairness_wire import AmqpSpeaker, amqp_publish
from polymq.gateways.amqp import spec
from polymq.gateways.amqp.methods import method_frame
from polymq.gateways.amqp.tables import encode_sized_table

FANOUT_QUEUES: Final = 10_000
BACKLOG: Final = 1_000_000
BACKLOG_BODY: Final = b"x" * 99 + b"."


def flood(stage: Stage) -> Measured:
    """Fifty publishers with confirms, persistent, and four consumers."""

    def run() -> None:
        load = stage.generate(
            *("amqpgen", "amqp", "-P", "50", "-S", "4", "-f", "-D", "-w", "100", "-W", "5000")
        )
        stage.wait(load)

    return run


def catch_up(stage: Stage) -> Measured:
    """A million messages wait in a queue, and one consumer gets them."""
    count = stage.sized(BACKLOG)
    speaker = stage.amqp()
    speaker.declare("fairness-backlog", durable=True)
    speaker.confirm()
    run = amqp_publish("", "fairness-backlog", BACKLOG_BODY, persistent=True) * 1000
    for number in range(count // 1000):
        speaker.socket.sendall(run)
        speaker.confirmed(1000 * number)
    speaker.confirmed(count)
    reader = stage.amqp()

    def measured() -> None:
        consume = spec.BasicConsume(queue="fairness-backlog", consumer_tag="c", no_ack=True)
        reader.call(consume)
        reader.receive(count, BACKLOG_BODY)

    return measured


def single_acks(stage: Stage) -> Measured:
    """60,000 messages are acknowledged one by one, the last first."""
    count = stage.sized(60_000)
    speaker = stage.amqp()
    speaker.declare("fairness-acks")
    run = amqp_publish("", "fairness-acks", BACKLOG_BODY)
    speaker.socket.sendall(run * count)
    speaker.declare("fairness-acks")
    reader = stage.amqp()
    consume = spec.BasicConsume(queue="fairness-acks", consumer_tag="c")
    reader.call(consume)
    reader.receive(count, BACKLOG_BODY)
    acks = b"".join(method_frame(1, spec.BasicAck(delivery_tag=tag)) for tag in range(count, 0, -1))

    def measured() -> None:
        reader.socket.sendall(acks)
        reader.declare("fairness-acks")

    return measured


def to_many_queues(stage: Stage) -> Measured:
    """Ten times 1,000 publishes to 1,000 queues in one piece."""
    names = [f"fairness-one-{number}" for number in range(stage.sized(1000))]
    speaker = stage.amqp()
    speaker.declare(*names, durable=True)
    speaker.confirm()
    publishes = b"".join(amqp_publish("", name, b"x" * 20, persistent=True) for name in names)

    def measured() -> None:
        for round_number in range(10):
            speaker.socket.sendall(publishes)
            speaker.confirmed(len(names) * (round_number + 1))

    return measured


def declare_queues(stage: Stage) -> Measured:
    """20,000 durable queues are declared in one piece, and deleted again."""
    names = [f"fairness-declared-{number}" for number in range(stage.sized(20_000))]
    speaker = stage.amqp()
    deletes = [spec.QueueDelete(queue=name) for name in names]

    def measured() -> None:
        speaker.declare(*names, durable=True)
        speaker.call(*deletes)

    return measured


def _fanout(stage: Stage, name: str, count: int) -> tuple[AmqpSpeaker, list[str]]:
    names = [f"{name}-{number}" for number in range(count)]
    speaker = stage.amqp()
    speaker.call(spec.ExchangeDeclare(exchange=name, type="fanout", durable=True))
    for first in range(0, count, 1000):
        part = names[first : first + 1000]
        speaker.declare(*part, durable=True)
        speaker.call(*(spec.QueueBind(queue=each, exchange=name) for each in part))
    return speaker, names


def fanout_publish(stage: Stage) -> Measured:
    """A fanout exchange with 10,000 queues gets 100 publishes in one piece."""
    speaker, _ = _fanout(stage, "fairness-fanout", stage.sized(FANOUT_QUEUES))
    speaker.confirm()
    publishes = amqp_publish("fairness-fanout", "", b"x" * 20, persistent=True) * 100

    def measured() -> None:
        speaker.socket.sendall(publishes)
        speaker.confirmed(100)

    return measured


def exchange_delete(stage: Stage) -> Measured:
    """An exchange with 10,000 bindings is deleted."""
    speaker, _ = _fanout(stage, "fairness-gone", stage.sized(FANOUT_QUEUES))
    return lambda: speaker.call(spec.ExchangeDelete(exchange="fairness-gone"))


def queue_delete(stage: Stage) -> Measured:
    """A queue with 10,000 wildcard bindings is deleted."""
    count = stage.sized(10_000)
    speaker = stage.amqp()
    speaker.call(spec.ExchangeDeclare(exchange="fairness-topics", type="topic", durable=True))
    speaker.declare("fairness-wild", durable=True)
    for first in range(0, count, 1000):
        speaker.call(
            *(
                spec.QueueBind(
                    queue="fairness-wild", exchange="fairness-topics", routing_key=f"a.*.{number}.#"
                )
                for number in range(first, min(first + 1000, count))
            )
        )
    return lambda: speaker.call(spec.QueueDelete(queue="fairness-wild"))


def large_headers(stage: Stage) -> Measured:
    """100 publishes to a headers exchange with 1,000 bindings, each with a table of 100 KB."""
    speaker = stage.amqp()
    speaker.call(spec.ExchangeDeclare(exchange="fairness-headers", type="headers"))
    speaker.declare("fairness-headed")
    speaker.call(
        *(
            spec.QueueBind(
                queue="fairness-headed",
                exchange="fairness-headers",
                arguments={"x-match": "any", f"h{number}": number},
            )
            for number in range(stage.sized(1000))
        )
    )
    speaker.confirm()

    def publish(number: int) -> bytes:
        table = {f"k{index}": index + number for index in range(2_000)}
        return amqp_publish("fairness-headers", "", b"", headers=encode_sized_table(table))

    publishes = b"".join(publish(number) for number in range(100))

    def measured() -> None:
        speaker.socket.sendall(publishes)
        speaker.confirmed(100)

    return measured


def checkpoints(stage: Stage) -> Measured:
    """A message to each of 20,000 queues again and again, while indexes are saved every second."""
    names = [f"fairness-saved-{number}" for number in range(stage.sized(20_000))]
    speaker = stage.amqp()
    for first in range(0, len(names), 1000):
        speaker.declare(*names[first : first + 1000], durable=True)
    speaker.confirm()
    publishes = [amqp_publish("", name, b"x" * 20, persistent=True) for name in names]

    def measured() -> None:
        count = 0
        for _ in range(3):
            for first in range(0, len(publishes), 500):
                part = publishes[first : first + 500]
                speaker.socket.sendall(b"".join(part))
                count += len(part)
                speaker.confirmed(count)

    return measured


def large(stage: Stage) -> Measured:
    """Twenty bodies of 16 MiB."""
    speaker = stage.amqp()
    speaker.declare("fairness-large", durable=True)
    speaker.confirm()
    message = amqp_publish("", "fairness-large", b"x" * LARGE_BYTES, persistent=True)

    def measured() -> None:
        for number in range(stage.sized(LARGE_COUNT)):
            speaker.socket.sendall(message)
            speaker.confirmed(number + 1)

    return measured
