"""Mistakes in what RocketMQ's clients may ask for, and in what they are answered."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

_RIGHTS = ("tests/gateways/rocketmq/test_rocketmq_rights.py",)
_SERVER = ("tests/gateways/rocketmq/test_rocketmq_server.py",)
_USERS = ("tests/gateways/rocketmq/test_rocketmq_users.py",)
_NAMES = ("tests/namesrv/test_names_login.py",)
_HALVES = ("tests/broker/test_half_messages.py",)

OF_THE_REMOTING = (
    Sabotage(
        name="rocketmq-heartbeat-needs-no-group",
        why="a stranger to a group joins it, takes queues from its members, and poisons its filter",
        path="gateways/rocketmq/rights.py",
        old="    RequestCode.HEART_BEAT: Right.BEAT,\n",
        new="    RequestCode.HEART_BEAT: Right.NOTHING,\n",
        tests=_RIGHTS,
    ),
    Sabotage(
        name="rocketmq-locks-need-no-group",
        why="who may not be in a group locks its queues, and nobody consumes them",
        path="gateways/rocketmq/rights.py",
        old="    RequestCode.LOCK_BATCH_MQ: Right.LOCK,\n",
        new="    RequestCode.LOCK_BATCH_MQ: Right.NOTHING,\n",
        tests=_RIGHTS,
    ),
    Sabotage(
        name="rocketmq-nobody-is-admitted",
        why="requests without a row of their own are answered to who may do nothing",
        path="gateways/rocketmq/rights.py",
        old="    port.check_admitted()\n",
        new="",
        tests=_RIGHTS,
    ),
    Sabotage(
        name="rocketmq-request-without-a-right",
        why="a new request is served to everybody until somebody thinks of its right",
        path="gateways/rocketmq/rights.py",
        old="    RequestCode.GET_PRODUCER_CONNECTIONS: Right.ADMIN,\n",
        new="",
        tests=_RIGHTS,
    ),
    Sabotage(
        name="rocketmq-client-id-taken",
        why="a user takes the client id of another one, and speaks for its client",
        path="gateways/rocketmq/members.py",
        old="        return member is not None and member.owner != owner\n",
        new="        return False\n",
        tests=_RIGHTS,
    ),
    Sabotage(
        name="rocketmq-lock-of-another-user",
        why="whoever knows a client id frees the locks of that client",
        path="gateways/rocketmq/locks.py",
        old="            if held is not None and held[0] == (owner, client_id):\n",
        new="            if held is not None and held[0][1] == client_id:\n",
        tests=_RIGHTS,
    ),
    Sabotage(
        name="half-message-of-another-user",
        why="whoever can count ends the transactions of others",
        path="broker/half_messages.py",
        old="            if decision.decider not in (None, half.owner):\n",
        new="            if False:\n",
        tests=_HALVES,
    ),
    Sabotage(
        name="half-message-shown-to-others",
        why="the question about a transaction shows its message to any producer of the group",
        path="gateways/rocketmq/transactions.py",
        old="        if shared.port.for_principal(producer.owner).may_end_half(half.owner)\n",
        new="",
        tests=_RIGHTS,
    ),
    Sabotage(
        name="half-message-decided-otherwise",
        why="a producer is told that its commit counts, and the message was rolled back before",
        path="broker/half_messages.py",
        old="        if commit and why is not None:\n",
        new="        if False and why is not None:\n",
        tests=_HALVES,
    ),
    Sabotage(
        name="group-made-without-the-right",
        why="the table of consumer groups is filled, for ever, by whoever may be in any group",
        path="broker/access/permitted_reading.py",
        old="            self._check(Action.CREATE, group_place(name)[:1])\n",
        new="            pass\n",
        tests=_RIGHTS,
    ),
    Sabotage(
        name="retries-dead-with-users",
        why="what a consumer gives back is refused, as a publish to a topic that is closed",
        path="broker/access/permitted_returns.py",
        old="        if action in (Action.PUBLISH, Action.CREATE) and words[0] in self._places:\n",
        new="        if False:\n",
        tests=_RIGHTS,
    ),
    Sabotage(
        name="rocketmq-signed-with-more",
        why="a piece of the body, moved into a field of its own, leaves another signed message",
        path="gateways/rocketmq/connection.py",
        old="        if unknown is not None:\n",
        new="        if False:\n",
        tests=_USERS,
    ),
    Sabotage(
        name="rocketmq-tls-leads-to-plain",
        why="clients that came with TLS are sent to the port without, where nobody hears them",
        path="gateways/rocketmq/server.py",
        old="        return await self._listen(host, port, tls, advertised)\n",
        new="        return await self._listen(host, port, tls, self._advertise)\n",
        tests=_SERVER,
    ),
    Sabotage(
        name="names-changed-without-the-key",
        why="whoever reaches the name server leads all clients to a broker of its own",
        path="namesrv/login.py",
        old="        if command.code in READS and not self.reads:\n",
        new="        if command.code == RequestCode.REGISTER_BROKER or not self.reads:\n",
        tests=_NAMES,
    ),
    Sabotage(
        name="names-key-by-its-name",
        why="the name of the key, which is no secret, is enough",
        path="namesrv/login.py",
        old="        if not right or signature.access_key",
        new="        if signature.access_key",
        tests=_NAMES,
    ),
    Sabotage(
        name="silent-strangers-stay",
        why="a thousand connections that say nothing keep all clients out",
        path="gateways/rocketmq/client.py",
        old="            if due <= now:\n",
        new="            if False:\n",
        tests=_SERVER,
    ),
    Sabotage(
        name="silent-strangers-stay-at-names",
        why="connections that say nothing keep brokers and clients out of the name server",
        path="namesrv/server.py",
        old="                if begun:\n",
        new="                if False:\n",
        tests=("tests/namesrv/test_names_server.py",),
    ),
    Sabotage(
        name="stopped-group-goes-on",
        why="an administrator stops a group, and it consumes",
        path="gateways/rocketmq/pulling.py",
        old='        if not group.settings.get("consumeEnable", True):\n',
        new="        if False:\n",
        tests=_SERVER,
    ),
    Sabotage(
        name="pull-of-none-gets-none",
        why="RocketMQ's pull consumer for Go never gets a message",
        path="gateways/rocketmq/pulling.py",
        old="        return min(max(fields.count_max, 1), most)\n",
        new="        return min(fields.count_max, most)\n",
        tests=_SERVER,
    ),
    Sabotage(
        name="granted-for-ever",
        why="a right that was taken back goes on working for who has used it",
        path="broker/access/rights.py",
        old="            self._granted.clear()\n\n    def _check_admitted",
        new="\n    def _check_admitted",
        tests=_RIGHTS,
    ),
)
