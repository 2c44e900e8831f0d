"""The configuration: one typed model, filled from flags, environment and a TOML file.

Rules:

* A value comes from the first of: flag, environment (`POLYMQ_MQTT__PORT=1884`), TOML file,
  default. An unknown key is an error in every one of them: a misspelt key that is ignored is
  found out when it is too late.
* Every key has a description here. The commented example file and the documentation are printed
  from this model (`render_toml`), so they cannot lag behind it.
* Names end in their unit. Sizes are bytes, times are seconds.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    IPvAnyNetwork,
    ValidationError,
    model_validator,
)

from polymq.broker.topics.settings import BYTES_MAX, DISKS_MAX, SECONDS_MAX
from polymq.errors import ExitCode, Failure
from polymq.remoting.errors import LocalProtocolError
from polymq.remoting.steps import Address

ENVIRONMENT_PREFIX: Final = "POLYMQ_"
NESTED: Final = "__"
NOT_SETTINGS: Final = frozenset(
    {"POLYMQ_KERNELS", "POLYMQ_CONFIG", "POLYMQ_USER", "POLYMQ_PASSWORD_FILE"}
)
"""Variables with our prefix that mean something else: the form of the kernels, the file to read,
who asks (`cli_access.py`)."""
DEFAULT_FILE: Final = Path("polymq.toml")
KIB: Final = 1024
MIB: Final = 1024 * KIB


def _checked_address(text: str) -> str:
    try:
        return str(Address.parse(text))
    except LocalProtocolError as error:
        raise ValueError(str(error)) from error


PortNumber = Annotated[int, Field(ge=0, le=65_535)]
PositiveInt = Annotated[int, Field(gt=0)]
Name = Annotated[str, Field(pattern=r"^[%|a-zA-Z0-9_-]+$", max_length=127)]


def _checked_segment_bytes(size: int) -> int:
    if 0 < size < 64 * KIB:
        raise ValueError("a file of the log has at least 65536 bytes; 0 lets the server choose")
    return size


def _not_empty(value: object) -> object:
    """An empty path would be the working directory: it comes from a variable that is not set."""
    if value == "":
        raise ValueError("must not be empty; '.' is the working directory")
    return value


NameServerAddress = Annotated[str, AfterValidator(_checked_address)]
AddressOrEmpty = Annotated[str, AfterValidator(lambda text: text and _checked_address(text))]
Network = IPvAnyNetwork
Seconds = Annotated[float, Field(ge=0)]


class Section(BaseModel):
    """A table of the file. Frozen: what was read at the start is what runs."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ServerSettings(Section):
    """The server as a whole."""

    host: str = Field(
        default="127.0.0.1",
        description="Address that every listener binds to. Only this machine can reach the "
        "default.",
    )
    allow_insecure: bool = Field(
        default=False,
        description="While there are no users: let in whoever reaches a port that other machines "
        "can reach, to read and write everything. Without it such a server lets nobody in before "
        "its first user is made.",
    )
    data_directory: Annotated[Path, BeforeValidator(_not_empty)] = Field(
        default=Path("data"), description="Where messages and state are kept. Created if missing."
    )
    drain_seconds: Seconds = Field(
        default=5.0,
        description="How long a stopping server waits for clients to take their leave before it "
        "closes their connections.",
    )


class TlsSettings(Section):
    """TLS for MQTT, AMQP, HTTP, RocketMQ and the name server, each on a port of its own."""

    certificate: str = Field(
        default="",
        description="PEM file with the server's certificate and those that lead to its issuer. "
        "Empty: no TLS.",
    )
    key: str = Field(
        default="", description="PEM file with the certificate's private key, not encrypted."
    )
    client_ca: str = Field(
        default="",
        description="PEM file with the authorities that issue certificates to clients; a client "
        "without such a certificate is turned away before it can log in. Empty: none is asked for.",
    )

    @property
    def enabled(self) -> bool:
        """Whether anything of it is configured."""
        return bool(self.certificate or self.key or self.client_ca)


