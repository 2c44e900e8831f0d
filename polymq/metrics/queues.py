"""What queues, sessions and subscriptions did with messages besides delivering them: as metrics."""

from __future__ import annotations

from collections.abc import Callable

from polymq.broker.engine import Engine
from polymq.broker.messages.dead_letter_history import Cause
from polymq.metrics.registry import Probe, Value, counter, gauge


def queue_probes(engine: Engine) -> list[Probe]:
    """Counters since the start of the process; those with reasons have RabbitMQ's words."""
    counts = engine.named_queues.dead_letters.counts

    def given_up() -> Value:
        plain: dict[str, int] = {Cause.REJECTED: engine.core.reading.rejected_count}
        return {str(cause): n + plain.get(cause, 0) for cause, n in counts.given_up.items()}

    def by_reason(name: str, text: str, read: Callable[[], Value]) -> Probe:
        return counter(name, text, read, label="reason")

    return [
        *_pause_probes(engine),
        by_reason(
            "polymq_messages_given_up",
            "Messages that left a queue, a session or a subscription without an acknowledgement.",
            given_up,
        ),
        by_reason(
            "polymq_messages_dead_lettered",
            "Messages that went to a dead letter exchange.",
            lambda: {str(cause): count for cause, count in counts.moved.items()},
        ),
        by_reason(
            "polymq_dead_letters_dropped",
            "Messages that were lost although they had a dead letter exchange.",
            lambda: {str(cause): count for cause, count in counts.dropped.items()},
        ),
        by_reason(
            "polymq_dead_letters_forbidden",
            "Of those, messages that the owner of their queue has no permission to publish there.",
            lambda: {str(cause): count for cause, count in counts.forbidden.items()},
        ),
        gauge(
            "polymq_exchange_links_stopped",
            "Exchange bindings and alternate exchanges that are stopped because their owner "
            "lost a permission.",
            engine.exchanges.graph.stopped_count,
        ),
        counter(
            "polymq_messages_refused_by_full_queues",
            "Messages that were refused by a full queue with x-overflow = reject-publish.",
            lambda: counts.refused,
        ),
        counter(
            "polymq_sessions_expired",
            "Persistent MQTT sessions that ended because their clients stayed away.",
            lambda: engine.sessions.expiry.expired_count,
        ),
        counter(
            "polymq_mqtt_wills_published",
            "Wills that were published.",
            lambda: engine.sessions.wills.published_count,
        ),
        counter(
            "polymq_mqtt_wills_lost",
            "Wills that could not be published, and never can.",
            lambda: engine.sessions.wills.lost_count,
        ),
        *_session_probes(engine),
        counter(
            "polymq_messages_redelivered",
            "Deliveries of messages that had already been delivered.",
            lambda: engine.core.reading.redelivered_count,
        ),
        gauge(
            "polymq_delayed_messages",
            "Delayed messages that are not due yet.",
            lambda: engine.delays.waiting_count,
        ),
        counter(
            "polymq_delayed_messages_dropped",
            "Delayed messages whose topic or exchange no longer existed when they were due.",
            lambda: engine.delays.dropped_count,
        ),
        gauge(
            "polymq_delayed_messages_held",
            "Delayed messages that are due, and whose topic waits for its replicas.",
            lambda: engine.delays.held_count,
        ),
        counter(
            "polymq_messages_set_aside",
            "Messages that had to be moved and were set aside, because they fit nowhere.",
            lambda: engine.set_aside.count,
        ),
    ]


def _pause_probes(engine: Engine) -> list[Probe]:
    queues, groups = engine.named_queues.pausing.since_ms, engine.groups.pauses

    def longest() -> float:
        beginnings = [min(queues.values(), default=None)]
        beginnings += (pause.since_ms for pause in groups.all())
        first = min((one for one in beginnings if one is not None), default=None)
        return 0.0 if first is None else max(0, engine.core.clock_ms() - first) / 1000

    return [
        gauge(
            "polymq_queues_paused",
            "Queues and subscriptions that an operator has paused, and consumer groups once for "
            "each topic in which they are.",
            lambda: len(queues) + sum(1 for _ in groups.all()),
        ),
        gauge(
            "polymq_queue_pause_seconds",
            "How long the longest of them has been paused.",
            longest,
        ),
    ]


def _session_probes(engine: Engine) -> list[Probe]:
    shares = engine.sessions.shares
    return [
        counter(
            "polymq_session_messages_dropped",
            "Messages that full MQTT sessions and shared subscriptions lost "
            "(mqtt.session_queue_max, mqtt.session_queue_bytes_max).",
            lambda: engine.sessions.backlogs.dropped_count + shares.bounds.dropped_count,
        ),
        gauge(
            "polymq_mqtt_shared_subscriptions",
            "Shared subscriptions of MQTT: share names, each with a topic filter.",
            lambda: len(shares.by_address),
        ),
        gauge(
            "polymq_mqtt_shared_subscription_members",
            "Sessions that share subscriptions of MQTT, once for each subscription.",
            lambda: shares.member_count,
        ),
    ]
