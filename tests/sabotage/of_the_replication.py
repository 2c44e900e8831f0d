"""Sabotages of replication: what is said to be on two disks is, and both logs are one."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

FENCING = "tests/replication/test_fencing.py"
HANDSHAKE = "tests/replication/test_handshake.py"
LINK = "tests/replication/test_link.py"
NEWCOMERS = "tests/replication/test_newcomers.py"
RETENTION = "tests/replication/test_slave_retention.py"
SIMULATION = "tests/replication/test_simulation.py"
STANDBY = "tests/replication/test_standby.py"
TORN = "tests/replication/test_torn_records.py"

OF_THE_REPLICATION = (
    Sabotage(
        name="slave-acks-what-it-has-in-memory",
        why="both machines lose power, and with it what was acknowledged as on two disks",
        path="replication/client.py",
        old="self._core.ack(self._link.copy.flushed, self._link.copy.wanted)",
        new="self._core.ack(self._link.copy.wanted, self._link.copy.wanted)",
        tests=(LINK,),
    ),
    Sabotage(
        name="a-lost-slave-still-counts",
        why="a slave that comes back under another name counts as two disks",
        path="replication/server.py",
        old="            self._server.replicas.lost(self.source.name)\n",
        new="",
        tests=(LINK,),
    ),
    Sabotage(
        name="in-sync-is-what-was-received",
        why="what is in the slave's memory counts as on its disk",
        path="replication/source.py",
        old="        return Acked(self.name, flushed, received)\n",
        new="        return Acked(self.name, received, received)\n",
        tests=(LINK, HANDSHAKE),
    ),
    Sabotage(
        name="a-promotion-begins-no-epoch",
        why="the old master's records and the new one's are taken for the same",
        path="core_log/store.py",
        old="        epoch = self.epochs[-1][0] + 1 if self.epochs else 1\n",
        new="        epoch = self.epochs[-1][0] if self.epochs else 1\n",
        tests=(STANDBY, SIMULATION),
    ),
    Sabotage(
        name="copied-epochs-are-not-kept",
        why="after a failover a slave does not know from where on its log is another one",
        path="core_log/following.py",
        old="            store.saw_epochs(epochs_of(record, position + at), marks_of(record))\n",
        new="            pass\n",
        tests=(SIMULATION,),
    ),
    Sabotage(
        name="cut-at-the-longer-log's-end",
        why="a slave keeps what its master never had, and what comes does not fit behind it",
        path="replication/common.py",
        old="            return min(_end(one, at), _end(other, found[2]))\n",
        new="            return max(_end(one, at), _end(other, found[2]))\n",
        tests=(HANDSHAKE, SIMULATION),
    ),
    Sabotage(
        name="cut-to-the-oldest-common-epoch",
        why="a slave throws away what was in sync",
        path="replication/common.py",
        old="    for at in range(len(one.epochs) - 1, -1, -1):\n",
        new="    for at in range(len(one.epochs)):\n",
        tests=(HANDSHAKE,),
    ),
    Sabotage(
        name="epochs-told-apart-by-number-only",
        why="a new master and an old one that was started again have the same epoch, with other "
        "records in it",
        path="replication/common.py",
        old="        if found is not None and found[:2] == (start, crc):\n",
        new="        if found is not None:\n",
        tests=(HANDSHAKE,),
    ),
    Sabotage(
        name="gives-up-what-was-in-sync",
        why="a slave cuts acknowledged messages away that its new master lacks",
        path="replication/follower.py",
        old="        if position < min(self._standing.end, self._in_sync):\n",
        new="        if False:\n",
        tests=(HANDSHAKE,),
    ),
    Sabotage(
        name="slave-shows-more-than-its-disk-has",
        why="a reader keeps an offset that the slave gives to another message after a power cut",
        path="broker/standby.py",
        old="        copied = min(flushed, self._said[IN_SYNC])\n"
        "        return [min(flushed, self._said[FLUSHED]), copied, copied]\n",
        new="        copied = self._said[IN_SYNC]\n"
        "        return [self._said[FLUSHED], copied, copied]\n",
        tests=(STANDBY,),
    ),
    Sabotage(
        name="slave-shows-what-is-not-in-sync",
        why="a reader keeps an offset that is given to another message after a failover",
        path="broker/standby.py",
        old="        copied = min(flushed, self._said[IN_SYNC])\n",
        new="        copied = min(flushed, self._said[FLUSHED])\n",
        tests=(STANDBY,),
    ),
    Sabotage(
        name="damaged-piece-taken",
        why="a bit that flipped on its way is a gap in the slave's log",
        path="replication/frames.py",
        old="    if crc32(data, crc32(payload[: RANGE_HEAD.size])) != crc:\n",
        new="    if False:\n",
        tests=(HANDSHAKE,),
    ),
    Sabotage(
        name="slave's-proof-not-compared",
        why="whoever reaches the port gets all messages",
        path="replication/source.py",
        old='        if not is_proof(text_of(values, "proof", NAME_SIZE_MAX), self._expected):\n',
        new="        if False:\n",
        tests=(HANDSHAKE,),
    ),
    Sabotage(
        name="master's-proof-not-compared",
        why="a slave takes a stranger's records for its master's",
        path="replication/follower.py",
        old="        if not is_proof(\n"
        '            text_of(values, "proof", NAME_SIZE_MAX), '
        'prove(mine.secret, "master", *parts)\n'
        "        ):\n",
        new="        if False:\n",
        tests=(HANDSHAKE,),
    ),
    Sabotage(
        name="a-part-of-a-record-is-kept",
        why="after a new connection the rest of another record is put behind it",
        path="core_log/following.py",
        old='        self._rest = b""\n\n    def take',
        new="        pass\n\n    def take",
        tests=(TORN, SIMULATION),
    ),
    Sabotage(
        name="slave-deletes-before-it-has-the-acks",
        why="a promoted slave's queue says that messages are unsettled which it has no more",
        path="broker/standby.py",
        old="        if self._release is not None and self._release[1] <= known:\n",
        new="        if self._release is not None:\n",
        tests=(RETENTION,),
    ),
    Sabotage(
        name="slave-begins-where-the-quickest-is",
        why="a promoted slave has lost what the slower of two sessions had not acknowledged",
        path="broker/fold.py",
        old="""            queue.index.begin_at(min(group.cursor.floor for group in queue.groups))
            queue.flushed = queue.visible = queue.index.end_offset
