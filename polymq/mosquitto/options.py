"""Every option of mosquitto.conf: its form, and what becomes of it.

The options are those of mosquitto 2.0 (mosquitto.conf(5)) and those that 2.1 has added. The table
in docs/migrating-from-mosquitto.md is made from this one.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Any, Final


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
        same: the value with which mosquitto does what this server does anyway.
        many: whether it may stand several times, and all count.
    """

    name: str
    form: Form
    fate: Fate
    scope: Scope = Scope.GENERAL
    text: str = ""
    becomes: str = ""
    low: int = -(1 << 31)
    high: int = (1 << 31) - 1
    same: str = ""
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
_KEY_FILE: Final = (
    "pre-shared keys are not converted: set tls_psk_file of a listener, whose identities are users"
)
_IDS: Final = "a client id that the server assigns is `auto-` and 32 hexadecimal digits"
_WEBSOCKETS: Final = "request headers may have 8 KiB"
_ON_DISK: Final = "everything is on disk when it is acknowledged"
_STORED: Final = "everything that has to survive is stored always, in a log of its own form"
_PER_LISTENER: Final = (
    "connections are limited for each listener (connections_max) and each user (quotas)"
)
_BOOL, _NUMBER, _WORD, _TEXT = Form.BOOL, Form.NUMBER, Form.WORD, Form.TEXT


def _converted(name: str, form: Form, becomes: str, text: str = "", **more: Any) -> Option:
    return Option(name, form=form, fate=Fate.CONVERTED, becomes=becomes, text=text, **more)


def _needless(name: str, form: Form, text: str, **more: Any) -> Option:
    return Option(name, form=form, fate=Fate.NOT_NEEDED, text=text, **more)


def _missing(name: str, form: Form, text: str, **more: Any) -> Option:
    return Option(name, form=form, fate=Fate.MISSING, text=text, **more)


