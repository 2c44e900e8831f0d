"""The protocol servers, made from the settings. A part of the composition root (`compose.py`).

Imports stand inside the functions: a listener that is not opened is not loaded.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypedDict, runtime_checkable

from polymq.broker.admission.connections import ConnectionSettings
from polymq.broker.port import BrokerPort
from polymq.errors import ExitCode, Failure
from polymq.metrics.exposition import Exposition, metrics_route
from polymq.net.connection import Context
from polymq.net.roster import Roster
from polymq.net.tls_source import TlsSource
from polymq.net.websocket_handshake import Offer
from polymq.settings import MIB, Settings, is_loopback
from polymq.tls import make_tls, names_tls

if TYPE_CHECKING:
    from polymq.gateways.amqp.limits import Limits as AmqpLimits
    from polymq.gateways.http_cloudevents.limits import WebhookSettings
    from polymq.gateways.mqtt.auto_subscribing import AutoSubscription
    from polymq.gateways.mqtt.limits import Limits as MqttLimits
    from polymq.gateways.mqtt.rewriting import Rewriting
    from polymq.gateways.mqtt.rules import Rules
    from polymq.sys_figures import ServerTopics


class GatewayServer(Protocol):
    """What the servers of all protocols have in common."""

    async def start(
        self,
        host: str,
        port: int,
        tls: TlsSource | None = None,
        sockets: Sequence[socket.socket] = (),
    ) -> int:
        """Listen, on sockets that listen already if there are any; returns the bound port."""

    async def stop(self, drain_seconds: float) -> None:
        """Take leave of all clients."""

    @property
    def connection_count(self) -> int:
        """Clients that are connected now."""

    @property
    def rosters(self) -> Sequence[Roster[Any]]:
        """The connections of each listening port, or of several together."""


class MqttTerms(TypedDict):
    """What a reload may change of an MQTT server: arguments of its own."""

    limits: MqttLimits
    rules: Rules
    rewriting: Rewriting
    auto_subscriptions: Sequence[AutoSubscription]
    websocket: Offer | None


@runtime_checkable
class ManyPorts(Protocol):
    """A server that can listen on more than one port. Of the others two are made."""

    async def listen_too(
        self, host: str, port: int, tls: TlsSource, sockets: Sequence[socket.socket] = ()
    ) -> int:
        """Listen on one more port; returns it."""


ONE_PIECE_BYTES_MAX: Final = 16 * MIB
"""Largest body where a message comes in one piece, which is in memory as a whole before its
connection's other messages are looked at. (A frame of RocketMQ has the same bound.)"""


def _one_piece_max(settings: Settings) -> int:
    return min(settings.storage.message_bytes_max, ONE_PIECE_BYTES_MAX)


def make_mqtt(
    settings: Settings,
    engine: BrokerPort,
    context: Context,
    _exposition: Exposition,
    sys_topics: ServerTopics | None = None,
) -> GatewayServer:
    """MQTT over TCP."""
    from polymq.gateways.mqtt.server import Server as MqttServer

    return MqttServer(
        port=engine,
        context=context,
        fixed_topic=settings.mqtt.topic or None,
        sys_topics=sys_topics and sys_topics.whole,
        client_events=sys_topics and sys_topics.events,
        control=sys_topics and sys_topics.control,
        **mqtt_terms(settings),
    )


def make_mqtt_websocket(
    settings: Settings,
    engine: BrokerPort,
    context: Context,
    sys_topics: ServerTopics | None = None,
) -> GatewayServer:
    """MQTT over WebSocket."""
    from polymq.gateways.mqtt.server import Server as MqttServer

    return MqttServer(
        port=engine,
        context=context,
        fixed_topic=settings.mqtt.topic or None,
        sys_topics=sys_topics and sys_topics.whole,
        client_events=sys_topics and sys_topics.events,
        control=sys_topics and sys_topics.control,
        **mqtt_terms(settings, websocket=True),
    )


