"""What the engine is given of the settings. A part of the composition root (`compose.py`)."""

from __future__ import annotations

from polymq.broker.changes import Changeable
from polymq.broker.disk import DiskSettings
from polymq.broker.limits import Limits
from polymq.broker.sessions.settings import SessionSettings
from polymq.broker.topics.settings import TopicSettings
from polymq.logins.outside_logins import service_limits
from polymq.servers import connection_settings
from polymq.settings import Settings


def changeable_of(settings: Settings) -> Changeable:
    """What may change while the engine runs."""
    mqtt, storage = settings.mqtt, settings.storage
    return Changeable(
        limits=Limits(
            subscriptions_per_session_max=mqtt.subscriptions_max,
            scram_iterations=settings.login.scram_iterations,
            retained_max=mqtt.retained_max,
            retained_bytes_max=mqtt.retained_bytes_max,
        ),
        topics=TopicSettings().with_values(
            {**settings.topics.model_dump(), "min_in_sync": settings.replication.min_in_sync}
        ),
        disk=DiskSettings(
            reserve_bytes=storage.disk_reserve_bytes,
            early_bytes=storage.disk_early_bytes,
            drop_oldest=storage.disk_full_drops_oldest,
            log_bytes_max=storage.log_bytes_max,
        ),
        sessions=SessionSettings(
            expiry_seconds=mqtt.session_expiry_seconds,
            keeps_qos_0=mqtt.queue_qos0_messages,
            waiting_max=mqtt.session_queue_max,
            waiting_bytes_max=mqtt.session_queue_bytes_max,
            overflow=mqtt.session_queue_overflow,
            share_strategy=mqtt.shared_subscription_strategy,
        ),
        connections=connection_settings(settings),
        logins=service_limits(settings.login_service),
        permissions=service_limits(settings.permission_service),
    )
