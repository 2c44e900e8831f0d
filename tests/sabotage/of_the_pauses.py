"""Mistakes in steering queues: pausing what they hand out, making them, and moving messages."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

_PAUSING = ("tests/broker/test_pausing.py",)
_HTTP = ("tests/gateways/http_cloudevents/test_http_paused.py",)
_GROUPS = ("tests/broker/test_groups.py",)
_PULLS = (
    "tests/gateways/rocketmq/test_rocketmq_long_polls.py",
    "tests/gateways/rocketmq/test_rocketmq_server.py",
)

_CHANGES = ("tests/polymq/admin/test_queue_changes.py",)

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
    Sabotage(
        name="pauses-of-groups-are-not-in-the-rows",
        why="a consumer group goes on after a restart that finds state.db, or a snapshot",
        path="broker/reading/consumer_groups.py",
        old="        if pauses:\n",
        new="        if False:\n",
        tests=_GROUPS,
    ),
    Sabotage(
        name="pauses-of-groups-hold-for-new-topics",
        why="a group gets nothing of a topic that was deleted and made again",
        path="broker/reading/group_pauses.py",
        old="        return pause if incarnation == self._incarnation_of(topic) else None\n",
        new="        return pause\n",
        tests=_GROUPS,
    ),
    Sabotage(
        name="pulls-that-read-when-the-pause-came",
        why="a consumer group gets messages after the operator was told that it is paused",
        path="gateways/rocketmq/pulling.py",
        old="        elif self._is_paused(pull.fields, info):  # since it began to read\n",
        new="        elif False:\n",
        tests=_PULLS,
    ),
    Sabotage(
        name="held-pulls-of-paused-groups-spin",
        why="each pull of a group that is paused is looked at ten times a second and held again",
        path="gateways/rocketmq/long_polls.py",
        old="                    or self._is_paused(long_poll.group, topic)\n",
        new="",
        tests=_PULLS,
    ),
    Sabotage(
        name="moves-into-full-queues",
        why="a message that is moved to a full queue leaves its queue and is in none",
        path="polymq/admin/redriving.py",
        old='            raise Refused(Reason.IN_USE, f"queue {queue.name!r} is full")\n',
        new="            return\n",
        tests=(*_CHANGES, "tests/polymq/admin/test_dead_letters.py"),
    ),
    Sabotage(
        name="moved-messages-live-for-ever",
        why="what was moved has no time to live any more",
        path="polymq/admin/redriving.py",
        old="        if not self._is_dead and TTL_PROPERTY in meta.properties:\n",
        new="        if False:\n",
        tests=_CHANGES,
    ),
    Sabotage(
        name="moves-by-whoever-operates",
        why="an operator reads messages by moving them to a queue of its own",
        path="polymq/admin/queue_moves.py",
        old="        check_queue(call.port, location.name)\n",
        new="",
        tests=_CHANGES,
    ),
    Sabotage(
        name="queues-created-with-the-rights-of-all",
        why="an operator makes queues that it may not make as a client, and nobody owns them",
        path="polymq/admin/queue_changes.py",
        old="        _, position = call.port.queues.declare(\n",
        new="        _, position = self._engine.port.queues.declare(\n",
        tests=_CHANGES,
    ),
    Sabotage(
        name="unbinding-what-is-not-bound",
        why="an operator who mistypes a routing key is told that the binding is gone",
        path="polymq/admin/queue_changes.py",
        old="        if not exchanges.graph.is_bound(found.queue, key):\n",
        new="        if False:\n",
        tests=_CHANGES,
    ),
)