def mqtt_terms(settings: Settings, *, websocket: bool = False) -> MqttTerms:
    """What a reload may change of the ports of `[mqtt]`."""
    from polymq.gateways.mqtt.identity import user_of
    from polymq.gateways.mqtt.rules import Rules
    from polymq.gateways.mqtt.websocket import make_offer

    chosen, limits = settings.mqtt, mqtt_limits(settings)
    offer = None
    if websocket:
        offer = make_offer(
            path=chosen.websocket_path,
            origins=chosen.websocket_origins,
            packet_bytes_max=limits.packet_bytes_max,
        )
    return MqttTerms(
        limits=limits,
        rules=Rules(
            user_of=user_of(chosen.user_from_certificate),
            other_mount_points=mount_points(settings),
        ),
        rewriting=rewriting_of(settings),
        auto_subscriptions=auto_subscriptions_of(settings),
        websocket=offer,
    )


def rewriting_of(settings: Settings) -> Rewriting:
    from polymq.gateways.mqtt.rewriting import RewriteRule, Rewriting

    return Rewriting([RewriteRule(**rule.model_dump()) for rule in settings.mqtt.rewrite])


def auto_subscriptions_of(settings: Settings) -> list[AutoSubscription]:
    from polymq.gateways.mqtt.auto_subscribing import AutoSubscription

    return [AutoSubscription(**asked.model_dump()) for asked in settings.mqtt.auto_subscribe]


def mount_points(settings: Settings, *, without: str = "") -> tuple[str, ...]:
    """Those of the MQTT listeners, but for one."""
    found = {listener.mount_point for listener in settings.mqtt.listeners}
    return tuple(sorted(found - {"", without}))


def mqtt_limits(
    settings: Settings,
    *,
    connections_max: int | None = None,
    connection_rate_max: float = 0,
    packet_bytes_max: int | None = None,
) -> MqttLimits:
    """The limits of one MQTT listener; by default those of the ports of `[mqtt]`."""
    from polymq.gateways.mqtt.features import Features
    from polymq.gateways.mqtt.limits import PUBLISH_OVERHEAD_BYTES, Limits

    chosen = settings.mqtt
    largest = _one_piece_max(settings) + PUBLISH_OVERHEAD_BYTES
    return Limits(
        connections_max=connections_max or chosen.connections_max,
        connection_rate_max=connection_rate_max,
        inflight_max=chosen.inflight_max,
        receive_max=chosen.receive_max,
        topic_levels_max=chosen.topic_levels_max,
        packet_bytes_max=min(packet_bytes_max or largest, largest),
        names_publishers=chosen.shared_subscription_strategy == "hash_client",
        topic_aliases_out_max=chosen.topic_aliases_out_max,
        features=Features(
            keep_alive_seconds_max=chosen.keep_alive_seconds_max,
            qos_max=chosen.qos_max,
            retain=chosen.retain_available,
            wildcards=chosen.wildcards_available,
            shared_subscriptions=chosen.shared_subscriptions,
            subscription_identifiers=chosen.subscription_identifiers_available,
            payload_format_checked=chosen.check_payload_format,
            response_information=chosen.response_information,
            server_reference=chosen.server_reference,
        ),
    )


def connection_settings(settings: Settings) -> ConnectionSettings:
    """The limits of MQTT connections."""
    mqtt = settings.mqtt
    return ConnectionSettings(
        per_address_max=mqtt.connections_per_address_max,
        per_second=mqtt.connects_per_second_max,
        per_address_per_second=mqtt.connects_per_second_per_address_max,
        flapping_count=mqtt.flapping_count,
        flapping_window_seconds=mqtt.flapping_window_seconds,
        flapping_ban_seconds=mqtt.flapping_ban_seconds,
    )


def make_amqp(
    settings: Settings, engine: BrokerPort, context: Context, _exposition: Exposition
) -> GatewayServer:
    """AMQP 0-9-1 over TCP."""
    from polymq.gateways.amqp.server import Server as AmqpServer

    return AmqpServer(port=engine, context=context, limits=amqp_limits(settings))


