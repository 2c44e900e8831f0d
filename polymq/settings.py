"""The configuration: one typed model, filled from flags, environment and a TOML file.

Rules:

* A value comes from the first of: flag, environment (`POLYMQ_MQTT__PORT=1884`), TOML file,
  default. An unknown key is an error in every one of them: a misspelt key that is ignored is
  found out when it is too late.
* Every key has a description here, as a docstring. The commented example file and the documentation
  are printed from this model (`render_toml`), so they cannot lag behind it.
* Names end in their unit. Sizes are bytes, times are seconds.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    model_validator,
)

from polymq.asked_settings import PermissionServiceSettings
from polymq.bridge_settings import MqttBridge
from polymq.broker.topics.settings import BYTES_MAX, DISKS_MAX, SECONDS_MAX
from polymq.errors import ExitCode, Failure
from polymq.listener_settings import (
    ClientCertificates,
    MqttListener,
)
from polymq.login_settings import JwtSettings, LoginServiceSettings, LoginSettings
from polymq.mqtt_settings import MqttSettings
from polymq.remoting.errors import LocalProtocolError
from polymq.remoting.steps import Address
from polymq.setting_kinds import (
    ConnectionsMax,
    Fresh,
    ListenerSettings,
    Live,
    Network,
    PlainPort,
    PortNumber,
    PositiveInt,
    Reload,
    Seconds,
    Section,
    TlsPort,
)
from polymq.telemetry_settings import TelemetrySettings

ENVIRONMENT_PREFIX: Final = "POLYMQ_"
NESTED: Final = "__"
NOT_SETTINGS: Final = frozenset(
    {"POLYMQ_KERNELS", "POLYMQ_CONFIG", "POLYMQ_USER", "POLYMQ_PASSWORD_FILE"}
)
"""Variables with our prefix that mean something else: the form of the kernels, the file to read,
who asks (`commands/access.py`)."""
DEFAULT_FILE: Final = Path("polymq.toml")
SHOWN: Final = 200
"""Characters of a wrong value in an error."""
KIB: Final = 1024
MIB: Final = 1024 * KIB
MESSAGE_BYTES_MAX: Final = 128 * MIB
"""Of a message, whatever the settings."""


def _checked_address(text: str) -> str:
    try:
        return str(Address.parse(text))
    except LocalProtocolError as error:
        raise ValueError(str(error)) from error


Name = Annotated[str, Field(pattern=r"^[%|a-zA-Z0-9_-]+$", max_length=127)]


def _checked_segment_bytes(size: int) -> int:
    if 0 < size < 64 * KIB:
        raise ValueError("a segment has at least 65536 bytes; 0 lets the server choose")
    return size


def _not_empty(value: object) -> object:
    """An empty path would be the working directory: it comes from a variable that is not set."""
    if value == "":
        raise ValueError("must not be empty; '.' is the working directory")
    return value


def _some_address(value: object) -> object:
    """An empty one comes from a variable that is not set, too."""
    if value == "":
        raise ValueError("must not be empty; '0.0.0.0' is every address of this machine")
    return value


NameServerAddress = Annotated[str, AfterValidator(_checked_address)]
AddressOrEmpty = Annotated[str, AfterValidator(lambda text: text and _checked_address(text))]


class ServerSettings(Section):
    """The server as a whole."""

    host: Annotated[str, BeforeValidator(_some_address)] = "127.0.0.1"
    """The address that every listener binds to. Only this machine can reach the default."""
    allow_insecure: bool = False
    """Whether clients of other machines may read and write everything while there are no users. If
    false, a server that other machines can reach accepts no client before its first user is
    created."""
    data_directory: Annotated[Path, BeforeValidator(_not_empty)] = Path("data")
    """The directory in which messages and state are stored. It is created if it is missing."""
    drain_seconds: Live[Seconds] = 5.0
    """How long a server that is being stopped waits for its clients to disconnect before it closes
    their connections."""


class TlsSettings(Section):
    """TLS for MQTT, AMQP, HTTP, RocketMQ and the name server. Each has a separate port for it."""

    certificate: Fresh[str] = ""
    """PEM file with the server's certificate, followed by the intermediate certificates that lead
    to its issuer. Empty: no TLS."""
    key: Fresh[str] = ""
    """PEM file with the certificate's private key, which must not be encrypted."""
    client_ca: Fresh[str] = ""
    """PEM file with the authorities that issue the clients' certificates. A client without such a
    certificate is rejected before it can log in. Empty: clients need no certificate."""
    client_certificates: Fresh[ClientCertificates] = "required"
    """Whether clients have to have a certificate, if `client_ca` is set. optional: a client may
    connect without one; one that has a certificate still has to have a valid one."""
    crl: Fresh[str] = ""
    """PEM file with the certificate revocation lists of the authorities in `client_ca`. A client
    whose certificate is revoked is rejected, and so is every client of an authority whose list is
    missing or out of date. Empty: nothing is checked for revocation."""
    check_files_seconds: Live[Annotated[float, Field(ge=0)]] = 30.0
    """How often the files above are checked for changes. New connections use changed files at once;
    existing ones continue. A reload has the files read at once. 0: only a reload has."""

    @property
    def enabled(self) -> bool:
        """Whether anything of it is configured."""
        return bool(self.certificate or self.key or self.client_ca or self.crl)


