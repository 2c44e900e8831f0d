"""Sabotages of `gateways`: what a client is told, and when."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

ACKS = "tests/durability/test_acks_wait_for_the_disk.py"

OF_THE_GATEWAYS = (
    Sabotage(
        name="mqtt-ack-before-its-flush",
        why="a power cut takes what PUBACK promised",
        path="gateways/mqtt/kernels/lane.py",
        old="        answers.add(position, self, data)\n",
        new="        self.answered(data, durability is not APPENDED)\n",
        pure=True,
        tests=(ACKS,),
    ),
    Sabotage(
        name="mqtt-lane-takes-more-than-a-packet",
        why="what came behind a PUBLISH in the same read is lost",
        path="gateways/mqtt/kernels/lane.py",
        old="length < 3 or at + length != end:\n",
        new="length < 3 or at + length > end:\n",
        pure=True,
        tests=("tests/gateways/mqtt/test_mqtt_lane.py",),
    ),
    Sabotage(
        name="mqtt-whole-read-with-half-a-packet",
        why="the beginning of the packet that is cut by the end of a read is lost",
        path="gateways/mqtt/kernels/bulk.py",
        old="        if at != end:\n            return False\n",
        new="",
        pure=True,
        tests=("tests/gateways/mqtt/test_mqtt_bulk.py",),
    ),
    Sabotage(
        name="mqtt-lane-takes-any-topic-for-the-last",
        why="who publishes to two topics gets all into the first",
        path="gateways/mqtt/kernels/lane.py",
        old="        return index == size\n",
        new="        return True\n",
        pure=True,
        tests=("tests/gateways/mqtt/test_mqtt_lane.py",),
    ),
    Sabotage(
        name="mqtt-lane-keeps-the-engines-port",
        why="who has logged in goes on to publish with the rights of nobody in particular",
        path="gateways/mqtt/kernels/lane.py",
        old="        self.publish = port.publish\n",
        new="",
        pure=True,
        tests=("tests/gateways/mqtt", "interop_tests/test_users_at_the_doors.py"),
    ),
    Sabotage(
        name="amqp-confirm-before-its-flush",
        why="a power cut takes what was confirmed",
        path="gateways/amqp/answers.py",
        old="not self._waiting and self._port.committed(Position(position), durability):\n",
        new="not self._waiting:\n",
        tests=("tests/gateways/amqp/test_amqp_answers.py", ACKS),
    ),
    Sabotage(
        name="amqp-answers-overtake",
        why="a confirm for the page cache overtakes one that waits for the disk",
        path="gateways/amqp/answers.py",
        old="        while waiting and committed(Position(waiting[0][0]), waiting[0][1]):\n",
        new="        while waiting:\n",
        tests=("tests/gateways/amqp/test_amqp_answers.py",),
    ),
    Sabotage(
        name="http-answer-before-its-flush",
        why="a power cut takes what 2xx promised",
        path="gateways/http_cloudevents/publishing.py",
        old="        if self._port.committed(position, durability):\n",
        new="        if position:\n",
        tests=(ACKS,),
    ),
    Sabotage(
        name="webhooks-of-one-host-take-all",
        why="a sink that hangs stops the webhooks of everybody",
        path="gateways/http_cloudevents/slots.py",
        old="            if queue and known.under_way < self._per_host_max:\n",
        new="            if queue:\n",
        tests=("tests/gateways/http_cloudevents/test_http_slots.py",),
    ),
    Sabotage(
        name="webhooks-that-fail-take-all",
        why="sinks that hang, on many hosts, stop those that answer",
        path="gateways/http_cloudevents/webhooks.py",
        old="                doubtful=self._slow or self.failing,\n",
        new="                doubtful=False,\n",
        tests=("tests/gateways/http_cloudevents/test_http_webhooks.py",),
    ),
    Sabotage(
        name="webhook-slot-lost-with-its-request",
        why="each webhook that is stopped while it waits takes a slot with it for ever",
        path="gateways/http_cloudevents/slots.py",
        old="                self._give_back(host, kind)\n            raise\n",
        new="                pass\n            raise\n",
        tests=("tests/gateways/http_cloudevents/test_http_slots.py",),
    ),
    Sabotage(
        name="webhook-sink-shown-to-readers",
        why="who may read a topic reads the key of somebody else's sink",
        path="gateways/http_cloudevents/handlers.py",
        old="            return subscription.shown(to_owner=False)\n",
        new="            return subscription.shown(to_owner=True)\n",
        tests=("tests/gateways/http_cloudevents/test_http_subscriptions.py",),
    ),
)
