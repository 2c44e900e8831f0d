"""How patient a name server is, and what it takes at most."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerLimits:
    """Bounds and times, each with its reason. Times are those of RocketMQ unless said."""

    silence_seconds_max: float = 120.0
    """Without a word from a broker it is taken out: four of its registrations are missing. A
    broker may ask for another time (`heartbeatTimeoutMillis`)."""
    silence_seconds_floor: float = 1.0
    """The shortest that a broker may ask for: less would cost more scans than they can find."""
    silence_seconds_ceiling: float = 600.0
    """The longest: a dead broker must not stay in the routes for ever."""
    scan_seconds: float = 10.0
    """How often is looked for silent brokers. A route therefore names a dead broker for at most
    130 seconds after its last word, and for none at all if its connection was closed."""
    status_seconds: float = 600.0
    """How often the log says how many brokers and topics there are."""

    connections_max: int = 10_000
    """File descriptors; clients keep one connection per process."""
    first_frame_seconds_max: float = 10.0
    """From connecting to the first whole request, TLS included. Who only connects would keep
    others out."""
    frame_seconds_max: float = 30.0
    """From the first byte of a later request to its last: 16 MiB at 4.5 Mbit/s."""
    idle_seconds_max: float = 120.0
    """RocketMQ's `serverChannelMaxIdleTimeSeconds`; its clients ask every 30 seconds."""
    write_seconds_max: float = 30.0
    """A peer that does not take an answer for so long is gone, or wants memory."""
    buffered_bytes_max: int = 256 * MIB
    """Of all connections together, what is no whole frame yet: a frame may have 16 MiB, and ten
    thousand connections with the begin of one would be 160 GB."""
    read_bytes: int = 64 * 1024
    """Of one read."""

    registrations_per_second: float = 10.0
    """Of one connection. A broker registers every 30 seconds, and when its topics change it
    gathers changes for a while."""
    registrations_burst: int = 50
    """At once, for a broker that creates topics one by one."""
    brokers_max: int = 10_000
    """Broker addresses in all clusters together."""
    topics_max: int = 300_000
    """In all clusters together; about 100 MiB."""
    topics_of_broker_max: int = 150_000
    """Of one registration: the hundred thousand topics that a broker makes by itself, and those
    that people made."""
    filter_servers_max: int = 64
    """Of one broker."""
    name_characters_max: int = 255
    """Names of brokers, clusters and topics, and addresses: RocketMQ's longest are of 255."""
    keys_max: int = 100_000
    """Entries of the key-value configuration."""
    value_bytes_max: int = 256 * 1024
    """Of one value; it travels in a header, which has that bound."""
    key_values_bytes_max: int = 64 * MIB
    """All of the configuration: every change writes it anew."""
