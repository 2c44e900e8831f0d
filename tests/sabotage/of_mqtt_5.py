"""Bugs planted in what MQTT 5 has beyond 3.1.1."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

KERNELS = "tests/gateways/mqtt/test_mqtt5_kernels.py"
ENCODERS = "tests/gateways/mqtt/test_mqtt_publish_kernels.py"
PACKETS = "tests/gateways/mqtt/test_mqtt5_packets.py"
CLIENT = "tests/gateways/mqtt/test_mqtt5_client.py"
FUZZ = "tests/fuzz/test_cases.py"
ALIASES = "tests/gateways/mqtt/test_mqtt5_aliases.py"
ANSWERS = "tests/gateways/mqtt/test_mqtt5_answers.py"

OF_MQTT_5 = (
    Sabotage(
        name="mqtt5-property-twice",
        why="which of two expiry intervals holds is anybody's guess",
        path="gateways/mqtt/kernels/frames.py",
        pure=True,
        old="        if kind in seen and kind != USER_PROPERTY:\n",
        new="        if False:\n",
        tests=(KERNELS,),
    ),
    Sabotage(
        name="mqtt5-error-of-pubrec-is-none",
        why="a message that the client refused is released, and its packet id is never free",
        path="gateways/mqtt/kernels/frames.py",
        pure=True,
        old="            elif kind == TYPE_PUBREC and flags >= 0x80:\n",
        new="            elif False:\n",
        tests=(KERNELS,),
    ),
    Sabotage(
        name="mqtt5-alias-leaves-its-connection",
        why="subscribers get a topic alias that they did not agree to, and close",
        path="gateways/mqtt/kernels/publishes.py",
        pure=True,
        old="        elif kind != TOPIC_ALIAS:\n            out += block[begin:at]\n",
        new="        else:\n            out += block[begin:at]\n",
        tests=(ENCODERS,),
    ),
    Sabotage(
        name="mqtt5-expiry-begins-again-for-each-receiver",
        why="a message that waited for an hour is as fresh as it was",
        path="gateways/mqtt/kernels/publishes.py",
        pure=True,
        old="max(0, now_ms - born_ms) // 1000",
        new="0",
        tests=(ENCODERS,),
    ),
    Sabotage(
        name="mqtt5-too-large-is-sent",
        why="a client that says what it takes at most closes over and over",
        path="gateways/mqtt/kernels/publishes.py",
        pure=True,
        old="        if len(start_of_packet) + len(head) + body_size > size_max:\n",
        new="        if False:\n",
        tests=(ENCODERS,),
    ),
    Sabotage(
        name="mqtt5-too-large-stays-in-flight",
        why="each message that the client does not take costs it a place in its window for ever",
        path="gateways/mqtt/connection.py",
        old="            self.context.call_soon(partial(self._give_up, self._session, missing))\n",
        new="",
        tests=(CLIENT,),
    ),
    Sabotage(
        name="mqtt5-property-of-another-packet",
        why="what a packet must not have is taken, and means nothing",
        path="gateways/mqtt/properties.py",
        old="    if name not in allowed:\n",
        new="    if False:\n",
        tests=(PACKETS,),
    ),
    Sabotage(
        name="mqtt5-refused-publish-is-acknowledged",
        why="a client takes a message for stored that nobody has",
        path="gateways/mqtt/publishing.py",
        old="                batch.rows[at] |= bits\n",
        new="                pass\n",
        tests=(CLIENT,),
    ),
    Sabotage(
        name="mqtt5-aliases-are-everybodys",
        why="what a client publishes goes to the topic of another one",
        path="gateways/mqtt/connecting.py",
        old="            self.fast_path.aliases = {}\n",
        new="",
        tests=(CLIENT,),
    ),
    Sabotage(
        name="mqtt5-alias-beyond-the-maximum",
        why="one client keeps 65,535 topic names of 64 KiB in memory",
        path="gateways/mqtt/aliases.py",
        old="    if alias > alias_max:\n",
        new="    if False:\n",
        tests=(CLIENT,),
    ),
    Sabotage(
        name="mqtt5-goodbye-before-connack",
        why="the first packet to a client is DISCONNECT, which no client knows what to do with",
        path="gateways/mqtt/protocol.py",
        old="            return self._end(PacketType.CONNACK, reason, text)\n"
        "        return self._end(PacketType.DISCONNECT",
        new="            pass\n        return self._end(PacketType.DISCONNECT",
        tests=(PACKETS,),
    ),
    Sabotage(
        name="mqtt5-disconnect-takes-every-will-along",
        why="a client that asks for its will to be published goes without it",
        path="gateways/mqtt/connection.py",
        old="        if packet.reason == ReasonCode.SUCCESS and self._session is not None:\n",
        new="        if self._session is not None:\n",
        tests=(CLIENT,),
    ),
    Sabotage(
        name="mqtt5-retained-messages-again-at-each-subscribe",
        why="a client that asked for none gets all retained messages at each start",
        path="gateways/mqtt/subscribing.py",
        old="    wanted = handling == 0 or (handling == 1 and not session.is_subscribed(address))",
        new="    wanted = True",
        tests=(CLIENT,),
    ),
    Sabotage(
        name="mqtt5-will-may-have-what-publish-may-not",
        why="a message with a format that nobody knows is stored, although a will is not",
        path="gateways/mqtt/kernels/frames.py",
        pure=True,
        old="            elif value > 1:\n                return MALFORMED_FORMAT, 0\n",
        new="            elif value > 255:\n                return MALFORMED_FORMAT, 0\n",
        tests=(FUZZ, "tests/gateways/mqtt/test_mqtt5_kernels.py"),
    ),
    Sabotage(
        name="mqtt5-mask-begins-anew-with-each-read",
        why="what a page sends is garbage where its frame comes in two reads",
        path="net/kernels/websocket.py",
        pure=True,
        old="            turn = count & 3\n",
        new="            turn = 0\n",
        tests=(FUZZ,),
    ),
    Sabotage(
        name="mqtt5-alias-of-a-packet-that-was-not-sent",
        why="the client closes for an alias that it was never told",
        path="gateways/mqtt/kernels/fast_path.py",
        old="            if self.dropped:\n",
        new="            if False:\n",
        tests=(ALIASES,),
    ),
    Sabotage(
        name="mqtt5-frame-with-the-alias-of-another",
        why="a subscriber takes messages for those of another topic",
        path="gateways/mqtt/kernels/fast_path.py",
        old='                key = f"{key} alias {alias}"\n',
        new='                key = f"{key} alias"\n',
        tests=(ALIASES,),
    ),
    Sabotage(
        name="mqtt5-alias-never-changes-hands",
        why="a client whose topics change gets names for as long as it is connected",
        path="gateways/mqtt/aliases.py",
        old="        self._until_replaced -= 1\n",
        new="",
        tests=(ALIASES,),
    ),
    Sabotage(
        name="mqtt5-words-for-who-wants-none",
        why="[MQTT-3.1.2-29] a device that has no room for texts gets them",
        path="gateways/mqtt/explaining.py",
        old="        if not text or not self._is_asked:\n",
        new="        if not text:\n",
        tests=(ANSWERS,),
    ),
    Sabotage(
        name="mqtt5-answer-too-large-by-its-words",
        why="[MQTT-3.4.2-2] a client closes for an answer that is larger than it takes",
        path="gateways/mqtt/explaining.py",
        old="        if size + ROOM + len(raw) > self.packet_bytes_max:\n",
        new="        if False:\n",
        tests=(ANSWERS,),
    ),
    Sabotage(
        name="mqtt5-one-bad-payload-refuses-all-behind-it",
        why="messages that are text are refused for one that is not",
        path="gateways/mqtt/publishing.py",
        old="        while end < last and _is_refused(batch, end) == is_refused:\n",
        new="        while end < last:\n",
        tests=(ANSWERS,),
    ),
)
