"""What the MQTT listeners counted: as metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol, runtime_checkable

from polymq.broker.engine import Engine
from polymq.metrics.registry import Probe, Value, counter, gauge


@runtime_checkable
class HasCounters(Protocol):
    """An MQTT server. Its module is loaded only where the listener is open."""

    def statistics(self) -> Mapping[str, int]:
        """Its counters by name (`gateways.mqtt.shared.Counters`)."""


@runtime_checkable
class CountsReasons(Protocol):
    """The same, of the reason codes of MQTT 5."""

    @property
    def reason_counts(self) -> HasReasonCounts:
        """How often which was sent and received."""


class HasReasonCounts(Protocol):
    """See `gateways.mqtt.reason_counts.ReasonCounts`."""

    @property
    def all_sent(self) -> Mapping[tuple[int, int], int]:
        """By packet type and reason code, to clients."""

    @property
    def all_received(self) -> Mapping[tuple[int, int], int]:
        """The same from clients."""


PACKETS_WITH_REASONS: Final = {
    2: "CONNACK",
    4: "PUBACK",
    5: "PUBREC",
    6: "PUBREL",
    7: "PUBCOMP",
    9: "SUBACK",
    11: "UNSUBACK",
    14: "DISCONNECT",
    15: "AUTH",
}
"""Those that have reason codes (5.0 part 2.4)."""
MQTT_SERVERS: Final = ("mqtt", "mqtts", "mqtt_ws", "mqtt_wss")
"""Those of the ports for TCP and for WebSocket, without and with TLS."""
CONNECTS: Final = {"accepted": "connections", "refused": "connects_refused"}
PUBLISHES: Final = {"received": "publishes_received", "sent": "publishes_sent"}
PACKETS: Final = {"received": "packets_received", "sent": "packets_sent"}
BYTES: Final = {"received": "bytes_received", "sent": "bytes_sent"}
PUBLISH_BYTES: Final = {"received": "publish_bytes_received", "sent": "publish_bytes_sent"}
ENDINGS: Final = {
    "protocol_error": "protocol_errors",
    "keep_alive": "keep_alives_missed",
    "taken_over": "takeovers",
    "slow_upload": "uploads_too_slow",
}


BY_LABEL: Final = (
    ("polymq_mqtt_connects", "CONNECT packets that were answered.", "result", CONNECTS),
    (
        "polymq_mqtt_publishes",
        "PUBLISH packets received from clients and sent to clients.",
        "direction",
        PUBLISHES,
    ),
    (
        "polymq_mqtt_packets",
        "MQTT packets of all types received from clients and sent to clients.",
        "direction",
        PACKETS,
    ),
    (
        "polymq_mqtt_bytes",
        "Bytes received from MQTT clients and sent to them, without what TLS adds.",
        "direction",
        BYTES,
    ),
    (
        "polymq_mqtt_publish_bytes",
        "Bytes of the PUBLISH packets received from clients and sent to clients.",
        "direction",
        PUBLISH_BYTES,
    ),
    ("polymq_mqtt_connections_ended", "Connections that the server closed.", "reason", ENDINGS),
)
"""Name, description, label, and the counter of each of its values."""
BY_LISTENER: Final = (
    ("connects", "connections", "CONNECT packets that each MQTT listener accepted."),
    ("connects_refused", "connects_refused", "CONNECT packets that each MQTT listener refused."),
    ("received", "publishes_received", "PUBLISH packets that each MQTT listener received."),
    ("sent", "publishes_sent", "PUBLISH packets that each MQTT listener sent."),
    (
        "proxy_failures",
        "proxy_failures",
        "Connections that each MQTT listener closed for a wrong PROXY header or an unknown proxy.",
    ),
)
"""Name, counter and description of what is counted for each listener."""
_NO_EVENTS: Final = {"rate": 0, "slow": 0}
LISTENER_PREFIX: Final = "mqtt-"
"""What the labels of the further listeners begin with."""


class HasEvents(Protocol):
    """See `gateways.mqtt.client_events.ClientEvents`."""

    @property
    def sent_count(self) -> int:
        """Messages that were sent."""

    @property
    def omitted(self) -> Mapping[str, int]:
        """What was not sent, by the reason."""


def event_probes(events: HasEvents | None) -> list[Probe]:
    """The metrics of events of clients; None: there are none."""
    return [
        counter(
            "polymq_mqtt_client_events_sent",
            "Messages about clients that were sent below $SYS.",
            lambda: 0 if events is None else events.sent_count,
        ),
        counter(
            "polymq_mqtt_client_events_omitted",
            "Events of clients that were left out: more than may be published, or a subscriber "
            "that had no room.",
            lambda: dict(_NO_EVENTS if events is None else events.omitted),
            label="reason",
        ),
    ]


def limit_probes(engine: Engine) -> list[Probe]:
    """The metrics of bans and limits of MQTT."""
    connections, retained = engine.connections, engine.retained
    return [
        gauge("polymq_mqtt_clients", "Connected MQTT clients.", lambda: len(connections.clients)),
        gauge("polymq_bans", "Entries of the ban list.", lambda: engine.bans.count),
        counter(
            "polymq_banned",
            "Connections and logins that were refused because of the ban list.",
            lambda: dict(engine.bans.refused),
            label="by",
        ),
        counter(
            "polymq_mqtt_connects_limited",
            "CONNECT packets that were refused because of a limit of connections.",
            lambda: dict(connections.refused),
            label="limit",
        ),
        gauge("polymq_mqtt_retained_messages", "Retained messages.", lambda: retained.count),
        gauge(
            "polymq_mqtt_retained_bytes",
            "Bytes of all retained messages in the log.",
            lambda: retained.bytes,
        ),
        counter(
            "polymq_mqtt_retained_refused",
            "Messages with RETAIN that were refused because of a limit of retained messages.",
            lambda: retained.refused_count,
        ),
        counter(
            "polymq_mqtt_retained_omitted",
            "Wills and delayed messages that were published and not retained because of a limit.",
            lambda: retained.unretained_count,
        ),
    ]


def is_mqtt(label: str) -> bool:
    """Whether a listener with this label speaks MQTT."""
    return label in MQTT_SERVERS or label.startswith(LISTENER_PREFIX)


def totals(servers: Iterable[object]) -> Counter[str]:
    """What the MQTT servers among these counted, together, by name. What `/metrics` and
    `$SYS/broker/...` say comes from here."""
    found: Counter[str] = Counter()
    for server in servers:
        if isinstance(server, HasCounters):
            found.update(server.statistics())
    return found


def reason_codes(servers: Iterable[object]) -> Mapping[tuple[str, ...], float]:
    """What the MQTT servers among these counted of reason codes, together: by packet, code and
    direction."""
    found: Counter[tuple[str, ...]] = Counter()
    for server in servers:
        if not isinstance(server, CountsReasons):
            continue
        counts = server.reason_counts
        for direction, counted in (("received", counts.all_received), ("sent", counts.all_sent)):
            for (kind, code), count in counted.items():
                found[PACKETS_WITH_REASONS[kind], f"0x{code:02X}", direction] += count
    return found


def mqtt_probes(servers: Callable[[], Mapping[str, object]]) -> list[Probe]:
    """The metrics of the MQTT listeners.

    Args:
        servers: those of all protocols that are made so far, by label.
    """

    def found() -> dict[str, HasCounters]:
        return {
            label: server
            for label, server in servers().items()
            if is_mqtt(label) and isinstance(server, HasCounters)
        }

    def total(name: str) -> int:
        return totals(found().values())[name]

    def by_listener(counted: str) -> Callable[[], Value]:
        return lambda: {label: it.statistics()[counted] for label, it in found().items()}

    def several(name: str, text: str, label: str, counters: Mapping[str, str]) -> Probe:
        def read() -> Value:
            return {value: total(counted) for value, counted in counters.items()}

        return counter(name, text, read, label=label)

    return [
        *(several(*row) for row in BY_LABEL),
        counter(
            "polymq_mqtt_publishes_refused",
            "PUBLISH packets and wills that were not stored. With QoS 0 they are dropped; "
            "otherwise MQTT 5 clients get a reason code, and the connection of others is closed.",
            lambda: total("publishes_refused"),
        ),
        counter(
            "polymq_mqtt_publishes_too_large",
            "Messages that were not sent to a client, because they are larger than its Maximum "
            "Packet Size.",
            lambda: total("publishes_too_large"),
        ),
        counter(
            "polymq_mqtt_publishes_ignored",
            "PUBLISH packets of MQTT 3 and wills to topics below $SYS, which are acknowledged and "
            "dropped.",
            lambda: total("publishes_ignored"),
        ),
        counter(
            "polymq_mqtt_publishes_looped",
            "PUBLISH packets that had been at this server before, and came back over bridges: they "
            "are acknowledged and dropped.",
            lambda: total("publishes_looped"),
        ),
        counter(
            "polymq_mqtt_filters_refused",
            "Topic filters of SUBSCRIBE packets that were not granted.",
            lambda: total("filters_refused"),
        ),
        counter(
            "polymq_mqtt_reason_codes",
            "Reason codes in the packets of MQTT 5 clients, by packet, code and direction. SUBACK "
            "and UNSUBACK have one for each topic filter.",
            lambda: reason_codes(servers().values()),
            labels=("packet", "code", "direction"),
        ),
        gauge(
            "polymq_mqtt_uploads_bytes",
            "Bytes received of incomplete packets, of those larger than 4 KiB.",
            lambda: total("uploads_bytes"),
        ),
        gauge(
            "polymq_mqtt_uploads_waiting",
            "Connections that are not read, because these bytes have reached their limit.",
            lambda: total("uploads_waiting"),
        ),
        gauge(
            "polymq_mqtt_listener_connections",
            "Open connections of each MQTT listener.",
            by_listener("connections_now"),
            label="listener",
        ),
        *(
            counter(f"polymq_mqtt_listener_{name}", text, by_listener(counted), label="listener")
            for name, counted, text in BY_LISTENER
        ),
    ]
