"""Sabotages of what lets the engine and the MQTT gateway do much in steps."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

MQTT_TURNS = "tests/gateways/mqtt/test_mqtt_turns.py"
IN_FLIGHT = "tests/broker/test_sessions_in_flight.py"
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
)
