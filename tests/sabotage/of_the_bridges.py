"""Bugs planted in bridges to other MQTT brokers."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

BRIDGES = "tests/gateways/mqtt/test_mqtt_bridging.py"
SESSIONS = "tests/broker/test_engine_sessions.py"

OF_THE_BRIDGES = (
    Sabotage(
        name="bridge-acknowledges-what-a-full-disk-refuses",
        why="a message that the remote broker would have sent again is lost",
        path="gateways/mqtt/bridging/connection.py",
        old="        if error.reason in COMES_AGAIN:\n",
        new="        if False:\n",
        tests=(BRIDGES,),
    ),
    Sabotage(
        name="bridge-remembers-packet-ids-of-a-lost-session",
        why="new messages of QoS 2 are taken for old ones, and are lost",
        path="gateways/mqtt/bridging/connection.py",
        old="        if not answer.present:\n",
        new="        if False:\n",
        tests=(BRIDGES,),
    ),
    Sabotage(
        name="bridge-sends-by-the-name-of-another-rule",
        why="a message that two topics of a bridge match goes to one remote topic twice",
        path="gateways/mqtt/bridging/connection.py",
        old="            self.last_meta = None\n",
        new="            pass\n",
        tests=(BRIDGES,),
    ),
    Sabotage(
        name="bridge-goes-on-with-the-next-address-for-ever",
        why="a remote broker that is away is asked without a pause",
        path="gateways/mqtt/bridging/remotes.py",
        old="        return self._at > 0\n",
        new="        return True\n",
        tests=(BRIDGES,),
    ),
    Sabotage(
        name="bridge-session-for-everybody",
        why="a client gets all that waits for a remote broker, by the bridge's client id",
        path="gateways/mqtt/rules.py",
        old="        return client_id.startswith(BRIDGE_PREFIX) or any(\n",
        new="        return any(\n",
        tests=(BRIDGES,),
    ),
    Sabotage(
        name="inbound-packet-ids-stay-after-all-were-released",
        why="after a restart new messages of QoS 2 are taken for old ones, and are lost",
        path="broker/sessions/state.py",
        old="            session.inbound.clear()\n",
        new="            pass\n",
        tests=(SESSIONS,),
    ),
)
