"""Sabotages of WebSocket: frames, the handshake, and the order of what ends."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

_KERNEL = ("tests/net/test_websocket_kernel.py",)
_HANDSHAKE = ("tests/net/test_websocket_handshake.py",)
_CORE = ("tests/net/test_websocket.py",)
_MQTT = ("tests/gateways/mqtt/test_mqtt_websocket.py",)

OF_THE_WEBSOCKETS = (
    Sabotage(
        name="websocket-mask-begins-anew-with-each-read",
        why="what is behind a cut of a frame is garbage",
        path="net/kernels/websocket.py",
        old="            turn = count & 3\n",
        new="            turn = 0\n",
        pure=True,
        tests=_KERNEL,
    ),
    Sabotage(
        name="websocket-compiled-mask-begins-anew-with-each-read",
        why="the same with compiled kernels",
        path="net/kernels/websocket.pyx",
        old="            self.turn_mask(count & 3)\n",
        new="",
        tests=_KERNEL,
    ),
    Sabotage(
        name="websocket-unmasked-frames-are-read",
        why="proxies between may take what a client sends for requests of their own",
        path="net/kernels/websocket.py",
        old="        if not second & 0x80:\n            return BROKEN_UNMASKED\n",
        new="",
        pure=True,
        tests=_KERNEL,
    ),
    Sabotage(
        name="websocket-text-is-taken-for-data",
        why="a client that sends text is told nothing, and corrupts its packets",
        path="net/kernels/websocket.pyx",
        old="        if opcode == TEXT:\n            return BROKEN_TEXT\n",
        new="",
        tests=_KERNEL,
    ),
    Sabotage(
        name="websocket-ping-is-not-answered",
        why="a client that pings to find dead connections closes a live one",
        path="net/kernels/websocket.py",
        old="            self._ping = bytes(self._control)\n",
        new="            pass\n",
        pure=True,
        tests=_KERNEL,
    ),
    Sabotage(
        name="websocket-ping-is-not-looked-at",
        why="the same where a read has data as well",
        path="net/kernels/websocket.pyx",
        old="        return self.ping_count >= 0 or self.stopped != GOING_ON\n",
        new="        return self.stopped != GOING_ON\n",
        tests=(*_KERNEL, *_CORE),
    ),
    Sabotage(
        name="websocket-waiting-answer-stays-behind",
        why="the client never gets the Pong that it waits for, while messages come",
        path="net/websocket.py",
        old=" <= SENT_FRAME_BYTES_MAX and not self.has_answer:\n",
        new=" <= SENT_FRAME_BYTES_MAX:\n",
        tests=_CORE,
    ),
    Sabotage(
        name="websocket-unmasks-over-what-it-has-not-read",
        why="small frames in one read become garbage",
        path="net/kernels/websocket.pyx",
        old="        memcpy(words, data + at, 32)\n",
        new="        memcpy(words, data + at, 24)\n",
        tests=_KERNEL,
    ),
    Sabotage(
        name="websocket-any-origin-comes-in",
        why="every page that a user visits may speak to the broker with the user's network",
        path="net/websocket_handshake.py",
        old=" and offer.origins and origin.lower() not in offer.origins:\n",
        new=" and False:\n",
        tests=_HANDSHAKE,
    ),
    Sabotage(
        name="websocket-request-without-an-end",
        why="strangers fill the memory with the beginning of a request",
        path="net/websocket_handshake.py",
        old="    if len(head) > HEAD_BYTES_MAX:\n",
        new="    if False:\n",
        tests=_CORE,
    ),
    Sabotage(
        name="websocket-foreign-subprotocol-comes-in",
        why="a client of another protocol is let in, and fails without a reason [MQTT-6.0.0-4]",
        path="net/websocket_handshake.py",
        old='    known = " and ".join(',
        new='    return ""\n    known = " and ".join(',
        tests=_HANDSHAKE,
    ),
    Sabotage(
        name="websocket-end-overtakes-its-data",
        why="what a client sent in front of its Close is lost; its will is published in spite of"
        " its DISCONNECT",
        path="net/websocket_layer.py",
        old="        elif transport.is_reading():\n",
        new="        else:\n",
        tests=_MQTT,
    ),
    Sabotage(
        name="websocket-end-is-forgotten-after-a-turn",
        why="a client that closes while its messages wait for their turn never gets an answer",
        path="net/connection.py",
        old="            self.context.call_soon(self.layer.taken)\n",
        new="            pass\n",
        tests=_MQTT,
    ),
    Sabotage(
        name="websocket-pong-for-every-ping",
        why="a client that pings and reads nothing fills the memory",
        path="net/websocket_layer.py",
        old="        if self._core.has_answer and not self._connection.paused:\n",
        new="        if self._core.has_answer:\n",
        tests=_MQTT,
    ),
    Sabotage(
        name="websocket-last-bytes-without-end",
        why="a client that closes and reads nothing keeps its connection for ever",
        path="net/websocket_layer.py",
        old="            connection.deadline(connection.context.now() + CLOSE_SECONDS)\n",
        new="",
        tests=_MQTT,
    ),
    Sabotage(
        name="deadline-of-the-last-bytes-dropped",
        why="a silent client that reads nothing keeps its connection when it is closed",
        path="net/connection.py",
        old="            if following is not None:",
        new="            if True:",
        tests=("tests/net/test_net_connection.py",),
    ),
)