class MqttSettings(Section):
    """MQTT 3.1.1 over TCP. A PUBLISH to a topic name of over 32,000 bytes is refused."""

    enabled: bool = Field(default=True, description="Whether to open this door.")
    port: PortNumber = Field(default=1883, description="0 lets the system pick a free port.")
    tls_port: PortNumber = Field(
        default=8883,
        description="The port with TLS, which is opened if there is a certificate (`[tls]`).",
    )
    plain: bool = Field(
        default=True,
        description="Whether connections without TLS are taken. False needs a certificate.",
    )
    connections_max: PositiveInt = Field(
        default=10_000, description="Connections at a time; one more is closed at once."
    )
    inflight_max: Annotated[int, Field(ge=1, le=16_384)] = Field(
        default=16_384,
        description="Messages of QoS 1 and 2 that a client may leave unacknowledged, at most. A "
        "connection begins with 32 and gets more while it acknowledges them within half a second. "
        "The quota `inflight` bounds the clients of one user.",
    )
    subscriptions_max: PositiveInt = Field(
        default=10_000,
        description="Topic filters of one client; one more is refused (0x80). One SUBSCRIBE or "
        "UNSUBSCRIBE may name any number of them: only the size of a packet is bounded, by "
        "`storage.message_bytes_max` and 64 KiB more.",
    )
    session_expiry_seconds: Seconds = Field(
        default=0,
        description="How long a persistent session waits for a client that is away. Then it ends, "
        "with its subscriptions and what waits for it, and holds the log no more. 0: for ever, as "
        "the standard and mosquitto have it; EMQX: 7200.",
    )
    queue_qos0_messages: bool = Field(
        default=False,
        description="Whether messages of QoS 0, and for subscriptions of QoS 0 that had a higher "
        "one before, wait for a client that is away. Those of QoS 1 and 2 always do, and so does "
        "what was queued before a subscription went down to QoS 0.",
    )
    session_queue_max: Annotated[int, Field(ge=0, le=1 << 48)] = Field(
        default=0,
        description="How many messages may wait for one persistent session, over all its "
        "subscriptions; those in flight do not count. 0: any number, bounded by the disk alone, "
        "because one too many is lost although it was acknowledged. mosquitto, EMQX, HiveMQ: 1000.",
    )
    session_queue_overflow: Literal["drop_oldest", "drop_newest"] = Field(
        default="drop_oldest",
        description="What a full session loses: its oldest messages, or those that come until its "
        "client has taken what waits. The publisher is not told: MQTT 3.1.1 has no way to.",
    )
    topic: str = Field(
        default="",
        description="Keep the whole MQTT path in the tag of this one topic, for fleets whose first "
        "level is a device. Empty: the first level of a path is the topic.",
    )


class AmqpSettings(Section):
    """AMQP 0-9-1 over TCP."""

    enabled: bool = Field(default=True, description="Whether to open this door.")
    port: PortNumber = Field(default=5672, description="0 lets the system pick a free port.")
    tls_port: PortNumber = Field(
        default=5671,
        description="The port with TLS, which is opened if there is a certificate (`[tls]`).",
    )
    plain: bool = Field(
        default=True,
        description="Whether connections without TLS are taken. False needs a certificate.",
    )
    connections_max: PositiveInt = Field(
        default=10_000, description="Connections at a time; one more is closed at once."
    )


class HttpSettings(Section):
    """CloudEvents over HTTP."""

    enabled: bool = Field(default=True, description="Whether to open this door.")
    port: PortNumber = Field(default=8080, description="0 lets the system pick a free port.")
    tls_port: PortNumber = Field(
        default=8443,
        description="The port with TLS, which is opened if there is a certificate (`[tls]`).",
    )
    plain: bool = Field(
        default=True,
        description="Whether connections without TLS are taken. False needs a certificate.",
    )
    connections_max: PositiveInt = Field(
        default=10_000, description="Connections at a time; one more is closed at once."
    )
    subscriptions_max: PositiveInt = Field(
        default=10_000,
        description="Subscriptions, webhooks and pulled ones together; one more gets 429.",
    )
    webhook_origin: str = Field(
        default="polymq.invalid",
        description="The name that webhook receivers are told in WebHook-Request-Origin: a DNS "
        "name of this system, by which a receiver decides whether it wants to hear from it.",
    )
    webhook_handshake: bool = Field(
        default=True,
        description="Whether a receiver must consent before anything is sent to it. Without it, "
        "whoever may subscribe can make this server send to any public address.",
    )
    webhook_allow_http: bool = Field(
        default=False, description="Whether receivers may be reached without TLS."
    )
    webhook_allow_networks: list[Network] = Field(
        default=[],
        description="Networks that may be reached although they are not public, such as "
        '"10.1.0.0/16". Empty, because a subscriber could otherwise make this server call '
        "services inside your network.",
    )
    webhook_deny_networks: list[Network] = Field(
        default=[], description="Networks that may not be reached although they are public."
    )


