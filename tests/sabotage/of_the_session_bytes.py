"""Sabotages of the bound of bytes that wait for an MQTT session or a shared subscription."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

BYTES = "tests/broker/test_session_bytes.py"
MACHINE = "tests/broker/test_session_bytes_machine.py"

OF_THE_SESSION_BYTES = (
    Sabotage(
        name="bytes-of-sessions-not-configured",
        why="what waits for a session has no bound of bytes, whatever is configured",
        path="polymq/engine_settings.py",
        old="            waiting_bytes_max=mqtt.session_queue_bytes_max,\n",
        new="",
        tests=("interop_tests/test_mqtt_session_limits.py",),
    ),
    Sabotage(
        name="bytes-of-qos-0-count",
        why="large messages of QoS 0 that a device never gets push those of QoS 1 out",
        path="broker/sessions/uncounted.py",
        old="                found.bytes += size\n",
        new="                pass\n",
        tests=(BYTES, MACHINE),
    ),
    Sabotage(
        name="bytes-of-qos-0-from-the-disk-count",
        why="the same after a restart",
        path="broker/sessions/uncounted.py",
        old="            found.bytes += sum(compress(sizes_of(entries), flags))\n",
        new="            found.bytes += 0\n",
        tests=(BYTES, MACHINE),
    ),
    Sabotage(
        name="bytes-dropped-too-many",
        why="a full session loses a message more than it has to",
        path="broker/sessions/backlog.py",
        old="        return self.count > 0 or self.bytes > 0\n",
        new="        return self.count > 0 or self.bytes >= 0\n",
        tests=(BYTES, MACHINE),
    ),
    Sabotage(
        name="bytes-that-other-subscriptions-take-are-free",
        why="a session with many subscriptions takes the bound once for each",
        path="broker/sessions/waiting_bytes.py",
        old="        for one in (group, *rest.others):\n",
        new="        for one in (group,):\n",
        tests=(BYTES, MACHINE),
    ),
    Sabotage(
        name="bytes-of-large-messages-close-a-subscription",
        why="one message that is larger than the bound keeps all later ones of its run away",
        path="broker/sessions/backlogs.py",
        old="return self._admit_again(session, backlog, group, run, first, counts=True)\n",
        new="pass\n",
        tests=(BYTES, MACHINE),
    ),
    Sabotage(
        name="bytes-of-connected-clients-are-left-out",
        why="a client that keeps up loses messages, because they are large",
        path="broker/sessions/backlogs.py",
        old="            group.hand_out(run, first)\n",
        new="            pass\n",
        tests=(BYTES, MACHINE),
    ),
    Sabotage(
        name="bytes-settled-in-another-queue-stay-counted",
        why="a session whose filters overlap seems full of messages that its client has",
        path="broker/queues/cursor.py",
        old="            self.watch(self.next, next_offset - self.next, -1)\n",
        new="            pass\n",
        tests=("tests/broker/test_cursor.py",),
    ),
    Sabotage(
        name="bytes-counted-anew-with-each-message",
        why="thousands of full sessions that share a topic stop the server",
        path="broker/queues/ready_bytes.py",
        old="            self.end = first + count\n            self.bytes += size\n",
        new="            self.end = self.bytes = 0\n",
        tests=(BYTES,),
    ),
    Sabotage(
        name="drops-behind-acknowledgements",
        why="what a full session dropped is sent to its client after a crash",
        path="broker/queues/store.py",
        old="            self.before_acks(*groups)\n",
        new="            pass\n",
        tests=(BYTES,),
    ),
    Sabotage(
        name="bytes-of-shares-grow",
        why="a shared subscription with no member connected has no bound of bytes",
        path="broker/sessions/share_bounds.py",
        old="            group.free -= size_of(run)\n",
        new="            pass\n",
        tests=(BYTES,),
    ),
)
