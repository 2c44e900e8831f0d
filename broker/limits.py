"""Every bound of the engine, with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one broker. Units are in the names."""

    auto_topics_max: int = 100_000
    """Topics made by publishing to them. A client that publishes to random names stops here."""
    queues_max: int = 200_000
    """Durable queues, filter queues included: an idle one costs under 1 KiB."""
    exchanges_max: int = 100_000
    """Declared exchanges; each is some hundred bytes."""
    exchange_links_max: int = 1_000
    """Exchanges bound to one exchange."""
    links_max: int = 20_000
    """Bindings between exchanges in all; each is some hundred bytes."""
    exchanges_walked_max: int = 256
    """Exchanges that one message is led through by bindings between them: a new routing key takes
    20 us at each, and 80 us where patterns and key are as long as can be."""
    bindings_per_queue_max: int = 10_000
    """Bindings of one queue. When the queue is deleted all of them are looked at once, which takes
    10 ms for so many; their patterns are taken out of memory in steps."""
    bindings_per_exchange_max: int = 200_000
    """Bindings to one exchange: as many as there may be queues."""
    headers_bindings_per_exchange_max: int = 10_000
    """Bindings to one headers exchange. A message is compared with those that have one of its
    headers: at worst all, which takes 10 ms."""
    complex_levels_max: int = 500_000
    """Words of all patterns with a `#` before their end, more than three single wildcards, or more
    than sixteen words: a new routing key is compared with all of them, which takes 40 ms at
    worst."""
    sessions_max: int = 100_000
    """Persistent MQTT sessions, connected or not."""
    will_bytes_max: int = 256 * 1024 * 1024
    """The wills of all clients, in memory: a million small ones, or four thousand of the largest
    that MQTT allows."""
    will_grace_seconds: float = 30.0
    """How long after a start clients that were connected have to come back before their wills are
    published: reconnecting takes them seconds, and a minute where they back off."""
    subscriptions_per_session_max: int = 10_000
    """EMQX and HiveMQ leave this open; mosquitto too. A device has a handful, a bridge thousands.
    The setting `mqtt.subscriptions_max`."""
    inflight_count_max: int = 16_384
    """Unacknowledged QoS 1 and 2 messages of one session: how far its window may grow. mosquitto
    has 20, which costs a round trip per 20 messages; packet ids end at 65,535, and the window has
    to stay well below."""
    inflight_count_start: int = 32
    """With how many each connection begins: EMQX's fixed number, which small devices can take."""
    inflight_round_ms: int = 500
    """A window that is acknowledged in this time is doubled: so it ends at what the client can do
    in about half a second, and that is what a reconnection may have to send again."""
    volatile_count_max: int = 1_000_000
    """Positions in a queue that is not durable, 32 bytes each. Beyond it the oldest are dropped
    and counted."""
    backlog_count_max: int = 100_000
    """Positions that wait for a slow live subscriber: 2 MB. mosquitto has 1,000 messages."""
    levels_max: int = 128
    """Words of a topic and tag, or of a pattern. EMQX allows 128 levels, mosquitto 200."""
    batch_targets_max: int = 32_768
    """Messages times queues of one atomic batch of several messages, which is written without a
    pause: about 50 ms for so many places in queues."""
    pump_count_max: int = 4_096
    """Messages that one queue hands out before others get their turn."""
    pump_bytes_max: int = 1024 * 1024
    """Bytes likewise: about what a transport takes before it pauses."""
    retained_max: int = 1_000_000
    """Retained messages; each is a place in the log and about 300 bytes of memory."""
    retained_bytes_max: int = 0
    """Bytes in the log of all retained messages together, which retention copies forward; 0: as
    many as the disk has room for."""
    document_bytes_max: int = 64 * 1024
    """One stored setting of a gateway, as JSON."""
    unflushed_bytes_pause: int = 32 * 1024 * 1024
    """Bytes that wait for the disk before publishers' sockets are left unread: some flushes' worth.
    The store refuses at 256 MiB; no publisher that can be paused gets there."""
    consumer_groups_max: int = 100_000
    """RocketMQ consumer groups: made by the first heartbeat that names them; some hundred bytes."""
    held_bytes_pause: int = 32 * 1024 * 1024
    """The same for bytes of messages that wait for replicas: publishers of such messages pause."""
    held_bytes_max: int = 128 * 1024 * 1024
    """Bytes of messages that wait for replicas before more are refused: they stay in memory."""
    tag_scan_count_max: int = 65_536
    """Index entries that one pull with tags looks at: 1.3 MB, a millisecond in memory."""
    query_count_max: int = 64
    """Messages that one query by key gives. RocketMQ's default; there, a large number from a client
    fills the broker's memory."""
    query_bytes_max: int = 4 * 1024 * 1024
    """Bytes likewise, behind the first message."""
    ack_delay_seconds: float = 0.02
    """How long acks gather before they become one record (architecture, part 5)."""
    lazy_flush_seconds: float = 0.2
    """How long what nobody waits for may stay unflushed."""
    lazy_flush_bytes: int = 4 * 1024 * 1024
    """How much of it, before a flush is asked for: so that page-cache publishers are not paused by
    a disk that was idle until then."""
    delay_ms_max: int = 366 * 86_400_000
    """How far ahead a message may be delayed: a year. RocketMQ allows 3 days, RabbitMQ's plugin
    49 days."""
    delayed_max: int = 10_000_000
    """Messages that wait to be due: 20 bytes of memory each."""
    delay_tick_ms: int = 20
    """How often delayed messages are looked after while some are due: a fifth of the lateness that
    nobody notices, and 50 looks a second at most."""
    delay_window_max: int = 1_000_000
    """Messages between the oldest delayed message and the newest, a byte of memory each, before the
    oldest are copied forward (if they are few among those)."""
    delay_lag_bytes_max: int = 8 * 1024 * 1024 * 1024
    """How much log the oldest delayed message may hold likewise: eight segments."""
    delay_copied_max: int = 1_024
    """Delayed messages that are copied forward in one loop iteration."""
    delay_watch_ms: int = 60_000
    """How often it is asked whether some have to be."""
    half_max: int = 100_000
    """Half messages that wait for their producer, and those that were ended in the last half
    minute; 20 bytes of memory each, and what was asked for a table's entry."""
    half_check_after_ms: int = 6_000
    """When the producer of a half message is asked for the first time, as in RocketMQ."""
    half_check_interval_ms: int = 30_000
    """When it is asked again."""
    half_ends_cached_max: int = 8_192
    """Half messages that were not published, of which is remembered why: a decision that comes
    later is told. Producers decide within minutes."""
    half_checks_max: int = 15
    """How often, before the message is given up."""
    timers_run_max: int = 256
    """Timers that run in one loop iteration; each looks at one queue, some microseconds long, or
    deletes it, 50 us."""
    timer_sleep_seconds_max: float = 1.0
    """How late a timer may be after the wall clock was set forward: while any waits, the clock is
    looked at once a second, which takes microseconds."""
    bans_max: int = 10_000
    """Entries of the ban list, about 1 KiB each at most. Networks take the place of many
    addresses."""
    users_max: int = 100_000
    """A user per device of a large fleet; each is about 300 bytes."""
    access_keys_per_user_max: int = 8
    """Two while programs change from one to the other, and some for programs that are to lose
    theirs alone. Each is 250 bytes of its user's record."""
    roles_per_user_max: int = 32
    """Every role's rules are looked through for each new place that a client uses."""
    rules_max: int = 200_000
    """Two for each user; more of them belong into roles, with `{user}` and `{client_id}`."""
    rules_per_subject_max: int = 1_000
    """Likewise: a decision looks at them one by one, a microsecond each."""
    rule_sets_max: int = 10_000
    """Principals whose rules are kept put together; made anew for the others when they come."""
    ports_cached_max: int = 1_000
    """Principals whose checked view of the engine is kept between two HTTP requests."""
    scram_iterations: int = 16_384
    """Of the keys for SCRAM-SHA-256 that are stored with a password (`accounts/scram.py`). 0: none
    are stored, and the method is not offered."""
    exchanges_pending_max: int = 4_096
    """Exchanges of SCRAM that clients have begun and not ended, 2 KiB each. Beyond it the next
    client is asked to come again."""
    logins_hashing_max: int = 2
    """Passwords that are hashed at a time, one for each thread that hashes. The others wait where
    addresses have their turns."""
    logins_pending_max: int = 256
    """Logins that wait for their hash: at 50 ms and two at a time the last waits six seconds, and
    clients give up after ten. As many again of those that have logged in before."""
    login_proven_seconds: float = 86_400.0
    """How long an address is remembered from which a user has logged in: there is room kept for
    it."""
    login_proven_max: int = 10_000
    """How many of these are remembered, 200 bytes each."""
    login_cache_max: int = 10_000
    """Logins remembered, 200 bytes each."""
    login_cache_seconds: float = 60.0
    """How long a login is remembered: one hash a minute for a client that speaks HTTP."""
    login_failures_max: int = 5
    """Of one (address, user) before the next has to wait: who mistypes does not notice."""
    login_failure_seconds: float = 60.0
    """How long a failure counts."""
    login_delay_seconds_max: float = 60.0
    """The longest wait: 1,440 guesses a day."""
    login_failures_cached_max: int = 10_000
    """Pairs of (address, user) that are kept, the least recent are forgotten first; as many
    addresses, likewise."""
    login_address_failures_max: int = 100
    """Of one address, whatever users it names, before the next login from there has to wait: many
    devices with an old password may share an address."""
    login_address_failures_per_minute: float = 10.0
    """How many of these are forgotten in a minute: a guesser who keeps below the bound has 14,400
    guesses a day."""
    snapshot_seconds: float = 5.0
    """How often the folded state and the indexes are saved, so that a restart replays little."""
