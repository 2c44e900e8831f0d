"""How AMQP's exchanges end, with everything that is bound to them.

Theory. An exchange may have a hundred thousand bindings. One op says that it ends, and by that all
bindings to it and all links from it and to it end, too, so a crash leaves all of it or nothing.
Nothing is routed over them any more when the op is applied (`ExchangeGraph.ended`), and what the
queues keep of them is swept away in steps (`pacing/sweeping.py`).

An auto-delete exchange ends with the last that is bound to it. The same op names it (`"x"`): the
end of a queue or of an exchange says which others end with it, links followed as far as they go.

The op says where in the log the end is (`"at"`), which the topic of the name keeps: what an
exchange delayed is dropped when it has ended in the meantime, also if one of its name was declared
anew (`delays/timed_store.py`).

Logs of earlier versions have an op for each binding and each such exchange, in front of the op or
behind it. They are applied as they are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Final

from polymq.broker.core import Core
from polymq.broker.errors import Refused
from polymq.broker.exchanges.entities import Exchange, NamedQueue, write_op
from polymq.broker.exchanges.graph import ExchangeGraph
from polymq.broker.port.values import Position
from polymq.broker.queues.queue import Queue
from polymq.broker.routing.bindings import BindingKey
from polymq.broker.state.journal import Entity, Op, Touched
from polymq.broker.topics.topics import Topics

ENDING_TOO_MAX: Final = 256
"""Auto-delete exchanges that one op names besides what it ends."""


class ExchangeEnds:
    """The ends of the exchanges of one engine.

    Args:
        exchanges: those that are declared; taken from when they end.
        queues: all of them by name.
    """

    def __init__(
        self,
        core: Core,
        topics: Topics,
        graph: ExchangeGraph,
        *,
        exchanges: dict[str, Exchange],
        queues: Mapping[str, NamedQueue],
    ) -> None:
        self._core = core
        self._topics = topics
        self._graph = graph
        self._exchanges = exchanges
        self._queues = queues

    def is_used(self, name: str) -> bool:
        """Whether anything is bound to the exchange. That it is bound itself does not count, as in
        RabbitMQ."""
        return self._graph.bound_count(name) > 0 or bool(self._graph.links(name))

    def delete(self, name: str) -> Position:
        """End an exchange. Raises Refused."""
        more = self._ending_too(self._graph.unused_without((name,)))
        durable = self._is_durable(name) or self.are_durable(more) or self._is_bound_durably(name)
        return write_op(self._core, self._end_op(name, more), durable=durable)

    def delete_unused(self, names: Sequence[str]) -> None:
        """End those of the exchanges that are auto-delete, after a binding to each was undone."""
        unused = [name for name in names if self._is_unused(name)]
        if not unused:
            return
        more = self._ending_too(self._graph.unused_without(unused), besides=unused[1:])
        durable = self._is_durable(unused[0]) or self.are_durable(more)
        with contextlib.suppress(Refused):  # the log takes nothing: they stay
            write_op(self._core, self._end_op(unused[0], more), durable=durable)

    def without(self, bindings: Iterable[BindingKey]) -> Op:
        """What the op by which a queue with these bindings ends has to say of exchanges."""
        return self._ending_too(self._graph.unused_without((), bindings))

    def are_durable(self, op: Op) -> bool:
        """Whether the log has to have the op because of the exchanges that it names besides."""
        return any(self._is_durable(name) for name in op.get("x", ()))

    def apply(self, names: Sequence[str], at: int) -> Touched:
        """An op ends these exchanges.

        Args:
            at: where in the log; 0 if the op does not say it.
        """
        touched: set[Entity] = set()
        for name in names:
            self._exchanges.pop(name, None)
            touched |= {("exchange", name), ("links", name)}
            touched |= {("links", source) for source in self._graph.sources_of(name)}
            topic = self._topics.topics.get(name)
            if topic is not None:
                topic.exchange_deleted = True
                topic.exchange_ended_at = max(topic.exchange_ended_at, at)
                touched.add(("topic", name))
        self._core.sweeper.add(self._sweep(self._graph.ended(names)))
        return touched

    def _sweep(self, ended: Iterable[tuple[Queue, BindingKey]]) -> Iterator[None]:
        """Take bindings that ended with their exchange away from their queues."""
        for queue, key in ended:
            found = self._queues.get(queue.name)
            if found is not None and found.queue is queue and not self._graph.is_bound(queue, key):
                found.bindings.pop(key, None)
                self._core.journal.dirty.add(("queue", queue.name))
            yield

    def _ending_too(self, unused: Iterator[str], besides: Sequence[str] = ()) -> Op:
        """What the op of an end says of the auto-delete exchanges that have nothing bound to them
        then. Of very many, those that it does not name end by ops of their own, later."""
        names = [*besides, *islice(unused, ENDING_TOO_MAX)]
        rest = list(unused)
        if rest:
            self._core.scheduler.call_soon(partial(self._core.sweeper.add, self._end_later(rest)))
        return {"x": names, "at": self._core.log.appended} if names else {}

    def _end_op(self, name: str, more: Op) -> Op:
        """The op by which an exchange ends."""
        return {"op": "exchange-", "name": name, **more, "at": self._core.log.appended}

    def _end_later(self, names: Sequence[str]) -> Iterator[None]:
        for at in range(0, len(names), ENDING_TOO_MAX):
            some = names[at : at + ENDING_TOO_MAX]
            self.delete_unused(some)
            for _ in some:
                yield

    def _is_unused(self, name: str) -> bool:
        """Whether it is an auto-delete exchange with nothing bound to it."""
        found = self._exchanges.get(name)
        return found is not None and found.auto_delete and not self.is_used(name)

    def _is_durable(self, name: str) -> bool:
        """Whether the log has to say that the exchange ends: it has said that there is one, or the
        topic of its name goes on."""
        found = self._exchanges.get(name)
        return (found is not None and found.durable) or name in self._topics.topics

    def _is_bound_durably(self, name: str) -> bool:
        """Whether the log has a binding to the exchange."""
        return any(self._queues[queue].queue.durable for queue, _, _ in self._graph.bound_to(name))
