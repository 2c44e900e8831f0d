"""The MQTT listeners for WebSocket, and the further ones (`[[mqtt.listeners]]`). A part of the
composition root (`compose.py`).

Imports of the gateway stand inside the functions: a listener that is not opened is not loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from polymq.broker.port import BrokerPort
from polymq.errors import ExitCode, Failure
from polymq.inherited_sockets import NOTHING_INHERITED, InheritedSockets
from polymq.listener_settings import MqttListener
from polymq.net.connection import Context
from polymq.net.listener import CannotListen
from polymq.net.proxied import Proxies
from polymq.net.unix_socket import PathTaken, UnixAddress, check_unix
from polymq.preshared_keys import KeyFile
from polymq.servers import (
    GatewayServer,
    MqttTerms,
    auto_subscriptions_of,
    make_mqtt_websocket,
    mount_points,
    mqtt_limits,
    rewriting_of,
)
from polymq.settings import Settings, TlsSettings, is_loopback
from polymq.tls import HTTP_PROTOCOLS
from polymq.tls_files import ListenerFiles, TlsFiles, source_of

if TYPE_CHECKING:
    from polymq.gateways.mqtt.server import Server
    from polymq.sys_figures import ServerTopics

LEVELS: Final = {"3.1": 3, "3.1.1": 4, "5": 5}
"""The protocol levels of MQTT's versions (3.1.1 part 3.1.2.2)."""


def owner_of(listener: MqttListener) -> str:
    """What messages about a listener begin with."""
    return f"mqtt listener {listener.name}"


def host_of(settings: Settings, listener: MqttListener) -> str:
    """The address that a listener binds to."""
    return listener.host or settings.server.host


def listener_tls(settings: Settings, listener: MqttListener) -> TlsSettings:
    """The files of a listener: its own, else those of `[tls]`; none if it is without TLS."""
    if not listener.tls:
        return TlsSettings()
    base = settings.tls
    asks = listener.tls_client_certificates
    has_own = bool(listener.tls_certificate)
    return TlsSettings(
        certificate=listener.tls_certificate if has_own else base.certificate,
        key=listener.tls_key if has_own else base.key,
        client_ca="" if asks == "none" else listener.tls_client_ca or base.client_ca,
        client_certificates=(base.client_certificates if asks == "" or asks == "none" else asks),
        crl="" if asks == "none" else listener.tls_crl or base.crl,
    )


def files_of(settings: Settings, listener: MqttListener) -> ListenerFiles:
    """What a listener has TLS with."""
    if listener.tls_psk_file:
        return KeyFile(listener.tls_psk_file, listener.tls_psk_hint)
    return listener_tls(settings, listener)


def tls_for(settings: Settings, owner: str) -> ListenerFiles:
    """The files of the listener that messages name so; empty: those of `[tls]`."""
    for listener in settings.mqtt.listeners:
        if owner and owner_of(listener) == owner:
            return files_of(settings, listener)
    return settings.tls


def check_listeners_tls(settings: Settings) -> None:
    """Whether the listeners have what they need for TLS. Raises Failure."""
    for listener in settings.mqtt.listeners:
        if not listener.tls:
            continue
        chosen, owner = files_of(settings, listener), owner_of(listener)
        if source_of(chosen, owner=owner) is None:
            text = f"{owner}: there is no certificate: set tls_certificate, or tls.certificate"
            raise Failure(ExitCode.USAGE, text)
        if isinstance(chosen, KeyFile):
            continue
        if listener.user_from_certificate and not chosen.client_ca:
            text = f"{owner}: user_from_certificate needs tls_client_ca, or tls.client_ca"
            raise Failure(ExitCode.USAGE, text)
    if settings.mqtt.user_from_certificate and not settings.tls.client_ca:
        text = "mqtt.user_from_certificate needs tls.client_ca, the authority of the clients"
        raise Failure(ExitCode.USAGE, text)


def unix_address(listener: MqttListener) -> UnixAddress:
    """Where a listener of type unix is."""
    return UnixAddress(path=listener.path, mode=int(listener.mode, 8), group=listener.group)


def check_unix_paths(settings: Settings, inherited: Collection[str] = ()) -> None:
    """Whether the Unix sockets can be made; to be asked before anything is written.

    Args:
        inherited: labels of listeners that have their sockets already.

    Raises:
        Failure: one cannot be made.
    """
    for listener in settings.mqtt.listeners:
        if listener.type != "unix" or listener.label in inherited:
            continue
        try:
            check_unix(unix_address(listener))
        except PathTaken as error:
            raise Failure(ExitCode.CANNOT_LISTEN, f"{owner_of(listener)}: {error}") from error


def is_private(settings: Settings) -> bool:
    """Whether only this machine reaches the listeners. A proxy brings clients of other machines."""
    listeners = settings.mqtt.listeners
    hosts = {host_of(settings, listener) for listener in listeners if listener.type != "unix"}
    hosts.add(settings.server.host)
    proxied = any(listener.proxy_protocol for listener in listeners)
    return all(map(is_loopback, hosts)) and not proxied


