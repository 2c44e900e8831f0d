"""What the connections of one server share: its parts, and its counters."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from polymq.broker.port import BrokerPort, Position
from polymq.gateways.mqtt.auto_subscribing import AutoSubscription
from polymq.gateways.mqtt.client_events import ClientEvents
from polymq.gateways.mqtt.control import ControlTopics
from polymq.gateways.mqtt.kernels.batch_path import BatchPath
from polymq.gateways.mqtt.kernels.fast_path import SharedPaths
from polymq.gateways.mqtt.limits import Limits
from polymq.gateways.mqtt.mapping import TopicMapping
from polymq.gateways.mqtt.protocol import Inbox
from polymq.gateways.mqtt.reason_counts import ReasonCounts
from polymq.gateways.mqtt.rewriting import Rewriting
from polymq.gateways.mqtt.rules import Rules
from polymq.gateways.mqtt.sys_topics import SysTopics
from polymq.gateways.mqtt.uploads import Uploads
from polymq.net.connection import Context
from polymq.net.kernels.streams import Traffic

log = logging.getLogger(__name__)

NOWHERE: Final = Position(0)
"""The start of the log: committed since ever."""


@dataclass(slots=True)
class Counters:
    """What one server counted since it started."""

    connections: int = 0
    """CONNECTs that were accepted."""
    connects_refused: int = 0
    publishes_received: int = 0
    publishes_sent: int = 0
    publishes_refused: int = 0
    """Dropped at QoS 0; otherwise answered with a reason code, or by closing before MQTT 5."""
    publishes_too_large: int = 0
    """Not sent, because their receivers' clients do not take packets of that size."""
    publishes_looped: int = 0
    """Acknowledged and dropped, because they have been at this broker before."""
    publishes_ignored: int = 0
    """To `$SYS/...`: acknowledged and dropped, wills included."""
    filters_refused: int = 0
    """Filters of SUBSCRIBE that were not granted."""
    protocol_errors: int = 0
    keep_alives_missed: int = 0
    takeovers: int = 0
    uploads_too_slow: int = 0
    """Closed because others waited for the room of a packet that did not come."""
    reasons: ReasonCounts = field(default_factory=ReasonCounts)
    """Of clients of MQTT 5."""


@dataclass(slots=True, kw_only=True)
class Shared:
    """The server as its connections see it."""

    port: BrokerPort
    context: Context
    limits: Limits
    mapping: TopicMapping
    new_client_id: Callable[[], str]
    """Makes ids for clients that send none."""
    rules: Rules = field(default_factory=Rules)
    inbox: Inbox = field(default_factory=Inbox)
    counted: Counters = field(default_factory=Counters)
    """`counters`, without what the paths have not added yet."""
    early_bytes: int = 0
    """Bytes kept for connections whose login is not known yet (`limits.early_bytes_max`)."""
    traffic: Traffic = field(default_factory=Traffic)
    """The bytes of the connections."""
    sys_topics: SysTopics = field(default_factory=SysTopics)
    client_events: ClientEvents | None = None
    """Told what clients do; None: nobody wants to know."""
    control: ControlTopics | None = None
    """What clients administrate the server by; None: they cannot."""
    auto_subscriptions: Sequence[AutoSubscription] = ()
    """What each client is subscribed to when it connects."""
    once_position: Position = NOWHERE
    """Where the last QoS 2 message of any connection was stored."""
    marker: bytes = b""
    """Of messages that have been at this broker (`loops.py`); empty: there are no bridges."""
    uploads: Uploads = field(init=False)
    """What is here of their packets that are not whole."""
    paths: SharedPaths = field(init=False)
    """What their fast paths share."""
    batch_path: BatchPath = field(init=False)
    """Takes their reads of many packets."""

    def __post_init__(self) -> None:
        self.uploads = Uploads(self.limits, self.context.call_later)
        self.paths = SharedPaths(self.port, self.counted, self.limits)
        self.batch_path = BatchPath(self.paths, self.inbox)
        self.paths.batch_path = self.batch_path

    def change(
        self,
        *,
        limits: Limits,
        rules: Rules,
        rewriting: Rewriting,
        auto_subscriptions: Sequence[AutoSubscription],
    ) -> None:
        """What holds for connections that are made from now on. Those that are there keep what
        they were told when they connected, and the mapping that goes with it."""
        self.limits = limits
        self.rules = rules
        self.auto_subscriptions = auto_subscriptions
        self.mapping = self.mapping.changed(limits, rewriting)
        # The paths are one for old and new connections: they take what all of these may send, and
        # leave the rest to the core of each, which knows its own limits.
        self.paths.packet_bytes_max = min(self.paths.packet_bytes_max, limits.packet_bytes_max)
        if limits.features.payload_format_checked:
            self.paths.checks_payloads = True

    def drop_looped(self, marker: bytes) -> None:
        """From now on, drop what comes in with this marker, and give it to what is sent to
        bridges."""
        self.marker = marker
        self.paths.checks_payloads = True

    @property
    def counters(self) -> Counters:
        """All that was counted until now."""
        self.paths.count()
        return self.counted
