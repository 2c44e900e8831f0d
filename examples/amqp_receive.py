"""Print what matches an AMQP binding, until Ctrl-C. The queue keeps what comes meanwhile.

python examples/amqp_receive.py '#'
"""

from __future__ import annotations

import argparse
import contextlib

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.spec import Basic

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("key", help="routing key, with * for a word and # for any number of words")
parser.add_argument("--exchange", default="sensors")
parser.add_argument("--queue", default="example")
parser.add_argument("--host", default="127.0.0.1")
parser.add_argument("--port", type=int, default=5672)
parser.add_argument("--count", type=int, help="end after so many messages")
options = parser.parse_args()
left = options.count

connection = pika.BlockingConnection(pika.ConnectionParameters(options.host, options.port))
channel = connection.channel()
channel.exchange_declare(options.exchange, "topic", durable=True)
channel.queue_declare(options.queue, durable=True)
channel.queue_bind(options.queue, options.exchange, options.key)
channel.basic_qos(prefetch_count=100)


def received(
    channel: BlockingChannel,
    method: Basic.Deliver,
    properties: pika.BasicProperties,
    body: bytes,
) -> None:
    """One message; it is gone from the queue once it is acknowledged."""
    global left  # noqa: PLW0603  (an example is its own program)
    kind = properties.content_type or "no content type"
    print(method.routing_key, f"({kind})", body.decode(errors="backslashreplace"), flush=True)
    channel.basic_ack(method.delivery_tag)
    if left is not None:
        left -= 1
        if left == 0:
            channel.stop_consuming()


channel.basic_consume(options.queue, received)
print(f"bound {options.queue} to {options.exchange} with {options.key}", flush=True)
with contextlib.suppress(KeyboardInterrupt):
    channel.start_consuming()
connection.close()
