"""What is measured: each scenario is one call of a load generator.

Windows are part of a scenario, because they make the batches: a publisher with 256 messages in
flight lets a server take 256 of them with one read, one with a window of 1 never more than one.
The second window (`-W`) bounds what is in the broker, so that no queue grows without end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Protocol = Literal["mqtt", "mqtts", "mqtt_ws", "amqp", "http", "rocketmq"]
GENERATORS: Final[dict[Protocol, str]] = {
    "mqtt": "mqttgen",
    "mqtt_ws": "mqttgen",
    "amqp": "amqpgen",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One load.

    Attributes:
        name: for the command line and the JSON file.
        title: for people.
        options: of the generator; 100-byte payloads, one publisher and one subscriber where they
            say nothing else.
        acknowledged: whether publishers wait for acknowledgements, so that it makes a difference
            what those mean.
    """

    name: str
    title: str
    protocol: Protocol
    options: str
    acknowledged: bool = True

    @property
    def generator(self) -> str:
        """The program that makes this load."""
        return GENERATORS[self.protocol]


SCENARIOS: Final = (
    Scenario(
        name="mqtt-qos0",
        title="MQTT QoS 0, 1 to 1, 256 in flight",
        protocol="mqtt",
        options="-q 0 -W 256",
        acknowledged=False,
    ),
    Scenario(
        name="mqtt-qos1",
        title="MQTT QoS 1, 1 to 1, window 256",
        protocol="mqtt",
        options="-q 1 -w 256 -W 1024",
    ),
    Scenario(
        name="mqtt-qos1-1k",
        title="MQTT QoS 1, 1 to 1, 1 KiB, window 256",
        protocol="mqtt",
        options="-q 1 -w 256 -W 1024 -z 1024",
    ),
    Scenario(
        name="mqtt-qos2",
        title="MQTT QoS 2, 1 to 1, window 256",
        protocol="mqtt",
        options="-q 2 -w 256 -W 1024",
    ),
    Scenario(
        name="mqtt-websocket",
        title="MQTT QoS 1 over WebSocket, 1 to 1, window 256",
        protocol="mqtt_ws",
        options="-q 1 -w 256 -W 1024 -k /mqtt",
    ),
    Scenario(
        name="mqtt-wide",
        title="MQTT QoS 1, 1 to 1, window 4096",
        protocol="mqtt",
        options="-q 1 -w 4096 -W 16384",
    ),
    Scenario(
        name="mqtt-websocket-wide",
        title="MQTT QoS 1 over WebSocket, 1 to 1, window 4096",
        protocol="mqtt_ws",
        options="-q 1 -w 4096 -W 16384 -k /mqtt",
    ),
    Scenario(
        name="mqtt5-qos1",
        title="MQTT 5 QoS 1, 1 to 1, window 256",
        protocol="mqtt",
        options="-q 1 -w 256 -W 1024 -5 0",
    ),
    Scenario(
        name="mqtt5-properties",
        title="MQTT 5 QoS 1, 5 user properties, window 256",
        protocol="mqtt",
        options="-q 1 -w 256 -W 1024 -5 5",
    ),
    Scenario(
        name="mqtt-qos2-wide",
        title="MQTT QoS 2, 1 to 1, window 4096",
        protocol="mqtt",
        options="-q 2 -w 4096 -W 16384",
    ),
    Scenario(
        name="mqtt5-wide",
        title="MQTT 5 QoS 1, 1 to 1, window 4096",
        protocol="mqtt",
        options="-q 1 -w 4096 -W 16384 -5 0",
    ),
    Scenario(
        name="mqtt5-properties-wide",
        title="MQTT 5 QoS 1, 5 user properties, window 4096",
        protocol="mqtt",
        options="-q 1 -w 4096 -W 16384 -5 5",
    ),
    Scenario(
        name="mqtt-fan-in",
        title="MQTT QoS 1, 50 to 1, window 20 each",
        protocol="mqtt",
        options="-q 1 -P 50 -w 20 -W 4000",
    ),
    Scenario(
        name="mqtt-fan-out",
        title="MQTT QoS 1, 1 to 50, window 256",
        protocol="mqtt",
        options="-q 1 -S 50 -w 256 -W 256",
    ),
    Scenario(
        name="mqtt-pairs",
        title="MQTT QoS 1, 50 pairs, window 1",
        protocol="mqtt",
        options="-q 1 -P 50 -S 50 -T 50 -w 1",
    ),
    Scenario(
        name="mqtt-paced",
        title="MQTT QoS 1, 1 to 1, 5000 msg/s",
        protocol="mqtt",
        options="-q 1 -w 60000 -r 5000",
    ),
    Scenario(
        name="amqp-persistent",
        title="AMQP persistent, confirms, acks",
        protocol="amqp",
        options="-D -f -w 1000 -W 2000 -k 1000 -m 100",
    ),
    Scenario(
        name="amqp-transient",
        title="AMQP transient, no acks",
        protocol="amqp",
        options="-a -W 2000",
        acknowledged=False,
    ),
    Scenario(
        name="amqp-window-1",
        title="AMQP persistent, confirms, window 1",
        protocol="amqp",
        options="-D -f -w 1 -W 1 -k 1",
    ),
)
