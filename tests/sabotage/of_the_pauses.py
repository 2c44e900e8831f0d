"""Mistakes in pausing what queues hand out."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

_PAUSING = ("tests/broker/test_pausing.py",)
_HTTP = ("tests/gateways/http_cloudevents/test_http_paused.py",)

OF_THE_PAUSES = (
    Sabotage(
        name="paused-queues-deliver-what-comes",
        why="a consumer that keeps up gets every message of a queue that is paused",
        path="broker/queues/queue.py",
        old="        if not self.registrations or self._reading or self.paused:\n",
        new="        if not self.registrations or self._reading:\n",
        tests=_PAUSING,
    ),
    Sabotage(
        name="paused-queues-answer-a-get",
        why="`basic.get` takes messages out of a queue that is paused",
        path="broker/queues/queue.py",
        old="        if self.paused:\n            registration.consumer.deliver(None)",
        new="        if False:\n            registration.consumer.deliver(None)",
        tests=_PAUSING,
    ),
    Sabotage(
        name="paused-while-a-reader-is-at-work",
        why="messages are delivered after the operator was told that the queue is paused",
        path="broker/queues/queue.py",
        old="        if self.paused:  # since the reader thread began\n",
        new="        if False:\n",
        tests=_PAUSING,
    ),
    Sabotage(
        name="resumed-queues-wait-for-the-next-message",
        why="what was collected during a pause does not come",
        path="broker/queues/queue.py",
        old="        self.paused = paused\n        self.pump_later()\n",
        new="        self.paused = paused\n",
        tests=_PAUSING,
    ),
    Sabotage(
        name="new-priorities-are-not-paused",
        why="the first message of a priority is delivered by a queue that is paused",
        path="broker/queues/priorities.py",
        old="        group.paused = self.paused\n",
        new="        group.paused = False\n",
        tests=_PAUSING,
    ),
    Sabotage(
        name="pauses-are-not-in-the-rows",
        why="a pause ends with a restart that finds state.db, or a snapshot",
        path="broker/named_queues/named_queues.py",
        old="        if found.pause is not None:\n",
        new="        if False:\n",
        tests=_PAUSING,
    ),
    Sabotage(
        name="polls-get-what-was-fetched-before-a-pause",
        why="a receive over HTTP gets events of a queue that is paused",
        path="gateways/http_cloudevents/pull.py",
        old="        if self._queue.paused and self._ready:\n",
        new="        if False:\n",
        tests=_HTTP,
    ),
    Sabotage(
        name="webhooks-forget-their-attempts-in-a-pause",
        why="a sink that fails is called again at once after each pause",
        path="gateways/http_cloudevents/webhooks.py",
        old="            begins = self._queue.paused\n            if begins:\n",
        new="            begins = False\n            if self._queue.paused:\n",
        tests=_HTTP,
    ),
)