class AmqpSettings(ListenerSettings):
    """AMQP 0-9-1 over TCP."""

    port: PlainPort = 5672
    tls_port: TlsPort = 5671


class HttpSettings(ListenerSettings):
    """CloudEvents over HTTP."""

    port: PlainPort = 8080
    tls_port: TlsPort = 8443
    subscriptions_max: Live[PositiveInt] = 10_000
    """How many subscriptions there may be, webhooks and pull subscriptions together. Further ones
    are refused with 429."""
    webhook_origin: str = "polymq.invalid"
    """The value of the header WebHook-Request-Origin: a DNS name of this system, by which the
    receiver of a webhook decides whether it accepts requests from it."""
    webhook_handshake: Live[bool] = True
    """Whether the receiver of a webhook has to consent before events are sent to it. If false, any
    user with permission to subscribe can make this server send requests to any public address."""
    webhook_allow_http: Live[bool] = False
    """Whether webhooks may be sent to URLs without TLS."""
    webhook_allow_networks: Live[list[Network]] = []
    """Networks that webhooks may be sent to although they are not public, such as "10.1.0.0/16".
    There are none by default, because a subscriber could otherwise make this server call services
    inside your network."""
    webhook_deny_networks: Live[list[Network]] = []
    """Networks that webhooks may not be sent to although they are public."""


class RocketmqSettings(ListenerSettings):
    """RocketMQ's remoting protocol, for RocketMQ clients and the Parquet sink."""

    port: PlainPort = 10911
    tls_port: TlsPort = 10913
    plain: bool = True
    """Whether connections without TLS are accepted. False needs a certificate (`[tls]`). Name
    servers then return the port with TLS, and `polymq message read` and `polymq sink` on this
    machine use it."""
    connections_max: Live[ConnectionsMax] = 1_000
    advertise: AddressOrEmpty = ""
    """The address that clients are told to connect to (HOST:PORT). Empty: the address that they
    have connected to. It has to be set only behind network address translation."""
    user: str = ""
    """The user whose permissions apply to requests that are not signed with an access key, once
    there are users. Empty: such requests have the permissions of role:anonymous."""


class NamesSettings(Section):
    """The name server of this process, and the name servers that this broker registers with."""

    enabled: bool = True
    """Whether to run a name server beside the broker."""
    port: PortNumber = 9876
    """The name server's port without TLS. 0: the system chooses a free port."""
    tls_port: PortNumber = 9877
    """The name server's port with TLS. It is opened if there is a certificate (`[tls]`)."""
    access_key: str = ""
    """The access key that brokers and administrators sign with. If it is set, the name server of
    this process accepts only signed changes (registrations, keys, permissions), and this broker
    signs its requests to all name servers. Empty: any client that reaches the port may change
    everything."""
    secret_key_file: str = ""
    """File with the secret key of `access_key`: at least 16 bytes, mode 0600. All brokers and name
    servers of a cluster need a copy."""
    open_reads: bool = True
    """Whether the name server answers unsigned requests for routes, topics and brokers. If false,
    reads have to be signed, too, including those of clients."""
    servers: list[NameServerAddress] = []
    """The name servers that this broker registers with, such as "10.0.0.5:9876". The name server of
    this process need not be listed."""
    tls: bool = False
    """Whether this broker uses TLS to register with `servers`, whose ports have to be ports with
    TLS. For the name server of its own process it does not use TLS."""
    tls_ca: str = ""
    """PEM file with the authorities that have to have issued the certificates of `servers`. Empty:
    those that the system trusts. The certificates have to be for the names or addresses in
    `servers`."""
    cluster: Name = "DefaultCluster"
    """The cluster that this broker belongs to."""
    broker: Name = "broker-a"
    """The name of this broker. In a cluster, only a master and its slaves have the same name."""


