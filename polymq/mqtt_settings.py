"""The settings of MQTT: a part of the model in `settings.py`."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, model_validator

from polymq.bridge_settings import MqttBridge, check_bridges
from polymq.broker.errors import Refused
from polymq.broker.names import check_characters, is_own_topic
from polymq.gateways.mqtt.rewriting import RULES_MAX, SUBSCRIPTIONS_MAX, check_rule
from polymq.gateways.mqtt.topic_filters import check_filter, shortened
from polymq.listener_settings import MqttListener, UserFrom, check_listeners
from polymq.setting_kinds import (
    Fresh,
    ListenerSettings,
    Live,
    Origin,
    PlainPort,
    PortNumber,
    PositiveInt,
    Seconds,
    Section,
    TlsPort,
    UrlPath,
)

REFERENCE_BYTES_MAX: Final = 1000
"""Of the servers that MQTT clients are sent to."""


def _checked_topic(name: str) -> str:
    try:
        check_characters("a topic", name)
        name.encode()
    except Refused as error:
        raise ValueError(error.text) from error
    except UnicodeEncodeError as error:
        raise ValueError("the name of a topic is UTF-8") from error
    if is_own_topic(name):
        raise ValueError("this topic is the server's own: choose another name")
    return name


def _checked_information(text: str) -> str:
    rest = text.replace("{client_id}", "").replace("{user}", "")
    if {"{", "}"} & set(rest):
        raise ValueError("only {client_id} and {user} may stand in braces")
    if {"+", "#"} & set(text) or not text.isprintable() or text.startswith("$"):
        raise ValueError("a response topic has no wildcards, and does not begin with $")
    return text


def _checked_reference(text: str) -> str:
    if text and re.fullmatch(r"[!-~]+( [!-~]+)*", text) is None:
        raise ValueError("write HOST or HOST:PORT, and a space between several of them")
    if len(text) > REFERENCE_BYTES_MAX:
        raise ValueError(f"must not be longer than {REFERENCE_BYTES_MAX} characters")
    return text


class RewriteSettings(Section):
    """One rule of `mqtt.rewrite`."""

    action: Literal["publish", "subscribe", "all"] = "all"
    source: str
    destination: str

    @model_validator(mode="after")
    def _checked(self) -> RewriteSettings:
        check_rule(self.source, self.destination)
        return self


class AutoSubscribeSettings(Section):
    """One subscription of `mqtt.auto_subscribe`."""

    filter: str
    qos: Annotated[int, Field(ge=0, le=2)] = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: Annotated[int, Field(ge=0, le=2)] = 0

    @model_validator(mode="after")
    def _checked(self) -> AutoSubscribeSettings:
        check_filter(self.filter)
        return self


class MqttSettings(ListenerSettings):
    """MQTT over TCP and WebSocket. Topic names longer than 32,000 bytes may be refused."""

    port: PlainPort = 1883
    tls_port: TlsPort = 8883
    websocket: bool = False
    """Whether to open the ports for MQTT over WebSocket, for clients in browsers. It is off by
    default, as in mosquitto, because a page of any origin can reach such a port, even one that only
    this machine can reach (`mqtt.websocket_origins`)."""
    websocket_port: PortNumber = 8083
    """The port for MQTT over WebSocket without TLS. 0: the system chooses a free port. It is not
    opened if `mqtt.plain` is false."""
    websocket_tls_port: PortNumber = 8084
    """The port for MQTT over WebSocket with TLS. It is opened if there is a certificate
    (`[tls]`)."""
    websocket_path: Fresh[UrlPath] = "/mqtt"
    """The path of the URL that clients connect to. The path `/` is accepted, too."""
    websocket_origins: Fresh[list[Origin]] = []
    """The origins of the pages that may connect, such as "https://app.example.com". Empty: pages of
    every origin. Clients that are not browsers send no origin, and may always connect."""
    inflight_max: Fresh[Annotated[int, Field(ge=1, le=16_384)]] = 16_384
    """How many messages of QoS 1 and 2 may be in flight to a client. A connection begins with 32,
    and gets more while it acknowledges them within half a second. The quota `inflight` limits the
    clients of one user."""
    subscriptions_max: Live[PositiveInt] = 10_000
    """How many topic filters a client may subscribe to. Further ones are refused (0x80). One
    SUBSCRIBE or UNSUBSCRIBE may have any number of topic filters: only the size of a packet is
    limited, to `storage.message_bytes_max` plus 64 KiB."""
    session_expiry_seconds: Live[Seconds] = 0
    """How long a persistent session waits for a client that is away. It then ends: its
    subscriptions and the messages that wait for it are deleted, and it no longer holds segments of
    the log. 0: for ever, as in the standard and in mosquitto. EMQX's default is 7200."""
    queue_qos0_messages: bool = False
    """Whether messages of QoS 0 are queued for a client that is away, and messages for
    subscriptions of QoS 0 that had a higher QoS before. Messages of QoS 1 and 2 always are, and
    those that were queued before a subscription was lowered to QoS 0 stay queued."""
    session_queue_max: Live[Annotated[int, Field(ge=0, le=1 << 48)]] = 0
    """How many messages may wait for one persistent session, over all its subscriptions. Messages
    in flight do not count. A message beyond the limit is lost, although it was acknowledged. 0:
    only the disk limits the number. The default of mosquitto, EMQX and HiveMQ is 1000."""
    session_queue_bytes_max: Live[Annotated[int, Field(ge=0, le=1 << 48)]] = 0
    """How many bytes these messages may have, as they are stored: body, properties, and about 150
    bytes for each. A message beyond the limit is lost in the same way. 0: only the disk limits
    them. In mosquitto it is `max_queued_bytes`."""
    session_queue_overflow: Literal["drop_oldest", "drop_newest"] = "drop_oldest"
    """Which messages a full session loses: its oldest messages, or those that arrive before its
    client has been sent what waits. The publisher is not notified: MQTT 3.1.1 has no means for
    it."""
    keep_alive_seconds_max: Fresh[Annotated[int, Field(ge=0, le=65_535)]] = 0
    """The longest keep alive of MQTT 5 clients. One that asks for a longer one or for none is told
    this one in CONNACK, and is closed after one and a half times it without a packet. Clients of
    the older versions cannot be told, so their own keep alive holds. 0: no limit."""
    receive_max: Fresh[Annotated[int, Field(ge=1, le=65_535)]] = 65_535
    """How many publishes of QoS 1 and 2 an MQTT 5 client may send before the first of them is
    acknowledged (Receive Maximum). Clients are told it in CONNACK, and one that sends more is
    closed with reason code 0x93. A publish of QoS 2 counts until its PUBREL. Clients of the older
    versions cannot be told, and are not limited."""
    topic_aliases_out_max: Fresh[Annotated[int, Field(ge=0, le=1_000)]] = 10
    """How many topics the server gives a topic alias on one connection, to send the number instead
    of the name. The limit of the client (Topic Alias Maximum) holds as well. 0: none. Only MQTT 5
    has them."""
    qos_max: Fresh[Annotated[int, Field(ge=0, le=2)]] = 2
    """The highest QoS. Subscriptions are granted no more. A client that publishes with a higher one
    is closed, in MQTT 5 with reason code 0x9B, and a will with a higher one is refused."""
    retain_available: Fresh[bool] = True
    """Whether messages can be retained. If false, a client that publishes with RETAIN is closed, in
    MQTT 5 with reason code 0x9A, a will with RETAIN is refused, and subscribers get no retained
    messages."""
    wildcards_available: Fresh[bool] = True
    """Whether topic filters may have wildcards. If false, a SUBSCRIBE with one is refused: MQTT 5
    clients are closed with reason code 0xA2, and those of 3.1.1 get 0x80 for the filter."""
    subscription_identifiers_available: Fresh[bool] = True
    """Whether subscriptions may have an identifier. If false, an MQTT 5 client that sends one is
    closed with reason code 0xA1."""
    check_payload_format: Fresh[bool] = False
    """Whether payloads that MQTT 5 clients declare to be text (Payload Format Indicator 1) have to
    be UTF-8. Others are refused with reason code 0x99; with QoS 0 they are dropped."""
    response_information: Fresh[Annotated[str, AfterValidator(_checked_information)]] = ""
    """What the response topics of MQTT 5 clients should begin with, such as
    "responses/{client_id}/". Clients that ask for it (Request Response Information) are told it. It
    may contain {client_id} and {user}, and gives no permission. Empty: they are told nothing."""
    server_reference: Fresh[Annotated[str, AfterValidator(_checked_reference)]] = ""
    """Where MQTT 5 clients are sent when this server stops or does not accept clients, such as a
    follower: "HOST" or "HOST:PORT", or several of them with spaces between. They get reason code
    0x9C (Use another server) with it. Empty: they get 0x8B or 0x88 and no server."""
    shared_subscriptions: Fresh[bool] = True
    """Whether clients may share subscriptions by filters `$share/{ShareName}/{filter}` and
    `$queue/{filter}`. If false, such filters are refused (0x9E, before MQTT 5 0x80). Shares that
    there are go on."""
    shared_subscription_strategy: Literal["round_robin", "sticky", "hash_client", "hash_topic"] = (
        "round_robin"
    )
    """Which member of a shared subscription gets a message: each in turn; one member as long as it
    keeps up; or the same one for all messages of a publisher (by its client identifier) or of a
    topic, as long as the members stay the same and it keeps up. With "hash_client" every message
    that is published by MQTT is stored with its publisher's client identifier."""
    topic_levels_max: Fresh[Annotated[int, Field(ge=1, le=128)]] = 128
    """How many levels a topic name or topic filter may have. A filter with more is refused (0x8F in
    MQTT 5, 0x80 before), and a message to a topic name with more is not stored."""
    retained_max: Live[PositiveInt] = 1_000_000
    """How many retained messages there may be. A message with RETAIN that would be one more is
    refused (0x97 in MQTT 5)."""
    retained_bytes_max: Live[Annotated[int, Field(ge=0)]] = 0
    """How many bytes of the log all retained messages may have together. A message with RETAIN that
    would exceed it is refused (0x97 in MQTT 5). 0: no limit."""
    connections_per_address_max: Live[Annotated[int, Field(ge=0)]] = 0
    """How many clients of one address may be connected at a time; IPv6 addresses of one /64 count
    as one. Further ones are refused (0x97). 0: no limit. The quota `connections` limits the clients
    of one user."""
    connects_per_second_max: Live[Seconds] = 0
    """How many clients may connect in a second, in all. Further ones are refused (0x9F; before MQTT
    5, return code 3), before their password is checked. As many may come at once as in a second. 0:
    no limit."""
    connects_per_second_per_address_max: Live[Seconds] = 0
    """The same for the clients of one address."""
    flapping_count: Live[Annotated[int, Field(ge=0)]] = 0
    """How many connections of one client identifier may end within `mqtt.flapping_window_seconds`.
    At this number the client is kept out for `mqtt.flapping_ban_seconds` (0x8A; before MQTT 5,
    return code 5), which a restart ends. 0: clients are not watched, because devices that connect
    for one message and disconnect are common. EMQX's number is 15."""
    flapping_window_seconds: Live[Annotated[float, Field(gt=0)]] = 60
    """See `mqtt.flapping_count`."""
    flapping_ban_seconds: Live[Annotated[float, Field(gt=0)]] = 300
    """See `mqtt.flapping_count`."""
    sys_interval_seconds: Live[Annotated[float, Field(ge=0, le=86_400)]] = 10.0
    """How often the values of the topics below $SYS/broker/ are published to clients that are
    subscribed to them. 0: there are no such topics. The default is mosquitto's."""
    client_events: list[Literal["connected", "disconnected", "subscribed", "unsubscribed"]] = []
    """Which events of clients are published below $SYS/brokers/NAME/clients/CLIENT_ID/, as in EMQX.
    NAME is `names.broker`. Whoever may subscribe below $SYS sees client identifiers, user names,
    addresses and topic filters."""
    client_events_rate_max: Annotated[int, Field(ge=1, le=10_000)] = 100
    """How many of these events are published in a second. The others are left out, and counted."""
    dynamic_security: bool = False
    """Whether users with the right `admin` may administrate users, roles and permissions over MQTT,
    with `mosquitto_ctrl dynsec` and other programs for mosquitto's dynamic security: by what they
    publish to $CONTROL/dynamic-security/v1. Listeners with a mount point do not have it."""
    rewrite: Fresh[Annotated[list[RewriteSettings], Field(max_length=RULES_MAX)]] = []
    """Rules by which clients publish and subscribe to other topics than they ask for, such as
    {action = "all", source = "old/+/#", destination = "new/$2/$1"}: `$1` is what the first wildcard
    of the source matched, `%c` the client id, `%u` the user. `action` is publish, subscribe or all.
    Permissions apply to the destination."""
    auto_subscribe: Fresh[
        Annotated[list[AutoSubscribeSettings], Field(max_length=SUBSCRIPTIONS_MAX)]
    ] = []
    """Subscriptions that every client gets when it connects, if it has permission for them, such as
    {filter = "commands/%c/#", qos = 1}: `%c` is the client id, `%u` the user. Further keys are
    no_local, retain_as_published and retain_handling."""
    topic: Annotated[str, AfterValidator(_checked_topic)] = ""
    """The one topic that all MQTT messages are stored in, with their whole MQTT topic as the tag.
    It is meant for fleets whose first topic level is a device. Empty: the first topic level is the
    topic."""
    user_from_certificate: UserFrom = ""
    """The part of a client's certificate that is its user name, at the ports with TLS. cn: the
    common name of the subject. san_dns, san_email: the first DNS name or mail address of the
    subject's alternative names. subject: the whole subject as in RFC 4514, such as
    "CN=sensor7,O=Plant". The user has to exist; no password is asked for. Needs `tls.client_ca`.
    Empty: clients log in with a password."""
    listeners: Annotated[list[MqttListener], AfterValidator(check_listeners)] = []
    """Further MQTT listeners, each with settings of its own, as tables `[[mqtt.listeners]]` in the
    file, or as a JSON list in an option or variable."""
    bridges: Annotated[list[MqttBridge], AfterValidator(check_bridges)] = []
    """Bridges to other MQTT brokers, each with settings of its own, as tables `[[mqtt.bridges]]` in
    the file, or as a JSON list in an option or variable."""

    @model_validator(mode="after")
    def _bridges_fit(self) -> MqttSettings:
        most = self.topic_levels_max
        for bridge in self.bridges:
            for rule in bridge.rules:
                if rule.local_filter.count("/") >= most:
                    shown = shortened(rule.local_filter)
                    raise ValueError(
                        f"bridge {bridge.name}: {shown!r} has more than {most} levels "
                        "(mqtt.topic_levels_max)"
                    )
        return self
