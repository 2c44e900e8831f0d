"""`$SYS/...`, put together: the figures, from where `/metrics` has them, and what clients do. It is
a part of the composition root.

Imports stand inside the functions: what no listener needs is not loaded.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Generator, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from polymq import program_version
from polymq.broker.engine import Engine
from polymq.core_log.store import Store
from polymq.metrics.mqtt import totals
from polymq.net.connection import Context
from polymq.settings import Settings

if TYPE_CHECKING:
    from polymq.gateways.mqtt.client_events import ClientEvents
    from polymq.gateways.mqtt.control import Administrator, ControlTopics
    from polymq.gateways.mqtt.sys_figures import Figures
    from polymq.gateways.mqtt.sys_topics import SysTopics
    from polymq.gateways.mqtt.sys_values import SysValues

TOPICS_AT_ONCE: Final = 500
"""Topics that one step looks at: 0.2 ms."""
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class ServerTopics(NamedTuple):
    """What a server's MQTT listeners have of `$SYS/...`.

    Attributes:
        everywhere: for listeners with a mount point: they do not see who else is there.
        whole: for all others.
        events: told what clients do; None: there are no such topics.
        values: the figures; None: there are none.
        control: by which `whole` administrates the server; None: nobody does.
    """

    everywhere: SysTopics
    whole: SysTopics
    events: ClientEvents | None
    values: SysValues | None
    control: ControlTopics | None


def make_sys_topics(
    engine: Engine,
    store: Store,
    context: Context,
    settings: Settings,
    *,
    servers: Callable[[], Iterable[object]],
    bridges: Callable[[], Mapping[str, bool]] = dict,
    administrator: Administrator | None = None,
) -> ServerTopics:
    """These topics, one for all MQTT listeners.

    Args:
        servers: the MQTT servers that are made.
        bridges: by name, whether each is connected.
        administrator: carries out what is asked for by `$CONTROL`; None: nobody does.
    """
    from polymq.gateways.mqtt.client_events import ClientEvents
    from polymq.gateways.mqtt.control import ControlTopics
    from polymq.gateways.mqtt.sys_topics import SysPart, SysTopics
    from polymq.gateways.mqtt.sys_values import SysValues

    mqtt, parts, events, values = settings.mqtt, list[SysPart](), None, None
    if mqtt.client_events:
        events = ClientEvents(
            context=context,
            name=settings.names.broker,
            kinds=mqtt.client_events,
            rate_max=mqtt.client_events_rate_max,
        )
    if mqtt.sys_interval_seconds:
        values = SysValues(
            context=context,
            figures=partial(figures, engine, store, servers, events),
            connected=lambda: totals(servers())["clients_now"],
            interval_seconds=mqtt.sys_interval_seconds,
            bridges=bridges,
        )
        parts.append(values)
    control = None if administrator is None else ControlTopics(administrator)
    everywhere = whole = SysTopics(parts)
    beside: list[SysPart] = [part for part in (events, control) if part is not None]
    if beside:
        whole = SysTopics([*parts, *beside])
    return ServerTopics(everywhere, whole, events, values, control)


def figures(
    engine: Engine,
    store: Store,
    servers: Callable[[], Iterable[object]],
    events: ClientEvents | None = None,
) -> Generator[None, None, Figures]:
    """Collect the figures, in steps."""
    from polymq.gateways.mqtt.sys_figures import Figures

    stored = 0
    for count, topic in enumerate(list(engine.topics.topics.values())):
        stored += sum(queue.flushed for queue in topic.queues)
        if count % TOPICS_AT_ONCE == TOPICS_AT_ONCE - 1:
            yield
    sessions, counted = engine.sessions, totals(servers())
    return Figures(
        version=program_version(),
        clients_connected=counted["clients_now"],
        sessions=len(sessions.by_client),
        sessions_expired=sessions.expiry.expired_count,
        subscriptions=sum(sessions.subscription_counts.values()),
        shared_subscriptions=sessions.shares.member_count,
        retained=sessions.retained.count,
        connects=counted["connections"],
        sockets=counted["sockets"],
        packets_received=counted["packets_received"],
        packets_sent=counted["packets_sent"],
        publishes_received=counted["publishes_received"],
        publishes_sent=counted["publishes_sent"],
        publishes_dropped=counted["publishes_refused"]
        + counted["publishes_too_large"]
        + sessions.backlogs.dropped_count
        + sessions.shares.bounds.dropped_count,
        publish_bytes_received=counted["publish_bytes_received"],
        publish_bytes_sent=counted["publish_bytes_sent"],
        bytes_received=counted["bytes_received"],
        bytes_sent=counted["bytes_sent"],
        events_omitted=0 if events is None else events.omitted["rate"],
        stored=stored,
        log_bytes=store.log.appended - store.log.start,
        memory_bytes=_memory_bytes(),
        memory_bytes_max=1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    )


def _memory_bytes() -> int:
    """How much memory the process has now; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0
