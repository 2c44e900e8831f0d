"""The bounds of the MQTT gateway, each with its reason and what its neighbours chose."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from polymq.gateways.mqtt.features import Features

KIB: Final = 1024
MIB: Final = 1024 * KIB

PUBLISH_OVERHEAD_BYTES: Final = 5 + 2 + 65_535 + 2
"""The most that a PUBLISH has beside its body: fixed header, topic size, topic, packet id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one listener and each of its connections may use."""

    connections_max: int = 50_000
    """Sockets of one listener; one more is closed as soon as it is accepted. An idle connection
    costs a few KiB here and as much in the kernel."""

    connection_rate_max: float = 0
    """New connections in a second; one more is closed as soon as it is accepted. 0: no limit. It
    spreads the load of a fleet that comes back; EMQX has a limit for each listener, too."""

    connect_seconds_max: float = 10.0
    """From the accepted socket to a whole CONNECT ("a reasonable amount of time", 3.1.1 part
    3.1.4); the handshake of a WebSocket has no time of its own. Mosquitto and EMQX wait 5 to 30
    seconds; slow TLS handshakes are counted before."""

    connect_bytes_max: int = 5 + 12 + 5 * (2 + 65_535) + 2 * (4 + 65_535)
    """The largest CONNECT that there can be before MQTT 5, and two property blocks of 64 KiB: its
    fixed header, its variable one, and five fields (client id, will topic, will, user and password)
    of 65,535 bytes each."""

    auth_bytes_max: int = 8 * KIB
    """The largest AUTH. A step of SCRAM has some 200 bytes; the rest is for user properties."""

    auth_seconds_max: float = 10.0
    """How long an authentication on a running connection may take, until it is closed. Before
    CONNACK `connect_seconds_max` holds."""

    early_bytes_max: int = 16 * MIB
    """What clients sent before it was known who they are, over all connections of a listener: a
    CONNECT in part, a large CONNECT, and what came behind one. A client may send a large will, and
    send ahead (3.1.1 part 3.1.4), but a thousand strangers may not fill the memory: the one that
    goes over is closed."""

    small_connect_bytes_max: int = 1 * KIB
    """What each connection may send without being counted there."""

    packet_bytes_max: int = 4 * MIB + PUBLISH_OVERHEAD_BYTES
    """The store's largest message and what PUBLISH puts around it. 3.1.1 has no answer to a packet
    that is too large but closing. Mosquitto: 2 MB; EMQX: 1 MB; HiveMQ: 256 MB."""

    parts_bytes_max: int = 256 * MIB
    """What is here of packets that are not whole yet, over all connections of a listener
    (`uploads.py`): sixteen of the largest that can be configured. Beyond it clients wait. A
    connection's buffer may be twice as large as what it holds."""

    small_part_bytes: int = 4 * KIB
    """What each connection may have of a packet without being counted there: as much as it costs
    idle."""

    part_seconds: float = 5.0
    """How often it is looked whether the client that the others wait for goes on."""

    part_bytes_min: int = 64 * KIB
    """What it has to send in that time, or it is closed: 100 kbit/s, less than any mobile network
    that 16 MiB are sent through."""

    upload_bytes_per_second_min: int = 256
    """How quickly a packet has to come that is too large for one keep-alive period, to be a sign of
    life: slower than any mobile network, and 4 MiB take four and a half hours at most. Whoever
    trickles is closed like one that is silent."""

    inflight_max: int = 16_384
    """Messages of QoS 1 and 2 that a client may leave unacknowledged. The engine begins with 32 and
    gives more to a client that keeps up; mosquitto has 20, EMQX 32."""

    receive_max: int = 65_535
    """Publishes of QoS 1 and 2 that a client of MQTT 5 may leave open (`receive_quota.py`). By
    default as many as there are packet ids: what waits for its commit is bounded by the log's own
    limits. EMQX and mosquitto: 32 and 20."""

    client_id_bytes_max: int = 256
    """CONNACK 2 beyond. 3.1.1 promises 23 characters [MQTT-3.1.3-5]; ids made of a UUID and names
    need about 100. The id is kept for every session and goes into records of QoS 2 messages."""

    topic_aliases_max: int = 64
    """Topic Aliases that a client may set: each keeps a topic name of up to 64 KiB. Mosquitto: 10;
    EMQX: 65,535."""

    names_publishers: bool = False
    """Whether every message says which client published it: by that, shared subscriptions choose
    their members. (Otherwise only those say it whose clients have a subscription with No Local.)"""

    topic_aliases_out_max: int = 10
    """Topic Aliases that the server gives to a client's topics, where the client takes so many. As
    many as mosquitto: each keeps a topic name of up to 1 KiB."""

    topic_levels_max: int = 128
    """Of a topic name or filter: the routing trie is as deep as this. EMQX: 128; Mosquitto: 200."""

    templates_max: int = 65_536
    """Distinct (topic, QoS, RETAIN) whose route is remembered, about 1 KiB each. At the bound all
    are forgotten and found anew: a few microseconds each."""

    template_names_bytes_max: int = 16 * MIB
    """Of the topic names of these: a name may have 64 KiB, and is there some four times."""

    unread_answers_bytes_max: int = 512 * KIB
    """Answers that a client leaves unread while its transport is full, before it is read no
    further. A client that keeps to the packet ids never gets there: 65,535 PUBACKs are 256 KiB."""

    delivery_bytes_max: int = 1 * MIB
    """Deliveries handed to one connection in one turn of the loop. As much as the transport takes
    before it is full; the rest stays in the log until the client has read."""

    close_seconds_max: float = 5.0
    """How long a closed connection may take to read what was written before, until it is
    aborted."""

    features: Features = field(default_factory=Features)
    """What of MQTT is switched off, bounded or added."""