class RocketmqSettings(Section):
    """RocketMQ's remoting protocol, for RocketMQ clients and the Parquet sink."""

    enabled: bool = Field(default=True, description="Whether to open this door.")
    port: PortNumber = Field(default=10911, description="0 lets the system pick a free port.")
    tls_port: PortNumber = Field(
        default=10913,
        description="The port with TLS, which is opened if there is a certificate (`[tls]`).",
    )
    plain: bool = Field(
        default=True,
        description="Whether connections without TLS are taken. False needs a certificate; name "
        "servers then name the port with TLS, and `polymq message read` and `polymq sink` on this "
        "machine use it.",
    )
    connections_max: PositiveInt = Field(
        default=1_000, description="Connections at a time; one more is closed at once."
    )
    advertise: AddressOrEmpty = Field(
        default="",
        description="HOST:PORT that clients are told to come to. Empty: the address that they "
        "came to, which is wrong only behind a translation of addresses.",
    )
    user: str = Field(
        default="",
        description="Once there are users: the user whose permissions those clients of this door "
        "have that do not sign with an access key. Empty: nobody, who has those of role:anonymous.",
    )


class NamesSettings(Section):
    """The name server, and the name servers that this broker registers with."""

    enabled: bool = Field(
        default=True, description="Whether to run a name server beside the broker."
    )
    port: PortNumber = Field(
        default=9876, description="Of the name server here. 0 lets the system pick a free port."
    )
    tls_port: PortNumber = Field(
        default=9877,
        description="The name server's port with TLS, which is opened if there is a certificate "
        "(`[tls]`).",
    )
    access_key: str = Field(
        default="",
        description="What brokers and administrators sign with. The name server here then takes "
        "changes (registrations, keys, permissions) only from who does, and this broker signs "
        "at all of its name servers. Empty: whoever reaches the port may change everything.",
    )
    secret_key_file: str = Field(
        default="",
        description="File with the secret of `access_key`, at least 16 bytes, mode 0600. All "
        "brokers and name servers that know each other have a copy.",
    )
    open_reads: bool = Field(
        default=True,
        description="Whether whoever reaches the name server may ask for routes, topics and "
        "brokers. False: reads have to be signed as well, also those of clients.",
    )
    servers: list[NameServerAddress] = Field(
        default=[],
        description='Name servers that this broker registers with, such as "10.0.0.5:9876"; the '
        "one beside it needs no mention.",
    )
    tls: bool = Field(
        default=False,
        description="Whether this broker registers with TLS at `servers`, which then name ports "
        "with TLS. With the name server beside it, a broker speaks without.",
    )
    tls_ca: str = Field(
        default="",
        description="PEM file with the authorities that certificates of `servers` have to be from. "
        "Empty: those that the system trusts. Certificates have to be for the names or addresses "
        "in `servers`.",
    )
    cluster: Name = Field(
        default="DefaultCluster", description="The cluster that this broker belongs to."
    )
    broker: Name = Field(
        default="broker-a",
        description="Name of this broker: of all in a cluster, only a master and its slaves have "
        "the same.",
    )


class AdminSettings(Section):
    """Metrics, health and the commands of `polymq topic`. Always on loopback."""

    enabled: bool = Field(default=True, description="Whether to open this door.")
    port: PortNumber = Field(default=9464, description="0 lets the system pick a free port.")


