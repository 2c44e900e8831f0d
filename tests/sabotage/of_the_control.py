"""Bugs planted in administration over MQTT, and in the import of mosquitto's dynamic security."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

REQUESTS = "tests/polymq/dynamic_security/test_requests.py"
FILE = "tests/polymq/mosquitto/test_dynamic_security.py"
CLIENTS = "interop_tests/test_mqtt_dynamic_security.py"

OF_THE_CONTROL = (
    Sabotage(
        name="control-right-is-asked-for-once",
        why="an administrator who was removed goes on with what waits",
        path="polymq/dynamic_security/requests.py",
        old='are no users any more")\n        caller.port.principal.check_managing("admin")\n',
        new='are no users any more")\n',
        tests=(REQUESTS,),
    ),
    Sabotage(
        name="control-before-the-first-user",
        why="any program of the machine makes itself the administrator",
        path="polymq/dynamic_security/requests.py",
        old="        if not self._users.closed:\n            raise Refused(\n",
        new="        if False:\n            raise Refused(\n",
        tests=(f"{CLIENTS}::test_before_the_first_user_nobody_is_listened_to",),
    ),
    Sabotage(
        name="control-any-number-waits",
        why="a client that sends requests quickly fills the memory",
        path="polymq/dynamic_security/requests.py",
        old="        if len(self._waiting) >= WAITING_MAX:\n",
        new="        if False:\n",
        tests=(REQUESTS,),
    ),
    Sabotage(
        name="control-answers-for-everybody",
        why="the answer to one administrator shows others what it asked for",
        path="gateways/mqtt/control.py",
        old="            self._answer(receiver, body)\n",
        new="            [self._answer(one, body) for one in list(self._subscribed)]\n",
        tests=(f"{CLIENTS}::test_answers_come_to_who_asked",),
    ),
    Sabotage(
        name="control-topics-with-dots",
        why="a rule for a/b lets clients publish to a.b, which mosquitto keeps them out of",
        path="polymq/mosquitto/access_lists.py",
        old="        topic = exact_text(topic)\n        try:\n",
        new="        try:\n",
        tests=(FILE,),
    ),
    Sabotage(
        name="control-admin-of-mosquitto-is-ours",
        why="a client that may change users there may do everything here",
        path="polymq/mosquitto/dynamic_security.py",
        old="    if name in ROLE_RULES:\n",
        new="    if False:\n",
        tests=(FILE,),
    ),
    Sabotage(
        name="control-receives-what-it-may-not",
        why="a client subscribes to what mosquitto would not have sent it",
        path="polymq/mosquitto/dynamic_security.py",
        old="        if acltype == RECEIVE and not acl.allow:\n",
        new="        if False:\n",
        tests=(FILE,),
    ),
)
