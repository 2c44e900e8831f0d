"""Publish one message over MQTT, like mosquitto_pub.

    python examples/mqtt_publish.py sensors/room1/temp 21.5

Returns when the server has acknowledged it: the message is on its disk then.
"""

from __future__ import annotations

import argparse

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("topic")
parser.add_argument("message")
parser.add_argument("--host", default="127.0.0.1")
parser.add_argument("--port", type=int, default=1883)
parser.add_argument("--retain", action="store_true", help="keep it for later subscribers")
options = parser.parse_args()

client = mqtt.Client(CallbackAPIVersion.VERSION2)
client.connect(options.host, options.port)
client.loop_start()
published = client.publish(options.topic, options.message, qos=1, retain=options.retain)
published.wait_for_publish(timeout=10)
client.disconnect()
client.loop_stop()
print(f"{options.topic} is stored.")
