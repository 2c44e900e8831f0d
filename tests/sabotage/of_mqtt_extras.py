"""Bugs planted in `$SYS` topics, events of clients, `$queue`, rewriting, and in automatic and
exclusive subscriptions."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

EVENTS = "tests/gateways/mqtt/test_mqtt_client_events.py"
SYS = "tests/gateways/mqtt/test_mqtt_sys_topics.py"
MAPPING = "tests/gateways/mqtt/test_mqtt_mapping.py"
REWRITING = "tests/gateways/mqtt/test_mqtt_rewriting.py"
EXCLUSIVE = "tests/broker/test_exclusive_subscriptions.py"

OF_MQTT_EXTRAS = (
    Sabotage(
        name="sys-values-after-rights-are-lost",
        why="a client goes on to get values that it may not read any more",
        path="gateways/mqtt/sys_values.py",
        old="            if session is None or not session.is_subscribed(address):\n",
        new="            if session is None:\n",
        tests=(SYS,),
    ),
    Sabotage(
        name="sys-values-for-nobody",
        why="a server without a monitor makes values every ten seconds for ever",
        path="gateways/mqtt/sys_values.py",
        old="        watcher = self._watchers.pop(receiver, None)\n",
        new="        watcher = None\n",
        tests=(SYS,),
    ),
    Sabotage(
        name="sys-packets-for-each-receiver",
        why="ten thousand monitors cost ten thousand encodings",
        path="gateways/mqtt/sys_values.py",
        old="            self._frames[key] = made\n",
        new="",
        tests=(SYS,),
    ),
    Sabotage(
        name="sys-slow-reader-misses-the-last",
        why="a monitor that was slow for a moment shows an old value until it changes again",
        path="gateways/mqtt/sys_values.py",
        old="        if not watcher.members or receiver.credit() <= 0:\n",
        new="        if not watcher.members or receiver.credit() <= 0:\n"
        "            for member in watcher.members.values():\n"
        "                member.seen = self._round\n",
        tests=(SYS,),
    ),
    Sabotage(
        name="sys-values-for-each-filter",
        why="a monitor with two filters that overlap gets each value twice",
        path="gateways/mqtt/sys_values.py",
        old="            self._send_values(receiver, tuple(old), retain=False)\n",
        new="            for key in old:\n"
        "                self._send_values(receiver, (key,), retain=False)\n",
        tests=(SYS,),
    ),
    Sabotage(
        name="sys-values-with-one-identifier",
        why="a client does not learn that its second subscription matches a value, too",
        path="gateways/mqtt/sys_values.py",
        old="                    identifiers.setdefault(topic, set()).add(identifier)\n",
        new="                    identifiers[topic] = {identifier}\n",
        tests=(SYS,),
    ),
    Sabotage(
        name="events-without-a-rate",
        why="a flood of connections is a flood of messages for everybody who watches clients",
        path="gateways/mqtt/client_events.py",
        old="        if self._taken >= self._rate_max or not room:\n",
        new="        if not room:\n",
        tests=(EVENTS,),
    ),
    Sabotage(
        name="events-for-each-filter",
        why="a monitor with two filters that overlap gets each event twice",
        path="gateways/mqtt/client_events.py",
        old="            for receiver in list(self._all | self._some.get(event.client, {})):\n",
        new="            for receiver in [*self._all, *self._some.get(event.client, {})]:\n",
        tests=(EVENTS,),
    ),
    Sabotage(
        name="events-after-rights-are-lost",
        why="a client goes on to see who connects, when it may not any more",
        path="gateways/mqtt/client_events.py",
        old="            if receiver.session is None or "
        "not receiver.session.is_subscribed(address):\n",
        new="            if receiver.session is None:\n",
        tests=(EVENTS,),
    ),
    Sabotage(
        name="events-of-others-use-up-the-rate",
        why="what nobody wants to know takes the place of what somebody waits for",
        path="gateways/mqtt/client_events.py",
        old="        if self._of_all[kind] > 0:\n",
        new="        if self._of_all:\n",
        tests=(EVENTS,),
    ),
    Sabotage(
        name="events-of-watchers-that-left",
        why="who watched clients and went is kept in memory for ever",
        path="gateways/mqtt/client_events.py",
        old="        for address, wanted in self._of.pop(receiver, {}).items():\n",
        new="        for address, wanted in self._of.get(receiver, {}).items():\n",
        tests=(EVENTS,),
    ),
    Sabotage(
        name="a-queue-for-each-client",
        why="every client that subscribes to $queue/... gets every message",
        path="gateways/mqtt/topic_filters.py",
        old="    return pattern in (SHARE, QUEUE) or ",
        new="    return pattern == SHARE or ",
        tests=(MAPPING,),
    ),
    Sabotage(
        name="rewriting-with-a-wildcard-of-the-client",
        why="a client that calls itself # reads or writes what is for all others",
        path="gateways/mqtt/rewriting.py",
        old='    return bool(name) and not any(character in "+#/\\0" for character in name)\n',
        new="    return bool(name)\n",
        tests=(REWRITING,),
    ),
    Sabotage(
        name="rewriting-shares-the-names-of-clients",
        why="what one client publishes goes to the topic of the first that published there",
        path="gateways/mqtt/mapping.py",
        old="        if self._rewriting.names_client:\n",
        new="        if False:\n",
        tests=(REWRITING,),
    ),
    Sabotage(
        name="exclusive-forgotten-by-the-snapshot",
        why="after a restart two workers have the same jobs",
        path="broker/sessions/state.py",
        old="            if is_special(subscription.options) or subscription.options.exclusive\n",
        new="            if is_special(subscription.options)\n",
        tests=(EXCLUSIVE,),
    ),
    Sabotage(
        name="exclusive-held-by-a-session-that-ended",
        why="nobody can ever have the subscription again",
        path="broker/sessions/session.py",
        old="            self.sessions.exclusive.ended(self, found)\n",
        new="",
        tests=(EXCLUSIVE,),
    ),
)