""",
        new="""            queue.index.begin_at(max(group.cursor.floor for group in queue.groups))
            queue.flushed = queue.visible = queue.index.end_offset
""",
        tests=("tests/replication/test_standby.py",),
    ),
    Sabotage(
        name="slave-deletes-what-may-be-cut",
        why="a slave that is told to cut behind its log's start has no state to start with",
        path="broker/standby.py",
        old="        known = min(self.flushed, self._said[IN_SYNC])\n",
        new="        known = self.flushed\n",
        tests=(RETENTION,),
    ),
    Sabotage(
        name="slave-deletes-beyond-its-snapshot",
        why="a slave that loses `state.db` has lost its queues and sessions",
        path="broker/retention.py",
        old="            limit = min(position, last.position)\n",
        new="            limit = position\n",
        tests=(RETENTION,),
    ),
    Sabotage(
        name="epochs-lose-their-marks",
        why="a slave is refused as soon as its master has deleted the first segment of its epoch",
        path="core_log/store.py",
        old="        body = encode_epochs(self.epochs, self._marks)\n",
        new="        body = encode_epochs(self.epochs)\n",
        tests=(RETENTION,),
    ),
    Sabotage(
        name="marks-not-read-at-a-start",
        why="the same after a restart of the master",
        path="core_log/recovery.py",
        old="        self._marks = {**read_marks(self._files, self._directory), **self._marks}\n",
        new="        self._marks = {**self._marks}\n",
        tests=(RETENTION,),
    ),
    Sabotage(
        name="epochs-that-were-cut-come-back",
        why="a slave is cut where it needs not be, and has lost what was in sync",
        path="core_log/store.py",
        old="            self._note_epochs()\n        else:\n",
        new="        else:\n",
        tests=(TORN,),
    ),
    Sabotage(
        name="higher-term-not-heard",
        why="an old master that its slaves have left goes on to acknowledge",
        path="replication/source.py",
        old="        if epochs and term_of(epochs[-1][0]) > term_of(epoch):\n",
        new="        if False:\n",
        tests=(HANDSHAKE,),
    ),
    Sabotage(
        name="lower-term-followed",
        why="a slave throws away what the new master acknowledged, for an old one's sake",
        path="replication/follower.py",
        old="        if term_of(epoch) < term_of(known):\n",
        new="        if False:\n",
        tests=(HANDSHAKE,),
    ),
    Sabotage(
        name="piece-of-an-old-epoch-taken",
        why="records of two masters stand behind each other in one log",
        path="replication/follower.py",
        old="            if piece.epoch != self._epoch:\n",
        new="            if False:\n",
        tests=(HANDSHAKE,),
    ),
    Sabotage(
        name="equal-masters-outrank-each-other",
        why="two masters of one term stop each other",
        path="replication/source.py",
        old="            higher = term > term_of(epoch)\n",
        new="            higher = term >= term_of(epoch)\n",
        tests=(HANDSHAKE,),
    ),
    Sabotage(
        name="replaced-and-still-in-sync",
        why="an old master acknowledges what the new one will never have",
        path="broker/core.py",
        old="        self.replicas.resign()\n",
        new="",
        tests=(LINK,),
    ),
    Sabotage(
        name="a-promotion-stays-in-its-term",
        why="nobody can tell the promoted broker from the one that it replaced",
        path="core_log/store.py",
        old="            epoch = (max(term_of(epoch), above_term) + 1) * TERM_EPOCHS\n",
        new="            pass\n",
        tests=(FENCING,),
    ),
    Sabotage(
        name="fenced-until-a-restart",
        why="an old master that was told to stop goes on when it is started again",
        path="polymq/replicating.py",
        old="    return memory.heard if memory.heard > term_of(last_epoch(settings)) else 0\n",
        new="    return 0\n",
        tests=(FENCING,),
    ),
    Sabotage(
        name="a-half-open-connection-keeps-its-name",
        why="publishers wait until the master believes that the slave's old connection is gone",
        path="replication/server.py",
        old="        return same or self.context.now() - self._heard > QUIET_SECONDS\n",
        new="        return False\n",
        tests=(LINK,),
    ),
    Sabotage(
        name="two-slaves-of-one-name-take-turns",
        why="each of them ends the other's connection, for ever, and nobody is told why",
        path="replication/server.py",
        old="        return same or self.context.now() - self._heard > QUIET_SECONDS\n",
        new="        return True\n",
        tests=(LINK,),
    ),
    Sabotage(
        name="the-unproven-are-never-crowded-out",
        why="idle connections from one address keep all slaves out",
        path="replication/server.py",
        old="        if crowded_out is not None:\n            crowded_out.abort()\n",
        new="",
        tests=(NEWCOMERS,),
    ),
    Sabotage(
        name="the-proven-stay-among-the-unproven",
        why="a flood of connections ends those of the slaves",
        path="replication/server.py",
        old="                self._server.newcomers.remove(self)\n                self._server.j",
        new="                self._server.j",
        tests=(NEWCOMERS,),
    ),
    Sabotage(
        name="failed-handshakes-count-for-ever",
        why="so many failed TLS handshakes as a port may have connections close it until a restart",
        path="net/loop_server.py",
        old="and its loss\n            accepted.close()\n            self._failed(protocol)\n",
        new="and its loss\n            accepted.close()\n",
        tests=("tests/net/test_net_connection.py",),
    ),
)
