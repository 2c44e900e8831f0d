"""Bugs planted in bridges to other MQTT brokers."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

BRIDGES = "tests/gateways/mqtt/test_mqtt_bridging.py"
STRIKES = "tests/gateways/mqtt/test_mqtt_bridge_strikes.py"
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
        name="bridge-stops-at-a-message-that-the-remote-does-not-survive",
        why="one message of one device keeps all others from the remote broker for ever",
        path="gateways/mqtt/bridging/strikes.py",
        old="        return self.count < STRIKES_MAX\n",
        new="        return True\n",
        tests=(STRIKES,),
    ),
    Sabotage(
        name="bridge-blames-messages-for-the-network",
        why="a bad network costs messages that the remote broker would have taken",
        path="gateways/mqtt/bridging/strikes.py",
        old="        if self.is_open:\n            self.strikes",
        new="        if True:\n            self.strikes",
        tests=(STRIKES,),
    ),
    Sabotage(
        name="bridge-blames-all-that-is-in-flight",
        why="a message is set aside for another one that was sent with it",
        path="gateways/mqtt/bridging/connection.py",
        old="            session.send_singly(True)\n",
        new="            pass\n",
        tests=(STRIKES,),
    ),
    Sabotage(
        name="bridge-stays-on-probation",
        why="a bridge that was refused one message is slow until the server starts again",
        path="gateways/mqtt/bridging/connection.py",
        old="                self._session.send_singly(False)\n",
        new="                pass\n",
        tests=(STRIKES,),
    ),
    Sabotage(
        name="messages-sent-again-fill-the-window-of-one",
        why="the message that a remote broker does not survive is never alone",
        path="broker/sessions/window.py",
        old="        self.size_max = size_max\n        self._round_end",
        new="        self._round_end",
        tests=("tests/broker/test_sessions_in_flight.py",),
    ),
    Sabotage(
        name="bridge-believes-a-suback-of-another-length",
        why="a filter that was not granted is taken for another one, or for one that was",
        path="gateways/mqtt/bridging/connection.py",
        old="        if len(granted) != len(requests):\n",
        new="        if len(granted) > len(requests):\n",
        tests=(BRIDGES,),
    ),
    Sabotage(
        name="bridge-forgets-a-failure-with-the-next-connection",
        why="a remote broker that accepts and closes fills the log",
        path="gateways/mqtt/bridging/bridge.py",
        old="        if self._opened_at == since:\n",
        new="        self._said.clear()\n        if self._opened_at == since:\n",
        tests=(BRIDGES,),
    ),
    Sabotage(
        name="true-is-a-number-in-settings",
        why="a setting that was meant for another key is 1, and nobody sees it",
        path="polymq/setting_kinds.py",
        old="            if kinds & {int, float} and bool not in kinds:\n",
        new="            if False:\n",
        tests=("tests/polymq/test_settings.py",),
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
