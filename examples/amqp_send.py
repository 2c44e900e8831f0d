"""Publish one message over AMQP 0-9-1 with a publisher confirm.

    python examples/amqp_send.py room1.temp 21.5

Exchange `sensors` with key `room1.temp` is what MQTT calls `sensors/room1/temp`.
"""

from __future__ import annotations

import argparse

import pika

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("key")
parser.add_argument("message")
parser.add_argument("--exchange", default="sensors")
parser.add_argument("--host", default="127.0.0.1")
parser.add_argument("--port", type=int, default=5672)
options = parser.parse_args()

connection = pika.BlockingConnection(pika.ConnectionParameters(options.host, options.port))
channel = connection.channel()
channel.exchange_declare(options.exchange, "topic", durable=True)
channel.confirm_delivery()  # from here on basic_publish returns when the message is on disk
channel.basic_publish(
    options.exchange,
    options.key,
    options.message.encode(),
    pika.BasicProperties(content_type="text/plain", delivery_mode=2),
)
connection.close()
print(f"{options.key} is stored.")
