"""Sabotages of retained messages that a persistent session has yet to get."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

OWED = "tests/broker/test_retained_owed.py"
_STATES = "--with 'retained messages owed' --states 600 --seed 1"

OF_THE_RETAINED = (
    Sabotage(
        name="origin-of-a-copy-not-read",
        why="after a restart a retained message that retention moved is lost, or comes twice",
        path="broker/topics/retained.py",
        old="            copied = record.properties.get(ORIGIN_PROPERTY)\n",
        new="            copied = None\n",
        tests=(OWED,),
    ),
    Sabotage(
        name="origin-of-a-copy-not-in-the-row",
        why="the same, where the state comes from its rows",
        path="broker/topics/retained.py",
        old="    return [position, size] if origin == position else [position, size, origin]\n",
        new="    return [position, size]\n",
        tests=(OWED,),
    ),
    Sabotage(
        name="owed-progress-not-folded",
        why="after a restart a client gets all retained messages again, at QoS 2 as well",
        path="broker/sessions/state.py",
        old='                owed.move(tuple(op["k"]))\n',
        new="                pass\n",
        tests=(OWED,),
    ),
    Sabotage(
        name="owed-place-in-memory-only",
        why="the same, as the crash tests see it",
        path="broker/sessions/owed.py",
        old="        self.at = self.reached = address\n",
        new="        self.reached = address\n",
        crash=_STATES,
    ),
    Sabotage(
        name="owed-not-in-the-row",
        why="after a restart a session gets only those retained messages that were in flight",
        path="broker/sessions/state.py",
        old='            **({"owed": owed} if owed else {}),\n',
        new="",
        tests=(OWED,),
    ),
    Sabotage(
        name="owed-without-a-position",
        why="a message that was published after the SUBSCRIBE comes live, and as retained again",
        path="broker/sessions/retained_replay.py",
        old="            since, behind = owed.since, owed.reached\n",
        new="            since, behind = Position(1 << 60), owed.reached\n",
        tests=(OWED,),
    ),
    Sabotage(
        name="owed-not-taken-up-again",
        why="what a client had not got of the retained messages when its connection ended is lost",
        path="broker/sessions/session.py",
        old="            if subscription.owed is not None and subscription.owed.interrupted:\n",
        new="            if False:\n",
        tests=(OWED,),
    ),
    Sabotage(
        name="owed-in-the-order-of-reads",
        why="after a restart a retained message is missing that the disk gave late",
        path="broker/sessions/retained_replay.py",
        old="        while self._next and self._next[0].is_read and not self._refused:\n",
        new="        while self._next and not self._refused:\n",
        tests=(OWED,),
    ),
    Sabotage(
        name="owed-and-refused-is-forgotten",
        why="a retained message is lost when the log takes no packet id for a moment",
        path="broker/sessions/retained_replay.py",
        old="                self._refused = True\n",
        new="                self._refused = bool(self._next.popleft())\n",
        tests=(OWED,),
    ),
    Sabotage(
        name="owed-beyond-its-end",
        why="each connection looks at all retained messages again, for ever",
        path="broker/sessions/state.py",
        old="        group.subscription.owed = None\n",
        new="",
        tests=(OWED,),
    ),
    Sabotage(
        name="owed-to-the-subscription-before",
        why="who subscribes again gets a part of the retained messages",
        path="broker/sessions/retained_replay.py",
        old="        return found is subscription and found.owed is owed and not self._is_over()\n",
        new="        return found is subscription and not self._is_over()\n",
        tests=(OWED,),
    ),
    Sabotage(
        name="retained-qos-0-waits",
        why="retained messages of QoS 0 wait for a client that is away, which nobody asked for",
        path="broker/sessions/retained_replay.py",
        old="        return keeps or min(publish_qos(run), subscription.qos) > 0\n",
        new="        return True\n",
        tests=(OWED,),
    ),
)