def amqp_limits(settings: Settings) -> AmqpLimits:
    """The limits of AMQP."""
    from polymq.gateways.amqp.limits import Limits

    body_bytes_max = settings.storage.message_bytes_max
    defaults = Limits()
    return Limits(
        connections_max=settings.amqp.connections_max,
        body_bytes_max=body_bytes_max,
        assembling_bytes_max=max(defaults.assembling_bytes_max, 2 * body_bytes_max),
        transaction_bytes_max=max(defaults.transaction_bytes_max, body_bytes_max),
    )


def make_http(
    settings: Settings, engine: BrokerPort, context: Context, exposition: Exposition
) -> GatewayServer:
    """CloudEvents over HTTP, and `/metrics` as long as only this machine can ask for it."""
    from polymq.gateways.http_cloudevents.limits import Limits as HttpLimits
    from polymq.gateways.http_cloudevents.server import Server as HttpServer

    body_bytes_max = _one_piece_max(settings)
    limits = HttpLimits(
        connections_max=settings.http.connections_max,
        subscriptions_max=settings.http.subscriptions_max,
        message_bytes_max=body_bytes_max,
        body_bytes_max=max(8 * MIB, 2 * body_bytes_max),
    )
    routes = [metrics_route(exposition)] if is_loopback(settings.server.host) else []
    return HttpServer(
        port=engine,
        context=context,
        limits=limits,
        webhooks=webhook_settings(settings),
        routes=routes,
    )


def webhook_settings(settings: Settings) -> WebhookSettings:
    """What an operator decides about webhooks."""
    from polymq.gateways.http_cloudevents.limits import WebhookSettings

    return WebhookSettings(
        origin=settings.http.webhook_origin,
        handshake=settings.http.webhook_handshake,
        allow_http=settings.http.webhook_allow_http,
        allow_networks=tuple(settings.http.webhook_allow_networks),
        deny_networks=tuple(settings.http.webhook_deny_networks),
    )


def make_rocketmq(
    settings: Settings, engine: BrokerPort, context: Context, _exposition: Exposition
) -> GatewayServer:
    """RocketMQ's remoting protocol."""
    from polymq.gateways.rocketmq.limits import Limits as RocketmqLimits
    from polymq.gateways.rocketmq.server import Server as RocketmqServer

    limits = RocketmqLimits(connections_max=settings.rocketmq.connections_max)
    return RocketmqServer(
        port=engine,
        context=context,
        limits=limits,
        cluster=settings.names.cluster,
        broker_name=settings.names.broker,
        advertise=settings.rocketmq.advertise or None,
        user=settings.rocketmq.user,
    )


Maker = Callable[[Settings, BrokerPort, Context, Exposition], GatewayServer]

LISTENERS: Final[Mapping[str, Maker]] = {
    "mqtt": make_mqtt,
    "amqp": make_amqp,
    "http": make_http,
    "rocketmq": make_rocketmq,
}
"""By the name of their section in the settings."""


def check_tls(settings: Settings) -> None:
    """Whether the listeners can be opened as the settings say; to be asked before anything is
    written.

    Raises:
        Failure: USAGE, a certificate or key is missing or not what it should be.
    """
    names_tls(settings)
    for name, operators in (("api", settings.api), ("management", settings.management)):
        is_reachable = not is_loopback(operators.host or settings.server.host)
        is_plain = not settings.tls.certificate and not operators.allow_plain
        if operators.enabled and is_reachable and is_plain:
            text = (
                f"the listener of [{name}] needs a certificate (tls.certificate), or "
                f"{name}.allow_plain"
            )
            raise Failure(ExitCode.USAGE, text)
    if settings.metrics.enabled and settings.metrics.tls and make_tls(settings.tls) is None:
        text = "metrics.tls is true, but there is no certificate: set tls.certificate"
        raise Failure(ExitCode.USAGE, text)
    opened = {name: section for name, section in settings.listeners.items() if section.enabled}
    if not opened or make_tls(settings.tls) is not None:
        return
    for name, section in opened.items():
        if not section.plain:
            text = f"{name}.plain is false, but there is no certificate: set tls.certificate"
            raise Failure(ExitCode.USAGE, text)
