"""The settings of one bridge to another MQTT broker: a table `[[mqtt.bridges]]` of the file."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, SecretStr, model_validator

from polymq.gateways.mqtt.bridging.remotes import (
    REMOTES_MAX,
    Remote,
    check_host,
    parse_remote,
)
from polymq.gateways.mqtt.bridging.rules import RULES_MAX, BridgeRule, check_rules
from polymq.gateways.mqtt.topic_filters import shortened
from polymq.setting_kinds import Section

FIELD_BYTES_MAX: Final = 65_535
"""Of a text in a packet of MQTT: its size is two bytes (3.1.1 part 1.5.3)."""
_OF_TLS: Final = ("tls_ca", "tls_certificate", "tls_key", "tls_insecure")


def _checked_topic(topic: str) -> str:
    if {"+", "#", "\0"} & set(topic):
        raise ValueError("a topic name has no +, # or U+0000")
    return topic


def _check_field(what: str, text: str, *, is_text: bool = True) -> None:
    """Whether a packet of MQTT can have it, as text or as bytes. Raises ValueError, without it."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{what} is not UTF-8") from None
    if size > FIELD_BYTES_MAX:
        raise ValueError(f"{what} has {size} bytes: MQTT has no room for more than 65535")
    if is_text and "\0" in text:
        raise ValueError(f"{what} has the character U+0000, which MQTT does not allow")


class BridgeTopic(Section):
    """One entry of `topics`."""

    pattern: str = "#"
    direction: Literal["out", "in", "both"] = "out"
    qos: Annotated[int, Field(ge=0, le=2)] = 1
    local_prefix: str = ""
    remote_prefix: str = ""

    def rule(self) -> BridgeRule:
        """The same for the gateway."""
        return BridgeRule(**self.model_dump())