class AdminSettings(Section):
    """Metrics, health and the commands of a running server. This listener is always on loopback."""

    enabled: bool = True
    """Whether to open this listener."""
    port: PortNumber = 9464
    """The port. 0: the system chooses a free port."""


class ApiSettings(Section):
    """The admin API for other machines. Callers log in. It is also on the listener of `[admin]`."""

    enabled: bool = False
    """Whether to open this listener."""
    host: str = ""
    """The address that it binds to. Empty: that of the other listeners (`server.host`)."""
    port: PortNumber = 9465
    """The port. With a certificate (`[tls]`) it is for TLS only. 0: the system chooses a free
    port."""
    allow_plain: bool = False
    """Whether other machines may use it without TLS, so that passwords cross the network
    unencrypted. If false, an address that other machines can reach needs a certificate."""


class MetricsSettings(Section):
    """Metrics and health for other machines (`[admin]` has them for this one), and their detail."""

    enabled: bool = False
    """Whether to open this listener. It serves `/metrics`, `/health/live`, `/health/ready` and
    `/health/startup`."""
    host: str = ""
    """The address that it binds to. Empty: `server.host`."""
    port: PortNumber = 9466
    """The port. 0: the system chooses a free port."""
    tls: bool = False
    """Whether this listener uses TLS, with the files of `[tls]`."""
    login: bool = False
    """Whether `/metrics` needs a login, as any user of the broker (HTTP Basic). The user needs no
    permissions. The paths below `/health` need no login."""
    per_object: bool = False
    """Whether queues, subscriptions, sessions, consumer groups and topics have metrics of their
    own, with their names as labels. If false, there are only totals."""
    objects_max: Annotated[int, Field(ge=1, le=10_000)] = 200
    """How many of each kind have metrics of their own: those with the most messages."""


class ManagementSettings(Section):
    """RabbitMQ's management API, for its tools. Callers log in with HTTP Basic."""

    enabled: bool = False
    """Whether to open this listener."""
    host: str = ""
    """The address that it binds to. Empty: that of the other listeners (`server.host`)."""
    port: PortNumber = 15672
    """The port. With a certificate (`[tls]`) it is for TLS only. 0: the system chooses a free
    port."""
    allow_plain: bool = False
    """Whether other machines may use it without TLS, so that passwords cross the network
    unencrypted. If false, an address that other machines can reach needs a certificate."""