_GENERAL: Final = (
    _missing(
        "allow_duplicate_messages",
        _BOOL,
        "a client whose filters overlap gets a message once, in MQTT 5, too",
        same="true",
    ),
    _needless("autosave_interval", _NUMBER, _ON_DISK),
    _needless("autosave_on_changes", _BOOL, _ON_DISK),
    _missing(
        "check_retain_source",
        _BOOL,
        "a retained message outlives the permission of its publisher (`polymq retained clear`)",
        same="false",
    ),
    _missing(
        "clientid_prefixes",
        _TEXT,
        "client ids are not restricted by a prefix, so no listener is converted. Without this line "
        "they are: then give users permissions with {client_id} or {user} in them",
    ),
    _needless(
        "connection_messages",
        _BOOL,
        "the audit log has logins, and `polymq mqtt client list` shows who is connected",
    ),
    _missing(
        "enable_control_api",
        _BOOL,
        "of the topics $CONTROL/... there are those of dynamic security (mqtt.dynamic_security)",
        same="false",
    ),
    _missing("global_max_clients", _NUMBER, _PER_LISTENER, same="-1"),
    _missing("global_max_connections", _NUMBER, _PER_LISTENER, same="-1"),
    _converted("include_dir", _TEXT, "(read)", "the files in it are read, too", many=True),
    _missing("log_dest", Form.OTHER, _STDERR, same="stderr", many=True),
    _needless("log_facility", _NUMBER, _STDERR, low=0, high=7),
    _needless("log_timestamp", _BOOL, "every line has its time"),
    _needless("log_timestamp_format", _TEXT, "the time is written as in RFC 3339"),
    _converted(
        "log_type", _WORD, "log.level", "the most talkative of the types decides", many=True
    ),
    _missing(
        "max_inflight_bytes",
        _NUMBER,
        "messages in flight are limited by number (mqtt.inflight_max)",
        same="0",
    ),
    _converted(
        "max_inflight_messages",
        _NUMBER,
        "mqtt.inflight_max",
        "0 (no limit) becomes 16,384. Not set: a connection begins with 32, mosquitto with 20",
        high=65_535,
    ),
    _converted(
        "max_keepalive",
        _NUMBER,
        "mqtt.keep_alive_seconds_max",
        "for MQTT 5, as in mosquitto",
        low=0,
        high=65_535,
    ),
    _converted(
        "max_packet_size",
        _NUMBER,
        "listeners: packet_bytes_max",
        "not set: 16 MiB and 64 KiB; mosquitto 2.0 has no limit then",
        low=20,
    ),
    _converted(
        "max_queued_bytes",
        _NUMBER,
        "mqtt.session_queue_bytes_max, mqtt.session_queue_overflow",
        "as the messages are stored: about 150 bytes more for each",
    ),
    _converted(
        "max_queued_messages",
        _NUMBER,
        "mqtt.session_queue_max, mqtt.session_queue_overflow",
        "not set: no limit but the disk's; mosquitto has 1000",
    ),
    _missing(
        "memory_limit",
        _NUMBER,
        "limit the memory of the process with systemd (MemoryMax) or the container",
        same="0",
    ),
    _converted(
        "message_size_limit",
        _NUMBER,
        "storage.message_bytes_max",
        "for all protocols; before MQTT 5 a larger message closes the connection",
        low=0,
        high=268_435_455,
    ),
    _needless("packet_buffer_size", _NUMBER, "one read buffer is shared by all"),
    _converted(
        "per_listener_settings",
        _BOOL,
        "(read)",
        "users and rules are for all listeners, so a listener that those of another one would open "
        "is not converted; allow_anonymous is for each",
    ),
    _needless("persistence", _BOOL, _STORED),
    _needless("retained_persistence", _BOOL, _STORED),
    _needless("persistence_file", _TEXT, "mosquitto.db is not read or written"),
    _converted(
        "persistence_location",
        _TEXT,
        "server.data_directory",
        "a directory `polymq` in it; mosquitto.db is not read",
    ),
    _converted(
        "persistent_client_expiration",
        Form.PERIOD,
        "mqtt.session_expiry_seconds",
        "a month has 30 days, a year 365, as in mosquitto",
    ),
    _missing("pid_file", _TEXT, "`polymq serve --ready-file FILE` writes the process id"),
    _converted("queue_qos0_messages", _BOOL, "mqtt.queue_qos0_messages"),
    _converted("retain_available", _BOOL, "mqtt.retain_available"),
    _missing(
        "retain_expiry_interval",
        _NUMBER,
        "a retained message ends by its Message Expiry Interval, or by `polymq retained clear`",
    ),
    _needless("retry_interval", Form.OTHER, "mosquitto does not use it any more"),
    _needless("set_tcp_nodelay", _BOOL, "TCP_NODELAY is set always"),
    _converted("sys_interval", _NUMBER, "mqtt.sys_interval_seconds", low=0, high=65_535),
    _missing(
        "upgrade_outgoing_qos",
        _BOOL,
        "a message is sent with the lower of its QoS and the subscription's, as MQTT asks for",
        same="false",
    ),
    _missing("user", _TEXT, "start the server as this user (systemd: User=)"),
    _needless("websockets_headers_size", _NUMBER, _WEBSOCKETS, low=0, high=65_535),
    _needless("websockets_log_level", _NUMBER, "log.level is for all lines"),
)
_SECURITY: Final = (
    _converted(
        "acl_file", _TEXT, "`polymq permission import mosquitto-acl`", "rules are for all listeners"
    ),
    _converted(
        "allow_anonymous",
        _BOOL,
        "listeners: allow_anonymous; server.allow_insecure if there are to be no users",
        "once there are users, anonymous clients may do what role:anonymous may",
    ),
    _missing(
        "allow_zero_length_clientid",
        _BOOL,
        "a client without a client id is given one",
        same="true",
    ),
    _missing("auth_plugin", _TEXT, _PLUGINS, many=True),
    _missing("plugin", _TEXT, _PLUGINS, many=True),
    _missing("global_plugin", _TEXT, _PLUGINS, many=True),
    _missing("plugin_load", _TEXT, _PLUGINS, many=True),
    _needless("auto_id_prefix", _TEXT, _IDS),
    _converted(
        "password_file",
        _TEXT,
        "`polymq user import mosquitto-passwords`",
        "users are for all listeners",
    ),
    _missing("psk_file", _TEXT, _KEY_FILE),
)
_LISTENER: Final = (
    _converted("accept_protocol_versions", Form.OTHER, "listeners: protocol_versions"),
    _converted("bind_address", _TEXT, "listeners: host"),
    _missing(
        "bind_interface",
        _TEXT,
        "the listener is written with host 127.0.0.1: set the address of the interface",
    ),
    _converted("cafile", _TEXT, "listeners: tls_client_ca", "only with require_certificate true"),
    _converted(
        "capath",
        _TEXT,
        "listeners: tls_client_ca",
        "a file polymq-client-ca.pem in it, which you make",
    ),
    _converted("certfile", _TEXT, "listeners: tls, tls_certificate"),
    _missing("ciphers", _TEXT, _CIPHERS),
    _missing("ciphers_tls1.3", _TEXT, _CIPHERS),
    _converted(
        "crlfile",
        _TEXT,
        "listeners: tls_crl",
        "a list that is missing or out of date keeps out every client of its authority",
    ),
    _needless("dhparamfile", _TEXT, "keys are exchanged with elliptic curves"),
    _missing(
        "disable_client_cert_date_checks",
        _BOOL,
        "a certificate out of its time is refused",
        same="false",
    ),
    _converted(
        "enable_proxy_protocol",
        _NUMBER,
        "listeners: proxy_protocol, proxy_networks",
        "both versions are accepted; set proxy_networks to those of your proxies",
        low=1,
        high=2,
    ),
    _missing("http_dir", _TEXT, "files are not served: use a web server for them"),
    _converted("keyfile", _TEXT, "listeners: tls_key", "its mode has to be 0600 or less"),
    _converted(
        "listener",
        Form.OTHER,
        "listeners: port and host, or path",
        "without an address it listens on IPv4 (0.0.0.0), mosquitto on IPv6, too",
        many=True,
    ),
    _converted("listener_allow_anonymous", _BOOL, "listeners: allow_anonymous"),
    _needless("listener_auto_id_prefix", _TEXT, _IDS),
    _converted("max_connections", _NUMBER, "listeners: connections_max", "not set or -1: 10,000"),
    _converted(
        "max_qos", _NUMBER, "mqtt.qos_max", "for all listeners: the highest of them", low=0, high=2
    ),
    _converted(
        "maximum_qos",
        _NUMBER,
        "mqtt.qos_max",
        "for all listeners: the highest of them",
        low=0,
        high=2,
    ),
    _missing("max_topic_alias", _NUMBER, "clients may set 64 topic aliases", low=0, high=65_535),
    _converted(
        "max_topic_alias_broker",
        _NUMBER,
        "mqtt.topic_aliases_out_max",
        "for all listeners: the highest of them, at most 1000",
        low=0,
        high=65_535,
    ),
    _converted(
        "mount_point", _TEXT, "listeners: mount_point", "only whole levels: it has to end with /"
    ),
    _missing("plugin_use", _TEXT, _PLUGINS, many=True),
    _converted("port", _NUMBER, "listeners: port", low=1, high=65_535),
    _converted(
        "protocol",
        _WORD,
        "listeners: type",
        "WebSocket clients use the path /mqtt or /; mosquitto takes every path",
    ),
    _missing(
        "proxy_protocol_v2_require_tls",
        _BOOL,
        "the header is not asked whether its client used TLS",
        same="false",
    ),
    _missing("psk_hint", _TEXT, _KEY_FILE),
    _converted("require_certificate", _BOOL, "listeners: tls_client_certificates"),
    _converted("socket_domain", _WORD, "listeners: host"),
    _missing("tls_engine", _TEXT, _ENGINE),
    _missing("tls_engine_kpass_sha1", _TEXT, _ENGINE),
    _missing("tls_keyform", _TEXT, _ENGINE, same="pem"),
    _missing(
        "tls_version",
        _TEXT,
        "TLS 1.2 and 1.3 are offered; no version can be switched off or added",
        same="tlsv1.2",
    ),
    _converted(
        "use_identity_as_username",
        _BOOL,
        "listeners: user_from_certificate",
        "the user has to exist, and the certificate is required",
    ),
    _converted(
        "use_subject_as_username",
        _BOOL,
        "listeners: user_from_certificate",
        "as use_identity_as_username",
    ),
    _missing(
        "use_username_as_clientid",
        _BOOL,
        "a client keeps its client id; a session belongs to its user, and no other user gets it",
        same="false",
    ),
    _converted("websockets_origin", _TEXT, "listeners: websocket_origins", many=True),
)
_OF_PLUGINS: Final = (
    _missing("auth_opt_*", Form.OTHER, _FOR_PLUGINS, many=True),
    _missing("auth_plugin_deny_special_chars", _BOOL, _FOR_PLUGINS, many=True),
    _missing("plugin_opt_*", Form.OTHER, _FOR_PLUGINS, many=True),
)
_OTHER = Form.OTHER
_BRIDGES: Final = (
    _converted("connection", _OTHER, "bridges: name"),
    _converted("address", _OTHER, "bridges: host, port, fallbacks"),
    _converted("addresses", _OTHER, "bridges: host, port, fallbacks"),
    _missing("bridge_alpn", _OTHER, "no protocol is negotiated in TLS"),
    _needless(
        "bridge_attempt_unsubscribe", _OTHER, "only what was subscribed to before is unsubscribed"
    ),
    _missing("bridge_bind_address", _OTHER, "the system chooses the address"),
    _converted("bridge_cafile", _OTHER, "bridges: tls, tls_ca"),
    _converted("bridge_capath", _OTHER, "bridges: tls, tls_ca", "they have to be in one file"),
    _converted("bridge_certfile", _OTHER, "bridges: tls, tls_certificate"),
    _missing("bridge_ciphers", _OTHER, _CIPHERS),
    _missing("bridge_ciphers_tls1.3", _OTHER, _CIPHERS),
    _missing("bridge_identity", _OTHER, _PSK),
    _missing(
        "bridge_insecure",
        _OTHER,
        "the certificate has to be for the name of the host; `tls_insecure` accepts any "
        "certificate, and is for tests only",
        same="false",
    ),
    _converted("bridge_keyfile", _OTHER, "bridges: tls_key"),
    _missing("bridge_max_packet_size", _OTHER, "what the remote broker says in CONNACK counts"),
    _missing("bridge_max_topic_alias", _OTHER, "`mqtt.topic_aliases_out_max` counts"),
    _missing("bridge_outgoing_retain", _OTHER, "RETAIN is always carried", same="true"),
    _converted("bridge_protocol_version", _OTHER, "bridges: protocol_version"),
    _missing("bridge_psk", _OTHER, _PSK),
    _missing("bridge_receive_maximum", _OTHER, "the remote broker may send 1,000 at a time"),
    _needless("bridge_reload_type", _OTHER, "a change of bridges needs a restart"),
    _missing("bridge_require_ocsp", _OTHER, "OCSP is not asked", same="false"),
    _missing("bridge_session_expiry_interval", _OTHER, "the remote broker's own limit counts"),
    _missing("bridge_tcp_keepalive", _OTHER, "`keep_alive_seconds` finds a peer that is gone"),
    _missing("bridge_tcp_user_timeout", _OTHER, "`keep_alive_seconds` finds a peer that is gone"),
    _converted("bridge_tls_use_os_certs", _OTHER, "bridges: tls"),
    _missing("bridge_tls_version", _OTHER, "TLS 1.2 and 1.3 are used"),
    _converted("cleansession", _OTHER, "bridges: clean_start"),
    _converted("clientid", _OTHER, "bridges: client_id"),
    _needless("idle_timeout", _OTHER, "it is for bridges that connect when they are needed"),
    _converted("keepalive_interval", _OTHER, "bridges: keep_alive_seconds"),
    _missing("local_cleansession", _OTHER, "messages always wait for the bridge", same="false"),
    _needless("local_clientid", _OTHER, "the session is `$bridge/` and the name of the bridge"),
    _needless("local_password", _OTHER, "the bridge does not log in here"),
    _converted("local_username", _OTHER, "bridges: local_user", "the user has to exist"),
    _converted("notification_topic", _OTHER, "bridges: notification_topic"),
    _converted("notifications", _OTHER, "bridges: notifications"),
    _converted("notifications_local_only", _OTHER, "bridges: notifications"),
    _converted("password", _OTHER, "bridges: password"),
    _converted("remote_clientid", _OTHER, "bridges: client_id"),
    _converted("remote_password", _OTHER, "bridges: password"),
    _converted("remote_username", _OTHER, "bridges: user"),
    _converted("restart_timeout", _OTHER, "bridges: retry_seconds_max"),
    _needless(
        "round_robin",
        _OTHER,
        "a bridge stays where it is connected, and begins with the first address after that",
    ),
    _missing("start_type", _OTHER, "a bridge is always connected", same="automatic"),
    _needless("threshold", _OTHER, "it is for bridges that connect when they are needed"),
    _converted("topic", _OTHER, "bridges: topics", many=True),
    _needless("try_private", _OTHER, "the bit is tried, and left out if it is refused"),
    _converted("username", _OTHER, "bridges: user"),
)
_PREFIXES: Final = ("auth_opt_", "plugin_opt_")

_SCOPES: Final = {
    Scope.GENERAL: _GENERAL,
    Scope.SECURITY: _SECURITY,
    Scope.LISTENER: _LISTENER,
    Scope.PLUGIN: _OF_PLUGINS,
    Scope.BRIDGE: _BRIDGES,
}

OPTIONS: Final[dict[str, Option]] = {
    option.name: replace(option, scope=scope)
    for scope, options in _SCOPES.items()
    for option in options
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
    """The options for the documentation."""
    rows = ["| option of mosquitto | here | |", "|---|---|---|"]
    for name, option in sorted(OPTIONS.items()):
        here = _shown(option.becomes) if option.fate is Fate.CONVERTED else option.fate.value
        rows.append(f"| `{name}` | {here} | {option.text} |")
    return "\n".join(rows) + "\n"


def _shown(becomes: str) -> str:
    """Settings as code; what is code or in parentheses stays."""
    if becomes[:1] in "(`":
        return becomes.strip("()")
    return f"`{becomes}`" if " " not in becomes else becomes
