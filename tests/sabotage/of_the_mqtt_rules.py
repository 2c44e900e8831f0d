"""25 rules of MQTT 5.0, each broken, with the tests of `interop_tests/mqtt_conformance` for it.

The statements were drawn from those of 5.0 whose tests passed, by `random.Random(20261124)`.
`make sabotage SABOTAGE="--only MQTT-"` runs them all.
"""

from __future__ import annotations

from interop_tests.mqtt_conformance.matrix import VERSIONS, find_tests
from tests.sabotage.plan import Sabotage

_TESTS = find_tests(VERSIONS[0])


def _rule(identifier: str, why: str, path: str, old: str, new: str) -> Sabotage:
    """A rule that does not hold, and all tests that show it."""
    return Sabotage(
        name=identifier,
        why=why,
        path=path,
        old=old,
        new=new,
        tests=tuple(f"{test.path}::{test.name}" for test in _TESTS[identifier]),
        pure="/kernels/" in path,
    )


OF_THE_MQTT_RULES = (
    _rule(
        "MQTT-1.5.4-1",
        "what is no text is stored, and subscribers close when they get it",
        "gateways/mqtt/fields.py",
        '        text = raw.decode("utf-8")\n',
        '        text = raw.decode("utf-8", "replace")\n',
    ),
    _rule(
        "MQTT-3.1.0-1",
        "who does not speak MQTT keeps a connection",
        "gateways/mqtt/protocol.py",
        "        if start == end:\n            return NEED_DATA\n",
        "        early = self.state is State.WAIT_CONNECT\n"
        "        if start == end or (early and buffer[start] >> 4 != 1):\n"
        "            return NEED_DATA\n",
    ),
    Sabotage(
        name="MQTT-3.1.2-2",
        why="a client of a later version is not told so in a way that it knows",
        path="gateways/mqtt/packets.py",
        old="    if level not in _LEVELS[name]:\n",
        new="    if False:\n",
        # At the socket, the rules of the listener refuse such a level all the same.
        tests=("tests/gateways/mqtt/test_mqtt5_packets.py",),
    ),
    _rule(
        "MQTT-3.1.2-7",
        "nobody learns that a client is lost",
        "gateways/mqtt/connecting.py",
        "                session.set_will(will)\n",
        "                pass\n",
    ),
    _rule(
        "MQTT-3.1.2-25",
        "each message that the client does not take costs it a place in its window for ever",
        "gateways/mqtt/connection.py",
        "            self.context.call_soon(partial(self._give_up, self._session, missing))\n",
        "",
    ),
    _rule(
        "MQTT-3.1.2-26",
        "a subscriber gets the alias of whoever published",
        "gateways/mqtt/kernels/publishes.py",
        "        elif kind != TOPIC_ALIAS:\n            out += block[begin:at]\n",
        "        else:\n            out += block[begin:at]\n",
    ),
    _rule(
        "MQTT-3.1.3-2",
        "no client finds its session again",
        "gateways/mqtt/login.py",
        "        self.own_id = packet.client_id or new_client_id()",
        "        self.own_id = new_client_id()",
    ),
    _rule(
        "MQTT-3.1.3-5",
        "a client with the longest id that every server takes is refused",
        "gateways/mqtt/limits.py",
        "    client_id_bytes_max: int = 256\n",
        "    client_id_bytes_max: int = 22\n",
    ),
    _rule(
        "MQTT-3.2.2-6",
        "a client that is refused believes that its session is there",
        "gateways/mqtt/packets.py",
        "bytes((present, reason)), encode_properties",
        "bytes((present or reason > 0, reason)), encode_properties",
    ),
    _rule(
        "MQTT-3.3.4-4",
        "a client does not know for which of its subscriptions a message is",
        "gateways/mqtt/subscribing.py",
        "            identifier=packet.identifier,\n",
        "            identifier=0,\n",
    ),
    _rule(
        "MQTT-3.4.2-1",
        "what a client says of a message means nothing",
        "gateways/mqtt/kernels/frames.py",
        "    if content[0] not in (_RELEASE_REASONS if kind >= TYPE_PUBREL else _REASONS):\n",
        "    if kind >= TYPE_PUBREL and content[0] not in _RELEASE_REASONS:\n",
    ),
    _rule(
        "MQTT-3.6.2-1",
        "a client that does not know a packet id any more is closed for saying so",
        "gateways/mqtt/kernels/frames.py",
        "    if content[0] not in (_RELEASE_REASONS if kind >= TYPE_PUBREL else _REASONS):\n",
        "    if content[0] not in _REASONS:\n",
    ),
    _rule(
        "MQTT-3.8.1-1",
        "what is not MQTT is taken for it",
        "gateways/mqtt/protocol.py",
        "        if first & 0x0F != FIXED_FLAGS[kind]:\n",
        "        if first & 0x0F != FIXED_FLAGS[kind] and kind is not PacketType.SUBSCRIBE:\n",
    ),
    _rule(
        "MQTT-3.10.3-1",
        "a client that unsubscribes from rubbish believes that it did something",
        "gateways/mqtt/packets.py",
        "            yield decode_filter(content.field())\n",
        '            yield content.field().decode("utf-8", "replace")\n',
    ),
    _rule(
        "MQTT-3.10.4-1",
        "a client loses a subscription that it did not end",
        "gateways/mqtt/subscribing.py",
        "[MQTT-3.10.4-5]\n        try:\n            address = mapping.address(pattern)\n",
        "[MQTT-3.10.4-5]\n        try:\n            address = mapping.address(pattern.lower())\n",
    ),
    _rule(
        "MQTT-3.10.4-5",
        "a client waits for its answer, and takes that of another request for it",
        "gateways/mqtt/connection.py",
        "encode_unsuback(self._core.level, packet.packet_id, outcome.codes, properties)",
        "encode_unsuback(self._core.level, packet.packet_id % 255 + 1, outcome.codes, properties)",
    ),
    _rule(
        "MQTT-3.12.4-1",
        "clients that are silent believe that the server is gone",
        "gateways/mqtt/connection.py",
        "                self.write_answer(PING_RESPONSE)\n",
        "                pass\n",
    ),
    _rule(
        "MQTT-4.3.2-3",
        "what was sent to a connection that was lost is lost as well",
        "broker/sessions/session.py",
        "            self.sessions.resend(self, before, self._resumed)\n",
        "            self._resumed()\n",
    ),
    _rule(
        "MQTT-4.3.3-3",
        "a message of QoS 2 that a lost connection had does not come again",
        "broker/sessions/sessions.py",
        "        for run in runs:\n            if _needs_right(session, holder) and not",
        "        for run in runs:\n"
        "            if _sent_qos(holder, publish_qos(run)) == 2:\n"
        "                tag += run.count\n"
        "                continue\n"
        "            if _needs_right(session, holder) and not",
    ),
    _rule(
        "MQTT-4.3.3-11",
        "a publisher of QoS 2 never learns that a message is done",
        "gateways/mqtt/acknowledging.py",
        "            completions.append(encode_ids(_PUBCOMP, first, count))\n",
        "",
    ),
    _rule(
        "MQTT-4.7.1-2",
        "a subscriber gets nothing of what its filter matches",
        "gateways/mqtt/mapping.py",
        '        wildcards = {"+": ONE_LEVEL, "#": REST}\n',
        '        wildcards = {"#": REST}\n',
    ),
    _rule(
        "MQTT-4.12.0-4",
        "a client with a method that nobody checks is let in",
        "gateways/mqtt/connecting.py",
        "        if packet.method is not None:\n",
        "        if False:\n",
    ),
    _rule(
        "MQTT-6.0.0-1",
        "a client that sends text works here and nowhere else",
        "net/kernels/websocket.py",
        "        if opcode == _TEXT:\n",
        "        if False:\n",
    ),
    _rule(
        "MQTT-6.0.0-2",
        "of several frames that come together all but the first are lost",
        "net/kernels/websocket.py",
        "            if not self._left:\n                self._end_frame()\n        return to\n",
        "            if not self._left:\n                self._end_frame()\n"
        "                break\n        return to\n",
    ),
    _rule(
        "MQTT-6.0.0-4",
        "no browser opens the connection",
        "net/websocket_handshake.py",
        '        headers["Sec-WebSocket-Protocol"] = subprotocol\n',
        "        pass\n",
    ),
)