class StorageSettings(Section):
    """The commit log."""

    segment_bytes: Annotated[
        int, Field(ge=0, le=1024 * MIB), AfterValidator(_checked_segment_bytes)
    ] = Field(
        default=0,
        description="Size of one file of the commit log, which it takes from the start. 0: 1 GiB, "
        "as RocketMQ has it, or a 64th of the free room where that is less, at least 16 MiB. It is "
        "decided when the log is made, and stays. Brokers that replicate take 1 GiB.",
    )
    log_bytes_max: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="How large the log may become, in bytes of its files. Above it, topics whose "
        "retention has a limit lose their oldest messages earlier than due, oldest first in the "
        "log, as far as that lets files go. 0: as large as the disk's marks allow.",
    )
    segments_ahead: Literal["zeros", "room"] = Field(
        default="zeros",
        description="How the next file is made ready ahead of use. zeros: it is written once, "
        "which makes acknowledgements quicker and lets the disk write twice as much. room: it is "
        "only given room.",
    )
    spare_segments: Annotated[int, Field(ge=0, le=2)] = Field(
        default=1,
        description="How many files that nobody needs any more are kept to be used again, "
        "overwritten with zeros first; none if the next file is only given room. They go first "
        "when space runs out.",
    )
    tail_bytes_max: Annotated[int, Field(ge=MIB)] = Field(
        default=64 * MIB, description="Latest messages kept in memory for subscribers that keep up."
    )
    message_bytes_max: Annotated[int, Field(ge=1, le=128 * MIB)] = Field(
        default=16 * MIB,
        description="Largest body that is accepted. AMQP takes up to 128 MiB, if the log's files "
        "are larger; MQTT, HTTP and RocketMQ at most 16 MiB, whatever stands here.",
    )
    save_seconds: Annotated[float, Field(gt=0)] = Field(
        default=5.0,
        description="How often indexes and state are saved beside the log. Less means a faster "
        "start after a crash; nothing is lost either way.",
    )
    disk_reserve_bytes: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="Free space below which publishers are refused, so that acknowledgements can "
        "still be stored. 0: the larger of three segments and 5 % of the disk, at most 16 GiB and "
        "a quarter of the disk.",
    )
    disk_early_bytes: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="Free space below which topics whose retention has a limit lose their oldest "
        "messages earlier than due. 0: twice the reserve.",
    )
    disk_full_drops_oldest: bool = Field(
        default=False,
        description="Whether queues and sessions lose their oldest unsettled messages when the "
        "space for messages runs out, instead of publishers being refused. What is dropped is "
        "counted and logged.",
    )
    disk_check_seconds: Annotated[float, Field(gt=0, le=60)] = Field(
        default=0.5, description="How often is looked how much space is free."
    )
    retention_check_seconds: Annotated[float, Field(gt=0)] = Field(
        default=10.0, description="How often is looked for messages that may be deleted."
    )


class TopicDefaults(Section):
    """Settings of topics for which nothing else was chosen (`polymq topic set`)."""

    durability: Literal["fsync", "page_cache"] = Field(
        default="fsync",
        description="What an acknowledgement waits for. fsync: the disk. page_cache: the operating "
        "system only, so a power cut loses what came within the last 0.2 seconds.",
    )
    retention_seconds: Annotated[int, Field(ge=0, le=SECONDS_MAX)] = Field(
        default=72 * 3600,
        description="How long messages can be read by offset. What a queue, a session or a "
        "subscription has not settled stays longer. 0: for ever.",
    )
    retention_bytes: Annotated[int, Field(ge=0, le=BYTES_MAX)] = Field(
        default=0, description="How many bytes of each topic can be read by offset. 0: any number."
    )


class ReplicationSettings(Section):
    """A second copy of everything, on another machine with the same `names.broker`."""

    @model_validator(mode="before")
    @classmethod
    def _moved(cls, values: Any) -> Any:
        """Refuse settings that have another name now."""
        for old, new in (("cluster", "names.cluster"), ("group", "names.broker")):
            if isinstance(values, dict) and old in values:
                raise ValueError(f"replication.{old} is {new} now: set that, and leave this out")
        return values

    role: Literal["master", "slave"] = Field(
        default="master",
        description="master takes messages; slave follows a master, serves readers by offset, and "
        "can be promoted (`polymq broker promote`).",
    )
    name: str = Field(
        default="slave",
        max_length=127,
        description="Of a slave: what its master calls it. No two slaves have the same.",
    )
    listen: str = Field(
        default="",
        description="HOST:PORT where a master waits for slaves. Empty: it has none. A slave binds "
        "it, too: for the time after its promotion, and to answer the others of the group.",
    )
    master: str = Field(default="", description="HOST:PORT of the master that a slave follows.")
    peers: list[str] = Field(
        default=[],
        description="HOST:PORT where the other brokers of the group listen, slaves included. A "
        "master asks them at its start and from then on, and takes nothing more when one of them "
        "was promoted after it. A slave asks them before it is promoted whether one leads, or has "
        "more.",
    )
    tls: bool = Field(
        default=False,
        description="Whether the log crosses the network encrypted: a master listens with "
        "tls.certificate, and slaves and peers connect with TLS.",
    )
    tls_ca: str = Field(
        default="",
        description="PEM file with the authorities that certificates of other brokers have to be "
        "from. Empty: those that the system trusts.",
    )
    secret_file: str = Field(
        default="",
        description="File with the secret that all brokers of the group know, at least 16 bytes.",
    )
    min_in_sync: Annotated[int, Field(ge=1, le=DISKS_MAX)] = Field(
        default=1,
        description="How many brokers must have a message or a change on their disks before it is "
        "acknowledged and seen: 1 is this one alone, 2 is this one and a slave. Topics can have "
        "a number of their own (`polymq topic set NAME min_in_sync=2`).",
    )


