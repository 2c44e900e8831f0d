"""Sabotages of what operators see of a message's way."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

NAMES = "tests/broker/test_property_names.py"
WAY = "tests/polymq/admin/test_way.py"
TEXT = "tests/polymq/test_way_text.py"

OF_THE_WAYS = (
    Sabotage(
        name="all-of-a-record-was-rejected",
        why="an acknowledged message looks rejected, because one beside it was",
        path="polymq/admin/way_past.py",
        old="            if group == number and first <= offset < first + count:\n",
        new="            if group == number:\n",
        tests=(WAY,),
    ),
    Sabotage(
        name="a-purge-takes-the-reasons-of-acks",
        why="a message that a consumer acknowledged a moment before a purge looks purged",
        path="broker/named_queues/named_queues.py",
        old="            self.queue_store.write_acks()  # the next ones are purged\n",
        new="            pass\n",
        tests=(WAY,),
    ),
    Sabotage(
        name="originals-are-taken-for-publishers",
        why="a message that moved does not come to a client, or comes back to the one that sent it",
        path="broker/moves/moves.py",
        old='REPLACED_PROPERTY: Final = "PMQ_WAS"\n',
        new='REPLACED_PROPERTY: Final = "PMQ_FROM"\n',
        tests=(NAMES,),
    ),
    Sabotage(
        name="moved-messages-forget-their-originals",
        why="nobody finds the message that became a dead letter",
        path="broker/moves/moves.py",
        old="            extra += replaced_property(row, constant_bytes)\n",
        new="",
        tests=(WAY,),
    ),
    Sabotage(
        name="sessions-that-came-later-had-it",
        why="a message looks acknowledged by a client that subscribed after it",
        path="polymq/admin/way_past.py",
        old='        if destination and offset < op["o"]:\n',
        new='        if destination and offset > op["o"]:\n',
        tests=(WAY,),
    ),
    Sabotage(
        name="the-log-is-known-to-its-end",
        why="what was not looked for is said not to have happened",
        path="polymq/admin/way.py",
        old="            complete=looked[1] >= looked[2],\n",
        new="            complete=True,\n",
        tests=(WAY,),
    ),
    Sabotage(
        name="only-the-queues-that-a-record-names-itself",
        why="of a message for 300 queues some are missing",
        path="polymq/admin/way.py",
        old="            targets += other.targets\n",
        new="            pass\n",
        tests=(WAY,),
    ),
    Sabotage(
        name="given-back-is-waiting-for-the-first-time",
        why="an operator does not see that a consumer had the message",
        path="broker/queues/cursor.py",
        old="        return self.floor <= offset < self.next and self._states[offset - self.floor] "
        "== REQUEUED\n",
        new="        return False\n",
        tests=(WAY,),
    ),
    Sabotage(
        name="sessions-are-settled-without-the-log",
        why="a part of the log that says nothing is taken for an acknowledgement",
        path="polymq/way_text.py",
        old='    is_whole = last["complete"] and first["looked_from"] == '
        'first["position"] + first["size"]\n',
        new='    is_whole = last["complete"]\n',
        tests=(TEXT,),
    ),
)