class MqttBridge(Section):
    """A bridge: the server connects to another MQTT broker as a client, and carries topics to it,
    from it, or both. Each is a table of its own, and there may be any number."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", max_length=32)]
    """The name of the bridge in the log and in metrics: small letters, digits, - and _. It has to
    be set, and no two bridges may have the same. What waits for the remote broker belongs to the
    name."""
    enabled: bool = True
    """Whether it connects. If false, messages are queued for it, but it does not connect. To end
    that, remove the bridge from the configuration."""
    host: str = "localhost"
    """The remote broker: a name or an IP address, without a port and without a scheme such as
    mqtt://."""
    port: Annotated[int, Field(ge=0, le=65_535)] = 0
    """Its port. 0: 1883, or 8883 with TLS."""
    fallbacks: list[str] = []
    """Where the remote broker is as well, such as ["b.example.com", "c.example.com:1884"]: tried in
    turn when it is not reached at `host`, or does not accept the bridge there. All of them have to
    be the same broker, or a cluster that shares sessions."""
    topics: Annotated[list[BridgeTopic], Field(max_length=RULES_MAX)]
    """What is carried, such as [{pattern = "sensors/#", direction = "out", qos = 1, local_prefix =
    "", remote_prefix = "plant7/"}]. `direction` is out, in or both, `qos` the highest QoS. The
    pattern is a topic filter behind the local prefix here, and behind the remote prefix at the
    remote broker. It has to be set."""
    client_id: Annotated[str, Field(max_length=256)] = ""
    """The client id. Empty: `polymq-` and the name of the bridge. It has to be the only one at the
    remote broker, so two bridges that connect to one address may not have the same."""
    user: str = ""
    """The user name at the remote broker. Empty: none."""
    password: SecretStr = SecretStr("")
    """The password. It is never shown. Empty: none, or that of `password_file`."""
    password_file: str = ""
    """A file with the password, which only its owner may read. The end of its line does not
    count."""
    protocol_version: Literal["auto", "5", "3.1.1"] = "auto"
    """The version of MQTT. auto: MQTT 5, and 3.1.1 if the remote broker refuses it."""
    keep_alive_seconds: Annotated[int, Field(ge=5, le=65_535)] = 60
    """The keep alive. A remote broker that sends nothing for one and a half times this is given
    up."""
    clean_start: bool = False
    """Whether the remote broker forgets the bridge when it disconnects. If false, it keeps messages
    for the bridge meanwhile. What waits here waits in any case."""
    inflight_max: Annotated[int, Field(ge=0, le=16_384)] = 0
    """How many messages of QoS 1 and 2 may wait for the remote broker's acknowledgement. Its own
    limit (Receive Maximum) holds as well. 0: that limit; with MQTT 3.1.1, which has none, 20 if a
    topic has QoS 2, because mosquitto closes connections with more, and 16384 otherwise."""
    tls: bool = False
    """Whether to use TLS."""
    tls_ca: str = ""
    """A file with the certificates of the authorities that are trusted, in PEM form. Empty: those
    of the system."""
    tls_certificate: str = ""
    """The client certificate, in PEM form. It is set together with `tls_key`."""
    tls_key: str = ""
    """Its private key, in PEM form, not encrypted."""
    tls_insecure: bool = False
    """Whether to accept any certificate, for any name. It protects against nobody who can stand
    between, so it is for tests only."""
    local_user: str = ""
    """The user in whose name the bridge publishes and subscribes here, with its permissions and
    quotas. Empty: as the broker itself, with all permissions."""
    notifications: bool = False
    """Whether to publish to `notification_topic` of the remote broker whether the bridge is
    connected: 1 or 0, retained, the 0 by a will."""
    notification_topic: Annotated[str, AfterValidator(_checked_topic)] = ""
    """Empty: $SYS/broker/connection/CLIENT_ID/state, as mosquitto has it."""
    loop_detection: bool = True
    """Whether messages to the remote broker get a User Property `polymq-via`, by which they are
    known and dropped when they come back here through other bridges. Only MQTT 5 has it."""
    connect_seconds: Annotated[float, Field(gt=0, le=3600)] = 10
    """How long connecting may take, and after that the answer to CONNECT."""
    retry_seconds_max: Annotated[float, Field(ge=1, le=86_400)] = 60
    """The longest wait between two attempts to connect. The first wait is up to 1 s, each further
    one up to twice as long."""

    @model_validator(mode="after")
    def _fits(self) -> MqttBridge:
        try:
            check_rules(self.rules)
            _check_field("user", self.user)
            _check_field("password", self.password.get_secret_value(), is_text=False)
            _check_field("client_id", self.own_id)
            _check_field("notification_topic", self.state_topic)
        except ValueError as error:
            raise ValueError(f"bridge {self.name}: {error}") from None
        try:
            check_host(self.host)
        except ValueError as error:
            more = ""
            if {":", "["} & set(self.host) and "://" not in self.host:
                more = ": the port is a setting of its own, and an IPv6 address has no brackets"
            raise ValueError(f"bridge {self.name}: host: {error}{more}") from None
        if len(self.fallbacks) >= REMOTES_MAX:
            most = REMOTES_MAX - 1
            raise ValueError(f"bridge {self.name}: fallbacks has more than {most} addresses")
        for text in self.fallbacks:
            try:
                parse_remote(text, self.remote_port)
            except ValueError as error:
                raise ValueError(f"bridge {self.name}: fallbacks: {error}") from None
        for key in _OF_TLS:
            if not self.tls and getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(f"bridge {self.name}: {key} needs tls = true")
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ValueError(f"bridge {self.name}: set tls_certificate and tls_key together")
        has_password = bool(self.password.get_secret_value())
        if has_password and self.password_file:
            raise ValueError(f"bridge {self.name}: set password or password_file, not both")
        if (has_password or self.password_file) and not self.user:
            raise ValueError(f"bridge {self.name}: a password needs a user")
        if self.notification_topic and not self.notifications:
            raise ValueError(f"bridge {self.name}: notification_topic needs notifications = true")
        return self

    @property
    def rules(self) -> list[BridgeRule]:
        """The topics for the gateway."""
        return [topic.rule() for topic in self.topics]

    @property
    def own_id(self) -> str:
        """The client id at the remote broker."""
        return self.client_id or f"polymq-{self.name}"

    @property
    def remotes(self) -> list[Remote]:
        """All addresses of the remote broker, the preferred one first."""
        port = self.remote_port
        others = [parse_remote(text, port) for text in self.fallbacks]
        return [Remote(self.host, port), *others]

    @property
    def remote_port(self) -> int:
        """The port of the remote broker, where none is said."""
        return self.port or (8883 if self.tls else 1883)

    @property
    def state_topic(self) -> str:
        """Where the remote broker is told whether the bridge is connected; empty: nowhere."""
        if not self.notifications:
            return ""
        return self.notification_topic or f"$SYS/broker/connection/{self.own_id}/state"


def check_bridges(bridges: list[MqttBridge]) -> list[MqttBridge]:
    """Refuse two with the same name, or with the same client id at one remote broker. Raises
    ValueError."""
    for name, count in Counter(bridge.name for bridge in bridges).items():
        if count > 1:
            raise ValueError(f"{count} bridges have the name {name}: change one")
    seen: dict[tuple[str, Remote], str] = {}
    for bridge in bridges:
        for host, port in bridge.remotes if bridge.enabled else ():
            remote = Remote(host.lower().removesuffix("."), port)
            other = seen.setdefault((bridge.own_id, remote), bridge.name)
            if other != bridge.name:
                raise ValueError(
                    f"the bridges {other} and {bridge.name} have the client id {bridge.own_id!r} "
                    f"at {shortened(str(remote))}, which would disconnect each in turn: change one"
                )
    return bridges
