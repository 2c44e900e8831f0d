"""Print what matches an MQTT filter, like mosquitto_sub -v, until Ctrl-C.

    python examples/mqtt_subscribe.py 'sensors/#'

With --session NAME the server keeps what comes while this program is away.
"""

from __future__ import annotations

import argparse
import contextlib

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("filter")
parser.add_argument("--host", default="127.0.0.1")
parser.add_argument("--port", type=int, default=1883)
parser.add_argument("--session", help="name of a session that outlives this program")
parser.add_argument("--count", type=int, help="end after so many messages")
options = parser.parse_args()
left = options.count


def connected(client: mqtt.Client, *_: object) -> None:
    """Subscribe at every connection: after a reconnection, too."""
    client.subscribe(options.filter, qos=1)


def subscribed(*_: object) -> None:
    """From here on nothing is missed."""
    print(f"subscribed to {options.filter}", flush=True)


def received(client: mqtt.Client, _data: object, message: mqtt.MQTTMessage) -> None:
    """One message; it is acknowledged once it is printed, and does not come again then."""
    global left  # noqa: PLW0603  (an example is its own program)
    print(message.topic, message.payload.decode(errors="backslashreplace"), flush=True)
    client.ack(message.mid, message.qos)
    if left is not None:
        left -= 1
        if left == 0:
            client.disconnect()


client = mqtt.Client(
    CallbackAPIVersion.VERSION2,
    client_id=options.session or "",
    clean_session=options.session is None,
    manual_ack=True,
)
client.on_connect = connected
client.on_subscribe = subscribed
client.on_message = received
client.connect(options.host, options.port)
with contextlib.suppress(KeyboardInterrupt):
    client.loop_forever()
