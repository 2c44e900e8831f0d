"""All operations of the admin API."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from polymq.admin.bans import BanHandlers
from polymq.admin.broker import BrokerHandlers
from polymq.admin.caller import caller_group
from polymq.admin.clients import ConnectionHandlers
from polymq.admin.commits import Committed
from polymq.admin.dead_letters import DeadLetterHandlers
from polymq.admin.delayed import DelayedHandlers
from polymq.admin.limits import LimitHandlers
from polymq.admin.listeners import ListenerHandlers
from polymq.admin.log_lines import LogHandlers
from polymq.admin.messages import MessageHandlers
from polymq.admin.mqtt_clients import MqttClientHandlers
from polymq.admin.mqtt_names import MqttNames
from polymq.admin.mqtt_retained import RetainedHandlers
from polymq.admin.mqtt_sessions import SessionHandlers
from polymq.admin.name_servers import NameServerHandlers
from polymq.admin.node import ShownNode
from polymq.admin.operations import Group
from polymq.admin.permissions import PermissionHandlers
from polymq.admin.queues import QueueHandlers
from polymq.admin.records import RecordHandlers
from polymq.admin.reload import ReloadHandlers
from polymq.admin.replication import ReplicationHandlers
from polymq.admin.resets import reader_group
from polymq.admin.store import StoreHandlers
from polymq.admin.topics import TopicHandlers
from polymq.admin.trace import TraceHandlers
from polymq.admin.users import UserHandlers
from polymq.admin.way import WayHandlers
from polymq.admin.webhooks import WebhookHandlers


def all_groups(
    node: ShownNode,
    committed: Committed,
    names: MqttNames,
    traces: TraceHandlers,
    connections: Callable[[], Iterable[Any]],
) -> list[Group]:
    """The groups, in the order of the documentation.

    Args:
        committed: waits until a change is on the disk.
        names: of the MQTT listeners.
        connections: see `BanHandlers`.
    """
    engine = node.engine
    return [
        caller_group(),
        BrokerHandlers(node).group(),
        TopicHandlers(engine, committed).group(),
        RecordHandlers().group(),
        MessageHandlers(engine, committed).group(WayHandlers(engine, names.name).operation()),
        QueueHandlers(engine, committed).group(),
        ListenerHandlers(node).group(),
        ConnectionHandlers(node.gateways.connections).group(),
        reader_group(engine, committed, node.gateways, names.name),
        DeadLetterHandlers(engine, committed).group(),
        DelayedHandlers(engine, committed).group(),
        WebhookHandlers(engine, committed, node.gateways).group(),
        MqttClientHandlers(engine, names).group(),
        SessionHandlers(engine, committed, names).group(),
        RetainedHandlers(engine, committed, names).group(),
        traces.group(),
        BanHandlers(engine, committed, connections).group(),
        UserHandlers(engine, committed).group(),
        PermissionHandlers(engine, committed).group(),
        StoreHandlers(node, names.name).group(),
        node.backups.group(),
        ReloadHandlers(node.reloader).group(),
        ReplicationHandlers(node.replication).group(),
        NameServerHandlers(node).group(),
        LimitHandlers(node).group(),
        LogHandlers(node.recent_lines).group(),
    ]
