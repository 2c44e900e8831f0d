"""A client's presence at brokers: heartbeats, and the leave. Pure.

A broker knows a group's producers and consumers by their heartbeats: consumers share queues by who
is there, and transactions are asked about at any producer of the group. Heartbeats go to the master
of every broker group that a route in use names; a broker that does not answer is left for the next
round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Never

from polymq.remoting.broker_fields import UnregisterFields
from polymq.remoting.codes import RequestCode
from polymq.remoting.errors import CallFailed
from polymq.remoting.group_bodies import ConsumerData, Heartbeat, ProducerData, encode_json
from polymq.remoting.headers import write_fields
from polymq.remoting.routes import Routes, master_of
from polymq.remoting.steps import Address, Call, Pause, Signal, Steps

HEARTBEAT_SECONDS: Final = 30.0
"""RocketMQ's `heartbeatBrokerInterval`; brokers forget a client after 120 seconds."""
CALL_SECONDS: Final = 3.0
GATHER_SECONDS: Final = 0.2
"""After `wake`: several reasons are one round, and a broker that hangs up at each heartbeat gets
five a second at most."""


@dataclass(slots=True)
class Presence:
    """Tells the brokers of some topics that a client is there.

    Args:
        topics: whose brokers are told.
        consumers: what the client consumes, now.
    """

    client_id: str
    routes: Routes
    topics: Callable[[], Iterable[str]]
    producer_group: str | None = None
    consumers: Callable[[], Sequence[ConsumerData]] = lambda: ()
    wake: Signal = field(default_factory=Signal)

    def __post_init__(self) -> None:
        self.routes.changed.listen(self.wake.give)

    def brokers(self) -> list[Address]:
        """The masters of all groups that the routes name."""
        found: dict[Address, None] = {}
        for topic in self.topics():
            route = self.routes.known(topic)
            for data in route.broker_datas if route is not None else ():
                address = None if route is None else master_of(route, data.broker_name)
                if address is not None:
                    found[address] = None
        return list(found)

    def beat(self) -> Steps[int]:
        """One round of heartbeats; how many brokers answered."""
        body = encode_json(
            Heartbeat(
                client_id=self.client_id,
                producer_data_set=[]
                if self.producer_group is None
                else [ProducerData(group_name=self.producer_group)],
                consumer_data_set=list(self.consumers()),
            )
        )
        answered_count = 0
        for address in self.brokers():
            try:
                yield Call(
                    address=address,
                    code=RequestCode.HEART_BEAT,
                    fields={},
                    body=body,
                    seconds=CALL_SECONDS,
                )
            except CallFailed:
                continue
            answered_count += 1
        return answered_count

    def keep(self) -> Steps[Never]:
        """Heartbeats every 30 seconds, and soon after `wake` or a changed route."""
        while True:
            seen = self.wake.count
            yield from self.beat()
            yield Pause(seconds=HEARTBEAT_SECONDS, signal=self.wake, seen=seen)
            if self.wake.count != seen:
                yield Pause(seconds=GATHER_SECONDS)

    def leave(self, consumer_group: str | None = None) -> Steps[None]:
        """Tell all brokers that the client is gone."""
        fields = write_fields(
            UnregisterFields(
                client_id=self.client_id,
                producer_group=self.producer_group,
                consumer_group=consumer_group,
            )
        )
        for address in self.brokers():
            try:
                yield Call(
                    address=address,
                    code=RequestCode.UNREGISTER_CLIENT,
                    fields=fields,
                    seconds=CALL_SECONDS,
                )
            except CallFailed:
                continue