class StorageSettings(Section):
    """The commit log."""

    segment_bytes: Annotated[
        int, Field(ge=0, le=1024 * MIB), AfterValidator(_checked_segment_bytes)
    ] = 0
    """The size of one segment of the commit log. Each segment takes this space from the start. The
    size is decided when the log is created, and stays. 0: 1 GiB, as in RocketMQ, or a 64th of the
    free space if that is less, but at least 16 MiB. Brokers that replicate use 1 GiB."""
    log_bytes_max: Live[Annotated[int, Field(ge=0)]] = 0
    """How large the log may become, as the sum of its segments. Above it, topics whose retention
    has a limit lose their oldest messages early, in the order of the log, as long as that allows
    segments to be deleted. 0: only the free space of the disk limits the log."""
    segments_ahead: Literal["zeros", "room"] = "zeros"
    """How the next segment is prepared before it is used. zeros: it is filled with zeros, which
    makes acknowledgements faster, and makes the disk write twice as much. room: its space is only
    allocated."""
    spare_segments: Annotated[int, Field(ge=0, le=2)] = 1
    """How many deleted segments are retained for reuse. They are overwritten with zeros first.
    There are none if `segments_ahead` is room. They are the first to be deleted when space runs
    out."""
    tail_bytes_max: Annotated[int, Field(ge=MIB)] = 64 * MIB
    """How many bytes of the latest messages are held in memory for subscribers that keep up."""
    message_bytes_max: Annotated[int, Field(ge=1, le=MESSAGE_BYTES_MAX)] = 16 * MIB
    """The size of the largest message body that is accepted. AMQP allows up to 128 MiB, if the
    segments are larger than that. MQTT, HTTP and RocketMQ never allow more than 16 MiB."""
    save_seconds: Live[Annotated[float, Field(gt=0)]] = 5.0
    """How often indexes and state are saved beside the log. A shorter interval makes a start after
    a crash faster. Nothing is lost either way."""
    disk_reserve_bytes: Live[Annotated[int, Field(ge=0)]] = 0
    """The free space below which publishers are refused, so that acknowledgements can still be
    stored. 0: the larger of three segments and 5 % of the disk, but at most 16 GiB and a quarter of
    the disk."""
    disk_early_bytes: Live[Annotated[int, Field(ge=0)]] = 0
    """The free space below which topics whose retention has a limit lose their oldest messages
    early. 0: twice the reserve."""
    disk_full_drops_oldest: Live[bool] = False
    """Whether queues and sessions lose their oldest unsettled messages when the space for messages
    runs out. If false, publishers are refused instead. Dropped messages are counted and logged."""
    disk_check_seconds: Live[Annotated[float, Field(gt=0, le=60)]] = 0.5
    """How often the free space is checked."""
    retention_check_seconds: Live[Annotated[float, Field(gt=0)]] = 10.0
    """How often retention is checked."""


class TopicDefaults(Section):
    """Settings of all topics that have no settings of their own (`polymq topic set`)."""

    durability: Live[Literal["fsync", "page_cache"]] = "fsync"
    """What an acknowledgement waits for. fsync: the disk. page_cache: only the operating system, so
    a power cut loses the messages of the last 0.2 seconds."""
    retention_seconds: Live[Annotated[int, Field(ge=0, le=SECONDS_MAX)]] = 72 * 3600
    """How long messages can be read by offset. Messages that a queue, a session or a subscription
    has not settled stay longer. 0: for ever."""
    retention_bytes: Live[Annotated[int, Field(ge=0, le=BYTES_MAX)]] = 0
    """How many bytes of each topic can be read by offset. 0: no limit."""


class ReplicationSettings(Section):
    """Copies of the commit log on other machines, whose brokers have the same `names.broker`."""

    @model_validator(mode="before")
    @classmethod
    def _moved(cls, values: Any) -> Any:
        """Refuse settings that have another name now."""
        for old, new in (("cluster", "names.cluster"), ("group", "names.broker")):
            if isinstance(values, dict) and old in values:
                raise ValueError(f"replication.{old} is now named {new}: set that instead")
        return values

    role: Literal["master", "slave"] = "master"
    """master: the broker accepts messages. slave: it follows a master, serves readers by offset,
    and can be promoted (`polymq broker promote`)."""
    name: str = Field(default="slave", max_length=127)
    """The name by which a master knows this slave. No two slaves may have the same name."""
    listen: str = ""
    """The address on which a master accepts slaves (HOST:PORT). Empty: it accepts none. A slave
    listens on it, too, to answer the other brokers of the group, and to accept slaves once it is
    promoted."""
    master: str = ""
    """The address of the master that a slave follows (HOST:PORT)."""
    peers: list[str] = []
    """The addresses on which the other brokers of the group listen (HOST:PORT), including slaves. A
    master asks them when it starts and continuously after that, and accepts nothing more if one of
    them was promoted after it. A slave that is about to be promoted asks them whether one of them
    leads or has more of the log."""
    tls: bool = False
    """Whether replication uses TLS: a master listens with `tls.certificate`, and slaves and peers
    connect with TLS."""
    tls_ca: str = ""
    """PEM file with the authorities that have to have issued the certificates of the other brokers.
    Empty: those that the system trusts."""
    secret_file: str = ""
    """File with the secret that all brokers of the group share: at least 16 bytes."""
    min_in_sync: Annotated[int, Field(ge=1, le=DISKS_MAX)] = 1
    """How many brokers must have a message or a change of state on their disks before it is
    acknowledged and visible. 1: only this broker. 2: this broker and one slave. Topics can have a
    number of their own (`polymq topic set NAME min_in_sync=2`)."""


