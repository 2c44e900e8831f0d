"""The port of who may do everything: the parts of the broker themselves.

A client gets it while the broker has no users, and so do the server and its tests. Once there are
users, what stands in front of the same parts asks for rights first (`admission/permitted_port.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from polymq.broker.accounts.owners import Owners
from polymq.broker.accounts.queue_readers import QueueReaders
from polymq.broker.core import Core
from polymq.broker.delays.delay import Delays
from polymq.broker.documents import Documents
from polymq.broker.durability import Durability
from polymq.broker.exchanges.exchanges import Exchanges
from polymq.broker.named_queues.named_queues import NamedQueues
from polymq.broker.port.broker import WhenCommitted
from polymq.broker.port.principals import AdmissionPort, PrincipalPort
from polymq.broker.port.publishing import Publish
from polymq.broker.port.values import Position
from polymq.broker.reading.consumer_groups import ConsumerGroups
from polymq.broker.reading.queries import Queries
from polymq.broker.sessions.sessions import Sessions
from polymq.broker.topics.topics import Topics
from polymq.broker.transactions.half_messages import HalfMessages
from polymq.broker.transactions.transactions import Transactions


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
