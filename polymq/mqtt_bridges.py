"""The bridges to other MQTT brokers (`[[mqtt.bridges]]`). A part of the composition root
(`compose.py`).

Imports of the gateway stand inside the functions: what is not configured is not loaded.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from polymq.bridge_settings import MqttBridge
from polymq.broker.engine import Engine
from polymq.broker.errors import BrokerError
from polymq.broker.port import BrokerPort
from polymq.errors import ExitCode, Failure
from polymq.logs import logger
from polymq.metrics.registry import Probe, Value, counter, gauge
from polymq.net.connection import Context
from polymq.servers import mqtt_limits
from polymq.settings import Settings

if TYPE_CHECKING:
    from polymq.gateways.mqtt.bridging.bridge import Bridge, BridgeOptions

BridgeStates = Callable[[], Mapping[str, bool]]
"""By name, whether each bridge is connected."""
ID_DOCUMENT: Final = "mqtt-bridges"
"""The kind of the document that has the name by which this broker knows its own messages."""


def check_bridges(settings: Settings) -> None:
    """Whether the bridges have what they need; to be asked before anything is written. Raises
    Failure: USAGE."""
    for bridge in settings.mqtt.bridges:
        make_context(bridge)
        _password(bridge)


def make_context(bridge: MqttBridge) -> ssl.SSLContext | None:
    """The TLS of a bridge; None without. Raises Failure: USAGE."""
    if not bridge.tls:
        return None
    context = ssl.create_default_context()
    if bridge.tls_ca:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _load(bridge, "tls_ca", bridge.tls_ca, lambda: context.load_verify_locations(bridge.tls_ca))
    if bridge.tls_certificate:
        chain = (bridge.tls_certificate, bridge.tls_key)
        for key, path in zip(("tls_certificate", "tls_key"), chain, strict=True):
            _load(bridge, key, path, Path(path).read_bytes)
        _load(
            bridge,
            "tls_certificate",
            bridge.tls_certificate,
            lambda: context.load_cert_chain(*chain, password=_no_password),
        )
    if bridge.tls_insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _no_password() -> str:
    """OpenSSL would ask at the terminal for the password of an encrypted key."""
    return ""


def _load(bridge: MqttBridge, key: str, path: str, load: Callable[[], object]) -> None:
    try:
        load()
    except ssl.SSLError as error:
        text = f"bridge {bridge.name}: {key}: {path} is not what it should be in PEM form"
        reason = (error.reason or "").lower().replace("_", " ")
        if reason:
            text += f" ({reason})"
        raise Failure(ExitCode.USAGE, text) from error
    except OSError as error:
        text = f"bridge {bridge.name}: {key}: {path} cannot be read: {error.strerror}"
        raise Failure(ExitCode.USAGE, text) from error


def _password(bridge: MqttBridge) -> bytes | None:
    """The password of a bridge; None without. Raises Failure: USAGE."""
    path = bridge.password_file
    if not path:
        return bridge.password.get_secret_value().encode() or None
    try:
        password = Path(path).read_bytes().rstrip(b"\r\n")
        open_to_others = Path(path).stat().st_mode & 0o077
    except OSError as error:
        text = f"bridge {bridge.name}: password_file: {path} cannot be read: {error.strerror}"
        raise Failure(ExitCode.USAGE, text) from error
    if open_to_others:
        text = f"bridge {bridge.name}: password_file: {path} can be read by others: chmod 600"
        raise Failure(ExitCode.USAGE, f"{text} {path}")
    if not 0 < len(password) <= 65_535:
        text = f"bridge {bridge.name}: password_file: {path} is empty, or too long for a password"
        raise Failure(ExitCode.USAGE, text)
    return password


def _options(bridge: MqttBridge) -> BridgeOptions:
    from polymq.gateways.mqtt.bridging.bridge import BridgeOptions

    return BridgeOptions(
        name=bridge.name,
        remotes=bridge.remotes,
        rules=bridge.rules,
        client_id=bridge.own_id,
        tls=make_context(bridge),
        user=bridge.user or None,
        password=_password(bridge),
        version=bridge.protocol_version,
        keep_alive_seconds=bridge.keep_alive_seconds,
        clean_start=bridge.clean_start,
        local_user=bridge.local_user,
        state_topic=bridge.state_topic,
        inflight_max=bridge.inflight_max,
        marks_messages=bridge.loop_detection,
        connect_seconds=bridge.connect_seconds,
        retry_seconds_max=bridge.retry_seconds_max,
    )


class Bridges:
    """All bridges of a server.

    Args:
        random: from 0 up to 1.
        new_name: a name that nobody guesses.
    """

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        context: Context,
        random: Callable[[], float],
        new_name: Callable[[], str],
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._context = context
        self._random = random
        self._new_name = new_name
        self._bridges: list[Bridge] = []
        self._marker = b""

    def start(self, servers: Iterable[object]) -> None:
        """Let messages wait for all, and connect those that are switched on. Returns at once.

        Args:
            servers: the listeners that are open. Those of MQTT drop what has been here before.
        """
        from polymq.gateways.mqtt.loops import marker_of
        from polymq.gateways.mqtt.server import Server

        if self._engine.core.follows:
            return  # those of the leader are connected
        self._end_former()
        if not self._settings.mqtt.bridges:
            return
        self._marker = marker_of(self._broker_name())
        for server in servers:
            if isinstance(server, Server):
                server.drop_looped(self._marker)
        for bridge in self._settings.mqtt.bridges:
            made = self._make(bridge)
            self._bridges.append(made)
            made.start(connects=bridge.enabled)

    async def stop(self, drain_seconds: float) -> None:
        """Take leave of the remote brokers."""
        await asyncio.gather(*(bridge.stop(drain_seconds) for bridge in self._bridges))

    def _make(self, bridge: MqttBridge) -> Bridge:
        from dataclasses import replace

        from polymq.gateways.mqtt.bridging.bridge import Bridge
        from polymq.gateways.mqtt.bridging.mapping import BridgeMapping
        from polymq.gateways.mqtt.features import Features
        from polymq.gateways.mqtt.rules import BRIDGE_PREFIX
        from polymq.gateways.mqtt.shared import Shared
        from polymq.net.outgoing import Dialer

        engine_port: BrokerPort = self._engine.port
        port = engine_port
        if bridge.local_user:
            port = engine_port.admission.for_owner(bridge.local_user)
        limits = replace(mqtt_limits(self._settings), features=Features())
        mapping = BridgeMapping(
            port=port,
            limits=limits,
            fixed_topic=self._settings.mqtt.topic or None,
            name=bridge.name,
            rules=bridge.rules,
            publisher=BRIDGE_PREFIX + bridge.name,
        )
        return Bridge(
            _options(bridge),
            port=port,
            shared=Shared(
                port=engine_port,
                context=self._context,
                limits=limits,
                mapping=mapping,
                new_client_id=self._new_name,
            ),
            dial=Dialer(self._context),
            random=self._random,
            marker=self._marker,
        )

    def _broker_name(self) -> str:
        """The name of this broker in its messages: the same as long as its log lives."""
        documents = self._engine.port.documents
        known = documents.of_kind(ID_DOCUMENT).get("broker")
        if known is not None:
            return str(known["name"])
        name = self._new_name()
        try:
            documents.put(ID_DOCUMENT, "broker", {"name": name})
        except BrokerError:
            pass  # the log takes nothing now: the name is for this start
        return name

    def _end_former(self) -> None:
        """End the sessions of bridges that are not configured any more: messages would be stored
        for them for ever. One whose `local_user` has changed begins anew."""
        from polymq.gateways.mqtt.bridging.connection import PRINCIPAL
        from polymq.gateways.mqtt.rules import BRIDGE_PREFIX

        owners = {
            BRIDGE_PREFIX + bridge.name: bridge.local_user or PRINCIPAL
            for bridge in self._settings.mqtt.bridges
        }
        sessions = self._engine.sessions
        former = [
            session
            for client_id, session in sessions.by_client.items()
            if client_id.startswith(BRIDGE_PREFIX) and owners.get(client_id) != session.principal
        ]
        for session in former:
            try:
                sessions.end_session(session)
            except BrokerError:
                continue
            logger("polymq").warning(
                "the session of a bridge has ended, with what waited for the remote broker: the "
                "bridge is not configured any more, or has another local_user",
                bridge=session.client_id.removeprefix(BRIDGE_PREFIX),
                user=session.principal,
            )

    def states(self) -> Mapping[str, bool]:
        """By name, whether each bridge is connected."""
        connected = {bridge.name for bridge in self._bridges if bridge.is_connected}
        return {bridge.name: bridge.name in connected for bridge in self._settings.mqtt.bridges}

    # --- metrics ----------------------------------------------------------------------------

    def probes(self) -> list[Probe]:
        """The metrics of the bridges."""
        return [
            gauge(
                "polymq_mqtt_bridge_connected",
                "1 while a bridge is connected to its remote broker.",
                self._of_each(lambda bridge: float(bridge.is_connected)),
                label="bridge",
            ),
            gauge(
                "polymq_mqtt_bridge_waiting_messages",
                "Messages that wait for the remote broker, those in flight among them.",
                self._of_each(self._waiting),
                label="bridge",
            ),
            counter(
                "polymq_mqtt_bridge_connects",
                "Connections that the remote broker accepted.",
                self._of_each(lambda bridge: bridge.counters.connects),
                label="bridge",
            ),
            counter(
                "polymq_mqtt_bridge_failures",
                "Connections that failed or ended, by why.",
                self._failures,
                labels=("bridge", "reason"),
            ),
            counter(
                "polymq_mqtt_bridge_publishes",
                "PUBLISH packets to the remote broker (sent) and from it (received).",
                self._publishes,
                labels=("bridge", "direction"),
            ),
            counter(
                "polymq_mqtt_bridge_dropped",
                "Messages that were lost: not stored here (local), too large for the remote broker "
                "or not taken by it (remote), or dropped because they had been here (loop).",
                self._dropped,
                labels=("bridge", "by"),
            ),
        ]

    def _of_each(self, value: Callable[[Bridge], float]) -> Callable[[], Value]:
        return lambda: {bridge.name: value(bridge) for bridge in self._bridges}

    def _waiting(self, bridge: Bridge) -> float:
        session = self._engine.sessions.by_client.get(bridge.client_id)
        if session is None:
            return 0
        groups = [subscription.group for subscription in session.subscriptions.values()]
        ready = sum(group.ready_count for group in groups if group is not None)
        return ready + session.unacked.count

    def _failures(self) -> Mapping[tuple[str, ...], float]:
        return {
            (bridge.name, reason): count
            for bridge in self._bridges
            for reason, count in bridge.counters.failures.items()
        }

    def _publishes(self) -> Mapping[tuple[str, ...], float]:
        found: dict[tuple[str, ...], float] = {}
        for bridge in self._bridges:
            found[bridge.name, "sent"] = bridge.sent
            found[bridge.name, "received"] = bridge.received
        return found

    def _dropped(self) -> Mapping[tuple[str, ...], float]:
        found: dict[tuple[str, ...], float] = {}
        for bridge in self._bridges:
            counters = bridge.counters
            found[bridge.name, "local"] = counters.dropped
            found[bridge.name, "remote"] = counters.not_taken + bridge.too_large
            found[bridge.name, "loop"] = bridge.looped
        return found
