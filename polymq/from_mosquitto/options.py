"""Every option of mosquitto.conf: its form, and what becomes of it.

The options are those of mosquitto 2.0 (mosquitto.conf(5)) and those that 2.1 has added. The table
in docs/migrating-from-mosquitto.md is made from this one.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final


class Scope(enum.Enum):
    """Where an option belongs."""

    GENERAL = "the server"
    SECURITY = "a listener if per_listener_settings is true, else the server"
    LISTENER = "the listener above it"
    PLUGIN = "the plugin above it"
    BRIDGE = "the bridge above it"


class Form(enum.Enum):
    """How its value is read."""

    BOOL = "true or false"
    NUMBER = "a number"
    WORD = "the first word"
    TEXT = "the rest of the line"
    PERIOD = "a number and h, d, w, m or y"
    OTHER = "several words, or words of its own"


class Fate(enum.Enum):
    """What becomes of it."""

    CONVERTED = "converted"
    NOT_NEEDED = "not needed"
    MISSING = "no counterpart"


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Attributes:
        text: for what is converted, what is different; else why it is not converted and what to do.
        becomes: the settings that it becomes, or the command that takes over what it names.
        low, high: the numbers that mosquitto accepts.
        same: values with which mosquitto does what this server does anyway.
        many: whether it may stand several times, and all count.
    """

    name: str
    scope: Scope
    form: Form
    fate: Fate
    text: str = ""
    becomes: str = ""
    low: int = -(1 << 31)
    high: int = (1 << 31) - 1
    same: tuple[str, ...] = ()
    many: bool = False


_STDERR: Final = "the log is written to stderr: let systemd or the container store it"
_PLUGINS: Final = (
    "plugins cannot be loaded; users and rules are part of the server (`polymq user`, `polymq "
    "permission`), and tokens are accepted with [jwt]"
)
_FOR_PLUGINS: Final = "it is for a plugin, and plugins cannot be loaded"
_CIPHERS: Final = "TLS 1.2 and 1.3 are offered with the ciphers of OpenSSL's defaults"
_ENGINE: Final = "the key has to be in a file; engines of OpenSSL are not used"
_PSK: Final = (
    "pre-shared keys are not supported: use certificates (tls_certificate, user_from_certificate)"
)
_IDS: Final = "a client id that the server assigns is `auto-` and 32 hexadecimal digits"
_WEBSOCKETS: Final = "request headers may have 8 KiB"


