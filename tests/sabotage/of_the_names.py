"""Sabotages of `namesrv` and of what clients know of it: who is named, and who is not."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

TABLES = "tests/namesrv/test_names_tables.py"
REGISTRAR = "tests/remoting/test_remoting_registrar.py"
SERVER = "tests/namesrv/test_names_server.py"

OF_THE_NAMES = (
    Sabotage(
        name="names-signed-fields-hide-text",
        why="who stands in between cuts the end off a signed value, and the name server keeps it",
        path="namesrv/login.py",
        old="        if unknown is not None:\n",
        new="        if False:\n",
        tests=("tests/namesrv/test_names_login.py",),
    ),
    Sabotage(
        name="names-silent-broker-stays",
        why="clients go on asking a machine that is gone",
        path="namesrv/tables.py",
        old="if now - live.heard > live.silence_seconds]",
        new="if now - live.heard > 2 * live.silence_seconds]",
        tests=(TABLES,),
    ),
    Sabotage(
        name="names-old-connection-takes-broker-out",
        why="a broker that came back vanishes when its old connection is found dead",
        path="namesrv/tables.py",
        old="            self._unbind(before.connection, (identity.cluster, identity.address))\n",
        new="            pass\n",
        tests=(TABLES,),
    ),
    Sabotage(
        name="names-master-of-old-is-let-in",
        why="clients write to a master that was replaced",
        path="namesrv/tables.py",
        old="live.version.state_version > table.data_version.state_version",
        new="live.version.state_version < 0",
        tests=(TABLES,),
    ),
    Sabotage(
        name="names-key-answered-before-it-is-kept",
        why="a crash takes what an administrator was told is kept",
        path="namesrv/server.py",
        old="                await self._keeper.keep(answer.change.stored)\n",
        new="                self.requests.key_values.accept(answer.change)\n"
        "                await self._keeper.keep(answer.change.stored)\n",
        tests=(SERVER,),
    ),
    Sabotage(
        name="names-damaged-registration-is-taken",
        why="routes name what no broker said",
        path="namesrv/requests.py",
        old="body_checksum(command.body) != header.body_crc32:\n",
        new="not command.body:\n",
        tests=(TABLES,),
    ),
    Sabotage(
        name="names-large-table-is-json",
        why="a broker with a hundred thousand topics is in no name server's tables",
        path="remoting/registrar.py",
        old="len(some), len(some) == JSON_TOPICS_MAX\n",
        new="len(some), False\n",
        tests=(REGISTRAR,),
    ),
    Sabotage(
        name="names-large-table-is-written-in-one-go",
        why="clients wait while the topics are registered",
        path="remoting/registration.py",
        old="            rows.clear()\n            yield Pause(seconds=0)\n",
        new="            rows.clear()\n",
        tests=("tests/remoting/test_remoting_registration.py",),
    ),
    Sabotage(
        name="clients-forget-routes",
        why="traffic stops when the name servers are away",
        path="remoting/routes.py",
        old="            return self._known.get(topic)\n",
        new="            return self._known.pop(topic, None)\n",
        tests=("tests/remoting/test_remoting_routes.py",),
    ),
    Sabotage(
        name="ordered-message-goes-elsewhere",
        why="messages of one key overtake each other after a failure",
        path="remoting/producer.py",
        old="range(1 if fixed else self.settings.attempts_max)",
        new="range(self.settings.attempts_max)",
        tests=("tests/remoting/test_remoting_producer.py",),
    ),
    Sabotage(
        name="consumer-commits-what-is-not-handled",
        why="a consumer that dies loses the messages that it had pulled",
        path="remoting/consumer.py",
        old="        if not wanted:\n",
        new="        if True:\n",
        tests=("tests/remoting/test_remoting_consumer.py",),
    ),
    Sabotage(
        name="queue-that-comes-back-does-not-wait-for-its-handler",
        why="two handlers work at one queue, and its order is lost",
        path="remoting/consumer.py",
        old=" and queue not in self._leaving:\n",
        new=":\n",
        tests=("tests/remoting/test_remoting_reading.py",),
    ),
    Sabotage(
        name="lock-is-believed-in-without-an-end",
        why="a member that the broker has forgotten reads beside the one that has the lock",
        path="remoting/ordering.py",
        old="> self.clock()\n",
        new="> 0\n",
        tests=("tests/remoting/test_remoting_reading.py",),
    ),
    Sabotage(
        name="work-that-raised-is-committed",
        why="a message tells of what was not done",
        path="remoting/transactions.py",
        old="            return Decision.UNKNOWN\n        if not",
        new="            return Decision.COMMIT\n        if not",
        tests=("tests/remoting/test_remoting_transactions.py",),
    ),
    Sabotage(
        name="closed-while-it-is-closed",
        why="a flood ends the name server: it looks for a connection that has just ended",
        path="namesrv/server.py",
        old="            self.roster.gone(number)  # before",
        new="            #",
        tests=("tests/namesrv/test_names_server.py",),
    ),
)
