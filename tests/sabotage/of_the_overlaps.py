"""Sabotages of the one copy that a session gets where its filters overlap."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

OVERLAPS = "tests/broker/test_overlaps.py"
MACHINE = "tests/broker/test_overlap_machine.py"
KILLED = "interop_tests/test_mqtt_sessions.py::test_overlapping_filters_over_kills"
PROMOTED = "tests/replication/test_overlaps_promoted.py"
IN_ORDER = f"{OVERLAPS}::test_what_waited_comes_in_the_order_of_the_log"


def _copy(
    name: str, why: str, path: str, old: str, new: str, *tests: str, pure: bool = False
) -> Sabotage:
    return Sabotage(
        name=f"overlaps-{name}",
        why=why,
        path=f"broker/sessions/{path}.py",
        old=old,
        new=new,
        tests=tests or (OVERLAPS,),
        pure=pure,
    )


OF_THE_OVERLAPS = (
    _copy(
        "sent-for-each",
        "a client gets a message once for each of its filters",
        "subscription",
        "            if others:\n",
        "            if False:\n",
    ),
    _copy(
        "not-settled-in-the-log",
        "after a crash a message of QoS 2 comes once more, by the other filter",
        "state",
        'op.get("also", ()):',
        "():",
        MACHINE,
        KILLED,
    ),
    _copy(
        "not-settled-on-the-slave",
        "a promoted slave sends a message of QoS 2 once more, by the other filter",
        "state",
        'op.get("also", ()):',
        "():",
        PROMOTED,
    ),
    _copy(
        "at-the-lowest-qos",
        "a message that was asked for with QoS 2 comes with QoS 1",
        "subscription",
        "        qos = max([self.qos_at(offset)",
        "        qos = min([self.qos_at(offset)",
        MACHINE,
    ),
    _copy(
        "overtake",
        "messages of a topic come out of order, and what the other filter had comes twice",
        "log_order",
        "                if offset < reader.queue.visible:\n",
        "                if False:\n",
        IN_ORDER,
        MACHINE,
    ),
    _copy(
        "beyond-the-other-head",
        "a run of messages passes over one that has its place between them, which comes twice",
        "log_order",
        "            elif known[0] > first:\n                count = bisect_left(",
        "            elif known[0] > first:\n                bisect_left(",
        MACHINE,
    ),
    _copy(
        "more-than-is-alike",
        "messages are settled that were never sent",
        "log_order",
        "                count = _alike(positions, known, count)\n",
        "                pass\n",
        IN_ORDER,
        MACHINE,
    ),
    _copy(
        "past-a-reader-thread",
        "what a reader thread brings for one filter was sent by the other meanwhile",
        "log_order",
        "                if known is None or known[0] <= first:\n"
        "                    self.block(group, reader, offset if known is not None else FETCHING)\n"
        "                    return None\n"
        "                count = bisect_left(positions, known[0], 0, count)\n",
        "                if known is None:\n"
        "                    self.block(group, reader, FETCHING)\n"
        "                    return None\n",
        MACHINE,
    ),
    _copy(
        "blocked-for-ever",
        "messages wait behind others that have expired, until something else comes",
        "log_order",
        "            self._core.scheduler.call_later(AGAIN_SECONDS, self._look_again)\n",
        "            pass\n",
        f"{OVERLAPS}::test_what_expires_blocks_nobody",
    ),
    _copy(
        "own-messages-count-for-all",
        "a client gets what it published by a filter with No Local, or nothing of it",
        "overlaps",
        "        return found[1] if is_own else found[0]\n",
        "        return found[0]\n",
    ),
    _copy(
        "identifiers-out-of-order",
        "a client that looks for its identifiers in order does not find them",
        "overlaps",
        "        self.identifiers = tuple(sorted(found - {0}))\n",
        "        self.identifiers = tuple(sorted(found - {0}, reverse=True))\n",
    ),
    _copy(
        "queues-before-their-time",
        "a message that was published just before a SUBSCRIBE comes by no filter",
        "overlaps",
        "        if self._begins.get(group, 0) > position:\n",
        "        if False:\n",
        f"{OVERLAPS}::test_a_run_on_its_way_when_a_durable_subscription_begins",
    ),
    _copy(
        "silent-where-full",
        "what a full session leaves out does not come by the filter of QoS 0 either",
        "overlaps",
        "        if group is None or group.cursor.stop != NO_STOP:\n",
        "        if group is None:\n",
    ),
    _copy(
        "beyond-the-window",
        "a client gets more messages than its Receive Maximum",
        "subscription",
        "found is None or self._leaves_to_other(left, offset, together, overlaps):\n",
        "found is None:\n",
    ),
    _copy(
        "lost-with-an-unsubscribe",
        "an UNSUBSCRIBE takes the messages that another filter still wants",
        "session",
        "group is None or not group.ready_count or not subscription.special:\n",
        "True:\n",
    ),
    _copy(
        "forgotten-by-what-is-sent-again",
        "after a reconnection a message lacks an identifier",
        "sessions",
        "        return matching.sends_retain(run.meta), matching.identifiers\n",
        "        return matching.sends_retain(run.meta), matching.identifiers[:1]\n",
    ),
    _copy(
        "seen-by-everybody",
        "sessions whose filters do not overlap pay for those that do",
        "overlaps",
        "    return overlaps(first, second)\n",
        "    return True\n",
    ),
)