def _general() -> Iterator[Option]:
    scope, bool_, number = Scope.GENERAL, Form.BOOL, Form.NUMBER
    word, text = Form.WORD, Form.TEXT
    converted, needless, missing = Fate.CONVERTED, Fate.NOT_NEEDED, Fate.MISSING
    yield Option(
        "allow_duplicate_messages", scope, bool_, missing,
        "a client whose filters overlap gets a message once for each of them, before MQTT 5, too",
        same=("true",),
    )  # fmt: skip
    on_disk = "everything is on disk when it is acknowledged"
    yield Option("autosave_interval", scope, number, needless, on_disk)
    yield Option("autosave_on_changes", scope, bool_, needless, on_disk)
    yield Option(
        "check_retain_source", scope, bool_, missing,
        "a retained message stays when its publisher loses the permission: see `polymq retained "
        "clear`", same=("false",),
    )  # fmt: skip
    yield Option(
        "clientid_prefixes", scope, text, missing,
        "a client id is not restricted; give users permissions with {client_id} or {user} in them",
    )  # fmt: skip
    yield Option(
        "connection_messages", scope, bool_, needless,
        "the audit log has every login and `polymq mqtt client list` every client",
    )  # fmt: skip
    yield Option(
        "enable_control_api", scope, bool_, missing,
        "there are no topics $CONTROL/...: the commands do this (polymq --help)", same=("false",),
    )  # fmt: skip
    per_listener = (
        "connections are limited for each listener (connections_max) and each user (quotas)"
    )
    yield Option("global_max_clients", scope, number, missing, per_listener, same=("-1",))
    yield Option("global_max_connections", scope, number, missing, per_listener, same=("-1",))
    yield Option(
        "include_dir", scope, text, converted, "the files in it are read, too", "(read)", many=True
    )
    yield Option("log_dest", scope, Form.OTHER, missing, _STDERR, same=("stderr",), many=True)
    yield Option("log_facility", scope, number, needless, _STDERR)
    yield Option("log_timestamp", scope, bool_, needless, "every line has its time")
    yield Option(
        "log_timestamp_format", scope, text, needless, "the time is written as in RFC 3339"
    )
    yield Option(
        "log_type", scope, word, converted, "the most talkative of the types decides", "log.level",
        many=True,
    )  # fmt: skip
    yield Option(
        "max_inflight_bytes", scope, number, missing,
        "messages in flight are limited by number (mqtt.inflight_max)", same=("0",),
    )  # fmt: skip
    yield Option(
        "max_inflight_messages", scope, number, converted,
        "0 (no limit) becomes 16,384. Not set: a connection begins with 32, mosquitto with 20",
        "mqtt.inflight_max", high=65_535,
    )  # fmt: skip
    yield Option(
        "max_keepalive", scope, number, converted, "for MQTT 5, as in mosquitto",
        "mqtt.keep_alive_seconds_max", low=0, high=65_535,
    )  # fmt: skip
    yield Option(
        "max_packet_size", scope, number, converted,
        "not set: 16 MiB and 64 KiB; mosquitto 2.0 has no limit then",
        "listeners: packet_bytes_max", low=20,
    )  # fmt: skip
    yield Option(
        "max_queued_bytes", scope, number, missing,
        "what waits is limited by number (mqtt.session_queue_max) and by the disk", same=("0",),
    )  # fmt: skip
    yield Option(
        "max_queued_messages", scope, number, converted,
        "not set: no limit but the disk's; mosquitto has 1000",
        "mqtt.session_queue_max, mqtt.session_queue_overflow",
    )  # fmt: skip
    yield Option(
        "memory_limit", scope, number, missing,
        "limit the memory of the process with systemd (MemoryMax) or the container", same=("0",),
    )  # fmt: skip
    yield Option(
        "message_size_limit", scope, number, converted,
        "for all protocols; before MQTT 5 a larger message closes the connection",
        "storage.message_bytes_max", low=0, high=268_435_455,
    )  # fmt: skip
    yield Option("packet_buffer_size", scope, number, needless, "one read buffer is shared by all")
    yield Option(
        "per_listener_settings", scope, bool_, converted,
        "users and rules are for all listeners; allow_anonymous is for each", "(read)",
    )  # fmt: skip
    stored = "everything that has to survive is stored always, in a log of its own form"
    for name in ("persistence", "retained_persistence"):
        yield Option(name, scope, bool_, needless, stored)
    yield Option("persistence_file", scope, text, needless, "mosquitto.db is not read or written")
    yield Option(
        "persistence_location", scope, text, converted,
        "a directory `polymq` in it; mosquitto.db is not read", "server.data_directory",
    )  # fmt: skip
    yield Option(
        "persistent_client_expiration", scope, Form.PERIOD, converted,
        "a month has 30 days, a year 365, as in mosquitto", "mqtt.session_expiry_seconds",
    )  # fmt: skip
    yield Option(
        "pid_file", scope, text, missing, "`polymq serve --ready-file FILE` writes the process id"
    )
    yield Option("queue_qos0_messages", scope, bool_, converted, "", "mqtt.queue_qos0_messages")
    yield Option("retain_available", scope, bool_, converted, "", "mqtt.retain_available")
    yield Option(
        "retain_expiry_interval", scope, number, missing,
        "a retained message ends by the Message Expiry Interval of its publisher, or by `polymq "
        "retained clear`",
    )  # fmt: skip
    yield Option(
        "retry_interval", scope, Form.OTHER, needless, "mosquitto does not use it any more"
    )
    yield Option("set_tcp_nodelay", scope, bool_, needless, "TCP_NODELAY is set always")
    yield Option(
        "sys_interval",
        scope,
        number,
        converted,
        "",
        "mqtt.sys_interval_seconds",
        low=0,
        high=65_535,
    )
    yield Option(
        "upgrade_outgoing_qos", scope, bool_, missing,
        "a message is sent with the lower of its QoS and the subscription's, as MQTT asks for",
        same=("false",),
    )  # fmt: skip
    yield Option("user", scope, text, missing, "start the server as this user (systemd: User=)")
    yield Option("websockets_headers_size", scope, number, needless, _WEBSOCKETS)
    yield Option("websockets_log_level", scope, number, needless, "log.level is for all lines")


def _security() -> Iterator[Option]:
    scope, text, bool_ = Scope.SECURITY, Form.TEXT, Form.BOOL
    yield Option(
        "acl_file", scope, text, Fate.CONVERTED, "rules are for all listeners",
        "`polymq permission import mosquitto-acl`",
    )  # fmt: skip
    yield Option(
        "allow_anonymous", scope, bool_, Fate.CONVERTED,
        "once there are users, anonymous clients may do what role:anonymous may",
        "listeners: allow_anonymous; server.allow_insecure if there are to be no users",
    )  # fmt: skip
    yield Option(
        "allow_zero_length_clientid", scope, bool_, Fate.MISSING,
        "a client without a client id is given one", same=("true",),
    )  # fmt: skip
    for name in ("auth_plugin", "plugin", "global_plugin", "plugin_load"):
        yield Option(name, scope, text, Fate.MISSING, _PLUGINS, many=True)
    yield Option("auto_id_prefix", scope, text, Fate.NOT_NEEDED, _IDS)
    yield Option(
        "password_file", scope, text, Fate.CONVERTED, "users are for all listeners",
        "`polymq user import mosquitto-passwords`",
    )  # fmt: skip
    yield Option("psk_file", scope, text, Fate.MISSING, _PSK)


