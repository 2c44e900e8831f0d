"""Sabotages of what lets the engine and the MQTT gateway do much in steps."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

MQTT_TURNS = "tests/gateways/mqtt/test_mqtt_turns.py"
IN_FLIGHT = "tests/broker/test_sessions_in_flight.py"
UPLOADS = "tests/gateways/mqtt/test_mqtt_uploads.py"
STEPS = "tests/broker/test_commit_steps.py"
REPLAY = "tests/broker/test_retained_replay.py"

OF_THE_TURNS = (
    Sabotage(
        name="delivery-for-each-acknowledgement",
        why="a client that acknowledges out of order stops the server for half a second",
        path="gateways/mqtt/client.py",
        old="                session.acknowledged(first, count, True)\n",
        new="                session.acknowledged(first, count)\n",
        tests=(MQTT_TURNS,),
    ),
    Sabotage(
        name="releases-without-a-turn",
        why="thousands of PUBRELs in one read are records that are written while others wait",
        path="gateways/mqtt/kernels/bulk.py",
        pure=True,
        old="                room -= RECORD_COST * acks[at + 2]\n",
        new="                room -= 1\n",
        tests=(MQTT_TURNS,),
    ),
    Sabotage(
        name="resent-within-each-other",
        why="a session with many gaps in what is in flight gets nothing after it reconnects",
        path="broker/sessions.py",
        old="        if not self._stepping:\n",
        new="        if self._runs:\n",
        tests=(IN_FLIGHT,),
    ),
    Sabotage(
        name="resent-without-a-turn",
        why="a reconnection with thousands of messages in flight stops the server",
        path="broker/sessions.py",
        old="        for _ in range(RESENT_AT_ONCE):\n",
        new="        for _ in range(2 + len(self._runs)):\n",
        tests=(IN_FLIGHT,),
    ),
    Sabotage(
        name="replays-without-a-common-slice",
        why="clients that subscribe to retained messages together stop all others for seconds",
        path="broker/retained_replay.py",
        old="            room -= replay.step(min(room, TURN_UNITS))\n",
        new="            replay.step(min(room, TURN_UNITS))\n",
        tests=(REPLAY,),
    ),
    Sabotage(
        name="looks-cost-nothing",
        why="a filter that matches nothing is compared with a million messages in one piece",
        path="broker/retained_replay.py",
        old="        return LOOK_COST\n\n",
        new="        return 0\n\n",
        tests=(REPLAY,),
    ),
    Sabotage(
        name="filters-wait-without-end",
        why="a client that subscribes again and again and reads nothing fills the memory",
        path="broker/retained_replay.py",
        old="        if words not in self._since_when:\n",
        new="        if words:\n",
        tests=(REPLAY,),
    ),
    Sabotage(
        name="names-change-places",
        why="a new subscriber misses retained messages while others come and go",
        path="broker/retained.py",
        old="            place = _KEPT.unpack(kept)[1]\n",
        new="            place = topic.add(words)\n",
        tests=(REPLAY,),
    ),
    Sabotage(
        name="stronger-point-overtakes",
        why="consumers get the body of another message than the offset says",
        path="broker/kernels/path.py",
        pure=True,
        old="                if behind and behind[0][0] <= min(position, self.reached[weaker]):\n",
        new="                if behind and self.failed:\n",
        tests=(STEPS,),
    ),
    Sabotage(
        name="sessions-of-a-queue-told-as-one",
        why="a message to ten thousand connected sessions stops the server",
        path="broker/kernels/steps.py",
        old="        if cost <= room or not isinstance(reader, list):\n",
        new="        if cost >= 0:\n",
        tests=(STEPS,),
    ),
    Sabotage(
        name="sessions-that-left-are-told",
        why="a session that unsubscribed gets a message that it does not want",
        path="broker/kernels/steps.py",
        old="        if not group.has_left:\n",
        new="        if group is not None:\n",
        tests=(STEPS,),
    ),
    Sabotage(
        name="queue-without-readers",
        why="nothing is acknowledged any more once the last sessions of a filter have unsubscribed "
        "while a message was on its way",
        path="broker/queues/queue.py",
        old="for group in self[:SAMPLE_COUNT]), default=0)\n",
        new="for group in self[:SAMPLE_COUNT]))\n",
        tests=(STEPS,),
    ),
    Sabotage(
        name="answers-in-one-step",
        why="thousands of answers that wait for one sync leave while others wait",
        path="broker/kernels/path.py",
        pure=True,
        old="                room -= ANSWER_COST\n",
        new="",
        tests=(STEPS,),
    ),
    Sabotage(
        name="held-bytes-stay",
        why="publishers are refused because of messages that replicas have had for long",
        path="broker/topics.py",
        old="                run.on_shown = self._held_is_shown\n",
        new="",
        tests=(STEPS,),
    ),
    Sabotage(
        name="uploads-wait-for-each-other",
        why="clients that send large packets all at once wait for ever",
        path="gateways/mqtt/uploads.py",
        old=" or connection is next(iter(self._parts)):\n",
        new=":\n",
        tests=(UPLOADS,),
    ),
    Sabotage(
        name="uploads-without-a-bound",
        why="a thousand clients that send a large packet in part fill the memory",
        path="gateways/mqtt/client.py",
        old="        hold_back = hold_back or self._without_room\n",
        new="",
        tests=(UPLOADS,),
    ),
    Sabotage(
        name="upload-that-went-keeps-its-room",
        why="clients that leave in the middle of a packet stop all large packets in the end",
        path="gateways/mqtt/client.py",
        old="            self._shared.uploads.hold(self, 0)\n",
        new="",
        tests=(UPLOADS,),
    ),
    Sabotage(
        name="upload-that-stops-stays",
        why="one client that stops in the middle of a packet keeps the others from finishing",
        path="gateways/mqtt/uploads.py",
        old="            first.too_slow()\n",
        new="            pass\n",
        tests=(UPLOADS,),
    ),
    Sabotage(
        name="upload-ends-unnoticed",
        why="a packet that was taken counts for ever",
        path="gateways/mqtt/client.py",
        old="        self.shortcut = None if self._has_part else self.lane\n",
        new="",
        tests=(UPLOADS,),
    ),
    Sabotage(
        name="records-of-packet-ids-cost-nothing",
        why="a message to thousands of connected sessions is handed out in steps that are too long",
        path="broker/flights.py",
        old="return SESSION_COST if self.holds and self.number else super().arrival_cost()\n",
        new="return super().arrival_cost()\n",
        tests=(STEPS,),
    ),
)
