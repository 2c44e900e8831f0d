"""Bugs planted in how clients prove who they are: SCRAM and AUTH packets, imports, tokens."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

SCRAM = "tests/broker/test_scram.py"
AUTHENTICATION = "tests/gateways/mqtt/test_mqtt_authentication.py"
PROTOCOL = "tests/gateways/mqtt/test_mqtt_protocol.py"

OF_THE_LOGINS = (
    Sabotage(
        name="scram-any-proof",
        why="whoever knows a user's name is that user",
        path="broker/accounts/scram.py",
        old="        if not hmac.compare_digest(found, self.keys.stored_key):\n",
        new="        if False:\n",
        tests=(SCRAM,),
    ),
    Sabotage(
        name="scram-header-changed-on-the-way",
        why="who is between client and server takes channel binding out of the first message",
        path="broker/accounts/scram.py",
        old="        if _base64(fields[0][2:]) != self._header:\n",
        new="        if False:\n",
        tests=(SCRAM,),
    ),
    Sabotage(
        name="scram-salt-tells-who-is-there",
        why="a restart tells which users there are: only their salts stay",
        path="broker/accounts/scram_logins.py",
        old="        if row is not None:\n",
        new="        if False:\n",
        tests=(SCRAM,),
    ),
    Sabotage(
        name="scram-guesses-are-free",
        why="passwords are guessed by SCRAM, thousands a second",
        path="broker/accounts/logins.py",
        old="            self._wrong(attempt, [asked.answer])\n",
        new="            asked.answer(Refused(Reason.NOT_AUTHENTICATED, WRONG))\n",
        tests=(SCRAM,),
    ),
    Sabotage(
        name="scram-old-password-still-good",
        why="an exchange that was begun before a change of the password gets in by the old one",
        path="broker/accounts/scram_logins.py",
        old=" and self._keys_of(exchange.user) == exchange.keys\n",
        new="\n",
        tests=(SCRAM,),
    ),
    Sabotage(
        name="client-id-widens-a-rule",
        why="a client that calls itself + may publish where all others may",
        path="broker/accounts/permissions.py",
        old="            put = name if is_level(name) else unnamed\n",
        new='            put = (ONE_LEVEL if name == "+" else name) or unnamed\n',
        tests=("tests/broker/test_permissions.py",),
    ),
    Sabotage(
        name="mqtt-authenticates-as-another",
        why="a connection passes the next authentication with anybody's password",
        path="gateways/mqtt/connecting.py",
        old="        if principal == self._principal:\n",
        new="        if not isinstance(principal, Refused):\n",
        tests=(AUTHENTICATION,),
    ),
    Sabotage(
        name="mqtt-exchange-forgotten",
        why="clients that go within an exchange use up all of them",
        path="gateways/mqtt/connecting.py",
        old="        if authentication is not None:\n            authentication.end()\n",
        new="",
        tests=(AUTHENTICATION,),
    ),
    Sabotage(
        name="mqtt-publishes-before-it-is-known",
        why="a stranger publishes before it has proven who it is",
        path="gateways/mqtt/protocol.py",
        old="                state = State.AUTHENTICATING\n",
        new="",
        tests=(PROTOCOL, AUTHENTICATION),
    ),
    Sabotage(
        name="imported-hash-stays",
        why="a weak hash of another broker's file stays for ever",
        path="broker/accounts/logins.py",
        old="            self._users.renew_hash(user, new)\n",
        new="            pass\n",
        tests=("tests/polymq/test_mosquitto_files.py",),
    ),
    Sabotage(
        name="imported-rule-reaches-further",
        why="a rule for the topic v1.2 is one for everything at v1/2, too",
        path="polymq/mosquitto_files.py",
        old='    if "." in levels[0]:\n',
        new="    if False:\n",
        tests=("tests/polymq/test_mosquitto_files.py",),
    ),
    Sabotage(
        name="token-of-anybody",
        why="whoever has a token is whoever it names itself",
        path="broker/accounts/token_logins.py",
        old="            return found[0].user == name\n",
        new="            return True\n",
        tests=("tests/broker/test_token_logins.py",),
    ),
    Sabotage(
        name="token-never-ends",
        why="a connection outlives the token that it came with",
        path="broker/admission/admission.py",
        old="        if client_id is not None or isinstance(principal, TokenPrincipal):\n",
        new="        if client_id is not None:\n",
        tests=("tests/broker/test_token_logins.py",),
    ),
    Sabotage(
        name="mqtt-expiry-without-its-code",
        why="a client cannot tell that it needs a new token from that it may not be here",
        path="gateways/mqtt/connection.py",
        old="        has_expired = why == LOGIN_EXPIRED\n",
        new="        has_expired = False\n",
        tests=("tests/gateways/mqtt/test_mqtt5_client.py",),
    ),
)
