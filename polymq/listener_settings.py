"""The settings of one further MQTT listener: a table `[[mqtt.listeners]]` of the file."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, model_validator

from polymq.setting_kinds import (
    Fresh,
    Live,
    Network,
    Origin,
    PortNumber,
    PositiveInt,
    Section,
    UrlPath,
)

MIB: Final = 1024 * 1024
SOCKET_PATH_BYTES_MAX: Final = 107
"""Of the path of a Unix socket (unix(7))."""

UserFrom = Literal["", "cn", "san_dns", "san_email", "subject"]
ClientCertificates = Literal["required", "optional"]
_OF_TCP: Final = ("host", "port", "proxy_protocol", "proxy_networks", "proxy_user")
_OF_UNIX: Final = ("path", "mode", "group")
_OF_WEBSOCKET: Final = ("websocket_path", "websocket_origins")
_OF_TLS: Final = (
    "tls_certificate",
    "tls_key",
    "tls_client_ca",
    "tls_client_certificates",
    "tls_crl",
    "tls_psk_file",
    "tls_psk_hint",
    "user_from_certificate",
)
_OF_CERTIFICATES: Final = tuple(key for key in _OF_TLS if not key.startswith("tls_psk_"))


def _checked_mode(text: str) -> str:
    try:
        mode = int(text, 8)
    except ValueError:
        mode = -1
    if not 0 <= mode <= 0o777:
        raise ValueError('file permissions are octal digits in quotes, such as "0660"')
    return text


def _checked_mount_point(text: str) -> str:
    if not text:
        return text
    if text.startswith("$") or {"+", "#", "\0"} & set(text):
        raise ValueError("a mount point does not begin with $, and has no +, # or U+0000")
    if not text.endswith("/") or text == "/":
        raise ValueError("a mount point is one or more topic levels and ends with /, as in plant/")
    return text


def _checked_socket_path(path: str) -> str:
    if path and not os.path.isabs(path):
        raise ValueError("the path of a Unix socket begins with /")
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX or "\0" in path:
        raise ValueError(f"the path of a Unix socket has at most {SOCKET_PATH_BYTES_MAX} bytes")
    return path


class MqttListener(Section):
    """A further MQTT listener. Each is a table of its own, and there may be any number. They are
    opened even if `mqtt.enabled` is false, which closes the ports of the section `[mqtt]` only."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", max_length=32)]
    """The name of the listener in the log, in metrics and in the ready file: small letters, digits,
    - and _. It has to be set, and no two listeners may have the same."""
    type: Literal["tcp", "websocket", "unix"] = "tcp"
    """tcp: MQTT over TCP. websocket: MQTT over WebSocket. unix: MQTT over a Unix socket."""
    host: str = ""
    """The address that it binds to. Empty: `server.host`."""
    port: PortNumber = 0
    """The port. 0: the system chooses a free port, which the log and the ready file name."""
    path: Annotated[str, AfterValidator(_checked_socket_path)] = ""
    """The path of the Unix socket, which begins with /. Type unix needs it. A socket there that no
    server listens on any more is replaced. The socket is removed when the server stops."""
    mode: Annotated[str, AfterValidator(_checked_mode)] = "0660"
    """The permissions of the Unix socket, in octal. A client needs permission to write."""
    group: str = ""
    """The group that owns the Unix socket, by name or number. Empty: that of the server."""
    websocket_path: Fresh[UrlPath] = "/mqtt"
    """The path of the URL that clients connect to. The path `/` is accepted, too."""
    websocket_origins: Fresh[list[Origin]] = []
    """The origins of the pages that may connect. Empty: pages of every origin."""
    tls: bool = False
    """Whether its clients use TLS. What is not set below is as in `[tls]`."""
    tls_certificate: Fresh[str] = ""
    """As `tls.certificate`, for this listener. It is set together with `tls_key`."""
    tls_key: Fresh[str] = ""
    """As `tls.key`, for this listener."""
    tls_client_ca: Fresh[str] = ""
    """As `tls.client_ca`, for this listener."""
    tls_client_certificates: Fresh[Literal["", "required", "optional", "none"]] = ""
    """As `tls.client_certificates`, for this listener. none: clients need no certificate, although
    `tls.client_ca` is set."""
    tls_crl: Fresh[str] = ""
    """As `tls.crl`, for this listener."""
    tls_psk_file: str = ""
    """A file with pre-shared keys, in lines `identity:key` with the key in hexadecimal digits, as
    mosquitto has it. Its clients then have no certificates: each proves that it has the key of an
    identity, which is the name of its user. The user has to exist; no password is asked for. It
    needs Python 3.13 or later."""
    tls_psk_hint: str = ""
    """What clients of TLS 1.2 are told, so that they can choose an identity."""
    user_from_certificate: UserFrom = ""
    """As `mqtt.user_from_certificate`, for this listener."""
    protocol_versions: Fresh[Annotated[
        list[Literal["3.1", "3.1.1", "5"]], Field(min_length=1)
    ]] = ["3.1", "3.1.1", "5"]  # fmt: skip
    """The versions of MQTT that clients may use. Others are refused with the code for it."""
    allow_anonymous: Fresh[bool] = True
    """Whether a client may connect without a user name, if role:anonymous has permissions or there
    are no users. If false, every client has to log in, and none can while there are no users."""
    mount_point: Annotated[str, AfterValidator(_checked_mount_point)] = ""
    """A prefix such as "plant/" for the topics of its clients, which they do not see: it is put
    before the topics of their publishes, subscriptions and wills, and removed on delivery.
    Permissions are for the whole topic. Empty: none."""
    connections_max: Live[PositiveInt] = 10_000
    """How many connections there may be at a time. Further ones are closed at once."""
    connection_rate_max: Live[Annotated[float, Field(ge=0)]] = 0
    """How many new connections it accepts in a second, on average; as many may come at once.
    Further ones are closed at once. 0: no limit."""
    packet_bytes_max: Fresh[Annotated[int, Field(ge=0, le=20 * MIB)]] = 0
    """The size of the largest packet. 0: `storage.message_bytes_max` plus 64 KiB, which is also the
    most."""
    proxy_protocol: bool = False
    """Whether connections come through a proxy that begins each with a header of the PROXY protocol
    (version 1 or 2), which says the client's address. A connection without it is closed."""
    proxy_networks: list[Network] = []
    """The networks of the proxies, such as "10.0.0.0/8". Connections from other addresses are
    closed. Type tcp and websocket need it if `proxy_protocol` is true."""
    proxy_user: bool = False
    """Whether the header's SSL_CN is the user of the client. The proxy must have checked the
    client's certificate: a client whose header says so is asked for no password."""

    @model_validator(mode="after")
    def _fits(self) -> MqttListener:
        unfit = list(_OF_TCP if self.type == "unix" else _OF_UNIX)
        reason = f"is not for a listener of type {self.type}"
        if self.type != "websocket":
            unfit += _OF_WEBSOCKET
        if self.type == "unix":
            unfit += ("tls", *_OF_TLS)
        self._refuse(unfit, reason)
        if not self.tls:
            self._refuse(_OF_TLS, "is for a listener with TLS: set tls = true")
        if self.type == "unix" and not self.path:
            raise ValueError(f"listener {self.name}: a Unix socket needs a path")
        if self.tls_psk_file:
            self._refuse(_OF_CERTIFICATES, "is not for a listener with tls_psk_file")
            if self.type == "websocket" or self.proxy_user:
                raise ValueError(
                    f"listener {self.name}: tls_psk_file is for a listener of type tcp without "
                    "proxy_user"
                )
        elif self.tls_psk_hint:
            raise ValueError(f"listener {self.name}: tls_psk_hint needs tls_psk_file")
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ValueError(f"listener {self.name}: set tls_certificate and tls_key together")
        if not self.proxy_protocol:
            self._refuse(("proxy_networks", "proxy_user"), "needs proxy_protocol = true")
        elif not self.proxy_networks:
            raise ValueError(f"listener {self.name}: set proxy_networks to those of the proxies")
        if self.proxy_user and self.user_from_certificate:
            raise ValueError(
                f"listener {self.name}: set proxy_user or user_from_certificate, not both"
            )
        return self

    def _refuse(self, keys: Iterable[str], reason: str) -> None:
        """Refuse keys that were set and do not belong here. Raises ValueError."""
        for key in keys:
            if getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(f"listener {self.name}: {key} {reason}")

    @property
    def label(self) -> str:
        """How the log and metrics name it beside the ports of `[mqtt]`."""
        return f"mqtt-{self.name}"


def check_listeners(listeners: list[MqttListener]) -> list[MqttListener]:
    """Refuse two with the same name or path. (Ports are compared where they are bound, with those
    of the other protocols.) Raises ValueError."""
    for what in ("name", "path"):
        counted = Counter(getattr(listener, what) for listener in listeners)
        for value, count in counted.items():
            if value and count > 1:
                raise ValueError(f"{count} listeners have the {what} {value}: change one")
    return listeners
