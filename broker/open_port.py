"""The port of who may do everything: the parts of the broker themselves.

A client gets it while the broker has no users, and so do the server and its tests. Once there are
users, what stands in front of the same parts asks for rights first (`access/permitted_port.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from polymq.broker.access.owners import Owners
from polymq.broker.access.readers import QueueReaders
from polymq.broker.core import Core
from polymq.broker.documents import Documents
from polymq.broker.durability import Durability
from polymq.broker.exchanges import Exchanges
from polymq.broker.groups import ConsumerGroups
from polymq.broker.half_messages import HalfMessages
from polymq.broker.later.delay import Delays
from polymq.broker.named_queues import NamedQueues
from polymq.broker.port.broker import WhenCommitted
from polymq.broker.port.principals import AdmissionPort, PrincipalPort
from polymq.broker.port.publishing import Publish
from polymq.broker.port.values import Position
from polymq.broker.queries import Queries
from polymq.broker.sessions import Sessions
from polymq.broker.topics import Topics
from polymq.broker.transactions import Transactions


@dataclass(slots=True, kw_only=True, eq=False)
class OpenPort:
    """`port.BrokerPort` without checks.

    Attributes:
        publish: `Topics.publish_run`, for every run of messages.
        readers: consumers whose rights are checked (not a part of the port).
        owners: whose things are (not a part of the port).
    """

    publish: Publish
    when_committed: WhenCommitted
    committed: Callable[[Position, Durability], bool]
    overloaded: Callable[[Callable[[], None]], bool]
    state_durability: Durability
    topics: Topics
    exchanges: Exchanges
    queues: NamedQueues
    sessions: Sessions
    delays: Delays
    transactions: Transactions
    half_messages: HalfMessages
    queries: Queries
    groups: ConsumerGroups
    documents: Documents
    storage: Core
    admission: AdmissionPort
    principal: PrincipalPort
    readers: QueueReaders
    owners: Owners