def _listener() -> Iterator[Option]:
    scope, bool_, number = Scope.LISTENER, Form.BOOL, Form.NUMBER
    word, text = Form.WORD, Form.TEXT
    converted, needless, missing = Fate.CONVERTED, Fate.NOT_NEEDED, Fate.MISSING
    yield Option(
        "accept_protocol_versions", scope, Form.OTHER, converted, "", "listeners: protocol_versions"
    )
    yield Option("bind_address", scope, text, converted, "", "listeners: host")
    yield Option(
        "bind_interface", scope, text, missing,
        "the listener is written with host 127.0.0.1: set the address of the interface",
    )  # fmt: skip
    yield Option(
        "cafile", scope, text, converted, "only with require_certificate true",
        "listeners: tls_client_ca",
    )  # fmt: skip
    yield Option(
        "capath", scope, text, converted, "a file polymq-client-ca.pem in it, which you make",
        "listeners: tls_client_ca",
    )  # fmt: skip
    yield Option("certfile", scope, text, converted, "", "listeners: tls, tls_certificate")
    yield Option("ciphers", scope, text, missing, _CIPHERS)
    yield Option("ciphers_tls1.3", scope, text, missing, _CIPHERS)
    yield Option(
        "crlfile", scope, text, converted,
        "a list that is missing or out of date keeps out every client of its authority",
        "listeners: tls_crl",
    )  # fmt: skip
    yield Option("dhparamfile", scope, text, needless, "keys are exchanged with elliptic curves")
    yield Option(
        "disable_client_cert_date_checks", scope, bool_, missing,
        "a certificate out of its time is refused", same=("false",),
    )  # fmt: skip
    yield Option(
        "enable_proxy_protocol", scope, number, converted,
        "both versions are accepted; set proxy_networks to those of your proxies",
        "listeners: proxy_protocol, proxy_networks", low=1, high=2,
    )  # fmt: skip
    yield Option(
        "http_dir", scope, text, missing, "files are not served: use a web server for them"
    )
    yield Option(
        "keyfile", scope, text, converted, "its mode has to be 0600 or less", "listeners: tls_key"
    )
    yield Option(
        "listener", scope, Form.OTHER, converted,
        "without an address it listens on IPv4 (0.0.0.0), mosquitto on IPv6, too",
        "listeners: port and host, or path", many=True,
    )  # fmt: skip
    yield Option(
        "listener_allow_anonymous", scope, bool_, converted, "", "listeners: allow_anonymous"
    )
    yield Option("listener_auto_id_prefix", scope, text, needless, _IDS)
    yield Option(
        "max_connections", scope, number, converted, "not set or -1: 10,000",
        "listeners: connections_max",
    )  # fmt: skip
    for name in ("max_qos", "maximum_qos"):
        yield Option(
            name, scope, number, converted, "for all listeners: the highest of them",
            "mqtt.qos_max", low=0, high=2,
        )  # fmt: skip
    yield Option(
        "max_topic_alias", scope, number, missing, "clients may set 64 topic aliases",
        low=0, high=65_535,
    )  # fmt: skip
    yield Option(
        "max_topic_alias_broker", scope, number, converted,
        "for all listeners: the highest of them, at most 1000", "mqtt.topic_aliases_out_max",
        low=0, high=65_535,
    )  # fmt: skip
    yield Option(
        "mount_point", scope, text, converted, "only whole levels: it has to end with /",
        "listeners: mount_point",
    )  # fmt: skip
    yield Option("plugin_use", scope, text, missing, _PLUGINS, many=True)
    yield Option("port", scope, number, converted, "", "listeners: port", low=1, high=65_535)
    yield Option(
        "protocol", scope, word, converted,
        "WebSocket clients use the path /mqtt or /; mosquitto takes every path", "listeners: type",
    )  # fmt: skip
    yield Option(
        "proxy_protocol_v2_require_tls", scope, bool_, missing,
        "the header is not asked whether its client used TLS", same=("false",),
    )  # fmt: skip
    yield Option("psk_hint", scope, text, missing, _PSK)
    yield Option(
        "require_certificate", scope, bool_, converted, "",
        "listeners: tls_client_certificates",
    )  # fmt: skip
    yield Option("socket_domain", scope, word, converted, "", "listeners: host")
    yield Option("tls_engine", scope, text, missing, _ENGINE)
    yield Option("tls_engine_kpass_sha1", scope, text, missing, _ENGINE)
    yield Option("tls_keyform", scope, text, missing, _ENGINE, same=("pem",))
    yield Option(
        "tls_version", scope, text, missing,
        "TLS 1.2 and 1.3 are offered; no version can be switched off or added", same=("tlsv1.2",),
    )  # fmt: skip
    yield Option(
        "use_identity_as_username", scope, bool_, converted,
        "the user has to exist, and the certificate is required",
        "listeners: user_from_certificate",
    )  # fmt: skip
    yield Option(
        "use_subject_as_username", scope, bool_, converted, "as use_identity_as_username",
        "listeners: user_from_certificate",
    )  # fmt: skip
    yield Option(
        "use_username_as_clientid", scope, bool_, missing,
        "a client keeps its client id; a session belongs to its user, and no other user gets it",
        same=("false",),
    )  # fmt: skip
    yield Option(
        "websockets_origin", scope, text, converted, "", "listeners: websocket_origins", many=True
    )


