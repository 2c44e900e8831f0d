"""What a RocketMQ client may ask for at most."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of the listener, each with its reason."""

    connections_max: int = 10_000
    """File descriptors; RocketMQ's clients keep one connection per process."""
    first_frame_seconds_max: float = 10.0
    """From connecting to the first whole request: as long as MQTT's and AMQP's clients have. Who
    only connects would keep others out."""
    frame_seconds_max: float = 30.0
    """From the first byte of a later request to its last: 16 MiB at 4.5 Mbit/s."""
    idle_seconds_max: float = 120.0
    """RocketMQ's `serverChannelMaxIdleTimeSeconds`. Its clients speak at least every 30 seconds."""
    access_keys_max: int = 8
    """That one connection signs with: a client has one, and another after it was changed."""
    pull_count_max: int = 4096
    """Records of one answer to a reader that is in no group, such as a sink."""
    group_pull_count_max: int = 32
    """Records of one answer to a member of a group: RocketMQ's default, which its clients were
    written for."""
    pull_bytes_max: int = 4 * 1024 * 1024
    """Of one answer, first record excepted, which always comes whole: up to 128 MiB of body, if it
    came by AMQP."""
    pull_bytes_default: int = 256 * 1024
    """For clients that name no size: what RocketMQ gives for data in memory."""
    pulls_reading_max: int = 4
    """Pulls of one connection that read at the same time; the others wait their turn, so that a
    connection never has more than four answers in memory."""
    long_polls_max: int = 65_536
    """Held pulls of all connections; one more is answered at once."""
    long_poll_seconds_max: float = 60.0
    """RocketMQ clients ask for 15 to 20, and give up after 30."""
    long_polls_per_client_max: int = 16_384
    """Of one connection: a client that reads every queue of the largest topics."""
    members_max: int = 100_000
    """Clients in groups, each client once for each of its groups: some hundred bytes."""
    memberships_per_client_max: int = 1_024
    """Of one connection: a process with many consumers shares one."""
    groups_per_client_max: int = 256
    """In one heartbeat."""
    subscriptions_per_group_max: int = 4_096
    """Topics in one heartbeat that one group subscribes to."""
    client_bytes_max: int = 1024 * 1024
    """Of a heartbeat, or of what a client wants to lock: 4,096 subscriptions of 200 bytes each."""
    resets_max: int = 16_384
    """Queues that groups are told to begin anew in, and did not pull since."""
    locks_max: int = 100_000
    """Queues that are consumed in order; as many as there may be topics."""