class LogSettings(Section):
    """What the program says on stderr."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least severity that is written."
    )
    format: Literal["auto", "console", "json"] = Field(
        default="auto", description="auto: console on a terminal, else one JSON object a line."
    )


class SinkSettings(Section):
    """`polymq sink`: topics to Parquet."""

    output_directory: Path = Field(default=Path("lake"), description="Where the Parquet files go.")
    checkpoint_directory: Path = Field(
        default=Path("lake-checkpoint"), description="Where Spark keeps how far it has read."
    )
    topics: list[str] = Field(
        default=[], description="Topics to write; an empty list means all of them."
    )
    topic_pattern: str = Field(
        default="",
        description="Instead of a list: write topics whose whole names match this regular "
        "expression (Python's), also those that come later. Empty: no pattern.",
    )
    exclude_topics: list[str] = Field(
        default=[],
        description="Topics that are not written, though all are or the pattern matches.",
    )
    fail_on_data_loss: bool = Field(
        default=True,
        description="Stop when messages are gone before they were written: by retention, or "
        "because their topic was deleted. If false, the sink goes on and logs which.",
    )
    trigger_seconds: Annotated[float, Field(gt=0)] = Field(
        default=30.0, description="How often new messages are written while the sink keeps running."
    )


class Settings(Section):
    """Everything that can be configured."""

    server: ServerSettings = ServerSettings()
    tls: TlsSettings = TlsSettings()
    mqtt: MqttSettings = MqttSettings()
    amqp: AmqpSettings = AmqpSettings()
    http: HttpSettings = HttpSettings()
    rocketmq: RocketmqSettings = RocketmqSettings()
    names: NamesSettings = NamesSettings()
    admin: AdminSettings = AdminSettings()
    storage: StorageSettings = StorageSettings()
    topics: TopicDefaults = TopicDefaults()
    replication: ReplicationSettings = ReplicationSettings()
    log: LogSettings = LogSettings()
    sink: SinkSettings = SinkSettings()


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
        if not nested or section not in Settings.model_fields:
            raise Failure(
                ExitCode.USAGE,
                f"environment variable {name} is not a setting: they are named "
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
    path = [str(part) for part in first["loc"]]
    name = ".".join(path)
    origin = next((source for source, values in sources if _holds(values, path)), "")
    where = f"{origin}: " if origin else ""
    if first["type"] == "extra_forbidden":
        return f"{where}there is no setting {name}{_suggestion(name)}"
    if first["type"] == "model_type":
        return f"{where}{name} is a section: write [{name}], and its keys on lines of their own"
    message = first["msg"].removeprefix("Value error, ")
    if not path:
        return message
    return f"{where}{name}: {message[0].lower()}{message[1:]} (got {first['input']!r})"


def _holds(values: Any, path: list[str]) -> bool:
    for part in path:
        if not isinstance(values, Mapping) or part not in values:
            return False
        values = values[part]
    return True


def _suggestion(name: str) -> str:
    near = difflib.get_close_matches(name, [path for path, _ in setting_paths()], n=1, cutoff=0.6)
    return f" (did you mean {near[0]}?)" if near else ""


def setting_paths() -> list[tuple[str, str]]:
    """(section.key, description) of every setting, in the model's order, sections included."""
    paths = []
    for section, field in Settings.model_fields.items():
        model = field.annotation
        assert isinstance(model, type)
        assert issubclass(model, Section)
        paths.append((section, model.__doc__ or ""))
        for key, known in model.model_fields.items():
            paths.append((f"{section}.{key}", known.description or ""))
    return paths