_OF_PLUGINS: Final = (
    Option("auth_opt_*", Scope.PLUGIN, Form.OTHER, Fate.MISSING, _FOR_PLUGINS, many=True),
    Option(
        "auth_plugin_deny_special_chars", Scope.PLUGIN, Form.BOOL, Fate.MISSING, _FOR_PLUGINS,
        many=True,
    ),
    Option("plugin_opt_*", Scope.PLUGIN, Form.OTHER, Fate.MISSING, _FOR_PLUGINS, many=True),
)  # fmt: skip
BRIDGE_NAMES: Final = (
    "connection", "address", "addresses", "bridge_alpn", "bridge_attempt_unsubscribe",
    "bridge_bind_address", "bridge_cafile", "bridge_capath", "bridge_certfile", "bridge_ciphers",
    "bridge_ciphers_tls1.3", "bridge_identity", "bridge_insecure", "bridge_keyfile",
    "bridge_max_packet_size", "bridge_max_topic_alias", "bridge_outgoing_retain",
    "bridge_protocol_version", "bridge_psk", "bridge_receive_maximum", "bridge_reload_type",
    "bridge_require_ocsp", "bridge_session_expiry_interval", "bridge_tcp_keepalive",
    "bridge_tcp_user_timeout", "bridge_tls_use_os_certs", "bridge_tls_version", "cleansession",
    "clientid", "idle_timeout", "keepalive_interval", "local_cleansession", "local_clientid",
    "local_password", "local_username", "notification_topic", "notifications",
    "notifications_local_only", "password", "remote_clientid", "remote_password",
    "remote_username", "restart_timeout", "round_robin", "start_type", "threshold", "topic",
    "try_private", "username",
)  # fmt: skip
_PREFIXES: Final = ("auth_opt_", "plugin_opt_")

OPTIONS: Final[dict[str, Option]] = {
    option.name: option
    for option in (
        *_general(),
        *_security(),
        *_listener(),
        *_OF_PLUGINS,
        *(
            Option(
                name, Scope.BRIDGE, Form.OTHER, Fate.MISSING, "see docs/mqtt-bridge.md", many=True
            )
            for name in BRIDGE_NAMES
        ),
    )
}
"""By name; those of plugins, which end as the plugin likes, by their beginning and `*`."""
LISTENER_DEFAULTS: Final = frozenset(
    {"password_file", "psk_file", "auth_plugin", "plugin", "plugin_load"}
)
"""Options of security that open mosquitto's default listener with `per_listener_settings`, if they
stand before every `listener`. (So does `allow_zero_length_clientid false`.)"""


def option_named(name: str) -> Option | None:
    """The option of this name, or None."""
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return OPTIONS[f"{prefix}*"]
    return None if name.endswith("*") else OPTIONS.get(name)


def markdown_table() -> str:
    """The options for the documentation, but those of bridges, which are one row."""
    rows = ["| option of mosquitto | here | |", "|---|---|---|"]
    for name, option in sorted(OPTIONS.items()):
        if option.scope is not Scope.BRIDGE:
            here = _shown(option.becomes) if option.fate is Fate.CONVERTED else option.fate.value
            rows.append(f"| `{name}` | {here} | {option.text} |")
    rows.append(
        "| `connection` and the options of bridges | no counterpart | see `docs/mqtt-bridge.md` |"
    )
    return "\n".join(rows) + "\n"


def _shown(becomes: str) -> str:
    """Settings as code; what is code or in parentheses stays."""
    if becomes[:1] in "(`":
        return becomes.strip("()")
    return f"`{becomes}`" if " " not in becomes else becomes