def plain_listeners(settings: Settings) -> list[str]:
    """Those that clients of other machines reach without TLS."""
    return [
        listener.label
        for listener in settings.mqtt.listeners
        if not listener.tls
        and listener.type != "unix"
        and not is_loopback(host_of(settings, listener))
    ]


def make_listener(
    settings: Settings,
    listener: MqttListener,
    engine: BrokerPort,
    context: Context,
    sys_topics: ServerTopics | None = None,
) -> Server:
    """The server of one listener."""
    from polymq.gateways.mqtt.server import Server

    seen = None
    if sys_topics is not None:
        seen = sys_topics.everywhere if listener.mount_point else sys_topics.whole
    return Server(
        port=engine,
        context=context,
        sys_topics=seen,
        client_events=sys_topics and sys_topics.events,
        control=None if listener.mount_point else sys_topics and sys_topics.control,
        fixed_topic=settings.mqtt.topic or None,
        proxies=Proxies(listener.proxy_networks) if listener.proxy_protocol else None,
        **listener_terms(settings, listener),
    )


def listener_terms(settings: Settings, listener: MqttListener) -> MqttTerms:
    """What a reload may change of one listener."""
    from polymq.gateways.mqtt.identity import preshared_user, proxied_user, user_of
    from polymq.gateways.mqtt.rules import Rules
    from polymq.gateways.mqtt.websocket import make_offer

    limits = mqtt_limits(
        settings,
        connections_max=listener.connections_max,
        connection_rate_max=listener.connection_rate_max,
        packet_bytes_max=listener.packet_bytes_max,
    )
    user = user_of(listener.user_from_certificate)
    if listener.tls_psk_file:
        user = preshared_user
    rules = Rules(
        levels=frozenset(LEVELS[version] for version in listener.protocol_versions),
        allow_anonymous=listener.allow_anonymous,
        user_of=proxied_user if listener.proxy_user else user,
        mount_point=listener.mount_point,
        other_mount_points=mount_points(settings, without=listener.mount_point),
    )
    websocket = None
    if listener.type == "websocket":
        websocket = make_offer(
            path=listener.websocket_path,
            origins=listener.websocket_origins,
            packet_bytes_max=limits.packet_bytes_max,
        )
    return MqttTerms(
        limits=limits,
        rules=rules,
        rewriting=rewriting_of(settings),
        auto_subscriptions=auto_subscriptions_of(settings),
        websocket=websocket,
    )


async def open_websockets(
    settings: Settings,
    engine: BrokerPort,
    context: Context,
    tls_files: TlsFiles,
    opened: Callable[[str, GatewayServer], None],
    sys_topics: ServerTopics | None = None,
    inherited: InheritedSockets = NOTHING_INHERITED,
) -> dict[str, int | None]:
    """Open the ports of `[mqtt]` for MQTT over WebSocket, as `open_listeners` does.

    Returns:
        The ports by label.

    Raises:
        Failure: one of them cannot listen.
    """
    tls = tls_files.source(settings.tls, HTTP_PROTOCOLS)
    wanted = {
        "mqtt_ws": (settings.mqtt.plain, settings.mqtt.websocket_port, None),
        "mqtt_wss": (tls is not None, settings.mqtt.websocket_tls_port, tls),
    }
    ports: dict[str, int | None] = {}
    for name, (is_open, port, own_tls) in wanted.items():
        if not is_open:
            continue
        server = make_mqtt_websocket(settings, engine, context, sys_topics)
        opened(name, server)
        try:
            sockets = inherited.take(name)
            ports[name] = await server.start(settings.server.host, port, own_tls, sockets)
        except CannotListen as error:
            raise Failure(ExitCode.CANNOT_LISTEN, f"{name}: {error}") from error
    return ports


async def open_listeners(
    settings: Settings,
    engine: BrokerPort,
    context: Context,
    tls_files: TlsFiles,
    opened: Callable[[str, GatewayServer], None],
    sys_topics: ServerTopics | None = None,
    inherited: InheritedSockets = NOTHING_INHERITED,
) -> dict[str, int | str]:
    """Open all, in their order.

    Args:
        opened: told of each with its label, before it listens.
        sys_topics: what their clients get of `$SYS/...`.
        inherited: sockets that they have already, by label.

    Returns:
        By name: the port, or the path of the socket.

    Raises:
        Failure: one of them cannot listen.
    """
    where: dict[str, int | str] = {}
    for listener in settings.mqtt.listeners:
        owner = owner_of(listener)
        protocols = HTTP_PROTOCOLS if listener.type == "websocket" else ()
        tls = tls_files.source(files_of(settings, listener), protocols, owner)
        server = make_listener(settings, listener, engine, context, sys_topics)
        opened(listener.label, server)
        sockets = inherited.take(listener.label)
        try:
            if listener.type == "unix":
                await server.start_unix(unix_address(listener), sockets)
                where[listener.name] = sockets[0].getsockname() if sockets else listener.path
            else:
                host = host_of(settings, listener)
                where[listener.name] = await server.start(host, listener.port, tls, sockets)
        except CannotListen as error:
            raise Failure(ExitCode.CANNOT_LISTEN, f"{owner}: {error}") from error
    return where