class LogSettings(Section):
    """What the program logs on stderr."""

    level: Live[Literal["debug", "info", "warning", "error"]] = "info"
    """The lowest severity that is logged."""
    format: Live[Literal["auto", "console", "json"]] = "auto"
    """The format of the log. auto: console on a terminal, otherwise json. json: one JSON object per
    line."""


class SinkSettings(Section):
    """`polymq sink`, which writes topics to Parquet files."""

    unmarked: ClassVar[Reload] = Reload.SINK

    output_directory: Path = Path("lake")
    """The directory for the Parquet files."""
    checkpoint_directory: Path = Path("lake-checkpoint")
    """The directory in which Spark stores how far it has read."""
    topics: list[str] = []
    """The topics to write. Empty: all topics."""
    topic_pattern: str = ""
    """A regular expression of Python, instead of a list of topics. Topics whose whole names match
    it are written, including those that are created later. Empty: no pattern."""
    exclude_topics: list[str] = []
    """Topics that are not written, even if all topics are written or their names match the
    pattern."""
    fail_on_data_loss: bool = True
    """Whether to stop when messages were deleted before they were written: by retention, or with
    their topic. If false, the sink continues and logs which messages are missing."""
    trigger_seconds: Annotated[float, Field(gt=0)] = 30.0
    """How often new messages are written while the sink is running."""


class Settings(Section):
    """Everything that can be configured."""

    server: ServerSettings = ServerSettings()
    tls: TlsSettings = TlsSettings()
    login: LoginSettings = LoginSettings()
    login_service: LoginServiceSettings = LoginServiceSettings()
    permission_service: PermissionServiceSettings = PermissionServiceSettings()
    jwt: JwtSettings = JwtSettings()
    mqtt: MqttSettings = MqttSettings()
    amqp: AmqpSettings = AmqpSettings()
    http: HttpSettings = HttpSettings()
    rocketmq: RocketmqSettings = RocketmqSettings()
    names: NamesSettings = NamesSettings()
    admin: AdminSettings = AdminSettings()
    api: ApiSettings = ApiSettings()
    metrics: MetricsSettings = MetricsSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    management: ManagementSettings = ManagementSettings()
    storage: StorageSettings = StorageSettings()
    topics: TopicDefaults = TopicDefaults()
    replication: ReplicationSettings = ReplicationSettings()
    log: LogSettings = LogSettings()
    sink: SinkSettings = SinkSettings()

    @property
    def listeners(self) -> dict[str, ListenerSettings]:
        """Those for clients, by their section, in the order in which they open."""
        return {"mqtt": self.mqtt, "amqp": self.amqp, "http": self.http, "rocketmq": self.rocketmq}


