"""Mistakes in who is let in and who may do what."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

_RULES = ("tests/broker/test_permissions.py",)
_LOGINS = ("tests/broker/test_logins.py",)
_KEYS = ("tests/broker/test_access_keys.py",)
_CALLERS = ("tests/gateways/rocketmq/test_rocketmq_users.py",)
_OWNERS = ("tests/broker/test_owners.py",)
_PERMITTED = ("tests/broker/test_permitted.py",)

OF_THE_USERS = (
    Sabotage(
        name="dead-letters-of-nobody",
        why="a user writes into the queues and topics of others by letting messages expire",
        path="broker/queues/dead_letters.py",
        old="        permitted = self.places.may_dead_letter(name, target, key)\n",
        new="        permitted = True\n",
        tests=_OWNERS,
    ),
    Sabotage(
        name="dead-letters-checked-with-the-queue-s-name",
        why="a dead letter that keeps its key is checked for another place than its own",
        path="broker/queues/dead_letters.py",
        old="            _, key = exchange_and_key(meta.topic, meta.tag, meta.properties)\n",
        new="            key = name\n",
        tests=_OWNERS,
    ),
    Sabotage(
        name="dead-letters-outlive-the-right-to-read",
        why="who may not read a topic any more reads it by way of a queue that lets it expire",
        path="broker/exchanges.py",
        old="        return may_read and self.owners.may_publish(",
        new="        return self.owners.may_publish(",
        tests=_OWNERS,
    ),
    Sabotage(
        name="links-outlive-rights",
        why="an exchange binding goes on carrying what its owner may not read any more",
        path="broker/access/admission.py",
        old="        self._engine.exchanges.graph.rights_changed(change)\n",
        new="",
        tests=_OWNERS,
    ),
    Sabotage(
        name="links-of-nobody",
        why="a binding that somebody made goes on after a restart, whatever its rights are",
        path="broker/exchanges.py",
        old="            [list(key), list(link.words), *([link.by] if link.by else ())]\n",
        new="            [list(key), list(link.words)]\n",
        tests=_OWNERS,
    ),
    Sabotage(
        name="a-name-inherits",
        why="a user gets what a deleted one of the same name has left",
        path="broker/access/owners.py",
        old="        if user is not None and user.number != int(number):\n",
        new="        if False:\n",
        tests=_OWNERS,
    ),
    Sabotage(
        name="allow-wins-over-deny",
        why="a rule that takes something away takes nothing away",
        path="broker/access/permissions.py",
        old="""                return Decision(False, rule)
        for pattern, rule in self._allows.get(action, ()):
            if any(matches(pattern, view) for view in seen):
""",
        new="""                continue
        for pattern, rule in self._allows.get(action, ()):
            if any(matches(pattern, view) for view in seen):
