"""Sabotages of what operators see of the traffic, and do to it: connections, readers, messages."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

READERS = "tests/polymq/admin/test_readers.py"
DEAD_LETTERS = "tests/polymq/admin/test_dead_letters.py"
DELAYED = "tests/polymq/admin/test_delayed.py"
MESSAGES = "tests/polymq/admin/test_messages.py"
CLIENTS = "tests/polymq/admin/test_clients.py"

OF_THE_TRAFFIC = (
    Sabotage(
        name="a-dry-run-closes-connections",
        why="who only asks how many connections a user has ends them",
        path="polymq/admin/clients.py",
        old="            if not dry:\n                connection.end(why)\n",
        new="            if True:\n                connection.end(why)\n",
        tests=(CLIENTS,),
    ),
    Sabotage(
        name="all-connections-are-closed",
        why="a request that names a protocol only ends every client of it",
        path="polymq/admin/clients.py",
        old="        if wanted.user is None and wanted.address is None and not wanted.prefix:\n",
        new="        if False:\n",
        tests=(CLIENTS,),
    ),
    Sabotage(
        name="connections-are-listed-in-one-step",
        why="a list of ten thousand connections holds the loop",
        path="polymq/admin/clients.py",
        old="            if number % STEP_ENTRIES == 0:\n                yield\n"
        "            if connection.has_socket",
        new="            if connection.has_socket",
        tests=(CLIENTS,),
    ),
    Sabotage(
        name="a-dry-run-moves-a-group",
        why="who only asks what a reset would do makes a group skip messages",
        path="polymq/admin/resets.py",
        old="        if not wanted.dry_run:\n            self._engine.core.check_writable()\n",
        new="        if True:\n            self._engine.core.check_writable()\n",
        tests=(READERS,),
    ),
    Sabotage(
        name="members-do-not-learn-of-a-reset",
        why="a group that runs goes on where it was, and commits that",
        path="polymq/admin/resets.py",
        old="                self._gateways.group_moved(name, topic, move.queue, move.after)\n",
        new="",
        tests=(READERS,),
    ),
    Sabotage(
        name="what-is-skipped-comes-back",
        why="messages that an operator skipped are there again after a crash",
        path="polymq/admin/resets.py",
        old="            self._engine.queue_store.write_acks()\n",
        new="            pass\n",
        tests=(READERS,),
    ),
    Sabotage(
        name="a-place-by-time-is-one-too-far",
        why="a reader that goes back to a time misses the first message",
        path="broker/queues/skipping.py",
        old="        if time < time_ms:\n",
        new="        if time <= time_ms:\n",
        tests=(READERS,),
    ),
    Sabotage(
        name="operators-make-records-of-the-broker",
        why="a message that an operator publishes settles another one, or is in foreign queues",
        path="polymq/admin/messages.py",
        old="        if not name or name.startswith(RESERVED):\n",
        new="        if not name:\n",
        tests=(MESSAGES,),
    ),
    Sabotage(
        name="marks-in-properties-are-stored",
        why="a value that holds a separator makes a property that nobody may set",
        path="polymq/admin/messages.py",
        old='        if any(mark in name + value for mark in "\\x01\\x02"):\n',
        new="        if False:\n",
        tests=(MESSAGES,),
    ),
    Sabotage(
        name="a-page-of-a-queue-leaves-one-out",
        why="an operator does not see a message that waits",
        path="polymq/admin/messages.py",
        old="                following = (at, first)\n",
        new="                following = (at, first + 1)\n",
        tests=(MESSAGES,),
    ),
    Sabotage(
        name="pages-of-messages-without-a-bound",
        why="a page of large messages takes all memory",
        path="polymq/admin/messages.py",
        old="or shown_bytes > ANSWER_BYTES_MAX:",
        new="or False:",
        tests=(MESSAGES,),
    ),
    Sabotage(
        name="dead-letters-of-topics-are-sent-on-again",
        why="after a restart a redrive sends on what it has sent on before",
        path="broker/moves/redrives.py",
        old="        value = record.properties.get(SENT_ON_PROPERTY)\n",
        new="        value = None\n",
        tests=(DEAD_LETTERS,),
    ),
    Sabotage(
        name="what-was-sent-on-is-not-saved",
        why="a start that finds the state saved sends dead letters on a second time",
        path="broker/moves/redrives.py",
        old='        return {"topic": topic, **cursor.snapshot()}\n',
        new="        return None\n",
        tests=(DEAD_LETTERS,),
    ),
    Sabotage(
        name="dead-letters-that-do-not-pass-are-kept",
        why="messages that a redrive only looked at are lost to consumers until a restart",
        path="polymq/admin/redriving.py",
        old="                    _give_back(group, first, count)\n",
        new="                    pass\n",
        tests=(DEAD_LETTERS,),
    ),
    Sabotage(
        name="dead-letters-are-sent-to-nobody",
        why="a redrive to an exchange without queues removes the messages",
        path="polymq/admin/redriving.py",
        old="        if not found.routed:  # it would be in no queue any more\n",
        new="        if False:\n",
        tests=(DEAD_LETTERS,),
    ),
    Sabotage(
        name="cancelled-messages-come-after-a-crash",
        why="a delayed message that was cancelled is delivered",
        path="broker/delays/delay.py",
        old="        group.settle(offset, 1)\n        self._queue_store.write_acks()\n"
        "        return Position",
        new="        group.settle(offset, 1)\n        return Position",
        tests=(DELAYED,),
    ),
)
