"""Sabotages of what AMQP clients rely on, in the gateway and in the engine."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

OF_AMQP = (
    Sabotage(
        name="a-deleted-exchange-is-a-topic-again",
        why="who publishes to an exchange that was deleted is told that all is well",
        path="broker/exchanges.py",
        old="        topic.exchange_deleted = True\n",
        new="",
        tests=("tests/broker/test_exchange_deletion.py",),
    ),
    Sabotage(
        name="a-deleted-exchange-comes-back-with-a-restart",
        why="what a client deleted is there again after a restart from state.db",
        path="broker/topics.py",
        old='            row["noex"] = True\n',
        new="            pass\n",
        tests=("tests/broker/test_exchange_deletion.py",),
    ),
)