""",
        tests=_RULES,
    ),
    Sabotage(
        name="filter-need-only-overlap",
        why="whoever may read one place of a filter reads all of it",
        path="broker/access/permissions.py",
        old="            if any(covers(pattern, view) for view in seen):\n",
        new="            if any(overlaps(pattern, view) for view in seen):\n",
        tests=_RULES,
    ),
    Sabotage(
        name="client-id-as-wildcard",
        why="a client whose id is our own sign for a wildcard may do what is every other client's",
        path="broker/access/permissions.py",
        old="    return bool(name) and not any(\n",
        new="    return bool(name) or not any(\n",
        tests=_RULES,
    ),
    Sabotage(
        name="denied-name-dodged",
        why="a client whose id is no word is denied nothing",
        path="broker/access/permissions.py",
        old="            pattern = _resolved(rule.pattern, names, None if allow else ONE_WORD)\n",
        new="            pattern = _resolved(rule.pattern, names, None)\n",
        tests=_RULES,
    ),
    Sabotage(
        name="topic-with-dots-read-one-way",
        why="what is denied for orders.eu is allowed for the exchange of that name",
        path="broker/access/permissions.py",
        old='    if "." in words[0]:\n',
        new="    if False:\n",
        tests=_RULES,
    ),
    Sabotage(
        name="system-topics-open",
        why="an admin, or who takes its place, writes the broker's own state",
        path="broker/access/permissions.py",
        old="    if is_own_topic(topic):\n        return True\n",
        new="",
        tests=_RULES,
    ),
    Sabotage(
        name="nul-in-a-password",
        why="a password with a NUL behind it is as good as the password",
        path="broker/access/passwords.py",
        old='        return same and cut == password and b"\\x00" not in password\n',
        new="        return same and cut == password\n",
        tests=_LOGINS,
    ),
    Sabotage(
        name="unknown-user-costs-nothing",
        why="how long an answer takes tells which users there are",
        path="broker/access/logins.py",
        old="        stored = passwords.UNKNOWN if found is None else found.password_hash\n",
        new='        stored = "" if found is None else found.password_hash\n',
        tests=_LOGINS,
    ),
    Sabotage(
        name="cache-outlives-the-password",
        why="a password that was changed is good for another minute",
        path="broker/access/logins.py",
        old=" and found.password_hash == known.password_hash:\n",
        new=":\n",
        tests=_LOGINS,
    ),
    Sabotage(
        name="disabled-user-let-in",
        why="who was shut out comes in with its password",
        path="broker/access/logins.py",
        old="        if right and found is not None and found.password_hash == stored and "
        "not found.disabled:\n",
        new="        if right and found is not None and found.password_hash == stored:\n",
        tests=_LOGINS,
    ),
    Sabotage(
        name="guesses-under-way-uncounted",
        why="a thousand guesses at the same time are one",
        path="broker/access/logins.py",
        old="        if recent + self._trying.get(pair, 0) < self._limits.login_failures_max:\n",
        new="        if recent < self._limits.login_failures_max:\n",
        tests=_LOGINS,
    ),
    Sabotage(
        name="rules-survive-their-user",
        why="who gets the name later gets the rights as well",
        path="broker/access/users.py",
        old="        for key in self._by_subject.pop(name, {}):\n",
        new="        for key in {}:\n",
        tests=_LOGINS,
    ),
    Sabotage(
        name="stale-template",
        why="who lost a right goes on publishing for as long as its connection lasts",
        path="broker/access/permitted.py",
        old="        return self.version == self._users.version and self.inner.valid\n",
        new="        return self.inner.valid\n",
        tests=_PERMITTED,
    ),
    Sabotage(
        name="stale-template-published",
        why="a publish in the middle of a change goes through",
        path="broker/access/permitted.py",
        old="        if template.version != self._users.version:\n            self._check(",
        new="        if False:\n            self._check(",
        tests=_PERMITTED,
    ),
    Sabotage(
        name="consumer-outlives-its-right",
        why="messages go on to who may not have them any more",
        path="broker/access/admission.py",
        old="        self._engine.readers.check(",
        new="        (lambda _: None)(",
        tests=_PERMITTED,
    ),
    Sabotage(
        name="session-outlives-its-right",
        why="a connected subscriber goes on reading what was denied to it",
        path="broker/access/admission.py",
        old="        if lost and session.link is not None:\n",
        new="        if not lost and session.link is None:\n",
        tests=_PERMITTED,
    ),
    Sabotage(
        name="resumed-session-unchecked",
        why="a subscription from before the change delivers as soon as its client is back",
        path="broker/access/permitted.py",
        old=" in [words for words in session.subscriptions if not self.may_read(words)]:\n",
        new=" in []:\n",
        tests=_PERMITTED,
    ),
    Sabotage(
        name="session-taken-over",
        why="who knows a client id gets another user's messages",
        path="broker/sessions.py",
        old="        if existing is not None and existing.principal != principal:\n",
        new="        if False:\n",
        tests=_PERMITTED,
    ),
    Sabotage(
        name="queue-read-by-its-name",
        why="who may read a queue's name reads what somebody bound to it",
        path="broker/access/permitted.py",
        old="        for words in filters:\n            self._check_filter(words)\n",
        new="",
        tests=_PERMITTED,
    ),
    Sabotage(
        name="topic-made-without-the-right",
        why="a publisher fills the broker with topics",
        path="broker/access/permitted.py",
        old="        if not self._engine.exchanges.is_made(topic):\n"
        "            self._check(Action.CREATE, words)\n",
        new="",
        tests=_PERMITTED,
    ),
    Sabotage(
        name="door-stays-open",
        why="who came in before the first user stays in, without a check",
        path="broker/access/admission.py",
        old="            if inside.principal is None and not self.is_open:\n",
        new="            if False:\n",
        tests=_LOGINS,
    ),
    Sabotage(
        name="mqtt-reads-before-the-login",
        why="a stranger's packets are handled while its password is looked at",
        path="gateways/mqtt/client.py",
        old="            while at < end and not self._asking:\n",
        new="            while at < end:\n",
        tests=("tests/gateways/mqtt/test_mqtt_login.py",),
    ),
    Sabotage(
        name="mqtt-templates-shared",
        why="what one client may publish, the next may as well",
        path="gateways/mqtt/client.py",
        old="        self._mapping = self._shared.mapping.of(self._port)\n",
        new="",
        tests=("tests/gateways/mqtt/test_mqtt_login.py",),
    ),
    Sabotage(
        name="mqtt-will-unchecked",
        why="a will goes where its client may not publish",
        path="gateways/mqtt/client.py",
        old="        self._port.check_publish(*self._mapping.place(will.topic))\n",
        new="",
        tests=("tests/gateways/mqtt/test_mqtt_login.py",),
    ),
    Sabotage(
        name="amqp-templates-shared",
        why="what one client may publish, the next may as well",
        path="gateways/amqp/client.py",
        old="templates=self._templates.of(port))\n",
        new="templates=self._templates)\n",
        tests=("tests/gateways/amqp/test_amqp_login.py",),
    ),
    Sabotage(
        name="any-signature-is-right",
        why="who knows the name of a key, which is no secret, has its rights",
        path="broker/access/access_keys.py",
        old="        return found[0] if found is not None and right else None\n",
        new="        return found[0] if found is not None else None\n",
        tests=_KEYS,
    ),
    Sabotage(
        name="removed-key-goes-on",
        why="a key that was given away by mistake can not be taken back",
        path="broker/access/access_keys.py",
        old="        for key in before:\n",
        new="        for key in ():\n",
        tests=_KEYS,
    ),
    Sabotage(
        name="disabled-user-signs",
        why="who was shut out goes on with its access keys",
        path="broker/access/logins.py",
        old="        if name is None or self._users.users[name].disabled:\n",
        new="        if name is None:\n",
        tests=_KEYS,
    ),
    Sabotage(
        name="key-ends-every-connection",
        why="taking a key from one program cuts off all that its user has",
        path="broker/access/admission.py",
        old="                and change.access_key in (None, inside.access_key)\n",
        new="",
        tests=_KEYS,
    ),
    Sabotage(
        name="rocketmq-body-unsigned",
        why="whoever stands between client and server changes the message and not its signature",
        path="remoting/signing.py",
        old=" + body\n\n\ndef sign(",
        new="\n\n\ndef sign(",
        tests=("tests/remoting/test_remoting_signing.py",),
    ),
    Sabotage(
        name="rocketmq-signed-once",
        why="who signed one request signs all that come over its connection",
        path="gateways/rocketmq/callers.py",
        old="        if signature is None:\n            if self._unsigned is None:\n",
        new="        if signature is None and self._signed:\n"
        "            return next(iter(self._signed.values()))\n"
        "        if signature is None:\n            if self._unsigned is None:\n",
        tests=_CALLERS,
    ),
    Sabotage(
        name="rocketmq-pull-of-the-last-caller",
        why="a pull that waits reads with the rights of whoever asks next over its connection",
        path="gateways/rocketmq/pulling.py",
        old="            info = mapping.find_topic(pull.port, fields.topic, fields.user_topic)\n"
        "        except Refused as error:\n"
        "            self._answer(serial,",
        new='            port = getattr(self._client, "port", pull.port)\n'
        "            info = mapping.find_topic(port, fields.topic, fields.user_topic)\n"
        "        except Refused as error:\n"
        "            self._answer(serial,",
        tests=_CALLERS,
    ),
)
