"""What operators change while the engine runs: limits, and the defaults of topics.

Rules:

* A change never fails and never waits: what takes long is done in steps, in later iterations.
* Nobody is disconnected, and nothing that there is becomes invalid. A lower limit refuses what is
  new. Only what waits for sessions is dropped where that is what the limit is for.
"""

from __future__ import annotations

from dataclasses import dataclass

from polymq.broker.accounts.service_calls import ServiceLimits
from polymq.broker.admission.connections import ConnectionSettings
from polymq.broker.disk import DiskSettings
from polymq.broker.engine import Engine
from polymq.broker.limits import Limits
from polymq.broker.sessions.settings import SessionSettings
from polymq.broker.topics.settings import TopicSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Changeable:
    """All that can be changed, as `Engine` was given it.

    Attributes:
        limits: of them these count: subscriptions of a session, retained messages, and the
            iterations of SCRAM.
    """

    limits: Limits
    topics: TopicSettings
    disk: DiskSettings
    sessions: SessionSettings
    connections: ConnectionSettings
    logins: ServiceLimits
    permissions: ServiceLimits


def change_engine(engine: Engine, wanted: Changeable) -> None:
    """Go on with these."""
    limits = engine.core.limits = wanted.limits
    engine.retained.change(limits.retained_max, limits.retained_bytes_max)
    engine.logins.scram_iterations = engine.scram_logins.iterations = limits.scram_iterations
    engine.topics.change_defaults(wanted.topics)
    engine.core.disk.change(wanted.disk)
    engine.sessions.change(wanted.sessions)
    engine.connections.change(wanted.connections)
    if engine.service_logins is not None:
        engine.service_logins.change(wanted.logins)
    if engine.service_permissions is not None:
        engine.service_permissions.change(wanted.permissions)