SECTIONS: Final[Mapping[str, type[Section]]] = {
    name: type(field.default) for name, field in Settings.model_fields.items()
}


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`. Names other than localhost count as outside."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def load_settings(*, file: Path | None = None, flags: Mapping[str, Any] | None = None) -> Settings:
    """Merge the sources and check the result.

    Args:
        file: the TOML file; None means `POLYMQ_CONFIG`, else `polymq.toml` if it is there.
        flags: nested values from the command line.

    Raises:
        Failure: the first wrong key or value, its source, and what would be right.
    """
    from_file, file_name = _read_file(file)
    sources: list[tuple[str, Mapping[str, Any]]] = [
        ("option", dict(flags or {})),
        ("environment", _read_environment()),
        (file_name, from_file),
    ]
    merged: dict[str, Any] = {}
    for _, values in reversed(sources):
        merged = _merge(merged, values)
    try:
        return Settings(**merged)
    except ValidationError as error:
        raise Failure(ExitCode.USAGE, _explain(error, sources)) from error


def _read_file(file: Path | None) -> tuple[Mapping[str, Any], str]:
    if file is None and (named := os.environ.get("POLYMQ_CONFIG")):
        file = Path(named)
    if file is None:
        if not DEFAULT_FILE.is_file():
            return {}, ""
        file = DEFAULT_FILE
    try:
        return tomllib.loads(file.read_text(encoding="utf-8")), str(file)
    except OSError as error:
        reason = error.strerror or str(error)
        raise Failure(ExitCode.USAGE, f"cannot read the configuration {file}: {reason}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Failure(ExitCode.USAGE, f"{file} is not TOML: {error}") from error


def _read_environment() -> Mapping[str, Any]:
    """The nested values of POLYMQ_SECTION__KEY: strings, which the model converts."""
    names = [name for name in os.environ if name.startswith(ENVIRONMENT_PREFIX)]
    names = [name for name in names if name not in NOT_SETTINGS]
    if not names:
        return {}
    for name in names:
        section, nested, _ = name.removeprefix(ENVIRONMENT_PREFIX).lower().partition(NESTED)
        if not nested or section not in SECTIONS:
            raise Failure(
                ExitCode.USAGE,
                f"environment variable {name} is not a setting: settings are named "
                f"{ENVIRONMENT_PREFIX}SECTION{NESTED}KEY, such as POLYMQ_MQTT__PORT",
            )
    from pydantic_settings import EnvSettingsSource, SettingsError  # few starts need them

    source = EnvSettingsSource(
        Settings,  # type: ignore[arg-type]  # it needs no more than a model
        env_prefix=ENVIRONMENT_PREFIX,
        env_nested_delimiter=NESTED,
    )
    try:
        return source()
    except SettingsError as error:
        text = f"environment: {error.__cause__ or error}"
        raise Failure(ExitCode.USAGE, text.replace("\n", " ")) from error


def _merge(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(low)
    for key, value in high.items():
        below = merged.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            value = _merge(below, value)
        merged[key] = value
    return merged


def _explain(error: ValidationError, sources: list[tuple[str, Mapping[str, Any]]]) -> str:
    first = error.errors()[0]
    location = list(first["loc"])
    path = _path(location)
    name = ".".join(path)
    there = location[:-1] if first["type"] == "missing" else location
    origin = next((source for source, values in sources if _contains(values, there)), "")
    where = f"{origin}: " if origin else ""
    if first["type"] == "extra_forbidden":
        return f"{where}there is no setting {name}{_suggestion(name)}"
    if first["type"] == "model_type" and isinstance(location[-1], int):
        return (
            f"{where}{name} is a table: write [[{name.partition('[')[0]}]], and its keys below it"
        )
    if first["type"] == "model_type":
        return f"{where}{name} is a section: write [{name}], and its keys on the lines below it"
    message = first["msg"].removeprefix("Value error, ")
    if not path:
        return message
    if first["type"] == "value_error" and isinstance(first["input"], dict | list):
        return f"{where}{name}: {message}"  # the message says which part of it is wrong
    if first["type"] == "missing":
        return f"{where}{name} is not set: it has no default"
    got = "" if name.endswith("password") else f" (got {_shown(first['input'])})"
    return f"{where}{name}: {message[0].lower()}{message[1:]}{got}"


def _shown(value: object) -> str:
    """A value as it was written, or its beginning."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _path(location: Sequence[str | int]) -> list[str]:
    """Of a value in the settings: `mqtt`, `listeners[0]`, `port`."""
    path: list[str] = []
    for part in location:
        if isinstance(part, int) and path:
            path[-1] += f"[{part}]"
        else:
            path.append(str(part))
    return path


def _contains(values: Any, location: Sequence[str | int]) -> bool:
    for part in location:
        is_item = isinstance(values, list) and isinstance(part, int) and part < len(values)
        if not is_item and not (isinstance(values, Mapping) and part in values):
            return False
        values = values[part]
    return True


def _suggestion(name: str) -> str:
    table, listed, key = name.rpartition("].")
    model = MqttBridge if table.startswith("mqtt.bridges") else MqttListener
    possible = [f"{table}{listed}{one}" for one in model.model_fields] if listed else []
    near = difflib.get_close_matches(name, possible or setting_paths(), n=1, cutoff=0.6)
    if listed and near and not difflib.get_close_matches(key, model.model_fields, 1):
        return ""  # only what stands before the key is alike
    return f" (did you mean {near[0]}?)" if near else ""


def setting_paths() -> list[str]:
    """section.key of every setting, in the model's order, sections included."""
    paths = []
    for section, model in SECTIONS.items():
        paths += [section, *(f"{section}.{key}" for key in model.model_fields)]
    return paths
